"""Every waiting operation reports its reason and its time limit, as stories."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import pytest

from tests.operations.building import slot_of
from tests.operations.simulated import PowerExecutor
from tests.operations.staging import DeadExecutor, in_stage, meddle, pause, result, resume, story, waits
from tests.operations.world import Process, World, defaults
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import virtual_now
from unbounded.api.core import CONFIG_MAPS, LEASES
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import ANNOTATION_PAUSED
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.metalman import power
from unbounded.operations import reasons
from unbounded.operations.execution_record import run_of
from unbounded.operations.executor_claim import PAUSE_RECHECK_S
from unbounded.operations.executor_protocol import Target
from unbounded.workflow.run_record import CallOutcome

NAMESPACES: Final = Kind("", "v1", "Namespace", "namespaces", dict[str, Any])


def _now() -> float:
    return asyncio.get_running_loop().time()


@story
async def test_each_wait_is_explained_within_five_seconds_with_nobody_but_the_steward(world: World) -> None:
    world.steward().start()
    for name in ("free", "paused", "older", "slot"):
        await world.machine(name)
    await pause(world, "paused")
    slot = slot_of("holder")
    holder = await world.operation("holder", "HostReboot", "slot")
    slot["uid"] = holder.metadata.uid
    await world.api.patch(MACHINES, "slot", {"status": {"activeOperation": slot}}, subresource="status")
    await world.operation("a-first", "HostReboot", "older")
    for name in ("free", "paused", "older", "missing"):
        await world.operation(f"op-{name}", "HostReboot", name)
    await world.operation("z-agents", "NodeReboot", "free")
    at = _now()
    for name, reason, held_by in (
        ("op-free", reasons.WAITING_FOR_EXECUTOR, "metalman/lab"),
        ("op-paused", reasons.PAUSED, "Machine paused"),
        ("op-older", reasons.WAITING_FOR_OLDER, "a-first"),
        ("op-missing", reasons.WAITING_FOR_MACHINE, "Machine missing"),
        ("z-agents", reasons.WAITING_FOR_OLDER, "op-free"),
    ):
        operation = await waits(world, name, reason)
        assert operation.status.waiting is not None
        assert operation.status.waiting.held_by == held_by
        assert operation.status.phase == "Pending"
    assert _now() - at <= 5


@story
async def test_a_change_of_what_is_waited_for_is_said_within_five_seconds(world: World) -> None:
    world.steward().start()
    await world.machine("m1")
    await world.operation("op", "HostReboot", "m1")
    await waits(world, "op", reasons.WAITING_FOR_EXECUTOR)
    await asyncio.sleep(60)
    await pause(world, "m1")
    await waits(world, "op", reasons.PAUSED)
    await resume(world, "m1")
    await waits(world, "op", reasons.WAITING_FOR_EXECUTOR)
    config = {"metadata": {"name": "unbounded-operations", "annotations": {ANNOTATION_PAUSED: "true"}}}
    await world.api.create(CONFIG_MAPS, config, namespace="unbounded-kube")
    await waits(world, "op", reasons.PAUSED)


@story
async def test_after_the_older_one_the_next_wait_is_said(world: World) -> None:
    world.steward().start()
    await world.machine("m1")
    await world.operation("a", "HostReboot", "m1")
    await world.operation("b", "HostReboot", "m1")
    await waits(world, "b", reasons.WAITING_FOR_OLDER)
    await asyncio.sleep(60)
    await world.cancel("a")
    await waits(world, "b", reasons.WAITING_FOR_EXECUTOR)


@story
async def test_missing_claim_of_an_agent_is_described_by_its_node_lease(world: World) -> None:
    world.steward().start()
    await world.machine("m1")
    lease = {"metadata": {"name": "m1"}, "spec": {"holderIdentity": "m1", "renewTime": "2029-12-31T23:00:00.000000Z"}}
    await world.api.create(NAMESPACES, {"metadata": {"name": "kube-node-lease"}})
    await world.api.create(LEASES, lease, namespace="kube-node-lease")
    await world.operation("op", "NodeReboot", "m1")
    said = await world.until("op", lambda op: "not claimed it" in (op.status.message or ""), within_s=15)
    assert "unbounded-agent/m1" in (said.status.message or "")
    assert "2029-12-31T23:00:00" in (said.status.message or "")


@pytest.mark.slow
@story
async def test_operation_waiting_for_capacity_is_not_reported_as_unserved(world: World) -> None:
    """The executor comes late: the message about its absence is corrected once it works."""
    world.steward().start()
    for number in range(8):
        await world.machine(f"m{number}")
        await world.operation(f"op{number}", "HostReboot", f"m{number}")
    await world.until("op7", lambda op: "not running" in (op.status.message or ""), within_s=20)
    await asyncio.sleep(30)
    world.redfish(concurrent=1).start()
    await world.until("op0", lambda op: op.claimed, within_s=5)
    await world.until("op7", lambda op: "which works on other operations" in (op.status.message or ""), within_s=10)
    for number in range(8):
        assert result(await world.ended(f"op{number}", within_s=200)) == ("Complete", "Succeeded")


@story
async def test_who_waits_for_its_turn_is_told_when_the_executor_goes_away(world: World) -> None:
    world.steward().start()
    await world.machine("m1")
    await world.machine("m2")
    executor = world.redfish(concurrent=1).start()
    await world.operation("a", "HostReboot", "m1")
    await world.operation("b", "HostReboot", "m2")
    await world.until("b", lambda op: "which works on other operations" in (op.status.message or ""), within_s=10)
    await executor.stop()
    await world.until(
        "b", lambda op: "or not running; its last write was at 2030" in (op.status.message or ""), within_s=90
    )


@story
async def test_a_machine_created_after_its_operation_is_used(world: World) -> None:
    world.steward().start()
    world.redfish().start()
    await world.operation("op", "HostReboot", "late")
    waiting = await waits(world, "op", reasons.WAITING_FOR_MACHINE)
    assert "60 s" in (waiting.status.message or "")
    await asyncio.sleep(45)
    await world.machine("late")
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")


@story
async def test_a_machine_that_does_not_come_within_a_minute_is_not_found(world: World) -> None:
    world.steward().start()
    world.redfish().start()
    at = _now()
    await world.operation("op", "HostReboot", "never")
    ended = await world.ended("op", within_s=70)
    assert result(ended) == ("Failed", reasons.MACHINE_NOT_FOUND)
    assert "never" in (ended.status.message or "")
    assert 59 <= _now() - at <= 63


@story
async def test_what_nobody_claims_in_time_was_not_started(world: World) -> None:
    world.steward().start()
    await world.machine("m1")
    at = _now()
    await world.operation("op", "HostReboot", "m1", startDeadlineSeconds=100)
    ended = await world.ended("op", within_s=110)
    assert result(ended) == ("Failed", reasons.NOT_STARTED)
    assert "metalman/lab" in (ended.status.message or "")
    assert 99 <= _now() - at <= 103
    world.redfish().start()
    await asyncio.sleep(60)
    assert world.outside.acts == []


@story
async def test_the_deadline_counts_from_the_claim(world: World) -> None:
    world.steward().start()
    await world.machine("m1")
    await world.operation("op", "HostReboot", "m1", deadlineSeconds=40)
    await asyncio.sleep(100)
    world.outside.deaf = 1.0
    world.redfish().start()
    await world.until("op", lambda op: op.claimed, within_s=5)
    at = _now()
    ended = await world.ended("op", within_s=60)
    assert result(ended) == ("Failed", reasons.DEADLINE_EXCEEDED)
    assert "40 s" in (ended.status.message or "")
    assert 38 <= _now() - at <= 45


@story
async def test_a_deadline_is_not_spent_faster_by_writing_more_often(world: World) -> None:
    """The BMC answers every other time, so that the wait reason changes with every observation."""
    world.steward().start()
    await world.machine("m1")
    world.outside.deaf, world.outside.unreachable = 1.0, 0.5
    world.redfish().start()
    await world.operation("op", "HostReboot", "m1", deadlineSeconds=110, parameters={"graceSeconds": "600"})
    await world.until("op", lambda op: op.claimed, within_s=5)
    at = _now()
    ended = await world.ended("op", within_s=200)
    assert result(ended) == ("Failed", reasons.DEADLINE_EXCEEDED)
    assert _now() - at >= 105


@story
async def test_the_clocks_of_an_operation_begin_with_its_claim(world: World) -> None:
    """An attempt to claim that failed, hours ago, has spent nothing of its deadline and of its first stage."""
    api = meddle(world)
    await world.machine("m1")

    async def pause_just_before_the_slot_is_taken(kind: Kind[Any], _name: str, patch: Mapping[str, Any]) -> None:
        if kind.kind == "Machine" and patch.get("status", {}).get("activeOperation"):
            api.before = nothing
            await pause(world, "m1")

    async def nothing(_kind: Kind[Any], _name: str, _patch: Mapping[str, Any]) -> None: ...

    api.before = pause_just_before_the_slot_is_taken
    world.steward().start()
    world.redfish().start()
    await world.operation("op", "HostReboot", "m1", startDeadlineSeconds=20_000)
    await waits(world, "op", reasons.PAUSED)
    await asyncio.sleep(7200)
    await resume(world, "m1")
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")


@story
async def test_executor_without_pause_watch_reads_it_only_around_claims(world: World) -> None:
    reads: list[float] = []
    api = counted_gets(world, reads)
    world.steward().start()
    world.agent("m1").start()
    await world.machine("m1")
    config = {"metadata": {"name": "unbounded-operations", "annotations": {ANNOTATION_PAUSED: "true"}}}
    await api.create(CONFIG_MAPS, config, namespace="unbounded-kube")
    await asyncio.sleep(3600)
    assert reads == []  # nothing to claim: nothing to read

    at = _now()
    await world.operation("op", "NodeReboot", "m1")
    await waits(world, "op", reasons.PAUSED)
    await asyncio.sleep(600)
    assert not (await world.get("op")).claimed
    assert 600 / PAUSE_RECHECK_S - 2 <= len(reads) <= 600 / PAUSE_RECHECK_S + 3, reads
    free = {"metadata": {"annotations": {ANNOTATION_PAUSED: None}}}
    await api.patch(CONFIG_MAPS, "unbounded-operations", free, namespace="unbounded-kube")
    claimed = await world.until("op", lambda op: op.claimed, within_s=2 * PAUSE_RECHECK_S)
    assert claimed.status.started_at
    count = len(reads)
    await asyncio.sleep(3600)
    assert len(reads) == count
    assert _now() - at > 4000


def counted_gets(world: World, reads: list[float]) -> MemoryApi:
    """The world's API, with the moments of reads of the pause written down."""

    class Counted(MemoryApi):
        async def get(self, kind: Kind[Any], name: str, *, namespace: str = "") -> Any:
            if kind is CONFIG_MAPS:
                reads.append(_now())
            return await super().get(kind, name, namespace=namespace)

    world.api = Counted(defaults=defaults, admit=world._write_down, now=virtual_now)
    return world.api


