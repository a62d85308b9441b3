"""The virtual clock itself: what the other tests trust."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from tests.support.virtual_time import EPOCH, StuckError, run_virtual, virtual_now


def test_a_day_of_sleeping_takes_no_time() -> None:
    async def main() -> float:
        await asyncio.sleep(86_000)
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    assert run_virtual(main()) == pytest.approx(86_000)
    assert time.monotonic() - began < 20


def test_timers_fire_in_the_order_of_their_times() -> None:
    seen: list[tuple[str, float]] = []

    async def at(name: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        seen.append((name, round(asyncio.get_running_loop().time(), 6)))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for name, delay_s in (("c", 0.3), ("a", 0.1), ("b", 0.2)):
                group.create_task(at(name, delay_s))

    run_virtual(main())
    assert seen == [("a", 0.1), ("b", 0.2), ("c", 0.3)]


def test_a_timeout_is_reached_when_nothing_else_happens() -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run_virtual(main())


def test_a_deadlock_names_where_each_task_waits() -> None:
    async def waits_for_nobody() -> None:
        await asyncio.Event().wait()

    with pytest.raises(StuckError, match=r"deadlock at 0.000 s(.|\n)*locks.py"):
        run_virtual(waits_for_nobody())


def test_the_limit_is_in_virtual_seconds() -> None:
    async def ticks() -> None:
        for _ in range(100):
            await asyncio.sleep(1)

    with pytest.raises(StuckError, match="not done after 60 virtual seconds"):
        run_virtual(ticks(), limit_s=60)


def test_what_is_left_running_is_cancelled_and_cleans_up() -> None:
    cleaned: list[float] = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(5)
            cleaned.append(asyncio.get_running_loop().time())

    async def main() -> asyncio.Task[None]:
        task = asyncio.create_task(background())
        await asyncio.sleep(1)
        return task

    run_virtual(main(), limit_s=1)
    assert cleaned == [pytest.approx(6)]


def test_an_abandoned_generator_is_closed() -> None:
    closed: list[bool] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    async def main() -> int:
        generator = numbers()
        return await anext(generator)

    assert run_virtual(main()) == 1
    assert closed == [True]


def test_a_thread_is_replaced_by_a_call() -> None:
    async def main() -> int:
        return await asyncio.to_thread(lambda: 3)

    assert run_virtual(main()) == 3


def test_the_shown_time_follows_the_dial() -> None:
    async def main() -> float:
        await asyncio.sleep(90)
        return (virtual_now() - EPOCH).total_seconds()

    assert run_virtual(main()) == pytest.approx(90)


@pytest.mark.slow
def test_many_short_runs_are_cheap() -> None:
    async def main() -> None:
        await asyncio.sleep(1)

    began = time.process_time()
    for _ in range(500):
        run_virtual(main())
    assert time.process_time() - began < 1  # 0.1 s where it was written
