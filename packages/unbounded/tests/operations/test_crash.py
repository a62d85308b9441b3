"""The crash test: executors and stewards are cut off at every await, in every weather, and nothing is doubled or lost.

A schedule is one seed. Replay a failing one with: UNBOUNDED_SEED=1234 .venv/bin/python -m pytest -k one_seed
"""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from tests.operations.schedules import POWER, prepare, run_schedule, settle
from tests.operations.storm import BmcStream, Rivals, Storm, StormWorld
from tests.operations.world import World
from tests.support.seeds import first_seed
from tests.support.virtual_time import run_virtual

KINDS = (*POWER, "NodeReboot", "HostReplace")

SOAK = bool(os.environ.get("UNBOUNDED_SOAK"))
SCHEDULES = 20_000 if SOAK else 2_000
BATCH = 250
FOUND = (92, 254, 340, 3092, 20261448, 20261681, 30000216)  # seeds that have found something once


def _awaits(kind: str) -> int:
    """Return the number of the executor's awaits without faults."""

    async def story() -> int:
        world = World(random.Random(0))
        executor = await prepare(world, kind, "m1")
        keeper = asyncio.create_task(executor.keep(crashes=[]))
        world.steward().start()
        await world.operation("op", kind, "m1")
        await world.ended("op")
        keeper.cancel()
        return max(life.awaits for life in world.lives if not life.name.startswith("steward"))

    return run_virtual(story())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_executor_is_cut_off_at_every_await(kind: str) -> None:
    for crash_at in range(_awaits(kind) + 2):
        for pause_s in ((0.0, 1.0), (20.0, 90.0)):

            async def story(crash_at: int = crash_at, pause_s: tuple[float, float] = pause_s) -> None:
                world = World(random.Random(crash_at))
                executor = await prepare(world, kind, "m1")
                keeper = asyncio.create_task(executor.keep(crashes=[crash_at], pause_s=pause_s))
                world.steward().start()
                await world.operation("op", kind, "m1")
                await settle(world, ["op"])
                operation = await world.get("op")
                if kind != "NodeReboot":  # what restarts the host is never sent twice; it may end OutcomeUnknown
                    assert operation.status.phase == "Complete", (crash_at, operation.status)
                elif operation.status.phase == "Failed":
                    assert operation.status.reason == "OutcomeUnknown", (crash_at, operation.status)
                keeper.cancel()

            run_virtual(story())


async def _streamed(kind: str, stream: BmcStream, crashes: list[int], pause_s: tuple[float, float]) -> int:
    """Run an operation over a BMC with events, whose executor is interrupted; return the awaits of the longest one."""
    storm = Storm(0)
    storm.world = world = StormWorld(random.Random(0))
    world.between = Rivals(storm)  # it tells the judge what was read
    world.stream, world.events = stream, random.Random(f"{stream} {crashes}")
    world.verdict.unannounced = stream not in (BmcStream.PUNCTUAL, BmcStream.DOUBLED)
    await world.machine("m1")
    if kind == "HostPowerOn":
        world.outside.host("m1").power = "Off"
    keeper = asyncio.create_task(world.metalman().keep(crashes=crashes, pause_s=pause_s))
    world.steward().start()
    await world.operation("op", kind, "m1")
    await settle(world, ["op"])
    operation = await world.get("op")
    assert operation.status.phase == "Complete", (crashes, operation.status)
    world.verdict.judge(world.transitions())
    keeper.cancel()
    return max(life.awaits for life in world.lives if not life.name.startswith("steward"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", POWER)
@pytest.mark.parametrize("stream", [stream for stream in BmcStream if stream is not BmcStream.ABSENT])
def test_metalman_is_cut_off_at_every_await_whatever_its_bmc_sends(kind: str, stream: BmcStream) -> None:
    awaits = run_virtual(_streamed(kind, stream, [], (0.0, 1.0)))
    for crash_at in range(awaits + 2):
        run_virtual(_streamed(kind, stream, [crash_at], (0.0, 1.0) if crash_at % 3 else (20.0, 90.0)))


async def _fan_story(crashes: list[int], pause_s: tuple[float, float]) -> int:
    """Run a selector operation whose supervisor is interrupted; return the awaits of the longest supervisor."""
    world = World(random.Random(0))
    for number in range(3):
        await world.machine(f"m{number}")
    keepers = [
        asyncio.create_task(world.steward().keep(crashes=crashes, pause_s=pause_s)),
        asyncio.create_task(world.redfish().keep(crashes=[])),
    ]
    selector = {"matchLabels": {"unbounded-cloud.io/site": "lab"}}
    await world.operation("all", "HostReboot", machineSelector=selector, maxConcurrent=2)
    await settle(world, ["all"])
    operation = await world.get("all")
    assert operation.status.phase == "Complete", (crashes, operation.status)
    assert [target.phase for target in operation.status.targets] == ["Complete"] * 3
    assert len(world.outside.acts) == 6, (crashes, world.outside.acts)
    for keeper in keepers:
        keeper.cancel()
    return max(life.awaits for life in world.lives if life.name.startswith("steward"))


@pytest.mark.slow
def test_a_steward_is_cut_off_at_every_await_of_a_selector_operation() -> None:
    awaits = run_virtual(_fan_story([], (0.0, 1.0)))
    assert awaits > 30
    for crash_at in range(awaits + 1):
        run_virtual(_fan_story([crash_at], (0.0, 1.0) if crash_at % 3 else (20.0, 90.0)))


@pytest.mark.parametrize("batch", range(SCHEDULES // BATCH))
@pytest.mark.slow
def test_random_schedules(batch: int) -> None:
    first = first_seed() + batch * BATCH
    for seed in range(first, first + BATCH):
        try:
            run_schedule(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}\nreplay: UNBOUNDED_SEED={seed} pytest -k one_seed") from error


@pytest.mark.slow
def test_one_seed() -> None:
    """The seed of UNBOUNDED_SEED, or a few that have found something once."""
    seeds = [int(os.environ["UNBOUNDED_SEED"])] if "UNBOUNDED_SEED" in os.environ else FOUND
    for seed in seeds:
        run_schedule(seed)
