"""Limits on connections: silent clients, and too many of one address, keep no authenticated client out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apiserver.support import Client, admin_context, client_with
from tests.apiserver.test_connections import HOST, ONE, WAIT_S, Streams, answered, connection, ended
from tests.apiserver.test_metrics import of, scraped
from unbounded_apiserver.http import listener
from unbounded_apiserver.http.connection_limits import ConnectionLimits, TrackedConnection
from unbounded_apiserver.server import ApiServer

pytestmark = pytest.mark.slow

PLACES: Final = 60
KNOWN: Final = 19  # as the controllers of `unbounded up` have
VERSION: Final = b"GET /version HTTP/1.1\r\n" + HOST + b"\r\n"


@asynccontextmanager
async def serving(directory: Path, places: int = PLACES, of_address: int = 0) -> AsyncIterator[ApiServer]:
    server = ApiServer(directory, bind="0.0.0.0", connections=places, address_connections=of_address)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def stranger(
    server: ApiServer, address: str = "127.0.0.1", *, shakes_hands: bool = True
) -> AsyncIterator[Streams]:
    """A connection of a client that shows no certificate."""
    line = socket.socket()
    line.setblocking(False)
    line.bind((address, 0))
    await asyncio.get_running_loop().sock_connect(line, ("127.0.0.1", int(server.url.rpartition(":")[2])))
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    name = "localhost" if shakes_hands else None
    reader, writer = await asyncio.open_connection(
        sock=line, ssl=anyone if shakes_hands else None, server_hostname=name
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@asynccontextmanager
async def administrator(server: ApiServer) -> AsyncIterator[Client]:
    async with client_with(server, admin_context(server.kubeconfig_path)) as client:
        yield client


@pytest.mark.parametrize("shakes_hands", [True, False], ids=["after TLS", "before TLS"])
@pytest.mark.parametrize("spread", [1, 41], ids=["one address", "41 addresses"])
async def test_silent_connections_do_not_lock_an_administrator_out(
    tmp_path: Path, shakes_hands: bool, spread: int
) -> None:
    async with serving(tmp_path) as server, AsyncExitStack() as stack:
        known = [await stack.enter_async_context(connection(server)) for _ in range(KNOWN)]
        for number in range(PLACES - KNOWN):
            address = f"127.0.0.{2 + number % spread}"
            await stack.enter_async_context(stranger(server, address, shakes_hands=shakes_hands))
        async with asyncio.timeout(WAIT_S), administrator(server) as admin:
            assert await answered(admin)
            samples = await scraped(admin)
        assert of(samples, "unbounded_apiserver_connections_closed_total", reason="makes_room") > 0
        for reader, writer in known:
            writer.write(f"GET {ONE} HTTP/1.1\r\n".encode() + HOST + b"\r\n")
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"


async def test_a_flood_hits_its_own_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client without a certificate at another address keeps its connection."""
    monkeypatch.setattr(listener, "HEAD_S", 600.0)
    async with serving(tmp_path) as server, AsyncExitStack() as stack:
        other = await stack.enter_async_context(stranger(server, "127.0.0.9"))
        for _ in range(3 * PLACES):
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await stack.enter_async_context(stranger(server, "127.0.0.2"))
        other[1].write(VERSION)
        assert await other[0].readline() == b"HTTP/1.1 200 OK\r\n"


async def test_a_token_keeps_a_connection_as_a_certificate_does(tmp_path: Path) -> None:
    async with serving(tmp_path, 8) as server, administrator(server) as admin, AsyncExitStack() as stack:
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = (await admin.create(f"{ONE}/serviceaccounts/default/token", asked))["status"]["token"]
        known = await stack.enter_async_context(stranger(server))
        wrong = await stack.enter_async_context(stranger(server))
        for (reader, writer), given in ((known, token), (wrong, "wrong")):
            bearer = f"Authorization: Bearer {given}\r\n".encode()
            writer.write(f"GET {ONE} HTTP/1.1\r\n".encode() + HOST + bearer + b"\r\n")
            await reader.readuntil(b"\r\n\r\n")
        for _ in range(16):
            await stack.enter_async_context(stranger(server))
        known[1].write(VERSION)
        assert b"HTTP/1.1 200 OK\r\n" in await known[0].readuntil(b"OK\r\n")
        await asyncio.wait_for(wrong[0].read(), WAIT_S)


async def test_one_address_does_not_get_all_places(tmp_path: Path) -> None:
    async with serving(tmp_path, 8, of_address=5) as server, AsyncExitStack() as stack:
        for _ in range(5):
            await stack.enter_async_context(connection(server))
        with pytest.raises((ConnectionError, ssl.SSLError)):
            async with connection(server):
                pass
        reader, writer = await stack.enter_async_context(stranger(server, "127.0.0.2"))
        writer.write(VERSION)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("sent", "after"),
    [(b"", 0), (b"G", 0), (b"GET /version HTTP/1.1\r\n", 0), (b"G", 2), (b"GET /version HTTP/1.1\r\n", 2)],
)
async def test_a_head_has_a_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes, after: int
) -> None:
    monkeypatch.setattr(listener, "HEAD_S", 0.5)
    async with serving(tmp_path) as server, connection(server) as (reader, writer), administrator(server) as admin:
        for _ in range(after):
            writer.write(VERSION)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
        writer.write(sent)
        assert (await ended(reader))[:13] == (b"HTTP/1.1 400 " if sent else b"")
        assert of(await scraped(admin), "unbounded_apiserver_connections_closed_total", reason="no_head") == 1


