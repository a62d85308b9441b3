"""Rate limits as token buckets, filled evenly and full at first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """A published rate: so many at once, and so many more each second."""

    burst: float
    per_s: float


class Buckets:
    """The buckets of one cloud, by name. One that was never asked is full."""

    def __init__(self) -> None:
        self._filled: dict[str, tuple[float, float]] = {}  # tokens, and when there were so many

    def left(self, name: str, limit: Limit, now: float) -> int:
        """How many requests would pass now."""
        return int(self._tokens(name, limit, now) + 1e-9)

    def take(self, wanted: Mapping[str, Limit], now: float) -> tuple[str, float] | None:
        """Take one token from each bucket, or from none.

        Returns:
            None when they were taken, else the bucket that was empty for the longest and how many seconds it stays so.
        """
        waits = {name: (1.0 - self._tokens(name, limit, now)) / limit.per_s for name, limit in wanted.items()}
        if waits and max(waits.values()) > 1e-9:
            return max(waits.items(), key=lambda item: item[1])
        for name, limit in wanted.items():
            self._filled[name] = (self._tokens(name, limit, now) - 1.0, now)
        return None

    def _tokens(self, name: str, limit: Limit, now: float) -> float:
        tokens, at = self._filled.get(name, (limit.burst, now))
        return min(limit.burst, tokens + (now - at) * limit.per_s)
