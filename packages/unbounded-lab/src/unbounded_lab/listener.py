"""A listening port of loopback that can be closed and reopened without losing it to another process.

aiohttp delivers a simulator's replies on it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Final, Self

from aiohttp import web

from unbounded_lab.http import Delivery, LabReply

HOST: Final = "127.0.0.1"
BACKLOG: Final = 128


class PortFailed(OSError):
    """A port that is not available; the message is for the user."""


class LabListener:
    """A port with an HTTP server behind it; while it is shut, connections are refused.

    Args:
        host: its address, of loopback.

    Raises:
        PortFailed: another process uses the port, or binding it is not permitted.
    """

    def __init__(self, server: web.Server, port: int, tls: ssl.SSLContext | None, host: str = HOST) -> None:
        self._server = server
        self._tls = tls
        self._listener: asyncio.Server | None = None
        self._host = host
        self._keeper = _reserved(host, port)  # never listens: it only reserves the port while the listener is closed
        self.port: int = self._keeper.getsockname()[1]

    async def open(self) -> None:
        if self._listener is None:
            loop = asyncio.get_running_loop()
            sock = _bound(self._host, self.port, socket.SO_REUSEADDR, socket.SO_REUSEPORT)
            self._listener = await loop.create_server(self._server, sock=sock, ssl=self._tls, backlog=BACKLOG)

    def shut(self) -> None:
        """Refuse connections from now on, and break existing ones."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            for connection in self._server.connections:
                connection.force_close()

    async def close(self) -> None:
        """Close permanently; requests in progress are aborted."""
        self.shut()
        self._keeper.close()
        await self._server.shutdown(0.01)


class LabServer(ABC):
    """A simulator in this process that serves inside `async with`."""

    @abstractmethod
    async def start(self) -> None:
        """Serve; returns when connections are accepted."""

    @abstractmethod
    async def stop(self) -> None: ...

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def _reserved(host: str, port: int) -> socket.socket:
    """Return a socket that reserves a port for this process.

    SO_REUSEPORT shares the port with this process's own listener, but would share it with another fleet as well. So the
    port is first bound without the option: that fails if another process has it, with or without a listener.
    """
    if port:
        _bound(host, port, socket.SO_REUSEADDR).close()
    return _bound(host, port, socket.SO_REUSEPORT)


def _bound(host: str, port: int, *options: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        for option in options:
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise PortFailed(f"port {port} of {host}: {error.strerror}") from error
    sock.setblocking(False)
    return sock


def server(handler: Any) -> web.Server:
    return web.Server(handler, access_log=None, tcp_keepalive=False, lingering_time=0.0)


async def send(http: web.BaseRequest, reply: LabReply) -> web.StreamResponse:
    match reply.fate:
        case Delivery.DROPPED:
            return hang_up(http)
        case Delivery.CUT_OFF:
            return await _send_half(http, reply)
        case Delivery.SENT:
            response = web.Response(status=reply.status, body=reply.body, headers=reply.headers)
            if reply.close:
                response.force_close()
            return response


def hang_up(http: web.BaseRequest) -> web.StreamResponse:
    """Break the connection; the returned response is not sent."""
    if http.transport is not None:
        http.transport.abort()
    return web.Response()


async def _send_half(http: web.BaseRequest, reply: LabReply) -> web.StreamResponse:
    response = web.StreamResponse(status=reply.status, headers=reply.headers)
    response.content_length = len(reply.body)
    await response.prepare(http)
    await response.write(reply.body[: len(reply.body) // 2])
    if http.transport is not None:
        http.transport.close()
    return response
