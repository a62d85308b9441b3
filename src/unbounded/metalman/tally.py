"""What the network servers do with odd packets: every one is counted by its reason, and few are logged.

A flood of packets changes a number and not the size of a log or of a table: reasons are few, and told apart here.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

from unbounded.kube.logs import Log

LOG_EVERY_S: Final = 10.0
REMEMBERED: Final = 1024


class Tally:
    """Counts by reason; the first of a reason is logged, and later ones at most every ten seconds."""

    def __init__(self, log: Log, clock: Callable[[], float], text: str = "packet not served") -> None:
        self.counts: Counter[str] = Counter()
        self._log = log
        self._text = text
        self._clock = clock
        self._told: dict[str, tuple[float, int]] = {}  # {reason: (when, how many by then)}

    def count(self, reason: str, **facts: object) -> None:
        """Count one; `facts` are for the log."""
        self.counts[reason] += 1
        now, seen = self._clock(), self.counts[reason]
        when, before = self._told.get(reason, (None, 0))
        if when is not None and now - when < LOG_EVERY_S:
            return
        self._told[reason] = (now, seen)
        self._log.info(self._text, reason=reason, times=seen - before, **facts)


class Once:
    """Passes a thing on once in a while, and remembers so many things at most."""

    def __init__(self, clock: Callable[[], float], *, again_after_s: float = 60.0) -> None:
        self._clock = clock
        self._again_after_s = again_after_s
        self._last: OrderedDict[Hashable, float] = OrderedDict()

    def new(self, thing: Hashable) -> bool:
        """Whether the thing is to be passed on now."""
        now = self._clock()
        last = self._last.get(thing)
        if last is not None and now - last < self._again_after_s:
            return False
        self._last[thing] = now
        self._last.move_to_end(thing)
        if len(self._last) > REMEMBERED:
            self._last.popitem(last=False)
        return True
