"""How many calls a cloud gets: a bucket for the reads and one for the writes of each scope.

A scope that is throttled waits by itself; others go on. What the cloud says is left counts when it is less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from unbounded.api.failures import Transient
from unbounded.machineops.provider import Rate, Rates

LONGEST_PAUSE_S: Final = 300.0
PATIENCE_S: Final = 20.0  # of a read: longer is said, and not waited for


@dataclass
class Held:
    """What one piece of work waits for here.

    Args:
        back: such as `reads of sub-1`; empty while it waits for nothing here.
    """

    back: str = ""


_HELD: Final[ContextVar[Held | None]] = ContextVar("held", default=None)


@contextmanager
def held() -> Iterator[Held]:
    """What is done within, and in tasks that begin within, tells what it waits for."""
    told = Held()
    token = _HELD.set(told)
    try:
        yield told
    finally:
        _HELD.reset(token)


@dataclass
class Bucket:
    """Who asks first goes first."""

    rate: Rate
    tokens: float = field(init=False)
    at: float = 0.0
    closed_until: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = self.rate.burst

    def turn(self, now: float) -> float:
        """The time at which a call that asks now may go; it is taken with that."""
        self._fill(now)
        self.tokens -= 1
        owed_s = max(-self.tokens, 0.0) / self.rate.per_s
        return max(now + owed_s, self.closed_until)

    def give_back(self) -> None:
        """A turn was not used."""
        self.tokens = min(self.tokens + 1, self.rate.burst)

    def close(self, now: float, until: float) -> None:
        """Nothing goes before then, and not all at once after it."""
        self.left(0.0, now)
        self.closed_until = max(self.closed_until, until)

    def left(self, count: float, now: float) -> None:
        """What the cloud says; others may use the same account."""
        self._fill(now)
        self.tokens = min(self.tokens, count)

    def _fill(self, now: float) -> None:
        self.tokens = min(self.tokens + (now - self.at) * self.rate.per_s, self.rate.burst)
        self.at = now


class ScopeBudget:
    """The budget of one provider, for all scopes and logins in this process."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._reads: dict[str, Bucket] = {}
        self._writes: dict[str, Bucket] = {}

    async def read(self, scope: str) -> None:
        """Wait until a read may be sent.

        Raises:
            Transient: that would take long; nothing was sent.
        """
        before = _loop_time() + PATIENCE_S
        await _pass(self._bucket(self._reads, self._rates.reads, scope), f"reads of {scope}", before)

    async def write(self, scope: str, *, before: float) -> None:
        """Wait until a write may be sent.

        Raises:
            Transient: that is not before this time of the loop; nothing was sent.
        """
        await _pass(self._bucket(self._writes, self._rates.writes, scope), f"writes of {scope}", before)

    def left(self, scope: str, *, reads: float | None = None, writes: float | None = None) -> None:
        """What an answer said is left."""
        now = _loop_time()
        for buckets, rate, count in (
            (self._reads, self._rates.reads, reads),
            (self._writes, self._rates.writes, writes),
        ):
            if count is not None:
                self._bucket(buckets, rate, scope).left(count, now)

    def throttled(self, scope: str, after_s: float) -> None:
        """Send nothing more for so long."""
        now = _loop_time()
        until = now + min(max(after_s, 1.0), LONGEST_PAUSE_S)
        self._bucket(self._reads, self._rates.reads, scope).close(now, until)
        self._bucket(self._writes, self._rates.writes, scope).close(now, until)

    def _bucket(self, buckets: dict[str, Bucket], rate: Rate, scope: str) -> Bucket:
        return buckets.setdefault(scope, Bucket(rate))


async def _pass(bucket: Bucket, what: str, before: float) -> None:
    """Wait for a turn, which is given back where it does not come in time."""
    turn, used, told = bucket.turn(_loop_time()), False, _HELD.get() or Held()
    try:
        while (left_s := max(turn, bucket.closed_until) - _loop_time()) > 0:
            if _loop_time() + left_s > before:
                raise Transient(f"the rate limits hold {what} back for {left_s:.0f} s; nothing was sent")
            told.back = what
            await asyncio.sleep(left_s)
        used = True
    finally:
        told.back = ""
        if not used:
            bucket.give_back()


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
