"""Two clocks, and the pause before a retry.

The event loop's monotonic time measures durations, and the wall clock is for display only. Code that displays times
takes a `WallClock`, `utc_now` by default, so that tests can set it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

WallClock = Callable[[], datetime]


def loop_time() -> float:
    """Return the event loop's monotonic time in seconds, which tests with virtual time advance."""
    return asyncio.get_running_loop().time()


def utc_now() -> datetime:
    return datetime.now(UTC)


def rfc3339(at: datetime | None = None, *, micro: bool = False) -> str:
    """A time as Kubernetes writes it (metav1.Time; with `micro` metav1.MicroTime); now, if none is given."""
    moment = (at or utc_now()).astimezone(UTC)
    return f"{moment.replace(tzinfo=None).isoformat(timespec='microseconds' if micro else 'seconds')}Z"


def timestamp_of(text: str | None) -> float | None:
    """Return a time in seconds since the epoch; None for none, or for one that cannot be read.

    An API server accepts forms of RFC 3339 that no component writes, such as a lower-case z.
    """
    try:
        return None if text is None else datetime.fromisoformat(text.upper()).timestamp()
    except (ValueError, OverflowError):
        return None


def seconds_since(earlier: str | None, now: datetime) -> float:
    """Return the seconds from a time that Kubernetes wrote until now; 0 where it wrote none."""
    return 0.0 if earlier is None else (now - datetime.fromisoformat(earlier)).total_seconds()


def parsed_time(text: str | None) -> datetime | None:
    """Return a time of an object; None for one that cannot be read.

    Executors on hosts write any that the CRD takes, such as 2026-01-01T00:00:00z.
    """
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def shown_seconds(earlier: str | None, later: datetime | None) -> float:
    """Return the seconds between two times for a reader; 0 where one cannot be read, or is not there."""
    began = parsed_time(earlier)
    return 0.0 if began is None or later is None else (later - began).total_seconds()


def age(created: str, now: datetime) -> str:
    """Format an age as kubectl does: 5s, 3m, 2h, 4d; empty for a time that cannot be read."""
    began = parsed_time(created)
    if began is None:
        return ""
    seconds = max(0, int((now - began).total_seconds()))
    for unit_s, unit, upto in ((1, "s", 120), (60, "m", 120 * 60), (3600, "h", 48 * 3600)):
        if seconds < upto:
            return f"{seconds // unit_s}{unit}"
    return f"{seconds // 86400}d"


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff: the pause doubles from `base_s` up to `max_s`, and its second half is random."""

    base_s: float
    max_s: float
    uniform: Callable[[float, float], float] = field(default=random.uniform, compare=False, repr=False)

    def after(self, failures: int) -> float:
        """Seconds to wait; `failures` counts from 1."""
        full_s = min(self.max_s, self.base_s * 2.0 ** min(failures - 1, 60))
        return full_s * self.uniform(0.5, 1.0)