class Unheard(PowerExecutor):
    """Dies between the written intent and the request."""

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        self.life.crash()
        await self.life.hang()


async def _one_dies_before_it_asks(world: World) -> Process:
    world.steward().start()
    await world.machine("m1")
    executors = iter((Unheard, PowerExecutor, PowerExecutor))
    name = "metalman/lab"
    process = world.executor(name, lambda life, _api: next(executors)(name, life, world.outside))
    first = process.start()
    await world.operation("op", "HostReboot", "m1", parameters={"force": "true"})
    await first.life.dead.wait()
    await first.stop()
    return process


@story
async def test_possible_call_of_an_ended_process_is_repeated_at_once(world: World) -> None:
    process = await _one_dies_before_it_asks(world)
    began = _now()
    process.start()
    await world.until("op", lambda _op: bool(world.outside.acts), within_s=3)
    on = await world.until("op", lambda op: power.EVIDENCE_ON in {one.what for one in op.status.evidence}, within_s=60)
    assert on.status.phase == "Complete", "watched until the first one could no longer arrive"
    assert _now() - began == pytest.approx(35, abs=5)
    assert [act.action for act in world.outside.acts] == [power.SWITCH_OFF, power.SWITCH_ON]


class Slow(PowerExecutor):
    """Has a BMC that takes half a second to answer."""

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        await asyncio.sleep(0.5)
        await super().perform(target, action, before=before)


