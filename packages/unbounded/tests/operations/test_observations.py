"""Number of observations before a call, and of writes after an observation: both cost calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tests.operations.faults import Incarnation
from tests.operations.simulated import PowerExecutor
from tests.operations.staging import result, story
from tests.operations.world import World
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.operations.executor_protocol import Target
from unbounded.workflow.procedure import NotObservable, Observation
from unbounded.workflow.run_state import ACT_ON_S, RunState, TimedObservation

NOTE = {"metadata": {"annotations": {"example.com/note": "written during the look"}}}
EXECUTOR = "metalman/lab"


class Watched(PowerExecutor):
    """Records events in their order; another event occurs during the first observation."""

    def __init__(self, life: Incarnation, world: World, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(EXECUTOR, life, world.outside)
        self._meanwhile = meanwhile
        self.done: list[str] = []

    async def observe(self, target: Target) -> Observation:
        if not self.done:
            await self._meanwhile()
        self.done.append("look")
        return await super().observe(target)

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        self.done.append(action)
        await super().perform(target, action, before=before)


async def _write_with_the_slot(world: World) -> None:
    """Write to the operation as soon as it has the slot."""
    async for event in world.api.watch(MACHINES, resource_version=""):
        if event.object is not None and event.object.status.active_operation is not None:
            await world.api.patch(MACHINE_OPERATIONS, "op", NOTE)
            return


WRITTEN_TO = [("nothing", 1), ("operation", 1), ("operation with the slot", 1), ("machine", 2)]


@pytest.mark.parametrize(("written_to", "looks"), WRITTEN_TO)
@story
async def test_observation_is_reused_for_the_next_claim_unless_possibly_outdated(
    world: World, written_to: str, looks: int
) -> None:
    async def write() -> None:
        if written_to == "operation":
            await world.api.patch(MACHINE_OPERATIONS, "op", NOTE)
        elif written_to == "machine":
            await world.api.patch(MACHINES, "m1", NOTE)
        elif written_to == "operation with the slot":
            beside.append(asyncio.create_task(_write_with_the_slot(world)))

    beside: list[asyncio.Task[None]] = []

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


@pytest.mark.parametrize(
    ("version", "age_s", "good"), [("7", ACT_ON_S, True), ("7", ACT_ON_S + 0.1, False), ("8", 0.0, False)]
)
def test_observation_is_reused_while_it_is_fresh_enough_to_act(version: str, age_s: float, good: bool) -> None:
    state = RunState("uid", unused=TimedObservation(100.0, 101.0, NotObservable("Reason", "text"), ("on",), "7"))
    assert (state.reuse_observation(("on",), version, 101.0 + age_s) is not None) is good
    assert state.reuse_observation(("on",), "7", 101.0) is None  # once


def test_a_slot_that_was_taken_on_another_version_makes_no_look_newer() -> None:
    looked = TimedObservation(100.0, 101.0, NotObservable("Reason", "text"), ("on",), "7")
    for before, version in (("7", "9"), ("8", "7")):
        state = RunState("uid", observed=looked)
        state.target_written(before, "9")
        assert state.observed is not None
        assert state.observed.version == version


class Unmoved(PowerExecutor):
    """An executor whose calls have no effect, though each observation shows some progress."""

    async def observe(self, target: Target) -> Observation:
        return replace(await super().observe(target), progress=f"{asyncio.get_running_loop().time():.1f} s are gone")

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        pass


@story
async def test_how_far_a_stage_is_is_written_once_it_lasts(world: World) -> None:
    await world.machine("m1")
    world.executor(EXECUTOR, lambda life, _api: Unmoved(EXECUTOR, life, world.outside)).start()
    await asyncio.sleep(5)
    await world.operation("op", "HostPowerOff", "m1")
    asked = await world.until("op", lambda operation: "requested" in (operation.status.message or ""), within_s=5)
    told = await world.until("op", lambda operation: "are gone" in (operation.status.message or ""), within_s=20)
    assert int(told.metadata.resource_version) == int(asked.metadata.resource_version) + 1  # nothing else was written
    assert float((told.status.message or "").partition(" s are gone")[0].rpartition(" ")[2]) >= 5 + 9
