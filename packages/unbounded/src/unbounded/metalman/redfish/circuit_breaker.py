"""Serialization of the requests to each BMC, in the order of the calls, and none while the BMC is known to be dead."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from unbounded.api.failures import Failure
from unbounded.kube.clock import loop_time
from unbounded.metalman.redfish.bmc_interface import BmcAnswerLost, BmcBusy, BmcUnreachable, CircuitOpen

SILENCES: Final = 3  # in a row, before it opens
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Pause:
    """Reason and duration of an open circuit, in seconds of the caller's monotonic clock."""

    since: float
    until: float
    silences: int
    why: str


@dataclass(slots=True)
class CircuitBreaker:
    """State of the circuit: closed, open until a time, or half open while one probe decides."""

    silences: int = 0
    opened_at: float = 0.0
    retry_at: float = 0.0
    probing: bool = False
    why: str = ""

    def pause(self, now: float) -> Pause | None:
        """Return the pause during which no call is allowed; None if a call is allowed."""
        if self.silences < SILENCES or (now >= self.retry_at and not self.probing):
            return None
        return Pause(self.opened_at, max(now, self.retry_at), self.silences, self.why)

    def call_started(self) -> None:
        """Record that an allowed call is made. If the circuit is open, the call is the probe."""
        self.probing = self.silences >= SILENCES

    def call_answered(self) -> None:
        """Record that the BMC answered, with any content."""
        self.silences, self.probing = 0, False

    def call_abandoned(self) -> None:
        """Record that the caller was cancelled before the result was known."""
        self.probing = False

    def call_unanswered(self, now: float, why: str, jitter: float | None = None) -> None:
        """Record that there was no answer. `jitter` in 0..1 shortens the pause by up to half, so that probes do not
        coincide.
        """
        self.silences, self.probing, self.why = self.silences + 1, False, why
        if self.silences == SILENCES:
            self.opened_at = now
        doublings = min(max(self.silences - SILENCES, 0), 16)
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**doublings)
        share = random.random() if jitter is None else jitter  # noqa: S311 (spreading load, not a secret)
        self.retry_at = now + pause_s * (1 - share / 2)


class BmcGate:
    """Gate of one host and port, shared by all of its callers and credentials."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._lock = asyncio.Lock()  # wakes its waiters in the order of their arrival
        self._waiting = 0
        self._breaker = CircuitBreaker()

    @asynccontextmanager
    async def call(self, *, within_s: float) -> AsyncIterator[None]:
        """Hold the BMC for one call; exceptions inside show whether it answered.

        Raises:
            CircuitOpen: at once, also for waiting callers when the circuit opens.
            BmcBusy: the turn did not come within `within_s`.
        """
        self._check_circuit()
        await self._take_turn(within_s)
        try:
            self._check_circuit()
            self._breaker.call_started()
            try:
                yield
            except (BmcUnreachable, BmcAnswerLost) as silence:
                self._breaker.call_unanswered(loop_time(), str(silence))
                raise
            except Failure:
                self._breaker.call_answered()
                raise
            except BaseException:
                self._breaker.call_abandoned()
                raise
            self._breaker.call_answered()
        finally:
            self._lock.release()

    async def _take_turn(self, within_s: float) -> None:
        if not self._waiting and not self._lock.locked():
            await self._lock.acquire()  # does not wait, so that it needs no timer
            return
        self._waiting += 1
        try:
            async with asyncio.timeout(within_s):
                await self._lock.acquire()
        except TimeoutError as error:
            raise BmcBusy(
                f"{self._origin} was busy with other requests for {within_s:g} s; nothing was sent"
            ) from error
        finally:
            self._waiting -= 1

    @property
    def is_paused(self) -> bool:
        return self._breaker.pause(loop_time()) is not None

    def _check_circuit(self) -> None:
        now = loop_time()
        pause = self._breaker.pause(now)
        if pause is None:
            return
        wall = datetime.now(UTC)
        since, until = (wall + timedelta(seconds=at - now) for at in (pause.since, pause.until))
        raise CircuitOpen(
            f"not sent: {pause.silences} consecutive calls got no answer since {since:%Y-%m-%dT%H:%M:%SZ} "
            f"({pause.why}); next attempt at {until:%Y-%m-%dT%H:%M:%SZ}",
            retry_after_s=max(pause.until - now, 0.1),
        )
