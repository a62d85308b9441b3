"""Time of a simulator: the event loop's, or a clock that a test moves."""

from __future__ import annotations

import asyncio
import heapq
import time
from itertools import count
from typing import Protocol


class LabClock(Protocol):
    def now(self) -> float:
        """Return seconds since 1970, never running backwards."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class LoopClock:
    """The event loop's time, set to the wall clock once, at its creation. Needs a running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._offset = time.time() - self._loop.time()

    def now(self) -> float:
        return self._loop.time() + self._offset

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that advances only by `move`, which wakes the sleepers whose time has come."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    @property
    def sleepers(self) -> int:
        """The number of sleepers."""
        return sum(not future.done() for _, _, future in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        await future

    def move(self, seconds: float) -> None:
        self._now += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
