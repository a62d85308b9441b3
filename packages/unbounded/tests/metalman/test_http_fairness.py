"""Many clients of the HTTP server at once: all are served, and no one at the cost of others."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import statistics
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.metalman.support.fixed_boots import FixedBoots
from tests.support.waiting import eventually
from unbounded.metalman.http.file_sender import MinimumRate
from unbounded.metalman.http.server import HttpServer, HttpServerSettings

WANTED = HttpServerSettings("127.0.0.1", 0, least=MinimumRate(64 << 10, 2.0))
MIB = 1 << 20


@asynccontextmanager
async def serving(folder: Path, wanted: HttpServerSettings = WANTED) -> AsyncIterator[tuple[HttpServer, FixedBoots]]:
    boots = FixedBoots(folder)
    async with HttpServer(wanted, boots, CollectorRegistry()).serving() as server:
        yield server, boots


class Readers:
    """Clients in a thread that read as fast as they are sent to; `got` is in bytes, `took` in seconds, by source."""

    def __init__(self, port: int, path: str, sources: list[str]) -> None:
        self.got = dict.fromkeys(sources, 0)
        self.took: dict[str, float] = {}
        self.reset = 0
        self._port = port
        self._request = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        self._sources = sources
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Readers]:
        """Read while inside, or until all is there."""
        self._thread.start()
        try:
            yield self
        finally:
            self._end.set()
            self._thread.join()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        start, room = time.monotonic(), memoryview(bytearray(MIB))
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            for source in self._sources:
                sock = stack.enter_context(socket.socket())
                sock.bind((source, 0))
                sock.connect(("127.0.0.1", self._port))
                sock.sendall(self._request)
                sock.setblocking(False)
                selector.register(sock, selectors.EVENT_READ, (sock, source))
            while selector.get_map() and not self._end.is_set():
                for key, _ in selector.select(0.1):
                    sock, source = key.data
                    try:
                        count = sock.recv_into(room)
                    except ConnectionError:
                        self.reset += 1
                        count = 0
                    self.got[source] += count
                    if not count:
                        self.took[source] = time.monotonic() - start
                        selector.unregister(sock)


def sources(network: int, count: int) -> list[str]:
    return [f"127.0.{network}.{number}" for number in range(1, count + 1)]


@pytest.mark.slow
async def test_two_hundred_clients_at_once_all_finish_about_the_same_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, boots):
        boots.put_zeros("image", 8 * MIB)
        with Readers(server.port, "/image", sources(1, 200)).reading() as readers:
            await eventually(lambda: readers.done, within_s=90)
        assert readers.reset == 0
        assert all(got > 8 * MIB for got in readers.got.values())
        assert max(readers.took.values()) <= 2 * statistics.median(readers.took.values())
        await eventually(lambda: len(boots.told) == 200)


@pytest.mark.slow
async def test_fifty_connections_of_one_client_are_served_as_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, boots):
        boots.put_zeros("endless", 1 << 40)
        with Readers(server.port, "/endless", [*["127.0.2.1"] * 50, "127.0.2.2"]).reading() as readers:
            got = readers.got
            await eventually(lambda: min(got.values()) > 32 * MIB, within_s=30)
            before = dict(got)
            await eventually(lambda: got["127.0.2.2"] - before["127.0.2.2"] > 512 * MIB, within_s=60)
            more = {source: got[source] - before[source] for source in got}
        assert more["127.0.2.1"] < 3 * more["127.0.2.2"]  # 50 times as much, were connections what counts


@pytest.mark.slow
async def test_more_connections_of_one_client_than_places_all_finish(tmp_path: Path) -> None:
    async with serving(tmp_path, replace(WANTED, most_transfers_of_one=1)) as (server, boots):
        boots.put_zeros("image", 8 * MIB)
        with Readers(server.port, "/image", ["127.0.3.1"] * 30).reading() as readers:
            await eventually(lambda: readers.done, within_s=60)
        assert readers.got["127.0.3.1"] > 30 * 8 * MIB


@pytest.mark.slow
async def test_readers_that_stall_hold_up_nobody_and_are_cut_off(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, boots):
        boots.put_zeros("image", 32 * MIB)
        with contextlib.ExitStack() as stack:
            for source in sources(4, 100):
                stalled = stack.enter_context(socket.socket())
                stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                stalled.bind((source, 0))
                stalled.connect(("127.0.0.1", server.port))
                stalled.sendall(b"GET /image HTTP/1.1\r\nHost: x\r\n\r\n")
            with Readers(server.port, "/image", sources(5, 10)).reading() as readers:
                await eventually(lambda: readers.done, within_s=30)
            assert all(got > 32 * MIB for got in readers.got.values())
            assert readers.reset == 0
            await eventually(lambda: server.counts.get("the client took too little", 0) == 100, within_s=15)
        await eventually(lambda: len(boots.told) == 10)


@pytest.mark.slow
async def test_the_event_loop_goes_on_while_files_go_out(tmp_path: Path) -> None:
    """DHCP and TFTP are answered by the same loop."""
    async with serving(tmp_path) as (server, boots):
        boots.put_zeros("endless", 1 << 40)
        with Readers(server.port, "/endless", sources(6, 50)).reading() as readers:
            await eventually(lambda: sum(readers.got.values()) > 500 * MIB, within_s=30)
            delays: list[float] = []
            for _ in range(200):
                before = time.monotonic()
                await asyncio.sleep(0.001)
                delays.append(time.monotonic() - before)
        assert statistics.median(delays) < 0.02
