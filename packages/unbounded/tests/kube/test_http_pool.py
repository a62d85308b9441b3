"""Connections of `HttpPool` against servers that close them, answer late or are not the pinned ones."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import aiohttp
import pytest
import trustme

from tests.support.scripted_http import Exchange, ScriptedServer, scripted_server
from unbounded.kube.http_pool import HttpAddress, HttpPool, NotConnected


def address_of(server: ScriptedServer) -> HttpAddress:
    return HttpAddress("127.0.0.1", urlsplit(server.url).port or 0)


async def send(pool: HttpPool, address: HttpAddress, method: str = "GET", body: bytes | None = None) -> bytes:
    response = await pool.request(address, method, "/a?b=c", [("X-Name", "v")], body)
    try:
        return await response.read()
    finally:
        response.release()


async def answer(exchange: Exchange) -> None:
    await exchange.answer(200, f"{exchange.method} {exchange.target}".encode() + exchange.body)


async def _next(parts: AsyncIterator[bytes]) -> bytes:
    return await anext(parts)


async def close_after_answer(exchange: Exchange) -> None:
    await answer(exchange)
    exchange.writer.close()


async def test_requests_share_a_connection() -> None:
    async with scripted_server(answer) as server, HttpPool() as pool:
        for body in (b"1", b"22"):
            assert await send(pool, address_of(server), "PATCH", body) == b"PATCH /a?b=c" + body
    assert server.connections == 1
    assert server.exchanges[0].headers["x-name"] == "v"
    assert server.exchanges[0].headers["host"] == server.url.removeprefix("http://")


@pytest.mark.parametrize(("method", "sent"), [("GET", 3), ("DELETE", 3), ("PATCH", 2), ("POST", 2)])
async def test_only_idempotent_requests_are_repeated_after_a_kept_connection_broke(method: str, sent: int) -> None:
    count = 0

    async def handler(exchange: Exchange) -> None:
        nonlocal count
        count += 1
        if count == 2:
            exchange.drop()
        else:
            await answer(exchange)

    async with scripted_server(handler) as server, HttpPool() as pool:
        await send(pool, address_of(server))
        if sent == 3:
            assert await send(pool, address_of(server), method) == f"{method} /a?b=c".encode()
        else:
            with pytest.raises(aiohttp.ClientConnectionError):
                await send(pool, address_of(server), method)
    assert len(server.exchanges) == sent


async def test_a_new_connection_that_breaks_is_not_tried_again() -> None:
    async def handler(exchange: Exchange) -> None:
        exchange.drop()

    async with scripted_server(handler) as server, HttpPool() as pool:
        with pytest.raises(aiohttp.ClientConnectionError):
            await send(pool, address_of(server))
    assert len(server.exchanges) == 1


async def test_a_connection_that_the_server_has_closed_is_not_used() -> None:
    async with scripted_server(close_after_answer) as server, HttpPool() as pool:
        await send(pool, address_of(server), "POST")
        await asyncio.sleep(0.05)  # the end of the connection arrives
        assert await send(pool, address_of(server), "POST") == b"POST /a?b=c"
    assert server.connections == 2


async def test_unused_connections_are_closed() -> None:
    left = asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        await answer(exchange)
        await exchange.left()
        left.set()

    async with scripted_server(handler) as server, HttpPool(keepalive_s=0.05) as pool:
        await send(pool, address_of(server))
        async with asyncio.timeout(10):
            await left.wait()


@pytest.mark.parametrize("how", ["cancelled", "closed", "half read"])
async def test_a_connection_with_an_unread_answer_is_closed(how: str) -> None:
    arrived, left = asyncio.Event(), asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        arrived.set()
        if how != "cancelled":
            await exchange.begin_stream()
            await exchange.chunk(b"part")
        await exchange.left()
        left.set()

    async with scripted_server(handler) as server, HttpPool() as pool:
        if how == "cancelled":
            sending = asyncio.create_task(send(pool, address_of(server)))
            await arrived.wait()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
        else:
            response = await pool.request(address_of(server), "GET", "/", [])
            assert await anext(response.parts()) == b"part"
            if how == "closed":
                response.close()
            else:
                response.release()
        async with asyncio.timeout(10):
            await left.wait()


@pytest.mark.parametrize("rest", [b"zz\r\nno chunk\r\n", b"4\r\ntoo long\r\n"])
async def test_a_body_that_stops_being_http_ends_with_an_error(rest: bytes) -> None:
    begun = asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.chunk(b"part")
        await begun.wait()
        exchange.writer.write(rest)
        await exchange.left()

    async with scripted_server(handler) as server, HttpPool() as pool, asyncio.timeout(10):
        response = await pool.request(address_of(server), "GET", "/", [], silence_s=60)
        parts = response.parts()
        assert await anext(parts) == b"part"
        begun.set()
        with pytest.raises(aiohttp.ClientPayloadError, match="not HTTP"):
            await response.read()
        response.close()


async def test_an_end_of_the_pool_ends_the_reading_of_a_body() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.chunk(b"part")
        await exchange.left()

    async with scripted_server(handler) as server, HttpPool() as pool, asyncio.timeout(10):
        response = await pool.request(address_of(server), "GET", "/", [])
        parts = response.parts()
        await anext(parts)
        reader = asyncio.create_task(_next(parts))
        await asyncio.sleep(0)  # it waits for the next part
        await pool.close()
        with pytest.raises(aiohttp.ClientConnectionError):
            await reader


async def test_an_end_of_the_pool_is_no_reason_to_repeat_a_request() -> None:
    waiting = asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        if len(server.exchanges) == 1:
            await answer(exchange)
        else:
            waiting.set()
            await exchange.left()

    async with scripted_server(handler) as server, HttpPool() as pool, asyncio.timeout(10):
        await send(pool, address_of(server))
        request = asyncio.create_task(send(pool, address_of(server)))
        await waiting.wait()
        await pool.close()
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await request
    assert (len(server.exchanges), server.connections) == (2, 1)


async def test_a_connection_whose_request_was_not_read_is_not_kept() -> None:
    leave, count = asyncio.Event(), 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 X\r\nContent-Length: 2\r\n\r\nno")
        await leave.wait()
        writer.close()

    async with await asyncio.start_server(handler, "127.0.0.1", 0) as server, HttpPool() as pool, asyncio.timeout(10):
        address = HttpAddress("127.0.0.1", server.sockets[0].getsockname()[1])
        assert await send(pool, address, "POST", bytes(20_000_000)) == b"no"
        assert await send(pool, address) == b"no"
        leave.set()
    assert count == 2


async def test_a_request_that_ends_without_a_connection_was_not_sent() -> None:
    sent: list[None] = []
    silent = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    tls = ssl.create_default_context()
    async with silent as server, HttpPool() as pool:
        address = HttpAddress("127.0.0.1", server.sockets[0].getsockname()[1], tls)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await pool.request(address, "POST", "/", [], on_send=lambda: sent.append(None))
    assert not sent


async def test_an_answer_may_follow_a_hint_and_end_with_the_connection() -> None:
    async def handler(exchange: Exchange) -> None:
        exchange.writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\nto the end")
        await exchange.writer.drain()
        exchange.writer.close()

    async with scripted_server(handler) as server, HttpPool() as pool:
        assert await send(pool, address_of(server)) == b"to the end"


async def test_an_answer_that_is_no_http_is_a_client_error() -> None:
    async def handler(exchange: Exchange) -> None:
        exchange.writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        await exchange.writer.drain()

    async with scripted_server(handler) as server, HttpPool() as pool:
        with pytest.raises(aiohttp.ClientError):
            await send(pool, address_of(server))


async def test_a_refused_connection_has_sent_nothing() -> None:
    async with scripted_server(answer) as server:
        pass
    async with HttpPool() as pool:
        with pytest.raises(NotConnected) as raised:
            await send(pool, address_of(server))
    assert isinstance(raised.value.cause, ConnectionRefusedError)


@pytest.mark.parametrize("header", [("X", "a\r\nY: b"), ("X\nY", "a")])
async def test_a_header_with_a_line_break_is_not_sent(header: tuple[str, str]) -> None:
    async with scripted_server(answer) as server, HttpPool() as pool:
        with pytest.raises(ValueError, match="line break"):
            await pool.request(address_of(server), "GET", "/", [header])
    assert not server.exchanges


async def test_nothing_is_sent_to_another_certificate_than_the_pinned_one() -> None:
    received: list[bytes] = []

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read())
        writer.close()

    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(served)
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    der = ssl.PEM_cert_to_DER_cert(certificate.cert_chain_pems[0].bytes().decode())
    async with await asyncio.start_server(connection, "127.0.0.1", 0, ssl=served) as server, HttpPool() as pool:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(aiohttp.ServerFingerprintMismatch) as raised:
            await send(pool, HttpAddress("127.0.0.1", port, unverified, pin=bytes(32)))
    assert raised.value.got == hashlib.sha256(der).digest()
    assert received in ([], [b""])


async def test_a_name_with_a_dot_at_its_end_is_the_one_in_the_certificate() -> None:
    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.read()
        writer.close()

    authority = trustme.CA()
    served, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("api.example").configure_cert(served)
    authority.configure_trust(client)
    async with await asyncio.start_server(connection, "127.0.0.1", 0, ssl=served) as server, HttpPool() as pool:
        port = server.sockets[0].getsockname()[1]
        assert await send(pool, HttpAddress("127.0.0.1", port, client, "api.example.")) == b"ok"
    assert HttpAddress("api.example.", 443, client).authority == "api.example"
