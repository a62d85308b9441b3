"""The listener: accepts connections over TLS within the connection limits."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, cast

from aiohttp import web

from unbounded.kube.logs import Log
from unbounded.kube.process_tuning import open_files
from unbounded_apiserver.http.connection import HttpConnection
from unbounded_apiserver.http.connection_limits import ConnectionLimits, HeadDeadlines, TrackedConnection
from unbounded_apiserver.http.log_limiter import LogLimiter
from unbounded_apiserver.http.reply import HttpReply
from unbounded_apiserver.http.request_heads import HeadCache
from unbounded_apiserver.http.tls import accept

CONNECTIONS: Final = 4000  # at 30 to 45 KiB each; an agent has four
SPARE_FILES: Final = 256  # open files that are not clients' connections
BACKLOG: Final = 1024
HANDSHAKE_S: Final = 10.0
HEAD_S: Final = 30.0  # kube-apiserver: 32
RETRY_PAUSE_S: Final = 0.2  # pause when the system has no file or memory for a connection
PASSING: Final = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.EHOSTUNREACH})
NO_TIME_WAIT: Final = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # SO_LINGER: reset at once

Handler = Callable[[web.BaseRequest], Awaitable[HttpReply | web.StreamResponse]]

log = Log(__name__)


class CountingServer(web.Server):
    """A server that counts its connections, and sends replies as well as the library's responses."""

    count = 0

    def __init__(self, handler: Handler, **options: Any) -> None:
        super().__init__(cast(Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], handler), **options)
        self.head_deadlines = HeadDeadlines(HEAD_S)
        self._head_cache = HeadCache()

    def serve(self, tracked: TrackedConnection) -> HttpConnection:
        """Return the protocol of an admitted connection."""
        return HttpConnection(self, self._head_cache, self.head_deadlines, tracked, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        self.count += 1
        super().connection_made(handler, transport)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self.count -= 1
        super().connection_lost(handler, exc)


class ConnectionServer(Protocol):
    """The server behind a listener."""

    def serve(self, tracked: TrackedConnection) -> asyncio.Protocol:
        """Return the protocol of an admitted connection."""
        ...


class LimitedListener:
    """Listen until closed.

    A connection beyond the limits is closed at once, or replaces an unauthenticated one.

    Args:
        limit: connections at once; lower where the system allows fewer open files.
        address_limit: connections of one address, 0 for a share of `limit`.
    """

    def __init__(
        self, server: ConnectionServer, context: ssl.SSLContext, *, limit: int = CONNECTIONS, address_limit: int = 0
    ) -> None:
        self._server = server
        self._context = context
        self._limit = limit
        self._address_limit = address_limit
        self.limits = ConnectionLimits(limit, address_limit)
        self._arriving: set[asyncio.Task[None]] = set()  # in the handshake
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._full = LogLimiter(log.warning, "too many connections, closing new ones")
        self._no_room = LogLimiter(log.warning, "cannot accept connections")

    @property
    def port(self) -> int:
        """The port of the listening socket."""
        port: int = self._listeners[0].getsockname()[1]
        return port

    async def open(self, host: str, port: int) -> None:
        """Listen on all addresses of `host`, with port 0 on a free port. Raises OSError."""
        limit = min(self._limit, open_files(self._limit + SPARE_FILES) - SPARE_FILES)
        self.limits = ConnectionLimits(limit, self._address_limit)
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                self._listeners.append(_listener(socket.socket(family, kind, protocol), address))
        except OSError:
            self._stop_listening()
            raise
        self._accepting = [loop.create_task(self._accept(listener), name="accept") for listener in self._listeners]

    async def close(self) -> None:
        """Stop accepting connections; open ones stay."""
        tasks = [*self._accepting, *self._arriving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._stop_listening()

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, (host, *_) = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno not in PASSING:
                    self._no_room(error=str(error))
                    await asyncio.sleep(RETRY_PAUSE_S)
                continue
            tracked = self.limits.admit(host)
            if tracked is None:
                self._full(limit=self.limits.total, address=host)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_TIME_WAIT)
                connection.close()
                continue
            task = loop.create_task(self._handshake(connection, tracked), name="handshake")
            tracked.drop = task.cancel
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    async def _handshake(self, connection: socket.socket, tracked: TrackedConnection) -> None:
        """Run the TLS handshake with a client; close the connection if it fails or times out."""
        served = False
        try:
            with suppress(OSError):
                await accept(partial(self._server.serve, tracked), connection, self._context, within_s=HANDSHAKE_S)
                served = True
        finally:
            if not served:
                tracked.release()


def _listener(listener: socket.socket, address: tuple[object, ...]) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
