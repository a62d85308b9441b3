"""Cost of operations for the API server, and respect for other writers. As stories."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.operations.faults import FAIR
from tests.operations.staging import in_stage, machine, story
from tests.operations.world import World
from unbounded.api.machine import MACHINES
from unbounded.api.names import FINALIZER_OPERATION
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.metalman import power


@pytest.mark.parametrize("kind", ["HostReboot", "HostPowerOff", "HostPowerOn"])
@story
async def test_an_operation_costs_at_most_ten_writes(world: World, kind: str) -> None:
    await world.machine("m1")
    world.steward().start()
    world.redfish().start()
    await asyncio.sleep(5)
    before = world.api.writes
    await world.operation("op", kind, "m1")
    await world.ended("op", within_s=60)
    await asyncio.sleep(60)
    assert world.api.writes - before - 1 <= 10  # its creation is the user's


@pytest.mark.slow
@story
async def test_a_slow_host_costs_no_more_writes_than_a_quick_one(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    world.outside.deaf = 1.0
    world.redfish().start()
    await asyncio.sleep(5)
    before = world.api.writes
    await world.operation("op", "HostReboot", "m1", parameters={"graceSeconds": "600"})
    await world.ended("op", within_s=900)
    await asyncio.sleep(60)
    assert world.api.writes - before - 1 <= 11


@pytest.mark.slow
@story
async def test_idle_costs_nothing(world: World) -> None:
    for name in ("m1", "m2"):
        await world.machine(name)
    world.steward().start()
    world.redfish().start()
    world.agent("m1").start()
    await world.operation("done", "HostReboot", "m1")
    await world.operation("failed", "HostReboot", "nowhere")
    await world.operation("off", "HostPowerOff", "m2", ttlSecondsAfterFinished=7200)
    await world.operation("all", "HostPowerOn", machineSelector={"matchLabels": {"unbounded-cloud.io/site": "lab"}})
    for name in ("done", "failed", "off", "all"):
        await world.ended(name, within_s=200)
    await asyncio.sleep(120)
    writes, revision = world.api.writes, world.api.revision
    await asyncio.sleep(3600)
    assert (world.api.writes, world.api.revision) == (writes, revision)


@story
async def test_an_operation_that_waits_costs_nothing_either(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    await world.operation("op", "HostReboot", "m1", startDeadlineSeconds=20_000)
    await asyncio.sleep(60)
    writes = world.api.writes
    await asyncio.sleep(3600)
    assert world.api.writes == writes


@story
async def test_what_others_wrote_is_kept(world: World) -> None:
    await world.machine("m1")
    theirs = {"type": "Theirs", "status": "True", "reason": "R", "lastTransitionTime": "2030-01-01T00:00:00Z"}
    extra = {"conditions": [theirs], "ofTomorrow": {"a": 1}, "agent": {"version": "v1"}}
    await world.api.patch(MACHINES, "m1", {"status": extra}, subresource="status")
    world.steward().start()
    world.redfish().start()
    await world.operation("op", "HostReboot", "m1")
    await world.api.patch(MACHINE_OPERATIONS, "op", {"metadata": {"finalizers": ["example.com/theirs"]}})
    await in_stage(world, "op", power.SHUTTING_DOWN)
    assert set((await world.get("op")).metadata.finalizers) == {"example.com/theirs", FINALIZER_OPERATION}
    condition = {"type": "Later", "status": "True", "reason": "R", "lastTransitionTime": "2030-01-01T00:00:00Z"}
    raw = await world.api.get(MACHINES.raw(), "m1")
    conditions = [*raw["status"]["conditions"], condition]
    await world.api.patch(MACHINES, "m1", {"status": {"conditions": conditions}}, subresource="status")
    await world.ended("op", within_s=60)
    await asyncio.sleep(5)
    status = (await world.api.get(MACHINES.raw(), "m1"))["status"]
    assert [one["type"] for one in status["conditions"]] == ["Theirs", "Later"]
    assert status["ofTomorrow"] == {"a": 1}
    assert (await machine(world)).status.agent is not None
    assert (await world.get("op")).metadata.finalizers == ("example.com/theirs",)


@pytest.mark.slow
@story
async def test_two_stewards_at_once_do_no_harm(world: World) -> None:
    """A leader that has not noticed its loss yet: both observe the same, and a conflict causes a new plan."""
    for number in range(6):
        await world.machine(f"m{number}")
    world.steward().start()
    world.steward().start()
    world.redfish().start()
    selector = {"matchLabels": {"unbounded-cloud.io/site": "lab"}}
    await world.operation("all", "HostReboot", machineSelector=selector, maxConcurrent=2)
    await world.operation("never", "HostReboot", "nowhere")
    assert (await world.ended("all", within_s=300)).status.phase == "Complete"
    assert (await world.ended("never", within_s=100)).status.reason == "MachineNotFound"
    assert len({act.operation for act in world.outside.acts}) == 6


@pytest.mark.slow
@story
async def test_after_an_outage_of_the_api_operations_go_on_soon(world: World) -> None:
    """However long it lasted: a host that was switched off must not stay so for minutes more."""
    await world.machine("m1")
    world.steward().start()
    world.redfish().start()
    await world.operation("op", "HostReboot", "m1")
    await in_stage(world, "op", power.SHUTTING_DOWN)
    for life in world.lives:
        life.weather = replace(life.weather, unreachable=1.0)
    await asyncio.sleep(900)
    for life in world.lives:
        life.weather = FAIR
    await world.operation("next", "HostPowerOn", "m1")
    assert (await world.ended("op", within_s=45)).status.phase == "Complete"
    assert (await world.ended("next", within_s=45)).status.phase == "Complete"
