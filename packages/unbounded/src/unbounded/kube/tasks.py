"""Coroutines that run concurrently, and blocking work in threads, which cannot be interrupted.

A cancelled caller of `run_in_thread` waits for the work; one of `DaemonThreads` does not, nor does the process at exit.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from unbounded.api.failures import Failure

P = ParamSpec("P")
T = TypeVar("T")


async def gather(works: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run coroutines until all complete. If one fails, cancel the others and wait for them.

    Raises:
        Exception: the failure itself, not a group; of several, the one that `first_failure` chooses.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            for work in works:
                tasks.create_task(work)
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from None


def first_failure(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the most telling of several failures: our own bugs before failures of the outside."""
    flat: list[BaseException] = []
    for failure in failures.exceptions:
        flat += [first_failure(failure)] if isinstance(failure, BaseExceptionGroup) else [failure]
    return next((failure for failure in flat if not isinstance(failure, Failure)), flat[0])


async def run_in_thread(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Run work in a thread and return its result. Cancellation waits for the work, so its files and locks are free."""
    return await run_stoppable(partial(work, *args, **named), lambda: None)


async def run_stoppable(work: Callable[[], T], stop: Callable[[], object]) -> T:
    """Run work in a thread, like `run_in_thread`, and stop it early when cancelled.

    Args:
        stop: called at each cancellation. The result or error of the work is dropped after that.
    """
    # Not asyncio.to_thread: the end of the loop would cancel its task, and the thread would continue.
    future = asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = error
            stop()
    if cancelled is None:
        return future.result()
    future.exception()  # the error is dropped
    raise cancelled


class DaemonThreads:
    """Pool of daemon threads.

    Python joins the threads of an executor at exit. A resolver that hangs would keep the process for minutes, and the
    next leader would wait for its Lease.

    Args:
        most: limit of concurrent calls, including cancelled ones that still run; further calls wait.
    """

    def __init__(self, most: int, name: str) -> None:
        self._free = asyncio.Semaphore(most)
        self._name: Final = name

    async def run(self, work: Callable[[], T]) -> T:
        """Run the call; return its result or raise its exception. A cancelled call runs on in its thread."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def deliver(result: Any, error: Exception | None) -> None:
            self._free.release()
            if outcome.done():
                return
            if error is None:
                outcome.set_result(result)
            else:
                outcome.set_exception(error)

        def body() -> None:
            result, error = None, None
            try:
                result = work()
            except Exception as raised:  # re-raised to the caller of `run`
                error = raised
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(deliver, result, error)

        try:
            threading.Thread(target=body, name=self._name, daemon=True).start()
        except RuntimeError:  # no thread can be had
            self._free.release()
            raise
        return await outcome
