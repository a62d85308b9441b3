"""Abandoning: an operation without an executor ends by a user's request, and one in progress stays with its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.operations.building import claim, machine_of, operation_of, slot_of
from tests.operations.staging import Announced, announcing_steward, in_stage, machine, meddle, result, story
from tests.operations.world import World
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.metalman import power
from unbounded.operations import reasons
from unbounded.operations.batch_plan import plan_batch
from unbounded.operations.rollout_plan import RolloutFacts
from unbounded.operations.supervisor_plan import (
    ABANDON_AFTER_S,
    EndOperation,
    NoAction,
    OperationAges,
    SupervisorAction,
    SupervisorView,
    WarnOnce,
    plan_action,
)


def decided(
    operation: MachineOperation, *, there: Machine | None = None, unchanged_s: float = 0.0, missing: bool = False
) -> SupervisorAction:
    subject = None if missing else there or machine_of()
    return plan_action(
        SupervisorView(operation, subject, [operation], None, OperationAges(known_s=200.0, unchanged_s=unchanged_s))
    )


@pytest.mark.parametrize("missing", [False, True], ids=["machine", "no machine"])
def test_what_nobody_has_started_ends_at_once(missing: bool) -> None:
    ended = decided(operation_of(abandon=True), missing=missing)
    assert ended == EndOperation(reasons.CANCELLED, "abandoned before it started")


def test_what_its_executor_is_silent_about_ends_and_keeps_the_slot() -> None:
    ended = decided(operation_of(abandon=True, status=claim()), unchanged_s=ABANDON_AFTER_S)
    assert isinstance(ended, EndOperation)
    assert (ended.reason, ended.lost) == (reasons.EXECUTOR_LOST, True)
    assert "metalman/lab" in ended.text


def test_abandon_of_an_active_operation_waits_with_a_time() -> None:
    told = decided(operation_of(abandon=True, status=claim()), unchanged_s=20.0)
    assert isinstance(told, WarnOnce)
    assert (told.reason, told.until_s) == (reasons.ABANDON_WAITS, 40.0)
    assert "metalman/lab wrote 20 s ago" in told.text


def test_operation_without_abandon_is_not_ended_before_its_deadline() -> None:
    assert isinstance(decided(operation_of(status=claim()), unchanged_s=ABANDON_AFTER_S), NoAction)


def test_a_parent_that_is_abandoned_abandons_its_children_and_starts_no_other() -> None:
    targets = [{"machineRef": name, "phase": "Pending"} for name in ("m1", "m2", "m3")]
    parent = operation_of(machine=None, abandon=True, status={"phase": "InProgress", "targets": targets})
    children = {
        "m1": operation_of("op-m1", machine="m1", status=claim()),
        "m2": operation_of("op-m2", machine="m2", abandon=True),
    }
    step = plan_batch(parent, children.values(), RolloutFacts(datetime(2030, 1, 1, tzinfo=UTC)))
    assert (step.abandon, step.cancel, step.start, step.end) == (("op-m1",), (), (), None)
    assert (step.targets[2].phase, step.targets[2].message) == ("Failed", "abandoned before it started")


async def abandon(world: World, name: str) -> None:
    await world.api.patch(MACHINE_OPERATIONS, name, {"spec": {"abandon": True}})


@story
async def test_an_operation_of_a_dead_executor_is_given_up_within_a_minute(world: World) -> None:
    """The next one takes the lock after an observation of its own, and the history has the loss."""
    await world.machine("m1")
    world.steward().start()
    world.outside.deaf = 1.0
    executor = world.redfish().start()
    await world.operation("op", "HostReboot", "m1")
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await executor.stop()
    await abandon(world, "op")
    lost = await world.ended("op", within_s=ABANDON_AFTER_S + 10)
    assert result(lost) == ("Failed", reasons.EXECUTOR_LOST)
    active = (await machine(world)).status.active_operation
    assert active is not None
    assert (active.name, active.lost) == ("op", True)
    world.outside.deaf = 0.0
    world.redfish().start()
    await world.operation("next", "HostReboot", "m1")
    assert result(await world.ended("next", within_s=300)) == ("Complete", "Succeeded")


@story
async def test_an_executor_that_is_at_work_is_not_cut_off(world: World) -> None:
    """Its regular writes keep the operation, which ends as if it had not been abandoned."""
    await world.machine("m1")
    announced = Announced()
    announcing_steward(world, announced).start()
    world.redfish().start()
    await world.operation("op", "HostReboot", "m1")
    await world.until("op", lambda operation: operation.claimed, within_s=10)
    await abandon(world, "op")
    assert result(await world.ended("op", within_s=200)) == ("Complete", "Succeeded")
    await asyncio.sleep(5)
    assert (await machine(world)).status.active_operation is None
    assert announced.events.count(("op", reasons.ABANDON_WAITS)) == 1


@story
async def test_what_was_never_claimed_leaves_no_slot_behind(world: World) -> None:
    await world.machine("m1")
    made = await world.operation("op", "HostReboot", "m1")
    held = slot_of("op") | {"uid": made.metadata.uid}
    await world.api.patch(MACHINES, "m1", {"status": {"activeOperation": held}}, subresource="status")
    world.steward().start()
    await abandon(world, "op")
    assert result(await world.ended("op", within_s=5)) == ("Failed", reasons.CANCELLED)
    await asyncio.sleep(5)
    assert (await machine(world)).status.active_operation is None


@story
async def test_executor_that_writes_at_the_last_moment_keeps_its_lock(world: World) -> None:
    """The slot is marked as lost before the operation ends; who has written in between is not lost."""
    api = meddle(world)
    await world.machine("m1")
    world.steward().start()
    world.outside.deaf = 1.0
    executor = world.redfish().start()
    await world.operation("op", "HostReboot", "m1", deadlineSeconds=7200)
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await executor.stop()

    async def speaks(_kind: Any, name: str, patch: Mapping[str, Any]) -> None:
        if name == "op" and patch.get("status", {}).get("phase") == "Failed" and not spoken.is_set():
            spoken.set()
            await api.patch(MACHINE_OPERATIONS, "op", {"status": {"message": "still here"}}, subresource="status")

    spoken = asyncio.Event()
    api.before = speaks
    await abandon(world, "op")
    async with asyncio.timeout(ABANDON_AFTER_S + 30):
        await spoken.wait()
    await asyncio.sleep(5)
    active = (await machine(world)).status.active_operation
    assert active is not None
    assert (active.name, active.lost, (await world.get("op")).terminal) == ("op", False, False)
    lost = await world.ended("op", within_s=ABANDON_AFTER_S + 10)
    assert result(lost) == ("Failed", reasons.EXECUTOR_LOST)
    active = (await machine(world)).status.active_operation
    assert active is not None
    assert active.lost


def _stage(parent: MachineOperation) -> str:
    """Of the first target."""
    return next((target.stage or "" for target in parent.status.targets), "")


@story
async def test_a_parent_is_given_up_with_its_children(world: World) -> None:
    for name in ("m1", "m2"):
        await world.machine(name)
    world.steward().start()
    world.outside.deaf = 1.0
    executor = world.redfish().start()
    site = {"matchLabels": {"unbounded-cloud.io/site": "lab"}}
    await world.operation("op", "HostReboot", machineSelector=site, maxConcurrent=1)
    await world.until("op", lambda parent: _stage(parent) == power.SHUTTING_DOWN, within_s=60)
    await executor.stop()
    await abandon(world, "op")
    ended = await world.ended("op", within_s=ABANDON_AFTER_S + 30)
    assert result(ended) == ("Failed", reasons.CANCELLED)
    assert [(target.machine_ref, target.reason) for target in ended.status.targets] == [
        ("m1", reasons.EXECUTOR_LOST),
        ("m2", reasons.CANCELLED),
    ]