@story
async def test_clean_stop_stores_the_answer_despite_a_write_conflict(world: World) -> None:
    world.steward().start()
    await world.machine("m1")
    name = "metalman/lab"
    running = world.executor(name, lambda life, _api: Slow(name, life, world.outside)).start()
    await world.operation("op", "HostReboot", "m1", parameters={"force": "true"})
    await world.until("op", lambda op: op.claimed, within_s=10)
    await world.api.patch(MACHINE_OPERATIONS, "op", {"metadata": {"annotations": {"ticket": "1"}}})
    await running.terminate()
    run = run_of(await world.get("op"))
    assert run is not None
    assert (run.action, run.answer.outcome) == (power.SWITCH_OFF, CallOutcome.ACCEPTED)


@story
async def test_settling_of_a_possibly_alive_process_continues_over_restarts(
    world: World,
) -> None:
    world.reaps = False
    process = await _one_dies_before_it_asks(world)
    until: list[datetime] = []
    for killed in (True, False):
        heir = process.start()
        await asyncio.sleep(2)
        said = await waits(world, "op", reasons.SETTLING)
        assert "may have sent ForceOff" in (said.status.message or "")
        assert said.status.waiting is not None
        until.append(datetime.fromisoformat(said.status.waiting.until or ""))
        await asyncio.sleep(20)
        if killed:
            await heir.stop()
    assert (until[1] - until[0]).total_seconds() == pytest.approx(0, abs=6)  # counted as far as it was written down
    await world.until("op", lambda _op: bool(world.outside.acts), within_s=60)
    assert (virtual_now() - until[1]).total_seconds() == pytest.approx(3, abs=3)


