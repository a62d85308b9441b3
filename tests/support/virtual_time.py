"""An asyncio event loop whose time is a dial: when all tasks wait, it jumps to the next timer.

Hours of back-off pass in milliseconds, and a run is deterministic: no sockets, no threads, no clock of the machine.
Code under test keeps to `loop.time()`, `asyncio.sleep` and `asyncio.timeout`, and need not know.
"""

from __future__ import annotations

import asyncio
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

T = TypeVar("T")

EPOCH: Final = datetime(2030, 1, 1, tzinfo=UTC)  # the value of `virtual_now()` with the dial at 0
TEAR_DOWN_S: Final = 3600.0  # virtual seconds that cancelled tasks have for their clean-up
BUSY_TURNS: Final = 1_000_000  # turns of the loop at one moment, after which something is taken to spin


class StuckError(AssertionError):
    """The run cannot end: nothing is left that could wake a task, or the limit was reached."""


class VirtualLoop(BaseEventLoop):
    """An event loop in virtual time; it is its own selector, as there is nothing to select."""

    def __init__(self, *, limit_s: float) -> None:
        super().__init__()
        self._dial = 0.0
        self._limit = limit_s
        self._busy_turns = 0
        self._selector = self
        self._clock_resolution = 1e-6  # moving the dial by a difference of floats may fall short by less than this

    def time(self) -> float:
        return self._dial

    def select(self, timeout: float | None) -> list[object]:
        """Called by the base class once each turn: with None when nothing is ready and no timer is set."""
        if timeout is None:
            raise StuckError(f"deadlock at {self._dial:.3f} s: nothing is left that could wake\n{self._waiting()}")
        if timeout <= 0:
            self._busy_turns += 1
            if self._busy_turns > BUSY_TURNS:
                raise StuckError(f"spinning at {self._dial:.3f} s without waiting\n{self._waiting()}")
            return []
        self._busy_turns = 0
        if self._dial + timeout > self._limit:
            raise StuckError(f"not done after {self._limit:g} virtual seconds\n{self._waiting()}")
        self._dial += timeout
        return []

    def _process_events(self, event_list: list[object]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Do nothing: no other thread waits for a wake-up."""

    def run_in_executor(  # type: ignore[override]  # typed for our use: the base class takes TypeVarTuples
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run it here and now: in virtual time a thread would be the only thing that is not deterministic."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # handed to who awaits it
            future.set_exception(error)
        return future

    def _waiting(self) -> str:
        return "\n".join(f"  {task.get_name()}: {_where(task)}" for task in self._tasks()) or "  (no task)"

    def _tasks(self) -> list[asyncio.Task[Any]]:
        """Those that still run, by their names, so that a run can be repeated: asyncio has them in a set."""
        return sorted(asyncio.all_tasks(self), key=lambda task: (len(task.get_name()), task.get_name()))

    def tear_down(self) -> None:
        """Cancel what still runs, let it clean up, and close."""
        self._limit = self._dial + TEAR_DOWN_S
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.run_until_complete(self.shutdown_asyncgens())
        finally:
            self.close()


def _where(task: asyncio.Task[Any]) -> str:
    """The innermost frame of a waiting task, as file, line and function."""
    place = "?"
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
        if frame is not None:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
    return place


def run_virtual(main: Coroutine[Any, Any, T], *, limit_s: float = 86_400.0) -> T:
    """Run a coroutine to its end in virtual time.

    Args:
        limit_s: virtual seconds after which StuckError is raised.
    Raises:
        StuckError: a deadlock, a task that spins, or the limit; it names where each task waits.
    """
    loop = VirtualLoop(limit_s=limit_s)
    try:
        return loop.run_until_complete(main)
    finally:
        loop.tear_down()


def virtual_now() -> datetime:
    """The wall clock that belongs to the running loop: EPOCH plus the time on its dial."""
    return EPOCH + timedelta(seconds=asyncio.get_running_loop().time())
