"""Run coroutines concurrently; raise the first failure."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from unbounded.api.failures import Failure


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
