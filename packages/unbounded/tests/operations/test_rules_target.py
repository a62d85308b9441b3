"""The right machine: what was claimed is what is acted on, and an old CRD acts on nothing. As stories."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from tests.operations.building import REDFISH, slot_of
from tests.operations.faults import Incarnation, Weather
from tests.operations.simulated import PowerExecutor
from tests.operations.staging import in_stage, machine, meddle, result, story
from tests.operations.world import Process, World
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.names import LABEL_SITE
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.kube.api import Api
from unbounded.metalman import power
from unbounded.metalman.bmc_access import binding_of
from unbounded.operations import reasons
from unbounded.operations.executor_protocol import Refusal, Target
from unbounded.operations.executor_selection import ExecutorKind, executor_of
from unbounded.workflow.procedure import Observation, Procedure, Stage, Step

ELSEWHERE = {"spec": {"pxe": {"redfish": {"url": "https://elsewhere"}}}}


class BareMetal(PowerExecutor):
    """metalman's rules of ownership and binding, on simulated hosts. It notes the BMC that each action went to."""

    def __init__(self, life: Incarnation, world: World, asked: list[str]) -> None:
        super().__init__("metalman/lab", life, world.outside)
        self.asked = asked

    def claims(self, kind: OperationKind, machine: Machine) -> bool:
        return machine.site == "lab" and executor_of(kind, machine) is ExecutorKind.METALMAN

    def procedure(self, operation: MachineOperation) -> Procedure:
        if OperationKind(operation.spec.operation_kind) not in power.PROCEDURES:
            raise Refusal(reasons.UNSUPPORTED_OPERATION, "metalman does not support HostReplace yet")
        return super().procedure(operation)

    def target_digest(self, machine: Machine) -> str:
        return binding_of(machine)

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        redfish = target.machine.spec.pxe.redfish if target.machine.spec.pxe else None
        self.asked.append(redfish.url if redfish else "")
        await super().perform(target, action, before=before)


def _metalman(world: World, asked: list[str] | None = None) -> Process:
    def make(life: Incarnation, _api: Api) -> BareMetal:
        return BareMetal(life, world, [] if asked is None else asked)

    return world.executor("metalman/lab", make)


async def _edit(world: World, patch: dict[str, Any], name: str = "m1") -> None:
    await world.api.patch(MACHINES, name, patch)


