"""The loop of a controller: a queue of keys, one reconcile for a key at a time, and what becomes of its failures."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import AbstractContextManager, ExitStack
from functools import cache, partial
from typing import Final, Generic, TypeVar

from unbounded.api.failures import Failure, Rejected, Stale, Transient, Uncertain
from unbounded.kube.api import ServerBusy
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

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


class Controller(Generic[K]):
    """Controller that calls `reconcile(key)` whenever something may have changed for a key.

    A reconcile reads the current state, whatever woke it. It returns the seconds until the next reconcile, or None to
    wait for an event. An error never stops other keys. Stale is retried at once, every other Failure after backoff. Any
    other exception is a bug in this program and is logged with its traceback.

    Args:
        workers: the number of keys that are reconciled concurrently.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[float | None]],
        *,
        workers: int = 8,
        queue: WorkQueue[K] | None = None,
        metrics: ControllerMetrics | None = None,
    ) -> None:
        self.name = name
        self.queue: WorkQueue[K] = WorkQueue() if queue is None else queue  # an empty one is false
        self._reconcile = reconcile
        self._workers = workers
        self._followed: list[Callable[[], AbstractContextManager[None]]] = []
        self._ends = False
        metrics = metrics or ControllerMetrics()
        # looked up by its labels once, not with every reconcile
        self._results = cache(partial(metrics.reconciles.labels, name))
        self._seconds = metrics.reconcile_seconds.labels(name)
        self._log = Log(__name__).bind(controller=name)
        metrics.queue_depth.labels(name).set_function(lambda: len(self.queue))

    def enqueue(self, key: K) -> None:
        """Reconcile this key soon."""
        self.queue.add(key)

    def follow(
        self,
        cache: Cache[T],
        keys: Callable[[T], Iterable[K]],
        *,
        parts: Callable[[T], object] | None = None,
        delay_s: float = 0.0,
    ) -> None:
        """While `run` runs, reconcile the keys that an object concerns, before and after each of its changes.

        Args:
            parts: the parts of an object that count: a change that leaves them alike reconciles nothing.
            delay_s: before the reconcile, where changes of many objects come together.
        """

        def changed(old: T | None, new: T | None) -> None:
            if parts is not None and old is not None and new is not None and parts(old) == parts(new):
                return
            for item in (old, new):
                if item is not None:
                    for key in keys(item):
                        self.queue.add_after(key, delay_s)

        self._followed.append(lambda: cache.subscribed(changed))

    async def run(self) -> None:
        """Work until cancelled."""
        self._ends = False
        with ExitStack() as stack:
            stack.callback(self.queue.close)
            for followed in self._followed:
                stack.enter_context(followed())
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    group.create_task(self._work(), name=f"{self.name}-{number}")
                try:
                    await asyncio.Event().wait()
                finally:
                    self._ends = True  # before the group cancels the workers

    async def _work(self) -> None:
        while True:
            key = await self.queue.take()
            try:
                await self._reconcile_key(key)
            finally:
                self.queue.done(key)
            if self._ends:  # a task group of the call, one of whose tasks failed at that time, swallows the cancel
                raise asyncio.CancelledError

    async def _reconcile_key(self, key: K) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        result = "error"
        try:
            again_s = await self._reconcile(key)
        except Exception as error:
            result = self._failed(key, _only_failure(error))
        else:
            result = "done"
            self.queue.forget(key)
            if again_s is not None:
                self.queue.add_after(key, again_s)
        finally:
            self._results(result).inc()
            self._seconds.observe(loop.time() - began)

    def _failed(self, key: K, error: Exception) -> str:
        """Schedule the retry, log the error if it is worth a line, and return the name of the result."""
        if isinstance(error, Stale):
            delay_s = self.queue.retry(key, soon=True)
            self._log.debug(
                "object changed during reconcile", key=str(key), again_in_s=round(delay_s, 2), error=str(error)
            )
            return "stale"
        least_s = (error.retry_after_s or 0.0) if isinstance(error, ServerBusy) else 0.0
        delay_s = self.queue.retry(key, least_s=least_s)
        if isinstance(error, Failure):
            self._log.warning("reconcile failed", error, key=str(key), again_in_s=round(delay_s, 1))
        else:
            self._log.exception("reconcile failed with an internal error", key=str(key), again_in_s=round(delay_s, 1))
        return _result(error)


def _only_failure(error: Exception) -> Exception:
    """Return the first Failure of a task group in which nothing but Failures was raised."""
    if isinstance(error, ExceptionGroup) and error.split(Failure)[1] is None:
        return _only_failure(error.exceptions[0])
    return error


def _result(error: Exception) -> str:
    for kind, name in ((Transient, "transient"), (Uncertain, "uncertain"), (Rejected, "rejected")):
        if isinstance(error, kind):
            return name
    return "error"
