"""Blocking work in a thread, which cannot be interrupted: a cancelled caller still waits for it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def run_in_thread(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Run work in a thread and return its result. Cancellation waits for the work, so its files and locks are free."""
    return await run_stoppable(partial(work, *args, **named), lambda: None)


async def run_stoppable(work: Callable[[], T], stop: Callable[[], object]) -> T:
    """Run work in a thread, like `run_in_thread`, and stop it early when cancelled.

    Args:
        stop: called at each cancellation. The result or error of the work is dropped after that.
    """
    # Not asyncio.to_thread: the end of the loop would cancel its task, and the thread would continue.
    ended = asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, work)
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.wait({ended})
        except asyncio.CancelledError as error:
            cancelled = error
            stop()
    if cancelled is None:
        return ended.result()
    ended.exception()  # the error is dropped
    raise cancelled
