"""Ends of operations and their traces: deletion, lost executors, history, time to live, counters. As stories."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.operations.building import slot_of
from tests.operations.staging import (
    Announced,
    DeadExecutor,
    announcing_steward,
    in_stage,
    machine,
    result,
    story,
    waits,
)
from tests.operations.world import World
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.core import LEASES, NAMESPACES
from unbounded.api.machine import MACHINES
from unbounded.api.names import FINALIZER_OPERATION
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationsStatus
from unbounded.kube.api import NotFound
from unbounded.kube.clock import rfc3339
from unbounded.metalman import power
from unbounded.operations import reasons
from unbounded.operations.deadline import LOST_AFTER_S
from unbounded.operations.machine_counters import due
from unbounded.operations.supervisor_plan import (
    EVIDENCE_SILENT,
    LISTEN_EVERY_S,
    LISTEN_FOR_S,
    LOST_SLOT_S,
    SILENT_AFTER_S,
)

TERMINAL = ("Complete", "Failed")


async def _delete(world: World, name: str) -> None:
    await world.api.delete(MACHINE_OPERATIONS, name)


async def _history(world: World) -> list[tuple[str, str, str | None]]:
    return [(one.name, one.phase, one.reason) for one in (await machine(world)).status.recent_operations]


async def _is_gone(world: World, name: str) -> bool:
    try:
        await world.get(name)
    except NotFound:
        return True
    return False


# Deletion


@story
async def test_a_machine_that_is_deleted_goes_when_its_host_operation_has_ended(world: World) -> None:
    """Else nothing would switch its host on again."""
    await world.machine("m1")
    await world.machine("idle")
    world.steward().start()
    world.redfish().start()
    await world.operation("op", "HostReboot", "m1", parameters={"force": "true"})
    await world.operation("second", "HostPowerOff", "m1")
    await in_stage(world, "op", power.WAITING_ON)
    for name in ("m1", "idle"):
        await world.api.delete(MACHINES, name)
    with pytest.raises(NotFound):
        await world.api.get(MACHINES, "idle")
    assert result(await world.ended("op", within_s=60)) == ("Complete", reasons.SUCCEEDED)
    assert world.outside.host("m1").power == "On"
    async with asyncio.timeout(10):
        while True:
            try:
                await world.api.get(MACHINES, "m1")
            except NotFound:
                break
            await asyncio.sleep(0.1)
    assert result(await world.ended("second", within_s=120)) == ("Failed", reasons.MACHINE_NOT_FOUND)


@story
async def test_a_machine_whose_executor_was_lost_can_be_deleted(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    running = world.redfish().start()
    await world.operation("op", "HostReboot", "m1", deadlineSeconds=30)
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await running.stop()
    await world.api.delete(MACHINES, "m1")
    assert result(await world.ended("op", within_s=600)) == ("Failed", reasons.EXECUTOR_LOST)
    await asyncio.sleep(5)
    with pytest.raises(NotFound):
        await world.api.get(MACHINES, "m1")


@story
async def test_deleting_an_operation_that_nobody_started_takes_it_away_at_once(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    await world.operation("op", "HostReboot", "m1")
    await waits(world, "op", reasons.WAITING_FOR_EXECUTOR)
    await _delete(world, "op")
    await world.gone("op", within_s=1)


@story
async def test_deleting_a_running_operation_cancels_it_first(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    world.outside.deaf = 1.0
    world.redfish().start()
    await world.operation("op", "HostPowerOff", "m1", parameters={"graceSeconds": "30"})
    await in_stage(world, "op", power.SHUTTING_DOWN)
    assert FINALIZER_OPERATION in (await world.get("op")).metadata.finalizers
    await _delete(world, "op")
    await in_stage(world, "op", power.UNDOING, within_s=5)
    await world.gone("op", within_s=120)
    await asyncio.sleep(10)
    assert world.outside.host("m1").power == "On"
    assert await _history(world) == [("op", "Failed", reasons.CANCELLED)]
    assert (await machine(world)).status.active_operation is None


@story
async def test_deleting_past_the_point_of_no_return_lets_the_operation_finish(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    world.redfish().start()
    await world.operation("op", "HostReboot", "m1")
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await _delete(world, "op")
    await world.gone("op", within_s=60)
    assert world.outside.host("m1").power == "On"
    assert await _history(world) == [("op", "Complete", "Succeeded")]


@story
async def test_a_dead_executor_holds_a_deletion_until_past_the_deadline(world: World) -> None:
    """Then the supervisor releases it with an Event, and the lock stays until an executor has observed."""
    announced = Announced()
    await world.machine("m1")
    announcing_steward(world, announced).start()
    world.outside.deaf = 1.0
    executor = world.redfish().start()
    await world.operation("op", "HostReboot", "m1", deadlineSeconds=60)
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await executor.stop()
    await _delete(world, "op")
    at = asyncio.get_running_loop().time()
    await asyncio.sleep(60 + LOST_AFTER_S - 20)
    assert not await _is_gone(world, "op")
    await world.gone("op", within_s=60 + LOST_SLOT_S)
    assert asyncio.get_running_loop().time() - at >= 60 + LOST_AFTER_S + LOST_SLOT_S - 5
    assert ("op", reasons.EXECUTOR_LOST) in announced.events
    slot = (await machine(world)).status.active_operation
    assert slot is not None
    assert (slot.name, slot.lost) == ("op", True)
    world.outside.deaf = 0.0
    world.redfish().start()
    started = asyncio.get_running_loop().time()
    acts = len(world.outside.acts)
    await world.operation("next", "HostReboot", "m1")
    assert result(await world.ended("next", within_s=200)) == ("Complete", "Succeeded")
    assert min(act.at for act in world.outside.acts[acts:]) - started > 40
    await asyncio.sleep(5)
    assert (await machine(world)).status.active_operation is None


@story
async def test_what_a_preempted_agent_did_is_in_the_history(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    agent = world.agent("m1").start(crash_at=18)
    await world.operation("agents", "NodeReboot", "m1")
    await agent.life.dead.wait()
    await agent.stop()
    assert (await world.get("agents")).claimed
    world.redfish().start()
    await world.operation("hosts", "HostReboot", "m1")
    assert result(await world.ended("hosts", within_s=200)) == ("Complete", "Succeeded")
    await asyncio.sleep(5)
    assert sorted(await _history(world)) == [
        ("agents", "Failed", reasons.PREEMPTED),
        ("hosts", "Complete", "Succeeded"),
    ]


@story
async def test_returning_lost_executor_releases_its_lock_after_an_observation(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    world.outside.deaf = 1.0
    executor = world.redfish().start()
    await world.operation("op", "HostReboot", "m1", deadlineSeconds=60)
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await executor.stop()
    lost = await world.ended("op", within_s=400)
    assert result(lost) == ("Failed", reasons.EXECUTOR_LOST)
    target = lost.status.targets[0]
    assert (target.phase, target.reason, target.completed_at) == (*result(lost), lost.status.completed_at)
    acts = len(world.outside.acts)
    world.redfish().start()
    await asyncio.sleep(20)
    assert (await machine(world)).status.active_operation is not None
    await asyncio.sleep(100)
    assert (await machine(world)).status.active_operation is None
    assert await _history(world) == [("op", "Failed", reasons.EXECUTOR_LOST)]
    assert len(world.outside.acts) == acts


@story
async def test_deleted_operation_with_a_lost_lock_leaves_no_lock_or_condition(world: World) -> None:
    """It stays until its executor, which comes back, has read the host."""
    await world.machine("m1")
    world.steward().start()
    executor = world.redfish().start()
    await world.operation("op", "HostReboot", "m1", parameters={"force": "true"}, ttlSecondsAfterFinished=0)
    await in_stage(world, "op", power.WAITING_ON)
    await executor.stop()
    await world.api.patch(MACHINE_OPERATIONS, "op", {"spec": {"abandon": True}})
    assert result(await world.ended("op", within_s=90)) == ("Failed", reasons.EXECUTOR_LOST)
    await _delete(world, "op")
    await asyncio.sleep(40)
    world.redfish().start()
    await world.gone("op", within_s=60)
    await asyncio.sleep(5)
    there = await machine(world)
    off = [one.status for one in there.status.conditions if one.type == "PoweredOff"]
    assert there.status.active_operation is None
    assert (off == ["True"]) == (world.outside.host("m1").power == "Off")


@pytest.mark.slow
@story
async def test_a_lost_slot_on_a_dead_bmc_takes_no_worker_from_others(world: World) -> None:
    """The new observation of many silent machines delays no other."""
    for number in range(30):
        name = f"dead-{number}"
        await world.machine(name)
        slot = slot_of(f"lost-{number}", lost=True)
        await world.api.patch(MACHINES, name, {"status": {"activeOperation": slot}}, subresource="status")
        await world.operation(f"op-{number:02}", "HostReboot", name)
    world.steward().start()
    world.executor("metalman/lab", lambda life, _api: DeadExecutor("metalman/lab", life, world), concurrent=2).start()
    await asyncio.sleep(120)
    await world.machine("m1")
    await world.operation("healthy", "HostReboot", "m1")
    assert result(await world.ended("healthy", within_s=60)) == ("Complete", "Succeeded")


# History and time to live


@pytest.mark.slow
@story
async def test_the_history_keeps_the_last_ten_when_operations_are_gone(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    world.redfish().start()
    for number in range(13):
        name = f"op{number:02}"
        await world.operation(name, "HostPowerOn", "m1", ttlSecondsAfterFinished=0)
        await world.gone(name, within_s=60)
    kept = (await machine(world)).status.recent_operations
    assert [one.name for one in kept] == [f"op{number:02}" for number in range(3, 13)]
    for one in kept:
        assert (one.kind, one.phase, one.reason) == ("HostPowerOn", "Complete", "Succeeded")
        assert [evidence.what for evidence in one.evidence] == [power.EVIDENCE_ON, power.EVIDENCE_ON_AGAIN]
        assert one.started_at
        assert one.completed_at


@pytest.mark.parametrize(("ttl", "kept_s", "gone_s"), [(0, 0, 2), (100, 95, 10)])
@story
async def test_an_operation_lives_as_long_after_its_end_as_it_says(
    world: World, ttl: int, kept_s: float, gone_s: float
) -> None:
    await world.machine("m1")
    world.steward().start()
    world.redfish().start()
    ended = _note_end(world, "op")
    await world.operation("op", "HostPowerOn", "m1", ttlSecondsAfterFinished=ttl)
    await ended.wait()
    if kept_s:
        await asyncio.sleep(kept_s)
        assert not await _is_gone(world, "op")
    await world.gone("op", within_s=gone_s)


def _note_end(world: World, name: str) -> asyncio.Event:
    """Set once the API has stored that an operation has ended."""
    ended, admit = asyncio.Event(), world.api._admit

    def note(kind: Any, old: Any, new: Any) -> None:
        admit(kind, old, new)
        if new["metadata"]["name"] == name and new.get("status", {}).get("phase") in TERMINAL:
            ended.set()

    world.api._admit = note
    return ended


@story
async def test_without_a_time_to_live_an_operation_is_kept(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    world.redfish().start()
    await world.operation("op", "HostPowerOn", "m1")
    await world.ended("op", within_s=60)
    await asyncio.sleep(10 * 3600)
    assert not await _is_gone(world, "op")


@story
async def test_a_time_to_live_given_afterwards_counts_too(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    await world.operation("op", "HostPowerOn", "nowhere")
    await world.ended("op", within_s=90)
    await asyncio.sleep(100)
    await world.api.patch(MACHINE_OPERATIONS, "op", {"spec": {"ttlSecondsAfterFinished": 50}})
    await world.gone("op", within_s=2)


@story
async def test_an_operation_that_was_never_started_is_cleaned_up_like_any_other(world: World) -> None:
    world.steward().start()
    await world.operation("op", "HostPowerOn", "nowhere", ttlSecondsAfterFinished=10)
    await world.gone("op", within_s=90)


@pytest.mark.parametrize("end", ["complete", "cancelled"])
@story
async def test_a_terminal_status_never_changes_again(world: World, end: str) -> None:
    await world.machine("m1")
    world.steward().start()
    executor = world.redfish().start()
    await world.operation("op", "HostPowerOff", "m1")
    if end == "cancelled":
        await in_stage(world, "op", power.SHUTTING_DOWN)
        await world.cancel("op")
    status = (await world.ended("op", within_s=300)).status
    await world.cancel("op")
    await world.api.patch(MACHINE_OPERATIONS, "op", {"spec": {"deadlineSeconds": 1}})
    await executor.stop()
    world.redfish().start()
    world.steward().start()
    await world.operation("next", "HostReboot", "m1")
    await world.ended("next", within_s=100)
    await asyncio.sleep(4 * 3600)
    assert (await world.get("op")).status == status


# Counters


async def _ask_for(world: World, **counters: int) -> None:
    await world.api.patch(MACHINES, "m1", {"spec": {"operations": counters}})


async def _create_due(world: World) -> MachineOperation:
    """Do what metalman does when a counter is ahead."""
    there = await machine(world)
    asked = due(there)
    assert asked is not None
    world.kinds[asked.name] = str(asked.kind)
    return await world.api.create(MACHINE_OPERATIONS, asked.manifest(there))


@story
async def test_a_counter_ahead_is_an_operation_whose_end_moves_the_status(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    world.redfish().start()
    await _ask_for(world, rebootCounter=3)
    operation = await _create_due(world)
    assert (operation.name, operation.spec.operation_kind) == ("m1-reboot-3", "HostReboot")
    running = await in_stage(world, "m1-reboot-3", power.SHUTTING_DOWN)
    assert running.status.targets[0].target_operations == OperationsStatus(reboot_counter=3)
    assert (await machine(world)).status.operations is None
    assert result(await world.ended("m1-reboot-3", within_s=60)) == ("Complete", "Succeeded")
    await asyncio.sleep(2)
    there = await machine(world)
    assert there.status.operations == OperationsStatus(reboot_counter=3)
    assert due(there) is None


@story
async def test_a_counter_is_acted_on_once_also_when_its_operation_failed(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    world.outside.deaf = 1.0
    world.redfish().start()
    await _ask_for(world, rebootCounter=1)
    await _create_due(world)
    await in_stage(world, "m1-reboot-1", power.SHUTTING_DOWN)
    await world.api.patch(MACHINE_OPERATIONS, "m1-reboot-1", {"spec": {"deadlineSeconds": 1}})
    assert result(await world.ended("m1-reboot-1", within_s=60)) == ("Failed", reasons.DEADLINE_EXCEEDED)
    await asyncio.sleep(2)
    assert due(await machine(world)) is None


@story
async def test_foreign_operation_of_the_same_name_does_not_move_the_counter(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    world.redfish().start()
    await world.operation("m1-reboot-7", "HostReboot", "m1")
    await world.ended("m1-reboot-7", within_s=60)
    await asyncio.sleep(2)
    assert (await machine(world)).status.operations is None


@story
async def test_a_reboot_asked_for_directly_raises_no_counter(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    world.redfish().start()
    await _ask_for(world, rebootCounter=1)
    await world.operation("op", "HostReboot", "m1")
    await world.ended("op", within_s=60)
    await asyncio.sleep(2)
    assert due(await machine(world)) is not None


@story
async def test_lost_operation_is_recorded_by_the_next_lock_holder(world: World) -> None:
    """Its result is in the history and its counter has moved, or the host would be rebooted a second time."""
    await world.machine("m1")
    world.steward().start()
    world.outside.deaf = 1.0
    executor = world.redfish().start()
    await _ask_for(world, rebootCounter=1)
    await _create_due(world)
    await in_stage(world, "m1-reboot-1", power.SHUTTING_DOWN)
    await world.api.patch(MACHINE_OPERATIONS, "m1-reboot-1", {"spec": {"deadlineSeconds": 30}})
    await executor.stop()
    assert result(await world.ended("m1-reboot-1", within_s=400)) == ("Failed", reasons.EXECUTOR_LOST)
    await _delete(world, "m1-reboot-1")
    await world.gone("m1-reboot-1", within_s=60 + LOST_SLOT_S)
    world.outside.deaf = 0.0
    world.redfish().start()
    await world.operation("next", "HostPowerOn", "m1")
    assert result(await world.ended("next", within_s=200)) == ("Complete", "Succeeded")
    await asyncio.sleep(5)
    there = await machine(world)
    assert [one.name for one in there.status.recent_operations] == ["m1-reboot-1", "next"]
    assert due(there) is None


# After a reset


async def _a_reset(world: World) -> str:
    """Create a Machine whose agent was reset, with the history of that; return the operation's UID."""
    await world.machine("m1", kubernetes={"version": "v1.34.0"})
    await world.api.create(NAMESPACES, {"metadata": {"name": "kube-node-lease"}})
    await world.api.create(LEASES, {"metadata": {"name": "m1"}, "spec": {}}, namespace="kube-node-lease")
    uid = (await world.operation("reset", "AgentReset", "m1")).metadata.uid
    over = {"phase": "Complete", "reason": "Succeeded", "message": "done", "completedAt": rfc3339(virtual_now())}
    await world.api.patch(MACHINE_OPERATIONS, "reset", {"status": over}, subresource="status")
    status = {"recentOperations": [{"name": "reset", "uid": uid, "kind": "AgentReset", "phase": "Complete"}]}
    await world.api.patch(MACHINES, "m1", {"status": status}, subresource="status")
    return uid