HEAD: Final = b"HEAD /version HTTP/1.1\r\n" + HOST + b"\r\n"
OF_LENGTH: Final = b"HEAD /version HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc"
IN_CHUNKS: Final = b"HEAD /version HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"


BEGUN: Final = [
    [HEAD + b"G"],
    [HEAD + HEAD[:-2]],
    [HEAD + HEAD + HEAD[:-2]],
    [OF_LENGTH + HEAD[:-2]],
    [OF_LENGTH[:-1], OF_LENGTH[-1:] + HEAD[:-2]],
    [HEAD[:9], HEAD[9:] + OF_LENGTH + b"G"],
    [IN_CHUNKS + b"G"],
    [IN_CHUNKS[:-2], IN_CHUNKS[-2:] + b"G"],
]
WHOLE: Final = [
    [HEAD],
    [HEAD + b"\r\n"],
    [HEAD[:9], HEAD[9:]],
    [OF_LENGTH],
    [OF_LENGTH[:-4], OF_LENGTH[-4:]],
    [OF_LENGTH[:-2], OF_LENGTH[-2:]],
    [OF_LENGTH[:9], OF_LENGTH[9:]],
    [IN_CHUNKS],
    [IN_CHUNKS[:-3], IN_CHUNKS[-3:]],
]


async def test_a_head_behind_a_whole_request_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HEAD_S", 1.0)

    async def statuses(packets: list[bytes]) -> list[bytes]:
        async with connection(server) as (reader, writer):
            for packet in packets:
                writer.write(packet)
                await asyncio.sleep(0.05)
            return [head[9:12] for head in (await ended(reader)).split(b"\r\n\r\n")[:-1]]

    async with serving(tmp_path) as server:
        found = await asyncio.gather(*map(statuses, BEGUN))
    assert found == [[b"200"] * whole + [b"400"] for whole in (1, 1, 2, 1, 1, 2, 1, 1)]


async def test_between_requests_a_connection_may_be_silent_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HEAD_S", 1.0)

    async def send(packets: list[bytes]) -> None:
        async with connection(server) as (reader, writer):
            for _ in range(3):
                for packet in packets:
                    writer.write(packet)
                    await asyncio.sleep(0.02)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200"), packets
                await asyncio.sleep(1.4)

    async with serving(tmp_path) as server:
        await asyncio.gather(*map(send, WHOLE))


async def test_many_requests_at_once_are_followed_by_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the parser reads at once; the connection stays."""
    monkeypatch.setattr(listener, "HEAD_S", 1.0)
    async with serving(tmp_path) as server, connection(server) as (reader, writer):
        writer.write(HEAD * 300)
        for _ in range(300):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await asyncio.sleep(1.4)
        writer.write(HEAD)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_the_limit_of_heads_is_that_of_kube_apiserver_or_less() -> None:
    """kube-apiserver 1.36.2 was seen to close such a connection after 32.0 s."""
    assert 20 <= listener.HEAD_S <= 32


addresses = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3", "2001:db8::1", "2001:db8::2", "2001:db8:1::1"])


@given(
    st.lists(st.tuples(addresses, st.sampled_from(["arrives", "authenticates", "ends"]), st.integers(0, 40))),
    st.integers(1, 12),
    st.integers(0, 12),
)
def test_whatever_comes_the_limits_hold(steps: list[tuple[str, str, int]], total: int, per_address: int) -> None:
    limits = ConnectionLimits(total, per_address)
    inside: dict[TrackedConnection, str] = {}

    def dropped(one: TrackedConnection) -> None:
        assert not one.is_authenticated, "the place of a known client was taken"
        del inside[one]

    for address, what, which in steps:
        if what == "arrives":
            before = {one: where for one, where in inside.items() if one.is_authenticated}
            one = limits.admit(address)
            if one is None:
                key = limits_address(address)
                full = len(before) >= limits.total
                assert full or sum(limits_address(w) == key for w in before.values()) >= limits.per_address
                continue
            one.drop = partial(dropped, one)
            inside[one] = address
        elif inside:
            one = list(inside)[which % len(inside)]
            if what == "authenticates":
                one.authenticate()
            else:
                one.release()
                one.release()
                del inside[one]
        assert limits.count == len(inside) <= limits.total
        waiting = [where for one, where in inside.items() if not one.is_authenticated]
        assert len(waiting) <= limits.unauthenticated
        for key in {limits_address(where) for where in inside.values()}:
            assert sum(limits_address(where) == key for where in inside.values()) <= limits.per_address
            assert sum(limits_address(where) == key for where in waiting) <= limits.unauthenticated_per_address


def limits_address(host: str) -> str:
    """Hosts of one IPv6 network share a limit: a host chooses the rest of its address itself."""
    return host.rpartition("::")[0] or host
