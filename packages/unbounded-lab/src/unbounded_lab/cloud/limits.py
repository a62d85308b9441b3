"""Rate limits as token buckets, filled evenly and full at first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CloudRateLimit:
    """A published rate: a burst, and a steady number each second."""

    burst: float
    per_s: float


class TokenBuckets:
    """The buckets of one cloud, by name. An unused bucket is full."""

    def __init__(self) -> None:
        self._filled: dict[str, tuple[float, float]] = {}  # number of tokens, and the time of that number

    def left(self, name: str, limit: CloudRateLimit, now: float) -> int:
        """Return the number of requests that would pass now."""
        return int(self._tokens(name, limit, now) + 1e-9)

    def take(self, requested: Mapping[str, CloudRateLimit], now: float) -> tuple[str, float] | None:
        """Take one token from each bucket, or from none.

        Returns:
            None when they were taken, else the bucket that stays empty for the longest time, and that time in seconds.
        """
        waits = {name: (1.0 - self._tokens(name, limit, now)) / limit.per_s for name, limit in requested.items()}
        if waits and max(waits.values()) > 1e-9:
            return max(waits.items(), key=lambda item: item[1])
        for name, limit in requested.items():
            self._filled[name] = (self._tokens(name, limit, now) - 1.0, now)
        return None

    def _tokens(self, name: str, limit: CloudRateLimit, now: float) -> float:
        tokens, at = self._filled.get(name, (limit.burst, now))
        return min(limit.burst, tokens + (now - at) * limit.per_s)
