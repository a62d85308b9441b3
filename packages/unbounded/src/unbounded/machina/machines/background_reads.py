"""Background reads of an observation, so that no worker of the loop sleeps while a read waits for its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from unbounded.kube.backoff import Backoff

T = TypeVar("T")

# a pass that only waits counts as a success and resets the loop's backoff, so reads have their own
FAILED: Final = Backoff(0.5, 60.0)


@dataclass(frozen=True)
class _Read(Generic[T]):
    about: object
    task: asyncio.Task[T]


class BackgroundReads(Generic[T]):
    """One read for each Machine, running or completed. `close` cancels all.

    Args:
        wake: called with the Machine when its read has completed.
    """

    def __init__(self, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._reads: dict[str, _Read[T]] = {}
        self._failures: dict[str, int] = {}  # in a row

    async def get(self, machine: str, about: object, read: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Return the result of a read, or None while it runs; the next call after its end returns it.

        Args:
            about: key of the read; a result of another key is dropped.
        Raises:
            Exception: what the read raised.
        """
        asked = self._reads.get(machine)
        if asked is None or asked.about != about:
            self._drop(machine)
            reads = self._after_failures(self._failures.get(machine, 0), read)
            asked = _Read(about, asyncio.create_task(reads, name=f"{machine}: reads what it needs"))
            self._reads[machine] = asked
            await asyncio.wait({asked.task}, timeout=0)  # one turn of the loop suffices for a read that need not wait
            if not asked.task.done():
                asked.task.add_done_callback(lambda _: self._wake(machine))
        if not asked.task.done():
            return None
        del self._reads[machine]
        try:
            answer = asked.task.result()
        except Exception:
            self._failures[machine] = self._failures.get(machine, 0) + 1
            raise
        self._failures.pop(machine, None)
        return answer

    def forget(self, machine: str) -> None:
        """Cancel the read of a Machine."""
        self._failures.pop(machine, None)
        self._drop(machine)

    async def _after_failures(self, failures: int, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if failures:
            await asyncio.sleep(FAILED.after(failures))
        return await read()

    def _drop(self, machine: str) -> None:
        asked = self._reads.pop(machine, None)
        if asked is not None:
            asked.task.cancel()
            asked.task.add_done_callback(_retrieve_exception)

    async def close(self) -> None:
        tasks = {asked.task for asked in self._reads.values()}
        for machine in tuple(self._reads):
            self._drop(machine)
        if tasks:
            await asyncio.wait(tasks)


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a cancelled read, as asyncio logs exceptions that were never retrieved."""
    if not task.cancelled():
        task.exception()
