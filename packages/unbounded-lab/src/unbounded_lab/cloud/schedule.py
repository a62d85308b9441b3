"""Scheduled events of a cloud, in the order of their times."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Act = Callable[[float], None]
"""Takes the time at which it was due."""


class Schedule:
    def __init__(self) -> None:
        self._order = count()
        self._entries: list[tuple[float, int, Act]] = []

    def put(self, due: float, act: Act) -> None:
        heapq.heappush(self._entries, (due, next(self._order), act))

    def run(self, now: float) -> None:
        """Execute everything that is due by now, including what it schedules itself."""
        while self._entries and self._entries[0][0] <= now:
            due, _, act = heapq.heappop(self._entries)
            act(due)
