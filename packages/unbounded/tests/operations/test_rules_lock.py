"""One operation at a time for each Machine: the slot, the order, preemption, and pauses, as stories."""

from __future__ import annotations

import asyncio

import pytest

from tests.operations.building import slot_of
from tests.operations.faults import FAIR, Incarnation
from tests.operations.simulated import PowerExecutor
from tests.operations.staging import in_stage, machine, pause, result, resume, story, waits
from tests.operations.world import World
from tests.support.virtual_time import virtual_now
from unbounded.api.core import CONFIG_MAPS
from unbounded.api.machine import MACHINES, PROVISIONING
from unbounded.api.names import ANNOTATION_PAUSED
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.cache import Cache
from unbounded.metalman import power
from unbounded.operations import reasons
from unbounded.operations.caches import Caches
from unbounded.operations.executor_status import ExecutorStatus
from unbounded.operations.in_memory_state import COUNT_S
from unbounded.workflow.procedure import Observation

HELD = [reasons.WAITING_FOR_OLDER, reasons.SLOT_HELD]


async def _hold_slot(world: World, operation: str, **options: object) -> None:
    """The slot of m1 belongs to an operation of that name, with the UID that it has."""
    there = await world.get(operation)
    slot = {**slot_of(operation), "uid": there.metadata.uid, **options}
    await world.api.patch(MACHINES, "m1", {"status": {"activeOperation": slot}}, subresource="status")


@story
async def test_two_operations_on_a_machine_run_one_after_the_other(world: World) -> None:
    await world.machine("m1")
    world.outside.deaf = 1.0  # the first operation lasts until the second one says what it waits for
    world.steward().start()
    world.redfish().start()
    await world.operation("first", "HostReboot", "m1")
    await asyncio.sleep(1)
    await world.operation("second", "HostPowerOff", "m1")
    waiting = await waits(world, "second", reasons.WAITING_FOR_OLDER)
    world.outside.deaf = 0.0
    assert "first" in (waiting.status.message or "")
    first, second = await world.ended("first"), await world.ended("second")
    assert result(first) == result(second) == ("Complete", "Succeeded")
    assert (first.status.completed_at or "") <= (second.status.started_at or "")


