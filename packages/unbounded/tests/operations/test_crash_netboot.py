"""The crash test of network boots: metalman is cut off at every await, in every weather, while the host goes its way.

A schedule is one seed. Replay a failing one with: UNBOUNDED_SEED=1234 .venv/bin/python -m pytest -k one_seed
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable

import pytest

from tests.metalman.support.netboot_host import Story
from tests.operations.faults import FAIR, STORM
from tests.operations.netboot import NetbootWorld
from tests.operations.simulated import Violation
from tests.support.seeds import first_seed
from tests.support.virtual_time import run_virtual
from unbounded.api.machine import MACHINES

POWER = ("HostReboot", "HostPowerOff", "HostPowerOn")
SOAK = bool(os.environ.get("UNBOUNDED_SOAK"))
SCHEDULES = 5_000 if SOAK else 100
BATCH = 50
ON = [(kind, "On") for kind in ("HostReplace", "HostInspect", "HostErase", "HostRescue")]
BOOTS = [*ON, ("HostInspect", "Off")]
KINDS = ("HostReplace", "HostReplace", "HostInspect", "HostErase", "HostRescue", *POWER)


async def _calm(
    kind: str, crashes: list[int], pause_s: tuple[float, float], was: str = "On", *, by_media: bool = False
) -> int:
    """Run one operation whose executor is interrupted; return the awaits of the longest life."""
    world = NetbootWorld(random.Random(0))
    story = Story(image_s=2.0, writes_s=10.0 if kind == "HostReplace" else 2.0, leaves_s=9.0)
    await world.netboot("m1", story, by_media=by_media)
    world.outside.host("m1").power = was
    keeper = asyncio.create_task(world.metalman().keep(crashes=crashes, pause_s=pause_s))
    world.steward().start()
    await world.operation("op", kind, "m1")
    await world.ended("op", within_s=3 * 3600)
    await asyncio.sleep(60)
    world.judge()
    operation = await world.get("op")
    assert operation.status.phase == "Complete", (crashes, operation.status)
    assert len(world.netboots["m1"].installs) == (kind == "HostReplace")
    if kind in ("HostInspect", "HostRescue"):
        assert world.outside.host("m1").power == was
    if kind == "HostErase":
        assert world.outside.host("m1").power == "Off"
        assert {one.state for one in operation.status.erasures} == {"Erased"}
    assert world.outside.host("m1").armed == ""
    redfish = (await world.api.get(MACHINES, "m1")).status.redfish
    assert redfish is None or redfish.media_boot is None
    keeper.cancel()
    return max(life.awaits for life in world.lives if not life.name.startswith("steward"))


@pytest.mark.slow
@pytest.mark.parametrize("pause_s", [(0.0, 1.0), (20.0, 90.0)], ids=["at-once", "later"])
@pytest.mark.parametrize(("kind", "was"), BOOTS)
def test_metalman_is_cut_off_at_every_await(kind: str, was: str, pause_s: tuple[float, float]) -> None:
    awaits = run_virtual(_calm(kind, [], (0.0, 0.0), was))
    assert awaits > 30
    for crash_at in range(awaits + 2):
        run_virtual(_calm(kind, [crash_at], pause_s, was))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "stride"),
    [
        pytest.param("HostReplace", 6, id="some awaits"),
        *(pytest.param(kind, 1, marks=pytest.mark.soak, id=kind) for kind in ("HostReplace", "HostInspect")),
    ],
)
def test_metalman_that_boots_a_host_by_media_is_cut_off_at_every_await(kind: str, stride: int) -> None:
    awaits = run_virtual(_calm(kind, [], (0.0, 0.0), by_media=True))
    assert awaits > 50
    for crash_at in range(0, awaits + 2, stride):
        run_virtual(_calm(kind, [crash_at], (0.0, 1.0), by_media=True))


def _storm(seed: int) -> Callable[[], None]:
    """One random schedule of replacements and power operations on one machine: crashes, weather, cancels."""

    async def story() -> None:
        chance = random.Random(seed)
        world = NetbootWorld(chance, weather=STORM if chance.random() < 0.7 else FAIR)
        outside = world.outside
        outside.lost, outside.unreachable = chance.choice([0, 0.1]), chance.choice([0, 0.1])
        outside.deaf, outside.slow = chance.choice([0, 0, 0.5]), chance.choice([0, 0.1, 0.3])
        await world.netboot("m1", _story(chance), by_media=seed % 4 == 0)
        if chance.random() < 0.3:
            outside.host("m1").power = "Off"
        processes = [world.metalman(), world.steward()]
        if chance.random() < 0.4:
            processes.append(world.metalman())  # a leader that does not know yet that it lost its lease
        keepers = [
            asyncio.create_task(one.keep(crashes=[chance.randrange(120) for _ in range(chance.randrange(4))]))
            for one in processes
        ]
        names = [f"op{number}" for number in range(chance.randint(1, 3))]
        for name in names:
            await world.operation(name, chance.choice(KINDS), "m1")
            await asyncio.sleep(chance.uniform(0, 30))
            if chance.random() < 0.3:
                await asyncio.sleep(chance.uniform(0, 120))
                await world.cancel(chance.choice(names[: names.index(name) + 1]))
        await asyncio.sleep(chance.uniform(100, 600))
        outside.lost = outside.unreachable = outside.deaf = outside.slow = 0
        world.weather = FAIR
        for life in world.lives:
            life.weather = FAIR
        for name in names:
            await world.ended(name, within_s=4 * 3600)
        await asyncio.sleep(120)
        world.judge()
        for keeper in keepers:
            keeper.cancel()

    return lambda: run_virtual(story())


def _story(chance: random.Random) -> Story:
    """Mostly a host that installs; now and then one that does not."""
    troubles = (Story(loads=20, until="LoaderFetched"), Story(fails="two disks"), Story(comes_back=False))
    if chance.random() < 0.15:
        return chance.choice(troubles)
    return Story(
        image_s=chance.choice([0.0, 30.0]),
        own_order=chance.random() < 0.2,
        loads=chance.randint(1, 3),
        writes_s=chance.uniform(1, 60),
        powers_off=chance.random() < 0.2,
        step_s=chance.uniform(0.5, 10),
        lag_s=chance.uniform(0, 3),
        leaves_s=chance.choice([None, 30.0]),
        hangs=chance.random() < 0.2,
    )


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(SCHEDULES // BATCH))
def test_random_schedules(batch: int) -> None:
    first = first_seed() + batch * BATCH
    for seed in range(first, first + BATCH):
        try:
            _storm(seed)()
        except (AssertionError, Violation) as error:
            raise AssertionError(f"UNBOUNDED_SEED={seed}: {error}") from error


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_one_seed(seed: int) -> None:
    _storm(int(os.environ.get("UNBOUNDED_SEED", seed)))()
