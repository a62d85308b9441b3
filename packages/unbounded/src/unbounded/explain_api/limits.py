"""Limit of concurrent requests: in all, and of each caller, so that one caller cannot take all turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from unbounded.explain_api.statuses import RequestRejected


@dataclass
class RequestLimits:
    """The running requests. Nothing waits: what exceeds a limit is rejected.

    Args:
        total: limit of all callers.
        each: limit of one caller.
    """

    total: int = 16
    each: int = 4
    _running: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def turn(self, caller: str) -> Iterator[None]:
        """Count a request while inside. Raises RequestRejected (429)."""
        if self._running[caller] >= self.each:
            text = f"{self.each} requests of this caller are running: try again when one of them is answered"
            raise RequestRejected(429, "TooManyRequests", text, retry_after_s=1)
        if self._running.total() >= self.total:
            raise RequestRejected(429, "TooManyRequests", "too many requests are running", retry_after_s=1)
        self._running[caller] += 1
        try:
            yield
        finally:
            self._running[caller] -= 1
            if not self._running[caller]:
                del self._running[caller]
