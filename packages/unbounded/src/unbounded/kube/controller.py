"""The loop of a controller: keys in, one reconcile for a key at a time, and what becomes of its failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import AbstractContextManager, ExitStack
from functools import cache, partial
from typing import Generic, TypeVar

from unbounded.api.failures import Failure, Rejected, Stale, Transient, Uncertain
from unbounded.kube.api import ServerBusy
from unbounded.kube.cache import Cache
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.workqueue import WorkQueue

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


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
