"""A time limit for the heads of requests, for all connections of a server with one timer.

The limit for a client's first head runs from the end of the handshake. The limit for each later one runs from its first
byte. Each connection limits the time between requests by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class HeadDeadlines:
    """Close connections whose clients do not send a head in time. For one event loop."""

    def __init__(self, within_s: float) -> None:
        self.expired = 0
        self._within_s = within_s
        self._owed: dict[Any, tuple[float, Callable[[], object]]] = {}  # all have the same limit: the first is next
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, connection: object, expire: Callable[[], object]) -> None:
        """Call `expire` unless the head arrives in time; a running limit is not extended."""
        if connection in self._owed:
            return
        loop = asyncio.get_running_loop()
        self._owed[connection] = loop.time() + self._within_s, expire
        if self._timer is None:
            self._timer = loop.call_later(self._within_s, self._expire)

    def end(self, connection: object) -> None:
        """Stop the limit: the head has arrived, or the connection has ended."""
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
