"""Clients that are slow, silent, or too many: they are disconnected, without an effect on others."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.apiserver.support import Client, admin_context, running
from tests.support.server_process import server_process
from tests.support.waiting import eventually
from unbounded.kube.logs import Log
from unbounded.kube.process_tuning import open_files
from unbounded.kube.tls import ClientCertificate, client_context
from unbounded_apiserver import pki
from unbounded_apiserver.http import api_call, listener, reply
from unbounded_apiserver.http.log_limiter import LogLimiter
from unbounded_apiserver.pki import CertificateAuthority
from unbounded_apiserver.server import ApiServer

LIMIT: Final = 12
HOST: Final = b"Host: localhost\r\n"
ONE: Final = "/api/v1/namespaces/default"
MAPS: Final = f"{ONE}/configmaps"
WAIT_S: Final = 30.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    async with running(tmp_path) as both:
        yield both


@asynccontextmanager
async def connection(server: ApiServer, *, secure: bool = True, window: int = 0) -> AsyncIterator[Streams]:
    """A raw connection; `window` is a small receive buffer for who will not read."""
    line = socket.socket()
    if window:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    line.setblocking(False)
    port = int(server.url.rpartition(":")[2])
    await asyncio.get_running_loop().sock_connect(line, ("127.0.0.1", port))
    context = admin_context(server.kubeconfig_path) if secure else None
    name = "localhost" if secure else None
    reader, writer = await asyncio.open_connection(sock=line, ssl=context, server_hostname=name)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the server ends the connection."""
    seen = b""
    async with asyncio.timeout(WAIT_S):
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while part := await reader.read(65536):
                seen += part
    return seen


async def answered(client: Client) -> bool:
    return (await client.ask("GET", ONE)).status == 200


@pytest.mark.slow
async def test_connections_beyond_the_limit_are_closed_and_the_others_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = ApiServer(tmp_path, connections=LIMIT, address_connections=LIMIT)
    await server.start()
    try:
        async with contextlib.AsyncExitStack() as inside:
            kept = [await inside.enter_async_context(connection(server)) for _ in range(LIMIT)]
            for _ in range(3 * LIMIT):
                with pytest.raises((ConnectionError, ssl.SSLError)):
                    async with connection(server):
                        pass
            for reader, writer in kept:
                writer.write(b"GET /version HTTP/1.1\r\n" + HOST + b"\r\n")
                assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        full = [record for record in caplog.records if "too many connections" in record.message]
        assert len(full) == 1, "a flood of connections is not a flood of lines"

        async def room() -> bool:
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                async with connection(server) as (reader, writer):
                    writer.write(b"GET /version HTTP/1.1\r\n" + HOST + b"\r\n")
                    return await reader.readline() == b"HTTP/1.1 200 OK\r\n"
            return False

        assert await eventually(room, within_s=WAIT_S)
    finally:
        await server.stop()


@pytest.mark.slow
async def test_a_handshake_that_is_never_finished_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_s = listener.HANDSHAKE_S
    monkeypatch.setattr(listener, "HANDSHAKE_S", 0.3)
    server = ApiServer(tmp_path, connections=LIMIT)
    await server.start()
    try:
        async with contextlib.AsyncExitStack() as silent:
            lines = [await silent.enter_async_context(connection(server, secure=False)) for _ in range(LIMIT)]
            for reader, _ in lines:
                assert await ended(reader) == b""
        monkeypatch.setattr(listener, "HANDSHAKE_S", limit_s)  # a handshake takes its time on a busy machine
        async with connection(server) as (reader, writer):
            writer.write(b"GET /version HTTP/1.1\r\n" + HOST + b"\r\n")
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    finally:
        await server.stop()


@pytest.mark.slow
async def test_headers_that_trickle_end_with_the_limit_of_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HEAD_S", 0.5)
    async with running(tmp_path) as (server, client), connection(server) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\n")

        async def trickle() -> None:
            while True:
                writer.write(b"X: y\r\n")
                await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        try:
            assert b"200" not in await ended(reader)
        finally:
            trickling.cancel()
        assert await answered(client)


