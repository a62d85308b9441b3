"""Tests as stories: `async def test(world, …)`, run in virtual time in a world of their own."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.support.virtual_time import run_virtual

Tell = Callable[..., Awaitable[None]]


def told_in(enter: Callable[[], AbstractAsyncContextManager[Any]]) -> Callable[[Tell], Callable[..., None]]:
    """A decorator for tests whose first argument is what `enter` gives; their other arguments come from pytest.

    Args:
        enter: called in virtual time; where a test went well, what follows in it may still judge.
    """

    def story(report: Tell) -> Callable[..., None]:
        signature = inspect.signature(report)

        def test(**given: Any) -> None:
            async def run() -> None:
                async with enter() as world:
                    await report(world, **given)

            run_virtual(run())

        test.__name__, test.__doc__, test.__module__ = report.__name__, report.__doc__, report.__module__
        vars(test)["__signature__"] = signature.replace(parameters=list(signature.parameters.values())[1:])
        return test

    return story
