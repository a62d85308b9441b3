"""Requests that are no HTTP.

Each has the status that kube-apiserver 1.36.2 answered. Where that is not 400, it names the cause by another status;
here all get a 400.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.apiserver.support import Client, admin_context, running
from tests.apiserver.test_connections import WAIT_S, answered, connection
from unbounded_apiserver.http import listener
from unbounded_apiserver.server import ApiServer

pytestmark = pytest.mark.slow

HOST: Final = b"Host: x\r\n"
OK: Final = b"GET /version HTTP/1.1\r\n" + HOST + b"\r\n"
POST: Final = b"POST /api/v1/namespaces HTTP/1.1\r\n" + HOST
MALFORMED: Final[list[tuple[bytes, int]]] = [
    (b"garbage\r\n\r\n", 400),
    (b"\x00\x01\x02\x03\r\n\r\n", 400),
    (b"GET\r\n\r\n", 400),
    (b"GET /\r\n\r\n", 400),
    (b"GET / HTTP/9.9\r\n\r\n", 505),
    (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n" + HOST + b" folded: y\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\x00c\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    (b"GET version HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    (b"GET http://[::1 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    (b"GET / \xff HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    (b"GET /%zz HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    (b"GET /api/v1/namespaces/%2 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    (b"GE\x07T / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    (POST + b"Transfer-Encoding: funny\r\n\r\n", 501),
    (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", 500),
]
WELL_FORMED: Final[list[tuple[bytes, int]]] = [
    (b"GET /version HTTP/1.0\r\n\r\n", 200),
    (b"GET /version?a=%zz HTTP/1.1\r\n" + HOST + b"\r\n", 200),
    (b"GET /%41 HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    (b"GET /version HTTP/1.1\r\nHost: [::1]:6443\r\n\r\n", 200),
    (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", 200),
    (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"Authorization: Bearer bad\r\n\r\n", 200),
    (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"Expect: funny\r\n\r\n", 417),
    (b"GET /version HTTP/1.1\r\n" + HOST + b"Expect: funny\r\n\r\n", 417),
    (b"GET /version HTTP/1.0\r\n" + HOST + b"Expect: funny\r\n\r\n", 417),
    (b"GET /version HTTP/1.1\r\n" + HOST + b"Expect: \r\n\r\n", 200),
    (b"GET /version HTTP/1.1\r\n" + HOST + b"Expect: x, 100-Continue\r\n\r\n", 200),
    (POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n", 100),
]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    async with running(tmp_path) as both:
        yield both


async def statuses(reader: asyncio.StreamReader) -> list[int]:
    """The status of each answer, until the server closes the connection."""
    seen = await asyncio.wait_for(reader.read(), WAIT_S)
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d+) ", seen)]


async def test_what_is_no_http_gets_a_400(served: tuple[ApiServer, Client]) -> None:
    server, client = served
    found = {}
    for sent, _ in MALFORMED:
        for before in (b"", OK):
            async with connection(server) as (reader, writer):
                if before:
                    writer.write(before)
                    await reader.readuntil(b"\r\n\r\n")
                writer.write(sent)
                found[before + sent] = await statuses(reader)
    assert {sent: codes for sent, codes in found.items() if codes != [400]} == {}
    assert await answered(client)


async def test_what_is_odd_and_still_http_is_answered(served: tuple[ApiServer, Client]) -> None:
    found = []
    for sent, _ in WELL_FORMED:
        async with connection(served[0]) as (reader, writer):
            writer.write(sent)
            found.append((sent, int((await asyncio.wait_for(reader.readline(), WAIT_S)).split()[1])))
    assert found == WELL_FORMED


@pytest.mark.parametrize("sent", [b"G", OK[:-2], POST[:-3]])
async def test_half_a_head_gets_a_400_when_its_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(listener, "HEAD_S", 0.5)
    async with running(tmp_path) as (server, _), connection(server) as (reader, writer):
        writer.write(sent)
        assert await statuses(reader) == [400]


@pytest.mark.parametrize("sent", [b"garbage", b"garbage\r\n\r\n", b"G", OK[:-2]], ids=repr)
async def test_a_request_that_ends_in_its_head_gets_a_400(served: tuple[ApiServer, Client], sent: bytes) -> None:
    """The client ends its side of TLS behind it, and reads on."""
    server, _ = served
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = admin_context(server.kubeconfig_path).wrap_bio(incoming, outgoing, server_hostname="localhost")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))

    async def until(step: str) -> bytes:
        while True:
            try:
                return getattr(client, step)() or b""
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await asyncio.wait_for(reader.read(65536), WAIT_S))

    await until("do_handshake")
    client.write(sent)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.unwrap()
    writer.write(outgoing.read())
    assert (await until("read")).startswith(b"HTTP/1.1 400 ")
    writer.transport.abort()


async def test_blank_lines_before_a_request_are_no_head_that_others_can_send(
    served: tuple[ApiServer, Client],
) -> None:
    """The blank lines alone were once taken for the whole request, on every other connection."""
    async with connection(served[0]) as (reader, writer):
        writer.write(b"\r\n\r\n" + POST.replace(b"POST", b"OPTIONS") + b"\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 ")
    async with connection(served[0]) as (reader, writer):
        writer.write(b"\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.write(OK)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_a_client_that_expects_what_is_unknown_is_answered_and_left(served: tuple[ApiServer, Client]) -> None:
    async with connection(served[0]) as (reader, writer):
        writer.write(POST + b"Expect: funny\r\nContent-Length: 2\r\n\r\n{}" + OK)
        assert await statuses(reader) == [417]