def test_host_silence_after_agent_reset_is_evidence_with_one_event() -> None:
    async def tell() -> None:
        world, announced = World(random.Random(1)), Announced()
        await _a_reset(world)
        lives = announcing_steward(world, announced)
        lives.start()
        for beat in range(10):
            renewed = {"spec": {"renewTime": f"2030-01-01T00:00:{beat:02}.000000Z"}}
            await world.api.patch(LEASES, "m1", renewed, namespace="kube-node-lease")
            await asyncio.sleep(10)
        assert not (await world.get("reset")).status.evidence
        await asyncio.sleep(SILENT_AFTER_S + 2 * LISTEN_EVERY_S)
        (seen,) = (await world.get("reset")).status.evidence
        assert (seen.what, seen.where) == (EVIDENCE_SILENT, "Lease kube-node-lease/m1")
        announcing_steward(world, announced).start()
        await asyncio.sleep(SILENT_AFTER_S + 2 * LISTEN_EVERY_S)
        assert announced.events == [("reset", reasons.HOST_SILENT)]

    run_virtual(tell())


def test_silence_after_a_rejoin_is_no_evidence_of_the_reset() -> None:
    async def tell() -> None:
        world, announced = World(random.Random(1)), Announced()
        uid = await _a_reset(world)
        used = {"purpose": "agent", "cause": f"AgentReset/{uid}", "request": "r", "at": rfc3339(virtual_now())}
        await world.api.patch(MACHINES, "m1", {"status": {"join": {"used": [used]}}}, subresource="status")
        announcing_steward(world, announced).start()
        await asyncio.sleep(LISTEN_FOR_S + 2 * LISTEN_EVERY_S)
        assert not (await world.get("reset")).status.evidence
        assert announced.events == []

    run_virtual(tell())
