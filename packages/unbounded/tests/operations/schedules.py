"""All kinds of schedules by one number: what the crash tests and the mutation check run."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from tests.operations.faults import FAIR, STORM
from tests.operations.simulated import Violation
from tests.operations.storm import Storm
from tests.operations.world import Process, World
from tests.support.bugs import noted
from tests.support.virtual_time import run_virtual

POWER: Final = ("HostReboot", "HostPowerOff", "HostPowerOn")
OTHERS: Final = 4  # one schedule in so many is of executors other than metalman's


def run_schedule(number: int) -> None:
    """Run one schedule to its verdict.

    Raises:
        AssertionError: what must never be has been.
    """
    with noted() as bugs:
        run_virtual(_of_others(number) if number % OTHERS == OTHERS - 1 else Storm(number).run())
    if bugs:
        raise Violation(f"logged: {bugs[0]}")


async def prepare(world: World, kind: str, machine: str) -> Process:
    """A Machine, and the executor that owns the kind on it."""
    if kind == "HostReplace":
        await world.machine(machine, provider="Sim", providerID=f"sim://{machine}")
        return world.replacer()
    await world.machine(machine)
    return world.agent(machine) if kind == "NodeReboot" else world.redfish()


async def settle(world: World, names: list[str]) -> None:
    for name in names:
        await world.ended(name, within_s=3 * 3600)
    await asyncio.sleep(120)
    world.judge()


async def _of_others(seed: int) -> None:
    """Run an agent or a cloud through crashes, two leaders, bad weather and cancels, to a calm end."""
    chance = random.Random(seed)
    world = World(chance, weather=STORM if chance.random() < 0.7 else FAIR, reaps=chance.random() < 0.7)
    outside = world.outside
    outside.lost, outside.unreachable = chance.choice([0, 0.1]), chance.choice([0, 0.1])
    outside.slow = chance.choice([0, 0.1, 0.3])
    kind = chance.choice(("NodeReboot", "HostReplace"))
    processes = [await prepare(world, kind, "m1"), world.steward()]
    if kind == "HostReplace" and chance.random() < 0.4:
        processes.append(world.replacer())  # another leader, which does not know that it is none
    keepers = [
        asyncio.create_task(one.keep(crashes=[chance.randrange(60) for _ in range(chance.randrange(4))]))
        for one in processes
    ]
    names = []
    for number in range(chance.randint(1, 3)):
        names.append(f"op{number}")
        await world.operation(names[-1], kind, "m1")
        await asyncio.sleep(chance.uniform(0, 30))
    meddler = asyncio.create_task(_meddle(world, chance, names))
    await asyncio.sleep(chance.uniform(100, 600))
    outside.lost = outside.unreachable = outside.slow = 0
    world.weather = FAIR
    for life in world.lives:
        life.weather = FAIR
    await meddler
    await settle(world, names)
    for keeper in keepers:
        keeper.cancel()


async def _meddle(world: World, chance: random.Random, names: list[str]) -> None:
    for _ in range(chance.randrange(3)):
        await asyncio.sleep(chance.uniform(0, 60))
        if chance.random() < 0.4:
            await world.cancel(chance.choice(names))
        else:
            world.api.compact()
