"""A work queue that contains each key once, however often the key was added."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from unbounded.kube.logs import Log
from unbounded_apiserver.deletes import Deletes
from unbounded_apiserver.options import DeleteOptions
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.writes import WriteTarget

RETRY_S: Final = 1.0
LONGEST_SLEEP_S: Final = 3600.0  # the wall clock may be set meanwhile

log = Log(__name__)
K = TypeVar("K", bound=Hashable)


class ControllerQueue(Generic[K]):
    """Keys in order of arrival. `run` passes each to `reconcile`, in one worker at a time; a failed key is retried."""

    def __init__(self, reconcile: Callable[[K], Awaitable[None]], *, workers: int = 1) -> None:
        self._reconcile = reconcile
        self._workers = workers
        self._keys: dict[K, None] = {}
        self._busy: set[K] = set()
        self._wake = asyncio.Event()
        self._timers: dict[K, asyncio.TimerHandle] = {}

    def add(self, key: K) -> None:
        """Queue `key`; if a worker is processing it, it is processed again afterwards."""
        self._keys[key] = None
        self._wake.set()

    def add_after(self, key: K, wait_s: float) -> None:
        """Queue `key` in this many seconds, in place of an earlier timer; after an hour at the latest."""
        self.cancel(key)
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(min(wait_s, LONGEST_SLEEP_S), self._due, key)

    def cancel(self, key: K) -> None:
        """Cancel the timer of `key`."""
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()

    def _due(self, key: K) -> None:
        del self._timers[key]
        self.add(key)

    async def run(self) -> None:
        """Process keys until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._work())
        finally:
            for timer in self._timers.values():
                timer.cancel()

    async def _work(self) -> None:
        while True:
            key = await self._next_key()
            try:
                await self._reconcile(key)
            except StatusError as error:  # such as a full disk: expected, and logged without a traceback
                log.warning("controller failed, will retry", error=error, key=str(key))
                asyncio.get_running_loop().call_later(RETRY_S, self.add, key)
            except Exception:
                log.exception("controller failed, will retry", key=str(key))
                asyncio.get_running_loop().call_later(RETRY_S, self.add, key)
            finally:
                self._busy.discard(key)
                if key in self._keys:
                    self._wake.set()

    async def _next_key(self) -> K:
        """Return the first key that no worker is processing."""
        while True:
            for key in self._keys:
                if key not in self._busy:
                    del self._keys[key]
                    self._busy.add(key)
                    return key
            self._wake.clear()
            await self._wake.wait()


async def delete_expired(deletes: Deletes, target: WriteTarget, uid: str) -> None:
    """Delete an object whose time is over, unless it is gone or replaced by another of the same name."""
    try:
        await deletes.delete(target, DeleteOptions(uid=uid))
    except StatusError as error:
        if error.code not in {404, 409}:
            raise
