"""A recreation that is cut off: the agent or its whole host, at every await, and in random schedules.

Whatever happens, it ends with one working node; two kubelets never run; no slot goes before the other is proven. A
schedule is one seed. Replay a failing one with: UNBOUNDED_SEED=1234 .venv/bin/python -m pytest -k one_schedule
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from typing import Final

import pytest

from tests.agent.recreation.simulated import BAD, NEVER_READY
from tests.agent.recreation.world import NEW, OLD, NodeWorld, power_cuts, random_world
from tests.operations.faults import FAIR, STORM
from tests.support.seeds import first_seed
from tests.support.virtual_time import run_virtual
from unbounded.api.core import NODES

SOAK: Final = bool(os.environ.get("UNBOUNDED_SOAK"))
SCHEDULES: Final = 4_000 if SOAK else 80
BATCH: Final = 40
EVERY: Final = 1 if SOAK else 8  # of the points at which it is cut off
WANTED: Final = {"good": NEW, "bad": NEVER_READY}


async def _until_settled(world: NodeWorld, wanted: str) -> None:
    await world.settled()
    if wanted in BAD:
        assert world.version() == OLD, world.host.log[-40:]
    assert not world.host.violations, world.host.violations


def _awaits(wanted: str) -> int:
    """Return the number of the agent's awaits in a whole recreation without faults."""

    async def story() -> int:
        world = random_world(0)
        await world.joined()
        await world.want(wanted)
        await world.delete_node()
        running = world.node_agent().start()
        await _until_settled(world, wanted)
        return running.life.awaits

    return run_virtual(story())


@pytest.mark.slow
@pytest.mark.parametrize("host", [False, True], ids=["the agent", "the host"])
@pytest.mark.parametrize("wanted", WANTED)
def test_it_is_cut_off_at_every_await(wanted: str, host: bool) -> None:
    version = WANTED[wanted]
    count = _awaits(version)
    assert count > 60
    offset = first_seed() % EVERY
    for crash_at in range(offset, count, EVERY):

        async def story(crash_at: int = crash_at) -> None:
            world = random_world(crash_at)
            await world.joined()
            await world.want(version)
            await world.delete_node()
            living = asyncio.create_task(power_cuts(world, world.node_agent(), [crash_at], host=host))
            await _until_settled(world, version)
            if version == NEW:
                assert world.version() == NEW, (crash_at, world.host.log)
            living.cancel()

        run_virtual(story())


def _schedule(seed: int) -> Callable[[], None]:
    """Cuts, bad weather, a stumbling host, and people who change their minds; then calm."""

    async def story() -> None:
        chance = random.Random(seed)
        world = NodeWorld(chance, weather=STORM if chance.random() < 0.6 else FAIR)
        world.host.trouble = chance.choice([0.0, 0.02, 0.1])
        world.host.stubborn = chance.random() < 0.3
        await world.joined()
        wanted = chance.choice([OLD, NEW, NEW, *BAD])
        await world.want(wanted)
        if chance.random() < 0.5:
            world.redfish().start()
        world.steward().start()
        cuts = [chance.randrange(150) for _ in range(chance.randrange(5))]
        living = asyncio.create_task(
            power_cuts(world, world.node_agent(), cuts, host=chance.random() < 0.6), name="life"
        )
        await asyncio.sleep(chance.uniform(0, 20))
        await world.delete_node()
        await _meddle(world, chance)
        world.weather = FAIR
        for life in world.lives:
            life.weather = FAIR
        world.host.trouble, world.host.api_away = 0.0, False
        if chance.random() < 0.5:  # people correct their request
            wanted = NEW
            await world.want(NEW)
        else:
            machine = await world.m1()
            wanted = (machine.spec.kubernetes.version or "" if machine.spec.kubernetes else "").removeprefix("v")
        await world.settled(within_s=12 * 3600)
        if wanted == NEW:
            await world.reached(lambda: world.version() == NEW or world.host.store.failed() is None, within_s=3 * 3600)
        assert not world.host.violations, world.host.violations
        living.cancel()

    return lambda: run_virtual(story(), limit_s=3 * 86_400)


async def _meddle(world: NodeWorld, chance: random.Random) -> None:
    for number in range(chance.randint(1, 5)):
        await asyncio.sleep(chance.uniform(1, 120))
        match chance.choice(["delete", "delete", "want", "operation", "api", "nothing"]):
            case "delete" if await world.node() is not None:
                await world.api.delete(NODES, "m1")
                world.host.note("Node deleted again")
            case "want":
                await world.want(chance.choice([OLD, NEW, "1.34.0", *BAD]))
            case "operation":
                await world.operation(f"op{number}", "HostReboot", "m1")
            case "api":
                world.host.api_away = not world.host.api_away
            case _:
                pass


def _seeds() -> list[int]:
    if "UNBOUNDED_SEED" in os.environ:
        return [int(os.environ["UNBOUNDED_SEED"])]
    return [first_seed() + number for number in range(SCHEDULES)]


FOUND: Final[tuple[int, ...]] = ()  # seeds that have found something once


@pytest.mark.slow
@pytest.mark.parametrize("batch", range((len(_seeds()) + BATCH - 1) // BATCH))
def test_one_schedule_after_another_ends_with_one_working_node(batch: int) -> None:
    for seed in [*(FOUND if batch == 0 else ()), *_seeds()[batch * BATCH : (batch + 1) * BATCH]]:
        try:
            _schedule(seed)()
        except BaseException as error:
            error.add_note(f"UNBOUNDED_SEED={seed}")
            raise
