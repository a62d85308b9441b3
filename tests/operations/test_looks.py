"""How often is looked before anything is asked for: looks cost calls, of which clouds allow so many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.operations.faults import Incarnation
from tests.operations.simulated import PowerExecutor
from tests.operations.staging import result, story
from tests.operations.world import World
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.operations.ports import Target
from unbounded.operations.procedure import Sight

NOTE = {"metadata": {"annotations": {"example.com/note": "written during the look"}}}
EXECUTOR = "metalman/lab"


class Watched(PowerExecutor):
    """Keeps what is done in its order; something else happens during the first look."""

    def __init__(self, life: Incarnation, world: World, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(EXECUTOR, life, world.outside)
        self._meanwhile = meanwhile
        self.done: list[str] = []

    async def observe(self, target: Target) -> Sight:
        if not self.done:
            await self._meanwhile()
        self.done.append("look")
        return await super().observe(target)

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        self.done.append(action)
        await super().perform(target, action, before=before)


@pytest.mark.parametrize(("written_to", "looks"), [("nothing", 1), ("operation", 1), ("machine", 2)])
@story
async def test_a_look_serves_the_next_claim_unless_somebody_could_have_had_the_machine(
    world: World, written_to: str, looks: int
) -> None:
    async def write() -> None:
        if written_to == "operation":
            await world.api.patch(MACHINE_OPERATIONS, "op", NOTE)
        elif written_to == "machine":
            await world.api.patch(MACHINES, "m1", NOTE)

    made: list[Watched] = []

    def executor(life: Incarnation, _api: object) -> Watched:
        made.append(Watched(life, world, write))
        return made[-1]

    await world.machine("m1")
    world.steward().start()
    world.executor(EXECUTOR, executor).start()
    await asyncio.sleep(5)  # a new Machine is written to
    await world.operation("op", "HostPowerOff", "m1")
    assert result(await world.ended("op")) == ("Complete", "Succeeded")
    done = made[0].done
    assert next(place for place, what in enumerate(done) if what != "look") == looks
