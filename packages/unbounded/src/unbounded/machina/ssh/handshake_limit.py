"""Limit on concurrent handshakes: in total, as each costs CPU here, and per server, as it drops connections beyond its
own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class HandshakeLimit:
    """Limit in total and per address. Handshakes that wait for a busy address do not block others."""

    def __init__(self, in_all: int, at_one: int) -> None:
        self._all = asyncio.Semaphore(in_all)
        self._at_one = at_one
        self._at: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def acquire(self, address: Hashable) -> AsyncIterator[None]:
        """Acquire a turn for the duration of the block."""
        at = self._at.get(address)
        if at is None:
            at = self._at[address] = asyncio.Semaphore(self._at_one)
        async with at, self._all:
            yield
