"""Limit of concurrent requests: in all, and of each caller, so that one caller cannot take all turns.

Nothing tells one caller with many tokens from many callers before the API server has accepted a token. So callers of
which no request was answered yet share a part of the turns.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from unbounded.explain_api.statuses import RequestRejected

REMEMBERED: Final = 4096  # callers


@dataclass
class RequestLimits:
    """The running requests. Nothing waits: what exceeds a limit is rejected.

    Args:
        total: limit of all callers.
        each: limit of one caller.
        unknown: limit of all callers that were never served.
    """

    total: int = 16
    each: int = 4
    unknown: int = 8
    _running: Counter[str] = field(default_factory=Counter)
    _unknown: int = 0
    _served: OrderedDict[str, None] = field(default_factory=OrderedDict)

    @contextmanager
    def turn(self, caller: str) -> Iterator[None]:
        """Count a request while inside. Raises RequestRejected (429)."""
        is_unknown = caller not in self._served
        if self._running[caller] >= self.each:
            text = f"{self.each} requests of this caller are running: try again when one of them is answered"
            raise RequestRejected(429, "TooManyRequests", text, retry_after_s=1)
        if self._running.total() >= self.total or (is_unknown and self._unknown >= self.unknown):
            raise RequestRejected(429, "TooManyRequests", "too many requests are running", retry_after_s=1)
        self._running[caller] += 1
        self._unknown += is_unknown
        try:
            yield
        finally:
            self._unknown -= is_unknown
            self._running[caller] -= 1
            if not self._running[caller]:
                del self._running[caller]

    def note_served(self, caller: str) -> None:
        """Note that the API server has accepted the credentials of a caller."""
        self._served[caller] = None
        self._served.move_to_end(caller)
        while len(self._served) > REMEMBERED:
            self._served.popitem(last=False)
