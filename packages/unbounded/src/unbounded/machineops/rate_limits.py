"""Rate limits of a cloud: one bucket for reads and one for writes of each scope.

A throttled scope waits alone; other scopes continue. A lower remainder that the cloud reports replaces our own count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from unbounded.api.failures import Transient
from unbounded.kube.clock import loop_time
from unbounded.machineops.provider import Rate, Rates

MAX_PAUSE_S: Final = 300.0
MAX_READ_WAIT_S: Final = 20.0  # longest wait of a read; a longer one fails with a message


@dataclass
class BudgetWait:
    """Wait of one task in the budget.

    Args:
        waits_for: such as `reads of sub-1`; empty while the task does not wait here.
    """

    waits_for: str = ""


_WAIT: Final[ContextVar[BudgetWait | None]] = ContextVar("budget wait", default=None)


@contextmanager
def track_wait() -> Iterator[BudgetWait]:
    """Report the wait of the block, and of tasks that start in it."""
    wait = BudgetWait()
    token = _WAIT.set(wait)
    try:
        yield wait
    finally:
        _WAIT.reset(token)


@dataclass
class TokenBucket:
    """Token bucket that serves calls in order."""

    rate: Rate
    tokens: float = field(init=False)
    at: float = 0.0
    closed_until: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = self.rate.burst

    def take_turn(self, now: float) -> float:
        """Take a turn, and return the time at which the call may be sent."""
        self._fill(now)
        self.tokens -= 1
        owed_s = max(-self.tokens, 0.0) / self.rate.per_s
        return max(now + owed_s, self.closed_until)

    def return_turn(self) -> None:
        """Return an unused turn."""
        self.tokens = min(self.tokens + 1, self.rate.burst)

    def close(self, now: float, until: float) -> None:
        """Send nothing until then, and not everything at once after it."""
        self.limit_to(0.0, now)
        self.closed_until = max(self.closed_until, until)

    def limit_to(self, count: float, now: float) -> None:
        """Apply the remainder that the cloud reports; other clients may use the same account."""
        self._fill(now)
        self.tokens = min(self.tokens, count)

    def _fill(self, now: float) -> None:
        self.tokens = min(self.tokens + (now - self.at) * self.rate.per_s, self.rate.burst)
        self.at = now


class ScopeBudget:
    """Budget of one provider, for all scopes and logins in this process."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._reads: dict[str, TokenBucket] = {}
        self._writes: dict[str, TokenBucket] = {}

    async def read(self, scope: str) -> None:
        """Wait until a read may be sent.

        Raises:
            Transient: the wait would be too long; nothing was sent.
        """
        before = loop_time() + MAX_READ_WAIT_S
        await _wait_turn(self._bucket(self._reads, self._rates.reads, scope), f"reads of {scope}", before)

    async def write(self, scope: str, *, before: float) -> None:
        """Wait until a write may be sent.

        Raises:
            Transient: the wait would exceed this time of the loop; nothing was sent.
        """
        await _wait_turn(self._bucket(self._writes, self._rates.writes, scope), f"writes of {scope}", before)

    def left(self, scope: str, *, reads: float | None = None, writes: float | None = None) -> None:
        """Apply the remainders of a response."""
        now = loop_time()
        for buckets, rate, count in (
            (self._reads, self._rates.reads, reads),
            (self._writes, self._rates.writes, writes),
        ):
            if count is not None:
                self._bucket(buckets, rate, scope).limit_to(count, now)

    def throttled(self, scope: str, after_s: float) -> None:
        """Send nothing for so many seconds."""
        now = loop_time()
        until = now + min(max(after_s, 1.0), MAX_PAUSE_S)
        self._bucket(self._reads, self._rates.reads, scope).close(now, until)
        self._bucket(self._writes, self._rates.writes, scope).close(now, until)

    def _bucket(self, buckets: dict[str, TokenBucket], rate: Rate, scope: str) -> TokenBucket:
        return buckets.setdefault(scope, TokenBucket(rate))


async def _wait_turn(bucket: TokenBucket, what: str, before: float) -> None:
    """Wait for a turn; return it if it does not come in time."""
    turn, used, wait = bucket.take_turn(loop_time()), False, _WAIT.get() or BudgetWait()
    try:
        while (left_s := max(turn, bucket.closed_until) - loop_time()) > 0:
            if loop_time() + left_s > before:
                raise Transient(f"the rate limits delay {what} for {left_s:.0f} s; nothing was sent")
            wait.waits_for = what
            await asyncio.sleep(left_s)
        used = True
    finally:
        wait.waits_for = ""
        if not used:
            bucket.return_turn()