@story
async def test_of_the_same_second_the_first_name_goes_first(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    for name in ("b", "a", "c"):
        await world.operation(name, "HostReboot", "m1")
    world.redfish().start()
    ended = [await world.ended(name) for name in ("a", "b", "c")]
    assert [operation.status.phase for operation in ended] == ["Complete"] * 3
    started = [operation.status.started_at for operation in ended]
    assert started == sorted(started, key=str)
    assert len({act.operation for act in world.outside.acts}) == 3


@story
async def test_the_slot_of_another_operation_is_waited_for(world: World) -> None:
    await world.machine("m1")
    await world.operation("z-holder", "NodeReboot", "m1")  # without a claim here; it only has the lock
    await _hold_slot(world, "z-holder", kind="NodeReboot", executor="unbounded-agent/m1")
    world.steward().start()
    world.redfish().start()
    await world.operation("op", "HostReboot", "m1")
    waiting = await waits(world, "op", reasons.SLOT_HELD)
    assert waiting.status.waiting is not None
    assert waiting.status.waiting.held_by == "z-holder"
    await asyncio.sleep(100)
    assert world.outside.acts == []
    await world.cancel("z-holder")
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")


@story
async def test_the_slot_of_a_deleted_operation_is_free_after_a_live_read(world: World) -> None:
    await world.machine("m1")
    await world.operation("gone", "HostReboot", "m1")
    await _hold_slot(world, "gone")
    await world.api.delete(MACHINE_OPERATIONS, "gone")
    world.steward().start()
    world.redfish().start()
    await world.operation("op", "HostReboot", "m1")
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")


@story
async def test_the_slot_of_a_namesake_made_later_is_free_too(world: World) -> None:
    await world.machine("m1")
    await world.operation("op", "HostReboot", "m1")
    await _hold_slot(world, "op", uid="that-of-an-earlier-one")
    world.steward().start()
    world.redfish().start()
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")


@story
async def test_a_lost_slot_is_taken_after_a_fresh_look_only(world: World) -> None:
    await world.machine("m1")
    await world.operation("lost", "HostReboot", "m1")
    await _hold_slot(world, "lost", lost=True)
    await world.api.delete(MACHINE_OPERATIONS, "lost")
    world.steward().start()
    world.redfish().start()
    await asyncio.sleep(1)
    at = asyncio.get_running_loop().time()
    await world.operation("op", "HostReboot", "m1")
    waiting = await waits(world, "op", reasons.SLOT_HELD)
    assert "observes the host before it acts" in (waiting.status.message or "")
    assert result(await world.ended("op", within_s=200)) == ("Complete", "Succeeded")
    assert min(act.at for act in world.outside.acts) - at > 40  # an intent's time, a call's limit, and a margin


@story
async def test_machine_changes_do_not_extend_the_wait_for_a_lost_lock(world: World) -> None:
    await world.machine("m1")
    await world.operation("lost", "HostReboot", "m1")
    await _hold_slot(world, "lost", lost=True)
    await world.api.delete(MACHINE_OPERATIONS, "lost")
    world.redfish().start()
    await world.operation("op", "HostReboot", "m1")
    await asyncio.sleep(40)
    await world.api.patch(MACHINES, "m1", {"metadata": {"labels": {"rack": "r1"}}})
    await world.until("op", lambda op: op.claimed, within_s=10)


SETTLE_S, LANDING_S = 45.0, 35.0  # of the executor's calls, which last 30 s at most


@story
async def test_restarts_do_not_make_a_lost_slot_be_waited_for_from_anew(world: World) -> None:
    """Each process counts on from what the one before has stored, and loses COUNT_S at most."""
    await world.machine("m1")
    await world.operation("lost", "HostReboot", "m1")
    await _hold_slot(world, "lost", lost=True)
    await world.api.delete(MACHINE_OPERATIONS, "lost")
    await world.operation("op", "HostReboot", "m1")
    ran_s, restarts = 0.0, -1
    while restarts < 9 and not (await world.get("op")).claimed:
        executor, restarts = world.redfish().start(), restarts + 1
        for _ in range(40):
            await asyncio.sleep(0.5)
            ran_s += 0.5
            if (await world.get("op")).claimed:
                break
        await executor.stop()
        await asyncio.sleep(7)
    assert restarts == 2
    assert SETTLE_S <= ran_s <= SETTLE_S + COUNT_S * restarts + 2
    assert (await machine(world)).status.active_operation is not None


@story
async def test_lock_of_an_ended_executor_waits_for_its_longest_call(world: World) -> None:
    for reaps, least_s in ((True, LANDING_S), (False, SETTLE_S)):
        world.reaps, name = reaps, f"m-{reaps}".lower()
        await world.machine(name)
        steward, executors = world.steward().start(), world.redfish()
        world.outside.deaf = 1.0
        first = executors.start()
        await world.operation(f"lost-{name}", "HostReboot", name)
        await in_stage(world, f"lost-{name}", power.SHUTTING_DOWN)
        await first.stop()
        await world.api.patch(MACHINE_OPERATIONS, f"lost-{name}", {"spec": {"abandon": True}})
        assert result(await world.ended(f"lost-{name}", within_s=90)) == ("Failed", reasons.EXECUTOR_LOST)
        await world.operation(f"next-{name}", "HostReboot", name)
        at, second = asyncio.get_running_loop().time(), executors.start()
        await world.until(f"next-{name}", lambda op: op.claimed, within_s=60)
        assert least_s <= asyncio.get_running_loop().time() - at <= least_s + 3
        await second.stop()
        await steward.stop()


@story
async def test_process_without_an_observation_does_not_release_a_lost_lock(world: World) -> None:
    """It has seen the end of the operation before the mark on the Machine."""
    await world.machine("m1")
    ended = await world.operation("op", "HostReboot", "m1")
    await _hold_slot(world, "op", lost=True)
    caches = Caches(operations=Cache(world.api, MACHINE_OPERATIONS), machines=Cache(world.api, MACHINES), pause=None)
    executor = PowerExecutor("metalman/lab", Incarnation("p", world.chance, FAIR), world.outside)
    ledger = ExecutorStatus(world.api, executor, caches, identity="p", now=virtual_now)
    await ledger.release(ended, None, None)
    kept = (await machine(world)).status.active_operation
    assert kept is not None
    await ledger.release(ended, None, Observation(power.BmcPowerFact.ON))
    assert (await machine(world)).status.active_operation is None


@story
async def test_a_lost_slot_is_not_taken_while_the_machine_cannot_be_seen(world: World) -> None:
    await world.machine("m1")
    await world.operation("lost", "HostReboot", "m1")
    await _hold_slot(world, "lost", lost=True)
    await world.api.delete(MACHINE_OPERATIONS, "lost")
    world.steward().start()
    world.redfish().start()
    world.outside.unreachable = 1.0
    await world.operation("op", "HostReboot", "m1")
    await asyncio.sleep(600)
    assert (await world.get("op")).status.execution is None
    world.outside.unreachable = 0.0
    assert result(await world.ended("op", within_s=200)) == ("Complete", "Succeeded")


@story
async def test_an_older_operation_that_no_agent_started_gives_way_to_the_host(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    world.redfish().start()
    await world.operation("agents", "NodeReboot", "m1")
    await asyncio.sleep(10)
    await world.operation("hosts", "HostReboot", "m1")
    await world.until("hosts", lambda operation: operation.claimed, within_s=5)
    assert result(await world.ended("agents", within_s=5)) == ("Failed", reasons.PREEMPTED)
    assert result(await world.ended("hosts", within_s=60)) == ("Complete", "Succeeded")


@story
async def test_an_agent_without_progress_for_a_minute_gives_way_to_the_host(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    agent = world.agent("m1").start(crash_at=18)
    await world.operation("agents", "NodeReboot", "m1")
    await world.until("agents", lambda operation: operation.claimed, within_s=60)
    await agent.life.dead.wait()
    await agent.stop()
    world.redfish().start()
    at = asyncio.get_running_loop().time()
    await world.operation("hosts", "HostReboot", "m1")
    await waits(world, "hosts", reasons.WAITING_FOR_OLDER)
    preempted = await world.ended("agents", within_s=90)
    assert result(preempted) == ("Failed", reasons.PREEMPTED)
    assert "hosts" in (preempted.status.message or "")
    assert asyncio.get_running_loop().time() - at > 50
    assert result(await world.ended("hosts", within_s=60)) == ("Complete", "Succeeded")
    assert (await machine(world)).status.active_operation is None


@story
async def test_machine_pause_blocks_only_unclaimed_operations(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    world.redfish().start()
    await world.operation("running", "HostReboot", "m1")
    await world.until("running", lambda operation: operation.claimed, within_s=5)
    await pause(world, "m1")
    await world.operation("held", "HostReboot", "m1")
    assert result(await world.ended("running", within_s=60)) == ("Complete", "Succeeded")
    await waits(world, "held", reasons.PAUSED)
    acts = len(world.outside.acts)
    await asyncio.sleep(300)
    assert len(world.outside.acts) == acts
    await resume(world, "m1")
    assert result(await world.ended("held", within_s=60)) == ("Complete", "Succeeded")


@story
async def test_a_pause_of_all_holds_back_every_machine_until_it_is_over(world: World) -> None:
    await world.api.create(
        CONFIG_MAPS,
        {"metadata": {"name": "unbounded-operations", "annotations": {ANNOTATION_PAUSED: "true"}}},
        namespace="unbounded-kube",
    )
    world.steward().start()
    world.redfish().start()
    for name in ("m1", "m2"):
        await world.machine(name)
        await world.operation(f"op-{name}", "HostReboot", name)
    for name in ("m1", "m2"):
        waiting = await waits(world, f"op-{name}", reasons.PAUSED)
        assert waiting.status.waiting is not None
        assert waiting.status.waiting.held_by == "ConfigMap unbounded-operations"
    assert world.outside.acts == []
    await world.api.delete(CONFIG_MAPS, "unbounded-operations", namespace="unbounded-kube")
    for name in ("m1", "m2"):
        assert result(await world.ended(f"op-{name}", within_s=60)) == ("Complete", "Succeeded")


@story
async def test_a_crash_between_slot_and_claim_leaves_no_slot_behind(world: World) -> None:
    """The lock is written before the claim: an executor cancelled in between has a lock and no record."""
    await world.machine("m1")
    world.steward().start()
    crash_at = 0
    while True:
        executor = world.redfish().start(crash_at=crash_at)
        name = f"op{crash_at}"
        await world.operation(name, "HostReboot", "m1")
        await asyncio.sleep(8)
        await executor.stop()
        there, operation = await machine(world), await world.get(name)
        if there.status.active_operation is not None and not operation.claimed:
            break
        assert crash_at < 40, "no crash came between slot and claim"
        assert not operation.claimed, "the claim came first"
        await world.cancel(name)
        await world.ended(name, within_s=10)
        crash_at += 1
    assert [(one.type, one.reason) for one in there.status.conditions] == [("PoweredOff", "PoweringOff")]
    await world.cancel(name)
    assert result(await world.ended(name, within_s=10)) == ("Failed", reasons.CANCELLED)
    await asyncio.sleep(120)
    there = await machine(world)
    assert (there.status.active_operation, there.status.phase, there.status.conditions) == (None, "Ready", ())


@pytest.mark.parametrize(
    ("before", "acted", "after"),
    [
        ([("PoweredOff", "True", "PoweringOn")], False, []),
        ([("PoweredOff", "True", "PoweringOn")], True, []),
        ([("PoweredOff", "False", "PoweringOff")], False, []),
        ([("PoweredOff", "True", "PoweredOff")], False, [("PoweredOff", "True", "PoweredOff")]),
        ([("PoweredOff", "True", "PoweredOff")], True, []),  # it was read before the operation, or in it
        (
            [("Repaved", "False", "Pending"), ("Attested", "True", "Succeeded")],
            False,
            [("Attested", "True", "Succeeded")],
        ),
        ([("Repaved", "True", "Succeeded")], False, [("Repaved", "True", "Succeeded")]),
    ],
)
@story
async def test_a_slot_that_nobody_gives_back_takes_its_marks_along(
    world: World, before: list[tuple[str, str, str]], *, acted: bool, after: list[tuple[str, str, str]]
) -> None:
    await world.machine("m1")
    slot = slot_of("gone", kind="HostReplace")
    past = {"name": "gone", "uid": slot["uid"], "kind": "HostReplace", "phase": "Complete"}
    marks = [
        {"type": kind, "status": status, "reason": reason, "lastTransitionTime": slot["since"]}
        for kind, status, reason in before
    ]
    status = {"activeOperation": slot, "conditions": marks, "recentOperations": [past] if acted else []}
    await world.api.patch(MACHINES, "m1", {"status": status}, subresource="status")
    world.steward().start()
    await asyncio.sleep(5)
    there = await machine(world)
    assert there.status.active_operation is None
    assert [(one.type, one.status, one.reason) for one in there.status.conditions] == after


@story
async def test_a_slot_whose_operation_was_deleted_before_its_claim_is_cleared(world: World) -> None:
    await world.machine("m1")
    await world.operation("gone", "HostReboot", "m1")
    await _hold_slot(world, "gone")
    world.steward().start()
    await asyncio.sleep(10)
    await world.api.delete(MACHINE_OPERATIONS, "gone")
    await asyncio.sleep(120)
    there = await machine(world)
    assert (there.status.active_operation, there.status.phase) == (None, "Ready")


@story
async def test_operation_waits_for_the_end_of_ssh_provisioning(world: World) -> None:
    """There is no operation of that name, and yet the slot is held."""
    await world.machine("m1")
    slot = slot_of("a", kind=PROVISIONING, executor="machina")
    await world.api.patch(MACHINES, "m1", {"status": {"activeOperation": slot}}, subresource="status")
    world.steward().start()
    world.redfish().start()
    await world.operation("op", "HostReboot", "m1")
    await waits(world, "op", reasons.SLOT_HELD)
    await asyncio.sleep(600)
    assert world.outside.acts == []
    await world.api.patch(MACHINES, "m1", {"status": {"activeOperation": None}}, subresource="status")
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")
