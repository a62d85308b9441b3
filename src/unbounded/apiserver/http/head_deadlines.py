"""A time limit for the heads of requests, for all connections of a server with one timer.

A client has the time from the end of the handshake to send its first head, and from the first byte of each later one.
Time between requests is the connection's own affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class HeadDeadlines:
    """Closes connections whose clients do not send the head that they owe. Of one event loop."""

    def __init__(self, within_s: float) -> None:
        self.expired = 0
        self._within_s = within_s
        self._owed: dict[Any, tuple[float, Callable[[], object]]] = {}  # all have the same limit: the first is next
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, connection: object, expire: Callable[[], object]) -> None:
        """Call `expire` unless the head has come in time; the limit of a head that is owed already stays."""
        if connection in self._owed:
            return
        loop = asyncio.get_running_loop()
        self._owed[connection] = loop.time() + self._within_s, expire
        if self._timer is None:
            self._timer = loop.call_later(self._within_s, self._expire)

    def end(self, connection: object) -> None:
        """Note that a head has come, or that nothing will."""
        self._owed.pop(connection, None)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._owed:
            connection, (ends_at, expire) = next(iter(self._owed.items()))
            if ends_at > loop.time():
                self._timer = loop.call_at(ends_at, self._expire)
                return
            del self._owed[connection]
            self.expired += 1
            expire()
