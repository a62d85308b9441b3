"""Serialization of the requests to each BMC, in the order of the calls, and none while the BMC is known to be dead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from unbounded.api.failures import Failure
from unbounded.metalman.redfish.breaker import CircuitBreaker
from unbounded.metalman.redfish.failures import BmcAnswerLost, BmcBusy, BmcUnreachable, CircuitOpen


class BmcGate:
    """Gate of one host and port, shared by all of its callers and credentials."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._lock = asyncio.Lock()  # wakes its waiters in the order of their arrival
        self._breaker = CircuitBreaker()

    @asynccontextmanager
    async def call(self, *, within_s: float) -> AsyncIterator[None]:
        """Hold the BMC for one call; exceptions inside show whether it answered.

        Raises:
            CircuitOpen: at once, also for waiting callers when the circuit opens.
            Busy: the turn did not come within `within_s`.
        """
        self._check_circuit()
        try:
            async with asyncio.timeout(within_s):
                await self._lock.acquire()
        except TimeoutError as error:
            raise BmcBusy(
                f"{self._origin} was busy with other requests for {within_s:g} s; nothing was sent"
            ) from error
        try:
            self._check_circuit()
            self._breaker.call_started()
            try:
                yield
            except (BmcUnreachable, BmcAnswerLost) as silence:
                self._breaker.call_unanswered(_now(), str(silence))
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

    def _check_circuit(self) -> None:
        now = _now()
        pause = self._breaker.pause(now)
        if pause is None:
            return
        wall = datetime.now(UTC)
        since, until = (wall + timedelta(seconds=at - now) for at in (pause.since, pause.until))
        raise CircuitOpen(
            f"not asked: {pause.silences} calls in a row got no answer since {since:%Y-%m-%dT%H:%M:%SZ} "
            f"({pause.why}); next try at {until:%Y-%m-%dT%H:%M:%SZ}",
            retry_after_s=max(pause.until - now, 0.1),
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
