"""Concurrent work: the failure is the relevant one, and no work continues after it.

Work in threads: a cancelled caller gets files and locks back when the thread has released them.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from unbounded.api.failures import Transient
from unbounded.kube.tasks import gather, run_in_thread, run_stoppable

LIMIT_S = 10.0


async def test_the_failure_comes_by_itself_and_the_others_have_ended() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("waits")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise Transient("refused")

    with pytest.raises(Transient, match="refused"):
        await gather([waits(), fails()])
    assert ended == ["waits"]


async def test_our_own_bug_is_not_hidden_behind_a_failure_of_the_outside() -> None:
    async def fails() -> None:
        raise Transient("refused")

    async def is_wrong() -> None:
        raise KeyError("bug")

    async def both() -> None:
        await gather([fails(), is_wrong()])

    with pytest.raises(KeyError, match="bug"):
        await gather([fails(), both()])


async def test_what_the_work_gives_and_raises_is_passed_on() -> None:
    assert await run_in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await run_in_thread(divmod, 7, 0)


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_however_often_one_is_cancelled_the_thread_has_ended_on_return(times: int) -> None:
    begun, leave, left = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        leave.wait(LIMIT_S)
        left.set()

    waiting = asyncio.create_task(run_in_thread(work))
    await asyncio.to_thread(begun.wait, LIMIT_S)
    for _ in range(times):
        waiting.cancel()
        await asyncio.sleep(0.01)
        assert not waiting.done(), "the thread still works"
    leave.set()
    await asyncio.wait({waiting}, timeout=LIMIT_S)
    assert waiting.cancelled()
    assert left.is_set()


async def test_a_limit_ends_as_a_limit_when_the_work_has_ended() -> None:
    leave = threading.Event()
    asyncio.get_running_loop().call_later(0.05, leave.set)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run_in_thread(leave.wait, LIMIT_S)
    assert leave.is_set()


async def test_cancelled_thread_work_gets_a_stop_signal() -> None:
    begun, stop = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert stop.wait(LIMIT_S)
        raise ValueError("stopped, as was asked")

    waiting = asyncio.create_task(run_stoppable(work, stop.set))
    await asyncio.to_thread(begun.wait, LIMIT_S)
    waiting.cancel()
    await asyncio.wait({waiting}, timeout=LIMIT_S)
    assert waiting.cancelled()
    assert stop.is_set()
