"""The server of the console: its end beside connections that end, too."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import pytest
import trustme

from unbounded.console.server import listen, serving
from unbounded.kube.settings import Address

pytestmark = pytest.mark.slow

UPGRADE = (
    "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
CLOSE = b"\x88\x80\x00\x00\x00\x00"  # without a code; masked, as that of a client
CLOSED = b"\x88\x00"


async def accept(_scope: Any, receive: Any, send: Any) -> None:
    """Accept a websocket, and wait for its end."""
    await receive()
    await send({"type": "websocket.accept"})
    assert (await receive())["type"] == "websocket.disconnect"


def close_without_an_end(address: tuple[str, int], trusted: ssl.SSLContext) -> ssl.SSLSocket:
    """Open a websocket and close it, but leave the end of TLS without an answer."""
    found = trusted.wrap_socket(socket.create_connection(address, timeout=10), server_hostname="localhost")
    found.sendall(UPGRADE.encode())
    assert found.recv(4096).startswith(b"HTTP/1.1 101 ")
    found.sendall(CLOSE)
    assert found.recv(4096) == CLOSED
    return found


async def test_it_ends_while_a_browser_closes_a_websocket() -> None:
    authority, own = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(own)
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    listener = listen(Address("127.0.0.1", 0))
    async with serving(accept, listener, own):
        browser = await asyncio.to_thread(close_without_an_end, listener.getsockname(), trusted)
    browser.close()
