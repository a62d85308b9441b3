"""A queue of keys to reconcile: each once, by one worker at a time; now, later, or after backoff."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from unbounded.kube.clock import Backoff

K = TypeVar("K", bound=Hashable)

FAILURE_BACKOFF: Final = Backoff(base_s=0.5, max_s=300.0)
CONFLICT_BACKOFF: Final = Backoff(base_s=0.01, max_s=5.0)


class WorkQueue(Generic[K]):
    """Keys that wait for a worker. The queue holds a key at most once, so the number of objects bounds it.

    A key that is added while a worker has it waits until that worker is `done`. A key has at most one timer, the
    earliest that was requested. Taking the key clears it, as each reconcile returns the time of the next one.

    Args:
        failed: backoff of `retry`.
        overtaken: backoff of `retry(soon=True)`, which begins without a pause.
    """

    def __init__(self, *, failed: Backoff = FAILURE_BACKOFF, overtaken: Backoff = CONFLICT_BACKOFF) -> None:
        self._failed = failed
        self._overtaken = overtaken
        self._waiting: deque[K] = deque()
        self._queued: set[K] = set()  # what is in _waiting, for lookup
        self._working: set[K] = set()
        self._again: set[K] = set()  # added while a worker had it
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._overtakes: dict[K, int] = {}
        self._takers: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """Keys that wait for a worker now."""
        return len(self._waiting)

    def add(self, key: K) -> None:
        """Reconcile this key as soon as a worker is free."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._waiting.append(key)
            self._wake()

    def add_after(self, key: K, delay_s: float) -> None:
        """Reconcile this key after some seconds, unless something requests it sooner."""
        if delay_s <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + delay_s:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(delay_s, self._due, key)

    def retry(self, key: K, *, soon: bool = False, least_s: float = 0.0) -> float:
        """Reconcile again after backoff, and return its seconds.

        Args:
            soon: the object changed during the reconcile: without a pause the first time, then after short ones.
            least_s: the least pause.
        """
        counts, backoff = (self._overtakes, self._overtaken) if soon else (self._failures, self._failed)
        count = counts[key] = counts.get(key, 0) + 1
        nth = count - 1 if soon else count  # soon is at once the first time
        delay_s = max(least_s, backoff.after(nth) if nth else 0.0)
        self.add_after(key, delay_s)
        return delay_s

    def failures(self, key: K) -> int:
        """Return how many reconciles in a row have failed."""
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """Reset the backoff after a successful reconcile."""
        self._failures.pop(key, None)
        self._overtakes.pop(key, None)

    async def take(self) -> K:
        """The next key, when there is one; `done` has to be called for it."""
        while not self._waiting:
            taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._takers.append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                # no search after each wake, where it is never found: there can be many takers
                if taker in self._takers:
                    self._takers.remove(taker)
                elif not taker.cancelled():
                    self._wake()  # it was woken for a key that another one has to take now
                raise
        key = self._waiting.popleft()
        self._queued.discard(key)
        self._working.add(key)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        return key

    def done(self, key: K) -> None:
        """The worker has finished with this key."""
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def close(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _wake(self) -> None:
        while self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                return
