"""The loop of a controller: keys in, one reconcile for a key at a time, and what becomes of its failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from functools import cache, partial
from typing import Generic, TypeVar

from unbounded.api.failures import Failure, Rejected, Stale, Transient, Uncertain
from unbounded.kube.cache import Cache
from unbounded.kube.errors import ServerBusy
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.workqueue import WorkQueue

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Controller(Generic[K]):
    """Calls `reconcile(key)` whenever something may have changed for a key.

    A reconcile looks at the world as it is now, whatever it was woken by, and answers the seconds after which to look
    again, or None to wait for an event. What it raises never stops other keys: Stale is looked at again at once, every
    other failure after back-off, and what is no `Failure` is our bug and logged with its traceback.

    Args:
        workers: how many keys are looked at at the same time.
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
        metrics = metrics or ControllerMetrics()
        self._results = cache(partial(metrics.reconciles.labels, name))  # found by its labels once, not on every look
        self._seconds = metrics.reconcile_seconds.labels(name)
        self._log = Log(__name__).bind(controller=name)
        self.queue.on_depth = metrics.queue_depth.labels(name).set

    def enqueue(self, key: K) -> None:
        """Look at this key soon."""
        self.queue.add(key)

    def follow(self, cache: Cache[T], keys: Callable[[T], Iterable[K]]) -> None:
        """Look at the keys that an object of this cache concerns, before and after each change of it."""

        def changed(old: T | None, new: T | None) -> None:
            for item in (old, new):
                if item is not None:
                    for key in keys(item):
                        self.queue.add(key)

        cache.subscribe(changed)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    group.create_task(self._work(), name=f"{self.name}-{number}")
        finally:
            self.queue.close()

    async def _work(self) -> None:
        while True:
            key = await self.queue.take()
            try:
                await self._reconcile_key(key)
            finally:
                self.queue.done(key)

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
        """Arrange the next look, log what is worth it, and name the result."""
        if isinstance(error, Stale):
            delay_s = self.queue.retry(key, soon=True)
            self._log.debug("overtaken by a change", key=str(key), again_in_s=round(delay_s, 2), error=str(error))
            return "stale"
        least_s = (error.retry_after_s or 0.0) if isinstance(error, ServerBusy) else 0.0
        delay_s = self.queue.retry(key, least_s=least_s)
        if isinstance(error, Failure):
            self._log.warning("reconcile failed", error, key=str(key), again_in_s=round(delay_s, 1))
        else:
            self._log.exception("reconcile broke", key=str(key), again_in_s=round(delay_s, 1))
        return _result(error)


def _only_failure(error: Exception) -> Exception:
    """What a task group raised because of failures alone counts as the first of them."""
    if isinstance(error, ExceptionGroup) and error.split(Failure)[1] is None:
        return _only_failure(error.exceptions[0])
    return error


def _result(error: Exception) -> str:
    for kind, name in ((Transient, "transient"), (Uncertain, "uncertain"), (Rejected, "rejected")):
        if isinstance(error, kind):
            return name
    return "error"
