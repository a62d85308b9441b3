"""The server of the console on its address."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Final

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from unbounded.console.guard import AsgiApp
from unbounded.kube.settings import Address

STOP_S: Final = 1
BACKLOG: Final = 128
WEBSOCKET_BYTES: Final = 256 * 1024  # of a message from a browser


class _Server(uvicorn.Server):
    """A server whose process handles signals itself."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _WebSocket(WebSocketsSansIOProtocol):
    """A websocket that its browser may be closing while the server ends."""

    def shutdown(self) -> None:
        # uvicorn would send a second close, which is an error and ends all of the shutdown
        if self.transport.is_closing():
            self.transport.abort()
        else:
            super().shutdown()


def listen(address: Address) -> socket.socket:
    """Return a socket that listens on an address. Raises OSError."""
    family = socket.AF_INET6 if ":" in address.host or not address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and not address.host:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address.host or "::", address.port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


@contextlib.asynccontextmanager
async def serving(app: AsgiApp, listener: socket.socket, tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    """Serve inside of the context, with TLS where there is a certificate."""
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",  # each websocket is a line below it, with the id of its page
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws=_WebSocket,
        ws_max_size=WEBSOCKET_BYTES,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=STOP_S,
        ssl_context_factory=None if tls is None else lambda _config, _default: tls,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="console")
    try:
        await _started(server, task)
        yield
    finally:
        server.should_exit = True
        await task


async def _started(server: uvicorn.Server, task: asyncio.Task[None]) -> None:
    while not server.started:
        if task.done():
            task.result()
            raise OSError("the server of the console did not start")
        await asyncio.sleep(0.01)