@pytest.mark.slow
@story
async def test_the_deadline_goes_on_over_restarts(world: World) -> None:
    world.steward().start()
    await world.machine("m1")
    world.outside.deaf = 1.0
    keeper = asyncio.create_task(world.redfish().keep(crashes=[30, 20, 20], pause_s=(0.0, 1.0)))
    await world.operation("op", "HostReboot", "m1", deadlineSeconds=100, parameters={"graceSeconds": "3600"})
    await world.until("op", lambda op: op.claimed, within_s=60)
    at = _now()
    ended = await world.ended("op", within_s=400)
    assert result(ended) == ("Failed", reasons.DEADLINE_EXCEEDED)
    assert _now() - at <= 250
    keeper.cancel()


@story
async def test_a_deadline_made_shorter_counts_at_once(world: World) -> None:
    world.steward().start()
    await world.machine("m1")
    world.outside.deaf = 1.0
    world.redfish().start()
    await world.operation("op", "HostReboot", "m1", parameters={"graceSeconds": "3600"})
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await asyncio.sleep(60)
    await world.api.patch(MACHINE_OPERATIONS, "op", {"spec": {"deadlineSeconds": 30}})
    await in_stage(world, "op", power.RESTORING_POWER, within_s=5)
    assert result(await world.ended("op", within_s=6)) == ("Failed", reasons.DEADLINE_EXCEEDED)


@pytest.mark.parametrize("kind", ["HostReboot", "HostPowerOff", "HostPowerOn", "HostReplace"])
@story
async def test_what_nobody_can_carry_out_is_said_at_once(world: World, kind: str) -> None:
    world.steward().start()
    await world.machine("m1", kubernetes={})
    await world.operation("op", kind, "m1")
    ended = await world.ended("op", within_s=1)
    assert result(ended) == ("Failed", reasons.UNSUPPORTED_TARGET)
    assert "spec.pxe.redfish" in (ended.status.message or "")


@pytest.mark.parametrize(
    ("kind", "parameters", "field"),
    [
        ("HostReboot", {"graceSeconds": "soon"}, "spec.parameters.graceSeconds"),
        ("HostPowerOff", {"deallocate": "true"}, "spec.parameters.deallocate"),
        ("HostPowerOn", {"force": "true"}, "spec.parameters.force"),
        ("AgentUpgrade", {}, "spec.parameters.downloadURL"),
    ],
)
@story
async def test_invalid_parameters_are_named_and_nothing_is_done(
    world: World, kind: str, parameters: dict[str, str], field: str
) -> None:
    world.steward().start()
    world.redfish().start()
    world.agent("m1").start()
    await world.machine("m1")
    await world.operation("op", kind, "m1", parameters=parameters)
    ended = await world.ended("op", within_s=2)
    assert result(ended) == ("Failed", reasons.INVALID_PARAMETERS)
    assert field in (ended.status.message or "")
    assert world.outside.acts == []


@story
async def test_dead_bmc_is_reported_and_delays_no_other_operation(world: World) -> None:
    world.steward().start()
    world.executor("metalman/lab", lambda life, _api: DeadExecutor("metalman/lab", life, world), concurrent=2).start()
    for number in range(5):
        await world.machine(f"dead-{number}")
        await world.operation(f"a-dead-{number}", "HostReboot", f"dead-{number}")
    await asyncio.sleep(2)
    await world.machine("m1")
    await world.operation("healthy", "HostReboot", "m1")
    assert result(await world.ended("healthy", within_s=45)) == ("Complete", "Succeeded")
    for number in range(5):
        dead = await world.until(f"a-dead-{number}", lambda op: op.claimed, within_s=30)
        assert "no answer" in (dead.status.message or "")


@pytest.mark.slow
@story
async def test_a_hundred_dead_bmcs_delay_nobody_else(world: World) -> None:
    """Waiting for the dead takes none of the workers that the healthy need."""
    world.steward().start()
    world.executor("metalman/lab", lambda life, _api: DeadExecutor("metalman/lab", life, world), concurrent=4).start()
    for number in range(100):
        await world.machine(f"dead-{number}")
        await world.operation(f"a-dead-{number:03}", "HostReboot", f"dead-{number}")
    await asyncio.sleep(150)
    await world.machine("m1")
    await world.operation("healthy", "HostReboot", "m1")
    at = _now()
    assert result(await world.ended("healthy", within_s=600)) == ("Complete", "Succeeded")
    assert _now() - at <= 45


@pytest.mark.slow
@story
async def test_a_dead_bmc_ends_its_operation_with_a_reason(world: World) -> None:
    world.steward().start()
    world.executor("metalman/lab", lambda life, _api: DeadExecutor("metalman/lab", life, world)).start()
    await world.machine("dead")
    await world.operation("op", "HostReboot", "dead")
    ended = await world.ended("op", within_s=400)
    assert result(ended) == ("Failed", reasons.NO_ANSWER)
    assert world.outside.acts == []
