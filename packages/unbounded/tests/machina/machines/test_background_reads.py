"""Reads beside the loop: the reader does not wait, and is woken once."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.virtual_time import run_virtual
from unbounded.api.failures import Transient
from unbounded.machina.machines.observe import BackgroundReads


async def at_hand() -> str:
    return "at hand"


async def slow(answer: str = "slow") -> str:
    await asyncio.sleep(5)
    return answer


async def broken() -> str:
    raise Transient("away")


def test_background_read_returns_fast_values_and_wakes_for_slow_ones() -> None:
    async def story() -> None:
        woken: list[str] = []
        readings: BackgroundReads[str] = BackgroundReads(woken.append)
        loop = asyncio.get_running_loop()
        assert await readings.get("m1", 1, at_hand) == "at hand"
        assert await readings.get("m1", 1, slow) is None
        assert await readings.get("m1", 1, at_hand) is None  # the one that is on its way counts
        assert (loop.time(), woken) == (0.0, [])
        await asyncio.sleep(6)
        assert woken == ["m1"]
        assert await readings.get("m1", 1, at_hand) == "slow"
        assert await readings.get("m1", 1, at_hand) == "at hand"
        assert woken == ["m1"]

    run_virtual(story())


def test_background_read_of_a_stale_version_or_forgotten_key_is_dropped() -> None:
    async def story() -> None:
        readings: BackgroundReads[str] = BackgroundReads(lambda _: None)
        assert await readings.get("m1", 1, slow) is None
        await asyncio.sleep(6)
        assert await readings.get("m1", 2, at_hand) == "at hand"
        assert await readings.get("m1", 2, slow) is None
        await asyncio.sleep(6)
        readings.forget("m1")
        assert await readings.get("m1", 2, lambda: slow("new")) is None
        await asyncio.sleep(6)
        assert await readings.get("m1", 2, at_hand) == "new"
        assert await readings.get("m1", 2, slow) is None
        await readings.close()
        assert len(asyncio.all_tasks()) == 1

    run_virtual(story())


def test_failed_background_read_is_reported_and_retried_with_backoff() -> None:
    async def story() -> None:
        woken: list[str] = []
        readings: BackgroundReads[str] = BackgroundReads(woken.append)
        with pytest.raises(Transient):
            await readings.get("m1", 1, broken)
        assert await readings.get("m1", 1, broken) is None
        await asyncio.sleep(0.5)
        assert woken == ["m1"]
        with pytest.raises(Transient):
            await readings.get("m1", 1, at_hand)
        assert await readings.get("m1", 1, at_hand) is None
        await asyncio.sleep(1)
        assert await readings.get("m1", 1, slow) == "at hand"
        assert await readings.get("m1", 1, at_hand) == "at hand"

    run_virtual(story())
