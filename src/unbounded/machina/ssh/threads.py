"""Blocking calls that nobody can end, in threads that the end of the process does not wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")


class Threads:
    """Unlike an executor's, which Python joins when it ends: a resolver that hangs would keep the process for minutes,
    and the next leader would wait for its Lease.

    Args:
        most: at work at once; further calls wait for one of them to end, also where nobody waits for that one any more.
    """

    def __init__(self, most: int, name: str) -> None:
        self._free = asyncio.Semaphore(most)
        self._name: Final = name

    async def run(self, work: Callable[[], T]) -> T:
        """What the call gives or raises. When this is cancelled, the call goes on alone."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        told: asyncio.Future[T] = loop.create_future()

        def tell(result: Any, error: Exception | None) -> None:
            self._free.release()
            if told.done():
                return
            if error is None:
                told.set_result(result)
            else:
                told.set_exception(error)

        def body() -> None:
            result, error = None, None
            try:
                result = work()
            except Exception as raised:  # told to who waits
                error = raised
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(tell, result, error)

        try:
            threading.Thread(target=body, name=self._name, daemon=True).start()
        except RuntimeError:  # no thread can be had
            self._free.release()
            raise
        return await told
