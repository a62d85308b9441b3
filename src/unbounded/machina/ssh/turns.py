"""How many handshakes at once: in all, as each costs CPU here, and with one server, as it drops what is too much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class Turns:
    """Who waits for an address that is busy holds up nobody else."""

    def __init__(self, in_all: int, at_one: int) -> None:
        self._all = asyncio.Semaphore(in_all)
        self._at_one = at_one
        self._at: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, address: Hashable) -> AsyncIterator[None]:
        """Wait for a turn, and have it until the end of the block."""
        at = self._at.get(address)
        if at is None:
            at = self._at[address] = asyncio.Semaphore(self._at_one)
        async with at, self._all:
            yield
