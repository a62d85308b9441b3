"""Counters of packets, requests and connections that a server does not serve, by reason, with a rate-limited log.

A flood increases a number, not the size of a log or a table: there are few reasons, and the server chooses them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

from unbounded.kube.logs import Log

LOG_EVERY_S: Final = 10.0
REMEMBERED_THINGS: Final = 1024


class RejectionCounters:
    """Counter by reason; the first rejection of a reason is logged, and later ones at most every ten seconds."""

    def __init__(self, log: Log, clock: Callable[[], float], text: str = "packet not served") -> None:
        self.counts: Counter[str] = Counter()
        self._log = log
        self._text = text
        self._clock = clock
        self._last_logs: dict[str, tuple[float, int]] = {}  # {reason: (time of the last log, count at that time)}

    def count(self, reason: str, **facts: object) -> None:
        """Count a rejection; `facts` are for the log."""
        self.counts[reason] += 1
        now, seen = self._clock(), self.counts[reason]
        when, before = self._last_logs.get(reason, (None, 0))
        if when is not None and now - when < LOG_EVERY_S:
            return
        self._last_logs[reason] = (now, seen)
        self._log.info(self._text, reason=reason, times=seen - before, **facts)


class RepeatFilter:
    """Rate limit for each thing, with a limit on the remembered things."""

    def __init__(self, clock: Callable[[], float], *, again_after_s: float = 60.0) -> None:
        self._clock = clock
        self._again_after_s = again_after_s
        self._last: OrderedDict[Hashable, float] = OrderedDict()

    def allows(self, thing: Hashable) -> bool:
        """Return whether to pass the thing on now."""
        now = self._clock()
        last = self._last.get(thing)
        if last is not None and now - last < self._again_after_s:
            return False
        self._last[thing] = now
        self._last.move_to_end(thing)
        if len(self._last) > REMEMBERED_THINGS:
            self._last.popitem(last=False)
        return True
