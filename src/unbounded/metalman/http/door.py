"""Where connections come in: no more than there is room for, and not all of them for one address."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from unbounded.metalman.tally import Tally

Trusted = Callable[[str], bool]


class Connection(web.RequestHandler):
    """aiohttp's; what is no HTTP is told so in our words, and without the name of a library."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer, and close the connection."""
        super().handle_error(request, status, exc, message)  # it logs, and refuses when an answer has begun
        text = "bad request" if status == 400 else "internal error"
        response = web.Response(status=status, text=f"{text}\n", headers={"Server": "metalman"})
        response.force_close()
        return response


class Door(web.Server):
    """Closes at once what is too much: that hurts nobody who is inside."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Any],
        tally: Tally,
        *,
        most: int,
        most_of_one: int,
        is_trusted: Trusted,
        **options: Any,
    ) -> None:
        """
        Args:
            most_of_one: connections of one address; trusted proxies have no such limit.
        """
        super().__init__(handler, access_log=None, logger=_quiet_log(tally), **options)
        self._tally = tally
        self._most = most
        self._most_of_one = most_of_one
        self._is_trusted = is_trusted
        self._inside: dict[web.RequestHandler, str] = {}
        self._of_one: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many connections there are."""
        return len(self._inside)

    def __call__(self) -> web.RequestHandler:
        """A connection that is being accepted."""
        return Connection(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Let it in, or not."""
        super().connection_made(handler, transport)
        peer = str((transport.get_extra_info("peername") or ("",))[0])
        full = len(self._inside) >= self._most
        if full or (self._of_one[peer] >= self._most_of_one and not self._is_trusted(peer)):
            self._tally.count("too many connections" if full else "too many connections of one client", source=peer)
            transport.abort()
            return
        transport.set_write_buffer_limits(high=0)  # so that waiting for it means that all of it is in the kernel
        self._inside[handler] = peer
        self._of_one[peer] += 1

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Make room."""
        super().connection_lost(handler, exc)
        peer = self._inside.pop(handler, None)
        if peer is None:
            return
        self._of_one[peer] -= 1
        if not self._of_one[peer]:
            del self._of_one[peer]


class _Wrongs(logging.Filter):
    """What clients do wrong is counted, and is no error of ours."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            self._tally.count("not HTTP", why=type(error).__name__)
            return False
        return not isinstance(error, ConnectionError)


def _quiet_log(tally: Tally) -> logging.Logger:
    log = logging.getLogger("metalman.http.connections")
    log.filters = [_Wrongs(tally)]
    return log
