"""Rate limits: each scope waits by itself, for its own turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.support.virtual_time import run_virtual
from unbounded.api.failures import Transient
from unbounded.machineops.provider import Rate, Rates
from unbounded.machineops.rate_limits import MAX_PAUSE_S, MAX_READ_WAIT_S, ScopeBudget

RATES = Rates(reads=Rate(20, 10), writes=Rate(5, 2))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _told(story: Callable[[ScopeBudget], Awaitable[None]]) -> None:
    async def run() -> None:
        await story(ScopeBudget(RATES))

    run_virtual(run())


def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    async def story(budget: ScopeBudget) -> None:
        for _ in range(5):
            await budget.write("a", before=_now())
        assert _now() == 0
        await asyncio.gather(*(budget.write("a", before=100) for _ in range(20)))
        assert _now() == pytest.approx(10)
        await asyncio.sleep(1000)
        for _ in range(5):  # an idle scope saves no more than its burst
            await budget.write("a", before=_now())
        with pytest.raises(Transient, match="writes of a for 0 s; nothing was sent"):
            await budget.write("a", before=_now())

    _told(story)


def test_budget_rejects_at_once_when_the_wait_exceeds_the_deadline() -> None:
    async def story(budget: ScopeBudget) -> None:
        await asyncio.gather(*(budget.write("a", before=100) for _ in range(9)))
        at = _now()
        for _ in range(10):
            with pytest.raises(Transient):
                await budget.write("a", before=at + 0.1)
        assert _now() == at
        await budget.write("a", before=at + 0.6)

    _told(story)


def test_a_scope_that_is_throttled_waits_and_another_one_does_not() -> None:
    async def story(budget: ScopeBudget) -> None:
        budget.throttled("a", 15.0)
        await budget.read("b")
        await budget.write("b", before=_now())
        assert _now() == 0
        await budget.read("a")
        assert _now() == pytest.approx(15)
        budget.throttled("a", 3600.0)
        with pytest.raises(Transient, match="reads of a"):
            await budget.read("a")  # a wait longer than MAX_READ_WAIT_S is an error
        assert _now() == pytest.approx(15)
        await asyncio.sleep(MAX_PAUSE_S - MAX_READ_WAIT_S / 2)
        await budget.read("a")
        assert _now() == pytest.approx(15 + MAX_PAUSE_S)

    _told(story)


def test_waiting_calls_obey_a_new_throttle_and_resume_gradually() -> None:
    async def story(budget: ScopeBudget) -> None:
        await asyncio.gather(*(budget.write("a", before=100) for _ in range(5)))
        waiting = asyncio.gather(*(budget.write("a", before=100) for _ in range(3)))
        await asyncio.sleep(0.1)
        budget.throttled("a", 2.0)
        await waiting
        assert _now() >= 2.1
        for _ in range(4):
            await budget.write("a", before=100)
        assert _now() >= 3.0

    _told(story)


def test_what_a_cloud_says_is_left_counts_when_it_is_less() -> None:
    async def story(budget: ScopeBudget) -> None:
        budget.left("a", writes=1)
        await budget.write("a", before=_now())
        with pytest.raises(Transient):
            await budget.write("a", before=_now())
        budget.left("a", writes=1000)
        with pytest.raises(Transient):
            await budget.write("a", before=_now())
        await budget.read("a")

    _told(story)
