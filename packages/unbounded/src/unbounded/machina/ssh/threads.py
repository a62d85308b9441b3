"""Blocking calls that cannot be cancelled, in threads that do not delay the exit of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")


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