@pytest.mark.slow
async def test_a_body_that_trickles_is_refused_when_its_time_is_up(
    served: tuple[ApiServer, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = served
    monkeypatch.setattr(api_call, "BODY_S", 0.3)
    async with connection(server) as (reader, writer):
        head = f"POST {MAPS} HTTP/1.1\r\n".encode() + HOST + b"Content-Length: 1000\r\n\r\n{"
        writer.write(head)
        async with asyncio.timeout(WAIT_S):
            assert await reader.readline() == b"HTTP/1.1 400 Bad Request\r\n"
    assert await answered(client)


@pytest.mark.slow
@pytest.mark.parametrize("framing", [b"Content-Length: 104857600\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"])
async def test_a_body_of_100_mib_is_refused_at_its_limit(served: tuple[ApiServer, Client], framing: bytes) -> None:
    server, client = served
    part = b"x" * 2**20
    chunk = part if framing.startswith(b"Content") else b"100000\r\n" + part + b"\r\n"
    sent = 0

    async with connection(server) as (reader, writer):
        writer.write(f"POST {MAPS} HTTP/1.1\r\n".encode() + HOST + framing)

        async def pour() -> None:
            nonlocal sent
            with contextlib.suppress(ConnectionError):
                for _ in range(100):
                    writer.write(chunk)
                    await writer.drain()
                    sent += len(part)

        pouring = asyncio.create_task(pour())
        async with asyncio.timeout(WAIT_S):
            assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        pouring.cancel()
    assert await answered(client)


@pytest.mark.slow
async def test_client_that_never_reads_its_long_list_is_disconnected(
    served: tuple[ApiServer, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = served
    for number in range(24):
        await client.create(MAPS, {"metadata": {"name": f"m{number}"}, "data": {"a": "x" * 500_000}})
    monkeypatch.setattr(reply, "STALLED_S", 0.2)
    monkeypatch.setattr(reply, "SLOWEST_BYTES_S", 2**26)
    async with connection(server, window=4096) as (_, writer):
        writer.write(f"GET {MAPS} HTTP/1.1\r\n".encode() + HOST + b"\r\n")
        web = server._web
        assert web is not None

        async def gone() -> bool:
            return web.count == 1  # the client's own

        assert await eventually(gone, within_s=WAIT_S)
    assert await answered(client)


@pytest.mark.slow
async def test_a_watcher_that_never_reads_is_cut_off(
    served: tuple[ApiServer, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = served
    monkeypatch.setattr(reply, "STALLED_S", 0.2)
    monkeypatch.setattr(reply, "SLOWEST_BYTES_S", 2**26)
    await client.create(MAPS, {"metadata": {"name": "m"}})
    async with connection(server, window=4096) as (_, writer):
        writer.write(f"GET {MAPS}?watch=1&resourceVersion=0 HTTP/1.1\r\n".encode() + HOST + b"\r\n")
        web = server._web
        assert web is not None

        async def gone() -> bool:
            await client.merge(f"{MAPS}/m", {"data": {"a": "x" * 400_000, "n": str(asyncio.get_running_loop().time())}})
            return web.count == 1

        assert await eventually(gone, within_s=WAIT_S)
    assert await answered(client)


def test_a_line_that_is_spared_says_how_many_it_stands_for(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    line = LogLimiter(Log("spared").warning, "again", every_s=60.0, now=lambda: now)
    for now in (0.0, 1.0, 59.0, 60.0, 61.0, 200.0):  # noqa: B007 - the clock reads it
        line(reason="x")
    said = [(record.message, getattr(record, "fields", {}).get("more")) for record in caplog.records]
    assert said == [("again", 0), ("again", 2), ("again", 1)]


@pytest.fixture
def few_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_of_open_files_is_raised_as_far_as_it_may(few_files: None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    wanted = 600 if hard == resource.RLIM_INFINITY else min(600, hard)
    assert open_files(600) == wanted
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == wanted
    assert open_files(100) == 100


@pytest.mark.slow
def test_hundreds_of_silent_connections_leave_the_server_small_and_answering(tmp_path: Path) -> None:
    """In a process of its own, whose memory can be measured: TLS connections without a request."""

    async def crowd(url: str, kubeconfig: Path) -> None:
        context = admin_context(kubeconfig)
        port = int(url.rpartition(":")[2])
        gate = asyncio.Semaphore(20)

        async def one() -> asyncio.StreamWriter:
            async with gate:
                return (await asyncio.open_connection("127.0.0.1", port, ssl=context))[1]

        writers = await asyncio.gather(*(one() for _ in range(500)))
        grown = process.resident_mib() - before
        assert grown < 24, f"{grown:.0f} MiB for 500 connections"
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(f"GET {ONE} HTTP/1.1\r\n".encode() + HOST + b"\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        for one_writer in (*writers, writer):
            one_writer.transport.abort()

    with server_process(tmp_path / "data") as process:
        before = process.resident_mib()
        url = yaml.safe_load(process.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        asyncio.run(crowd(url, process.kubeconfig))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("valid", "said"), [(True, "unknown ca"), (False, "certificate expired")], ids=["another authority", "expired"]
)
async def test_invalid_client_certificate_gets_a_tls_alert(
    served: tuple[ApiServer, Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, valid: bool, said: str
) -> None:
    server, _ = served
    authority = CertificateAuthority(tmp_path / "other" if valid else server.data_dir)
    if not valid:
        monkeypatch.setattr(pki, "LEAF_DAYS", 0)
        monkeypatch.setattr(pki, "BACKDATE", timedelta(days=1))
    one = authority.issue_client("eve", ("system:masters",))
    context = client_context(
        ca=CertificateAuthority(server.data_dir).certificate, certificate=ClientCertificate(one.certificate, one.key)
    )
    port = int(server.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    with pytest.raises(ssl.SSLError, match=f"(?i)alert {said}"):
        await asyncio.wait_for(reader.read(), WAIT_S)
    writer.transport.abort()


@pytest.mark.slow
async def test_http_without_tls_is_answered_as_such(served: tuple[ApiServer, Client]) -> None:
    async with connection(served[0], secure=False) as (reader, writer):
        writer.write(b"GET /version HTTP/1.1\r\n" + HOST + b"\r\n")
        answer = await asyncio.wait_for(reader.read(), WAIT_S)
        assert answer.startswith(b"HTTP/1.0 400 Bad Request\r\n")
        assert answer.endswith(b"Client sent an HTTP request to an HTTPS server.\n")
