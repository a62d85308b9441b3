"""HTTP server with limits on the number of connections, in total and for each address."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from unbounded.kube.rejection_counters import RejectionCounters

Trusted = Callable[[str], bool]


class QuietConnection(web.RequestHandler):
    """Request handler of aiohttp whose error answers have our texts and do not name the library."""

    __slots__ = ("_server_name",)

    def __init__(self, manager: LimitedHttpServer, **options: Any) -> None:
        super().__init__(manager, **options)
        self._server_name = manager.name

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return an error answer that closes the connection."""
        # called for its log, and because it raises if an answer has begun
        super().handle_error(request, status, exc, message)
        text = "bad request" if status == 400 else "internal error"
        response = web.Response(status=status, text=f"{text}\n", headers={"Server": self._server_name})
        response.force_close()
        return response


class LimitedHttpServer(web.Server):
    """Server that closes surplus connections at once, so that open ones do not suffer."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Any],
        tally: RejectionCounters,
        *,
        name: str,
        most: int,
        most_of_one: int,
        is_trusted: Trusted,
        write_buffer_bytes: int = 0,
        **options: Any,
    ) -> None:
        """Set the limits.

        Args:
            name: of the program, for the header Server of error answers and for the log.
            most: limit on all connections.
            most_of_one: limit on the connections of one address; trusted proxies have no such limit.
            write_buffer_bytes: more than none for TLS, whose transport pauses for ever at a limit of none.
        """
        super().__init__(handler, access_log=None, logger=_quiet_log(name, tally), **options)
        self.name = name
        self._tally = tally
        self._most = most
        self._most_of_one = most_of_one
        self._is_trusted = is_trusted
        self._write_buffer_bytes = write_buffer_bytes
        self._inside: dict[web.RequestHandler, str] = {}
        self._of_one: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Number of open connections."""
        return len(self._inside)

    def __call__(self) -> web.RequestHandler:
        """Return the handler of a connection that is being accepted."""
        return QuietConnection(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Admit the connection, or abort it if a limit is reached."""
        super().connection_made(handler, transport)
        peer = str((transport.get_extra_info("peername") or ("",))[0])
        full = len(self._inside) >= self._most
        if full or (self._of_one[peer] >= self._most_of_one and not self._is_trusted(peer)):
            self._tally.count("too many connections" if full else "too many connections of one client", source=peer)
            transport.abort()
            return
        # at 0, waiting for the buffer means that all bytes are in the kernel
        transport.set_write_buffer_limits(high=self._write_buffer_bytes)
        self._inside[handler] = peer
        self._of_one[peer] += 1

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Release the connection's place."""
        super().connection_lost(handler, exc)
        peer = self._inside.pop(handler, None)
        if peer is None:
            return
        self._of_one[peer] -= 1
        if not self._of_one[peer]:
            del self._of_one[peer]


class _ProtocolErrors(logging.Filter):
    """Filter that counts protocol errors of clients, which are no errors of ours."""

    def __init__(self, tally: RejectionCounters) -> None:
        super().__init__()
        self._tally = tally

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            self._tally.count("not HTTP", why=type(error).__name__)
            return False
        return not isinstance(error, ConnectionError)


def _quiet_log(name: str, tally: RejectionCounters) -> logging.Logger:
    log = logging.getLogger(f"{name}.http.connections")
    log.filters = [_ProtocolErrors(tally)]
    return log
