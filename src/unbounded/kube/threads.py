"""Blocking work in a thread, which cannot be interrupted: who is cancelled waits for it all the same."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def to_its_end(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """What the work gives. However often this is cancelled, the work has ended on return, so that files and locks can
    be let go."""
    return await until_stopped(partial(work, *args, **named), lambda: None)


async def until_stopped(work: Callable[[], T], stop: Callable[[], object]) -> T:
    """The same for work that can be told to end early.

    Args:
        stop: called at each cancellation. What the work raises or gives after that is told to nobody.
    """
    # Not asyncio.to_thread: its task would be cancelled with all others when the loop ends, and the thread would go on.
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
    ended.exception()  # nobody is told any more
    raise cancelled
