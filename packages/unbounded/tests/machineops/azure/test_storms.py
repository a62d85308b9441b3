"""Random schedules of host operations on a simulated Azure: crashes, two leaders, a bad API, and every misbehaviour.

Afterwards a status names every part of the virtual machine, and one more replacement without faults restores it. Replay
a failing one with: UNBOUNDED_SEED=1234 python -m pytest -k one_storm
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from typing import Final

import pytest

from tests.machineops.azure.judging import PLAIN, RICH, document, nothing_is_left, of_replacements
from tests.machineops.azure.world import LASTING_S, AzureWorld, azure_world
from tests.metalman.support.swift_time import run_swiftly
from tests.operations.faults import FAIR, STORM
from tests.operations.simulated import Violation
from tests.operations.staging import result
from tests.support.seeds import first_seed
from unbounded.api.core import SECRETS
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.api import NotFound
from unbounded_lab.cloud.azure.misbehaviours import MISBEHAVIOURS

STORMS: Final = 300 if os.environ.get("UNBOUNDED_SOAK") else 4
KINDS: Final = ("HostReplace", "HostReplace", "HostReplace", "HostReboot", "HostPowerOff", "HostPowerOn")
PROFILES: Final = [
    name for name in MISBEHAVIOURS.names() if name not in ("ideal", "short-tokens", "terms-not-accepted")
]


def _turn(world: AzureWorld, chance: random.Random) -> None:
    """Other weather in the cloud."""
    world.cloud.set_profile("+".join(chance.sample(PROFILES, chance.randint(0, 3))) or "ideal")
    quota, lag_s = chance.choice([None, None, 0]), chance.choice([0.0, 0.0, 2.0, 20.0])
    spared = chance.choice([0, 0, 1, 2, 5])
    world.cloud.set_faults(token_lifetime_s=LASTING_S, cores_quota=quota, get_lag_s=lag_s, spared=spared)


async def _collect(world: AzureWorld) -> None:
    """Delete Secrets whose owners are all gone, as a cluster does."""
    while True:
        await asyncio.sleep(5)
        there = {one.metadata.uid for one in (await world.api.list(MACHINE_OPERATIONS)).items}
        for secret in await of_replacements(world):
            owners = secret.metadata.owner_references
            if all(owner.kind == "MachineOperation" and owner.uid not in there for owner in owners):
                with suppress(NotFound):
                    await world.api.delete(SECRETS, secret.metadata.name, namespace=NAMESPACE)


async def _story(seed: int) -> None:
    chance = random.Random(seed)
    shape = chance.choice([PLAIN, RICH])
    async with azure_world(shape=shape, chance=chance) as world:
        before = document(world)
        world.weather = STORM if chance.random() < 0.5 else FAIR
        await world.begin()
        processes = [world.controller() for _ in range(chance.choice([1, 1, 2]))]
        crashes = [[chance.randrange(120) for _ in range(chance.randrange(4))] for _ in processes]
        keepers = [
            asyncio.create_task(one.keep(crashes=cut), name="machine-ops keeper")
            for one, cut in zip(processes, crashes, strict=True)
        ]
        keepers.append(asyncio.create_task(_collect(world), name="machine-ops collector"))
        ended = [await _asked(world, chance, number) for number in range(chance.randint(1, 3))]
        await _calm(world)
        for name in ended:
            with suppress(NotFound):
                await world.ended(name, within_s=4 * 3600)
        await asyncio.sleep(600)
        await _judge_names(world)
        last = await world.carried_out("HostReplace", name="last")
        assert result(last) == ("Complete", "Succeeded"), last.status.message
        assert document(world) == before
        await nothing_is_left(world)
        for keeper in keepers:
            keeper.cancel()


async def _asked(world: AzureWorld, chance: random.Random, number: int) -> str:
    """Request an operation, and change the faults meanwhile."""
    name = f"op{number}"
    ttl = {"ttlSecondsAfterFinished": 60} if chance.random() < 0.3 else {}
    await world.operation(name, chance.choice(KINDS), "m1", **ttl)
    for _ in range(chance.randint(1, 4)):
        _turn(world, chance)
        await asyncio.sleep(chance.choice([3, 15, 60, 400, 3000]))
    if chance.random() < 0.2:
        with suppress(NotFound):
            await world.cancel(name)
    return name


async def _calm(world: AzureWorld) -> None:
    world.cloud.set_profile("ideal")
    world.cloud.set_faults(token_lifetime_s=LASTING_S)
    world.weather = FAIR
    for life in world.lives:
        life.weather = FAIR


async def _judge_names(world: AzureWorld) -> None:
    """Check that a failure's status names the parts without a VM, and the Secret that its creation needs."""
    failed = [story.status for story in world.stories.values() if story.status.get("phase") == "Failed"]
    told = " ".join(status["message"] for status in failed)
    for stray in (*world.cloud.stray_disks(), *world.cloud.stray_nics()):
        assert stray in told, (stray, told)
    if not world.cloud.machines():
        (kept,) = await of_replacements(world)
        assert [owner.kind for owner in kept.metadata.owner_references][-1] == "Machine"
        assert kept.metadata.name in told


def _storm(seed: int) -> None:
    try:
        run_swiftly(_story(seed), limit_s=20 * 86_400.0)
    except (AssertionError, Violation) as error:
        raise AssertionError(f"seed {seed}: {error}\nreplay: UNBOUNDED_SEED={seed} pytest -k one_storm") from error


@pytest.mark.slow
def test_storms() -> None:
    first = first_seed()
    for seed in range(first, first + STORMS):
        _storm(seed)


@pytest.mark.slow
def test_one_storm() -> None:
    """The seed of UNBOUNDED_SEED; else one whose VM is gone before the last replacement."""
    _storm(int(os.environ.get("UNBOUNDED_SEED", "6")))
