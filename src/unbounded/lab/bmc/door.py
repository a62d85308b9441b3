"""A listening port of loopback that can be shut and opened again without being lost to somebody else."""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import sslproto
from typing import Final

from aiohttp import web

from unbounded.lab.bmc.identity import HOST

BACKLOG: Final = 128
TLS_BUFFER_BYTES: Final = 16_384
"""asyncio allots 256 KiB for each TLS connection; this much is enough, and a fleet has thousands."""


class Door:
    """A port with an HTTP server behind it; while it is shut, connections are refused."""

    def __init__(self, server: web.Server, port: int, tls: ssl.SSLContext | None) -> None:
        self._server = server
        self._tls = tls
        self._listener: asyncio.Server | None = None
        self._keeper = _bound(port)  # never listens: it only keeps the port when the listener is closed
        self.port: int = self._keeper.getsockname()[1]

    async def open(self) -> None:
        if self._listener is None:
            loop = asyncio.get_running_loop()
            sock = _bound(self.port)
            self._listener = await loop.create_server(self._server, sock=sock, ssl=self._tls, backlog=BACKLOG)

    def shut(self) -> None:
        """Refuse connections from now on, and break those that there are."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            for connection in self._server.connections:
                connection.force_close()

    async def close(self) -> None:
        """Shut for good; requests in progress are given up."""
        self.shut()
        self._keeper.close()
        await self._server.shutdown(0.01)


def _bound(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((HOST, port))
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def small_tls_buffers() -> None:
    """Make asyncio's TLS connections of this process small; those that exist stay as they are."""
    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
