"""Waiting for a condition, in place of a guess of how long something takes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")


@overload
async def eventually(
    check: Callable[[], Awaitable[T | None]],
    state: Callable[[], object] | None = None,
    *,
    within_s: float = 30.0,
    every_s: float = 0.01,
) -> T: ...


@overload
async def eventually(
    check: Callable[[], T | None],
    state: Callable[[], object] | None = None,
    *,
    within_s: float = 30.0,
    every_s: float = 0.01,
) -> T: ...


async def eventually(
    check: Callable[[], Any],
    state: Callable[[], object] | None = None,
    *,
    within_s: float = 30.0,
    every_s: float = 0.01,
) -> Any:
    """Wait until a check returns something true, and return that.

    Args:
        check: a function, or a coroutine function; called at least once after the last pause.
        state: what the failure shows; the last result of the check where it is left out.
        within_s: a limit that no sound run reaches, on a busy machine either; in the time of the running loop.
    Raises:
        AssertionError: the check did not become true in time.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    while not (last := await _result(check)):
        assert loop.time() < end, f"not within {within_s:g} s: {state() if state else last!r}"
        await asyncio.sleep(every_s)
    return last


async def _result(check: Callable[[], Any]) -> Any:
    found = check()
    return await found if inspect.isawaitable(found) else found
