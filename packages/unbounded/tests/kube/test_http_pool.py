"""Connections of `HttpPool` against servers that close them, answer late or are not the pinned ones."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
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
    left = asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        if how != "cancelled":
            await exchange.begin_stream()
            await exchange.chunk(b"part")
        await exchange.left()
        left.set()

    async with scripted_server(handler) as server, HttpPool() as pool:
        if how == "cancelled":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(send(pool, address_of(server)), 0.2)
        else:
            response = await pool.request(address_of(server), "GET", "/", [])
            assert await anext(response.parts()) == b"part"
            if how == "closed":
                response.close()
            else:
                response.release()
        async with asyncio.timeout(10):
            await left.wait()


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
