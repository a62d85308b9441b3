"""Work side by side, whose first failure is the failure of all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from unbounded.api.failures import Failure


async def together(works: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Return when all have come to their end. One that fails has the others cancelled and waited for.

    Raises:
        Exception: what went wrong, by itself and not in a group; `first_of` says which one, where several did.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            for work in works:
                tasks.create_task(work)
    except BaseExceptionGroup as failures:
        raise first_of(failures) from None


def first_of(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong, where several did: our own bugs before failures of the outside."""
    flat: list[BaseException] = []
    for failure in failures.exceptions:
        flat += [first_of(failure)] if isinstance(failure, BaseExceptionGroup) else [failure]
    return next((failure for failure in flat if not isinstance(failure, Failure)), flat[0])
