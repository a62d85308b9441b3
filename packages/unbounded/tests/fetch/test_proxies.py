"""Downloads through a proxy: the URLs, and the errors of a proxy that refuses or is down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from yarl import URL

from unbounded.fetch.failures import Denied, Unavailable
from unbounded.fetch.web import Patience, Proxies, Web

PROXIES = Proxies("http://proxy:1", "http://proxy:2")
DIRECT = ("example.com", ".below.org", "10.0.0.0/8", "2001:db8::1", "port.net:8443", "192.0.2.1:80")


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://elsewhere.com/x", "http://proxy:1"),
        ("https://elsewhere.com/x", "http://proxy:2"),
        ("https://example.com", None),
        ("https://EXAMPLE.com", None),
        ("https://a.example.com", None),
        ("https://notexample.com", "http://proxy:2"),
        ("https://below.org", "http://proxy:2"),
        ("https://a.below.org", None),
        ("https://10.1.2.3:5000", None),
        ("https://11.1.2.3", "http://proxy:2"),
        ("https://[2001:db8::1]:8443", None),
        ("https://[2001:db8::2]", "http://proxy:2"),
        ("https://port.net:8443", None),
        ("https://port.net", "http://proxy:2"),
        ("http://192.0.2.1", None),
        ("http://192.0.2.1:81", "http://proxy:1"),
    ],
)
def test_a_proxy_is_for_all_but_what_is_reached_directly(url: str, proxy: str | None) -> None:
    found = Proxies(PROXIES.http, PROXIES.https, DIRECT).of(URL(url))
    assert found == (None if proxy is None else URL(proxy))


def test_no_proxy_is_used_where_none_is_named() -> None:
    assert Proxies().of(URL("https://a")) is None
    assert Proxies("", "http://proxy:2").of(URL("http://a")) is None
    assert Proxies("http://proxy:1", "", ("*",)).of(URL("http://a")) is None


@asynccontextmanager
async def proxy(status: str, asked: list[str]) -> AsyncIterator[str]:
    """A proxy that answers each request so; its URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode())
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def get(web: Web, url: str) -> int:
    async with web.request("GET", URL(url)) as response:
        if response.status != 200:
            raise web.failure_of(response, f"GET {url}")
        return response.status


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "failure"),
    [("403 Forbidden", Denied), ("407 Proxy Authentication Required", Denied), ("503 Busy", Unavailable)],
)
async def test_a_proxy_that_refuses_is_named_with_its_status(status: str, failure: type[Exception]) -> None:
    asked: list[str] = []
    async with proxy(status, asked) as url, Web(patience=Patience(attempts=1), proxies=Proxies(url, url)) as web:
        with pytest.raises(
            failure, match=f"GET https://example.com/a: the proxy {url}/? rejected the request: {status}"
        ):
            await get(web, "https://example.com/a?signature=hush")
        with pytest.raises(failure, match=f"GET http://example.com/a through the proxy {url}/?: {status}"):
            await get(web, "http://example.com/a")
    assert asked == ["CONNECT example.com:443 HTTP/1.1", "GET http://example.com/a HTTP/1.1"]


async def test_proxied_fetch_succeeds_and_unreachable_proxy_is_named() -> None:
    asked: list[str] = []
    async with proxy("200 OK", asked) as url, Web(proxies=Proxies(http=url)) as web:
        assert await get(web, "http://example.com/a") == 200
    async with Web(proxies=Proxies(https=url)) as web:
        with pytest.raises(Unavailable, match=f"GET https://example.com/a: cannot reach the proxy {url}/?: "):
            await get(web, "https://example.com/a")
    assert asked == ["GET http://example.com/a HTTP/1.1"]