@story
async def test_a_machine_made_again_under_its_name_is_another_target(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    _metalman(world).start()
    world.outside.deaf = 1.0
    await world.operation("op", "HostReboot", "m1")
    await in_stage(world, "op", power.SHUTTING_DOWN)
    acts = len(world.outside.acts)
    await world.take_away("m1")
    await world.machine("m1")
    ended = await world.ended("op", within_s=10)
    assert ended.status.reason in (reasons.TARGET_CHANGED, reasons.MACHINE_NOT_FOUND)
    assert len(world.outside.acts) == acts
    assert (await machine(world)).status.active_operation is None


@story
async def test_a_machine_made_again_while_nobody_looked_is_another_target(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    executor = _metalman(world).start()
    world.outside.deaf = 1.0
    await world.operation("op", "HostReboot", "m1")
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await executor.stop()
    await world.take_away("m1")
    await world.machine("m1")
    acts = len(world.outside.acts)
    _metalman(world).start()
    assert result(await world.ended("op", within_s=120)) == ("Failed", reasons.TARGET_CHANGED)
    assert len(world.outside.acts) == acts


@story
async def test_a_deleted_machine_ends_its_operation(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    _metalman(world).start()
    world.outside.deaf = 1.0
    await world.operation("op", "HostReboot", "m1")
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await world.take_away("m1")
    assert result(await world.ended("op", within_s=10)) == ("Failed", reasons.MACHINE_NOT_FOUND)


@pytest.mark.parametrize(
    "edit",
    [ELSEWHERE, {"spec": {"pxe": {"redfish": {"deviceID": "2"}}}}, {"spec": {"pxe": {"redfish": None}}}],
    ids=["url", "device", "BMC removed"],
)
@story
async def test_another_binding_before_an_action_is_another_target(world: World, edit: dict[str, Any]) -> None:
    await world.machine("m1")
    world.steward().start()
    _metalman(world).start()
    world.outside.deaf = 1.0
    await world.operation("op", "HostReboot", "m1")
    await in_stage(world, "op", power.SHUTTING_DOWN)
    acts = len(world.outside.acts)
    await _edit(world, edit)
    assert result(await world.ended("op", within_s=10)) == ("Failed", reasons.TARGET_CHANGED)
    assert len(world.outside.acts) == acts


@story
async def test_a_binding_edited_while_the_intent_is_written_is_not_acted_on(world: World) -> None:
    """The Machine was read, then edited, and only then the intent was stored: the call must not go to the new BMC."""
    api, asked = meddle(world), list[str]()
    await world.machine("m1")
    world.steward().start()
    _metalman(world, asked).start()

    async def edit_before_the_intent(kind: Kind[Any], name: str, patch: Mapping[str, Any]) -> None:
        execution = patch.get("status", {}).get("execution") if kind.kind == "MachineOperation" else None
        if execution and execution.get("action") == power.SWITCH_ON:
            await api.patch(MACHINES, "m1", ELSEWHERE)
            await asyncio.sleep(2)  # long enough for every cache to hear of it

    api.before = edit_before_the_intent
    await world.operation("op", "HostReboot", "m1")
    assert result(await world.ended("op", within_s=60)) == ("Failed", reasons.TARGET_CHANGED)
    assert "https://elsewhere" not in asked


@story
async def test_lock_taken_before_a_crash_needs_a_live_read(world: World) -> None:
    """The operation has the lock, and its claim was never written; the Machine is edited during the new observation."""
    asked: list[str] = []

    class Edited(BareMetal):
        async def observe(self, target: Target) -> Observation:
            sight = await super().observe(target)
            if not asked and "elsewhere" not in str(target.machine.spec):
                await world.api.patch(MACHINES, "m1", ELSEWHERE)
            return sight

    await world.machine("m1")
    operation = await world.operation("op", "HostReboot", "m1")
    slot = {**slot_of("op"), "uid": operation.metadata.uid}
    await world.api.patch(MACHINES, "m1", {"status": {"activeOperation": slot}}, subresource="status")
    world.steward().start()
    lagging = Weather(staleness_s=3.0)
    world.executor("metalman/lab", lambda life, _api: Edited(life, world, asked)).start(weather=lagging)
    assert result(await world.ended("op")) == ("Complete", "Succeeded")
    assert set(asked) == {"https://elsewhere"}


@story
async def test_edited_labels_do_not_move_a_running_operation(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    _metalman(world).start()
    await world.operation("op", "HostReboot", "m1")
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await _edit(world, {"metadata": {"labels": {LABEL_SITE: "elsewhere"}}})
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")


@story
async def test_other_edits_of_the_machine_do_not_disturb(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    _metalman(world).start()
    await world.operation("op", "HostReboot", "m1")
    for count in range(20):
        await _edit(world, {"metadata": {"annotations": {"note": str(count)}}, "spec": {"pxe": {"image": f"i{count}"}}})
        await asyncio.sleep(0.5)
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")


@story
async def test_what_metalman_does_not_carry_out_is_said(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    _metalman(world).start()
    await world.operation("op", "HostReplace", "m1")
    ended = await world.ended("op", within_s=5)
    assert result(ended) == ("Failed", reasons.UNSUPPORTED_OPERATION)
    assert (await machine(world)).status.active_operation is None


class Older(PowerExecutor):
    """A version that does not know the stage that a newer one has reached."""

    def procedure(self, operation: MachineOperation) -> Procedure:
        whole = super().procedure(operation)
        stages = {name: stage for name, stage in whole.stages.items() if name != power.WAITING_OFF}
        table = {row: step for row, step in whole.table.items() if row[0] in stages}
        return dataclasses.replace(whole, stages=stages, table=table)


class PutsRight(PowerExecutor):
    """A version whose failures go through an aftermath."""

    def procedure(self, operation: MachineOperation) -> Procedure:
        whole = super().procedure(operation)
        after = Stage("it to be put right", limit_s=30.0, is_cleanup=True)
        stages = {name: dataclasses.replace(stage, cleanup_stage="After") for name, stage in whole.stages.items()}
        rows = {("After", fact): Step("After", fail=reasons.NO_EFFECT) for fact in whole.facts}
        return dataclasses.replace(whole, stages={**stages, "After": after}, table={**whole.table, **rows})


@story
async def test_unknown_stage_fails_at_once_and_lock_waits_for_the_author(
    world: World,
) -> None:
    """In a rolling update both run for a while, and the slot must not be free while the newer one may act."""
    world.reaps = False
    await world.machine("m1")
    world.steward().start()
    running = world.redfish().start()
    world.outside.lost = 1.0
    await world.operation("op", "HostReboot", "m1", parameters={"force": "true"})
    await in_stage(world, "op", power.WAITING_OFF)
    await running.stop()
    at = asyncio.get_running_loop().time()
    world.executor("metalman/lab", lambda life, _api: Older("metalman/lab", life, world.outside)).start()
    assert result(await world.ended("op", within_s=5)) == ("Failed", reasons.OUTCOME_UNKNOWN)
    await world.slot_free("m1", within_s=120)
    assert asyncio.get_running_loop().time() - at >= 40


def _drop_execution(kind: Kind[Any], body: dict[str, Any]) -> None:
    if kind.kind == "MachineOperation":
        body.get("status", {}).pop("execution", None)


def _drop_attempts(kind: Kind[Any], body: dict[str, Any]) -> None:
    if kind.kind == "MachineOperation":
        for target in body.get("status", {}).get("targets", ()):
            target.pop("attempts", None)


def _drop_failing(kind: Kind[Any], body: dict[str, Any]) -> None:
    if kind.kind == "MachineOperation":
        for field in ("failingReason", "failingMessage"):
            body.get("status", {}).get("execution", {}).pop(field, None)


def _drop_slot(kind: Kind[Any], body: dict[str, Any]) -> None:
    if kind.kind == "Machine":
        body.get("status", {}).pop("activeOperation", None)


@pytest.mark.parametrize("drop", [_drop_execution, _drop_attempts, _drop_slot])
@story
async def test_a_crd_that_drops_what_is_written_acts_on_nothing(world: World, drop: Any) -> None:
    api = meddle(world)
    api.drop = drop
    await world.machine("m1")
    world.steward().start()
    world.redfish().start()
    await world.operation("op", "HostReboot", "m1")
    ended = await world.ended("op", within_s=10)
    assert result(ended) == ("Failed", reasons.CRD_OUTDATED)
    assert "deploy/crd" in (ended.status.message or "")
    assert world.outside.acts == []
    await asyncio.sleep(10)
    assert (await machine(world)).status.active_operation is None


@pytest.mark.parametrize(("drop", "ends"), [(lambda *_: None, "DeadlineExceeded"), (_drop_failing, "CRDOutdated")])
@story
async def test_a_crd_that_drops_what_failed_does_not_leave_it_unknown(world: World, drop: Any, ends: str) -> None:
    meddle(world).drop = drop
    await world.machine("m1")
    world.steward().start()
    world.outside.deaf = 1.0
    world.executor("metalman/lab", lambda life, _api: PutsRight("metalman/lab", life, world.outside)).start()
    await world.operation("op", "HostPowerOff", "m1", deadlineSeconds=10)
    assert result(await world.ended("op", within_s=60)) == ("Failed", ends)


@story
async def test_supervisor_with_a_stale_machine_does_not_fail_the_operation(world: World) -> None:
    """Operations are heard of on one watch and Machines on another, which can lag behind for long."""
    await world.machine("m1", kubernetes={})
    steward = world.steward()
    steward.start()
    await asyncio.sleep(1)
    _hold_back_machines(world)
    await _edit(world, {"spec": {"pxe": {"image": "i", "redfish": REDFISH}}})
    await world.operation("op", "HostReboot", "m1")
    await asyncio.sleep(10)
    assert not (await world.get("op")).terminal


@story
async def test_a_running_operation_is_not_ended_because_a_watch_lags(world: World) -> None:
    """Another process of the executor claimed it, and this one has not heard of its Machine yet."""
    world.steward().start()
    _metalman(world).start()
    await asyncio.sleep(1)
    _hold_back_machines(world)
    await world.machine("m1")
    world.outside.deaf = 1.0
    running = _metalman(world).start()
    await world.operation("op", "HostReboot", "m1")
    await in_stage(world, "op", power.SHUTTING_DOWN, within_s=10)
    await running.stop()
    assert result(await world.ended("op", within_s=400)) == ("Complete", "Succeeded")


@story
async def test_a_machine_of_a_lagging_watch_is_not_said_to_be_missing(world: World) -> None:
    world.steward().start()
    await asyncio.sleep(1)
    _hold_back_machines(world)
    await world.machine("m1")
    await world.operation("op", "HostReboot", "m1")
    await asyncio.sleep(100)
    assert (await world.get("op")).status.reason != reasons.MACHINE_NOT_FOUND


@story
async def test_a_selector_finds_machines_of_a_lagging_watch(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    await asyncio.sleep(1)
    _hold_back_machines(world)
    await world.machine("m2")
    await world.operation("all", "HostReboot", machineSelector={"matchLabels": {LABEL_SITE: "lab"}})
    parent = await world.until("all", lambda op: bool(op.status.targets), within_s=10)
    assert [target.machine_ref for target in parent.status.targets] == ["m1", "m2"]


def _hold_back_machines(world: World) -> None:
    """From now on suppress watch events of Machines."""
    vars(world.api._collection(MACHINES))["record"] = lambda _change: None
