"""metalman's power operations from end to end, and cancel in each of their stages, as stories."""

from __future__ import annotations

import asyncio

import pytest

from tests.operations.faults import Incarnation
from tests.operations.simulated import PowerExecutor
from tests.operations.staging import in_stage, machine, result, stage_of, story
from tests.operations.world import World
from unbounded.api.conditions import ConditionType
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.metalman import power
from unbounded.operations import reasons
from unbounded.operations.executor_protocol import Target
from unbounded.workflow.procedure import Observation

ANSWER_S = 5  # one pass, with its poll


async def _start(world: World, kind: str, *, power_now: str = "On", **parameters: str) -> None:
    await world.machine("m1")
    world.outside.host("m1").power = power_now
    world.steward().start()
    world.redfish().start()
    await world.operation("op", kind, "m1", parameters=parameters)


def _asked(world: World) -> list[str]:
    return [act.action for act in world.outside.acts]


def _evidence(operation: MachineOperation) -> list[str]:
    return [evidence.what for evidence in operation.status.evidence]


@pytest.mark.parametrize(
    ("kind", "power_now", "parameters", "asked", "evidence"),
    [
        ("HostReboot", "On", {}, [power.SHUT_DOWN, power.SWITCH_ON], [power.EVIDENCE_OFF, power.EVIDENCE_ON]),
        (
            "HostReboot",
            "On",
            {"force": "true"},
            [power.SWITCH_OFF, power.SWITCH_ON],
            [power.EVIDENCE_OFF, power.EVIDENCE_ON],
        ),
        ("HostReboot", "Off", {}, [power.SWITCH_ON], [power.EVIDENCE_OFF, power.EVIDENCE_ON]),
        ("HostPowerOff", "On", {}, [power.SHUT_DOWN], [power.EVIDENCE_OFF, power.EVIDENCE_OFF_AGAIN]),
        ("HostPowerOff", "On", {"force": "true"}, [power.SWITCH_OFF], [power.EVIDENCE_OFF, power.EVIDENCE_OFF_AGAIN]),
        ("HostPowerOff", "Off", {}, [], [power.EVIDENCE_OFF, power.EVIDENCE_OFF_AGAIN]),
        ("HostPowerOn", "Off", {}, [power.SWITCH_ON], [power.EVIDENCE_ON, power.EVIDENCE_ON_AGAIN]),
        ("HostPowerOn", "On", {}, [], [power.EVIDENCE_ON, power.EVIDENCE_ON_AGAIN]),
    ],
)
@story
async def test_each_operation_asks_for_what_is_needed_and_proves_it(
    world: World, kind: str, power_now: str, parameters: dict[str, str], asked: list[str], evidence: list[str]
) -> None:
    await _start(world, kind, power_now=power_now, **parameters)
    ended = await world.ended("op", within_s=120)
    assert result(ended) == ("Complete", "Succeeded")
    assert _asked(world) == asked
    assert _evidence(ended) == evidence
    assert all(one.at and one.where for one in ended.status.evidence)
    assert world.outside.host("m1").power == ("Off" if kind == "HostPowerOff" else "On")


@story
async def test_host_that_does_not_shut_down_is_powered_off_after_grace(world: World) -> None:
    await world.machine("m1")
    world.steward().start()
    world.outside.deaf = 1.0
    world.redfish().start()
    await world.operation("op", "HostReboot", "m1", parameters={"graceSeconds": "30"})
    await in_stage(world, "op", power.SHUTTING_DOWN)
    at = asyncio.get_running_loop().time()
    await in_stage(world, "op", power.WAITING_OFF)
    assert 28 <= asyncio.get_running_loop().time() - at <= 36
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")
    assert _asked(world) == [power.SHUT_DOWN, power.SWITCH_OFF, power.SWITCH_ON]


@pytest.mark.parametrize("kind", ["HostPowerOff", "HostPowerOn"])
@story
async def test_the_two_readings_are_five_seconds_apart_also_when_something_disturbs(world: World, kind: str) -> None:
    await _start(world, kind, power_now="Off" if kind == "HostPowerOff" else "On")
    await world.until("op", lambda op: bool(op.status.evidence), within_s=10)
    await asyncio.sleep(1)
    await world.api.patch(MACHINE_OPERATIONS, "op", {"spec": {"deadlineSeconds": 1000}})
    ended = await world.ended("op", within_s=60)
    first, second = (int(one.at[17:19]) + 60 * int(one.at[14:16]) for one in ended.status.evidence)
    assert second - first >= 5


class LateAnswers(PowerExecutor):
    """The state is read at once, and the answer of the second reading takes four seconds."""

    def __init__(self, life: Incarnation, world: World, read_at: list[float]) -> None:
        super().__init__("metalman/lab", life, world.outside)
        self.read_at = read_at

    async def observe(self, target: Target) -> Observation:
        sight = await super().observe(target)
        self.read_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(4 if target.run.stage == power.CONFIRMING_ON else 0)
        return sight


@story
async def test_power_reading_counts_from_its_start(world: World) -> None:
    read_at: list[float] = []
    await world.machine("m1")
    world.steward().start()
    world.executor("metalman/lab", lambda life, _api: LateAnswers(life, world, read_at)).start()
    await world.operation("op", "HostPowerOn", "m1")
    await in_stage(world, "op", power.CONFIRMING_ON)
    first = read_at[-1]
    await asyncio.sleep(1)
    await world.api.patch(MACHINE_OPERATIONS, "op", {"spec": {"deadlineSeconds": 1000}})  # causes an early observation
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")
    assert read_at[-1] - first >= 5


@story
async def test_the_machine_shows_what_is_happening_to_it(world: World) -> None:
    await _start(world, "HostPowerOff")
    await in_stage(world, "op", power.SHUTTING_DOWN)
    there = await machine(world)
    assert there.status.active_operation is not None
    assert there.status.active_operation.executor == "metalman/lab"
    await world.ended("op", within_s=60)
    await asyncio.sleep(2)
    shown = {one.type: (one.status, one.reason) for one in (await machine(world)).status.conditions}
    assert shown[ConditionType.POWERED_OFF] == ("True", "PoweredOff")
    await world.operation("on", "HostPowerOn", "m1")
    await world.ended("on", within_s=60)
    await asyncio.sleep(2)
    there = await machine(world)
    assert there.status.conditions == ()
    assert (there.status.phase, there.status.active_operation) == ("Ready", None)


@story
async def test_a_reboot_shows_in_the_phase_of_the_machine(world: World) -> None:
    await _start(world, "HostReboot")
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await asyncio.sleep(0.5)
    assert (await machine(world)).status.phase == "Rebooting"
    await world.ended("op", within_s=60)
    await asyncio.sleep(2)
    assert (await machine(world)).status.phase == "Ready"


# Cancel


async def _cancelled_in(world: World, kind: str, stage: str, **parameters: str) -> MachineOperation:
    """An operation that is cancelled in a stage, a moment after it was entered."""
    power_now = "Off" if stage in (power.ALREADY_OFF, power.WAITING_ON) and kind != "HostReboot" else "On"
    if stage == power.STARTING:
        world.outside.unreachable = 1.0
    if stage == power.SHUTTING_DOWN:
        world.outside.deaf = 1.0
    await _start(world, kind, power_now=power_now, **parameters)
    await in_stage(world, "op", stage, within_s=60)
    await world.cancel("op")
    return await world.get("op")


@pytest.mark.parametrize("kind", ["HostReboot", "HostPowerOff", "HostPowerOn"])
@story
async def test_a_cancel_before_the_claim_ends_it_at_once(world: World, kind: str) -> None:
    await world.machine("m1")
    world.steward().start()
    await world.operation("op", kind, "m1")
    await asyncio.sleep(10)
    await world.cancel("op")
    assert result(await world.ended("op", within_s=1)) == ("Failed", reasons.CANCELLED)
    world.redfish().start()
    await asyncio.sleep(60)
    assert _asked(world) == []


@pytest.mark.parametrize("kind", ["HostReboot", "HostPowerOff", "HostPowerOn"])
@story
async def test_a_cancel_before_anything_was_asked_for_ends_it_at_once(world: World, kind: str) -> None:
    await _cancelled_in(world, kind, power.STARTING)
    assert result(await world.ended("op", within_s=ANSWER_S)) == ("Failed", reasons.CANCELLED)
    assert _asked(world) == []
    await asyncio.sleep(5)
    assert (await machine(world)).status.active_operation is None


@story
async def test_cancelled_power_off_of_a_stopped_host_ends_at_once(world: World) -> None:
    await _cancelled_in(world, "HostPowerOff", power.ALREADY_OFF)
    assert result(await world.ended("op", within_s=ANSWER_S)) == ("Failed", reasons.CANCELLED)
    assert world.outside.host("m1").power == "Off"


@pytest.mark.parametrize(
    ("stage", "parameters"),
    [
        (power.SHUTTING_DOWN, {"graceSeconds": "60"}),
        (power.WAITING_OFF, {"force": "true"}),
        (power.CONFIRMING_OFF, {}),
    ],
)
@story
async def test_a_cancelled_power_off_brings_the_host_back(world: World, stage: str, parameters: dict[str, str]) -> None:
    await _cancelled_in(world, "HostPowerOff", stage, **parameters)
    answered = await world.until("op", lambda op: stage_of(op) == power.UNDOING, within_s=ANSWER_S)
    assert not answered.terminal
    ended = await world.ended("op", within_s=300)
    assert result(ended) == ("Failed", reasons.CANCELLED)
    await asyncio.sleep(30)
    assert world.outside.host("m1").power == "On"
    there = await machine(world)
    assert (there.status.active_operation, there.status.conditions) == (None, ())


@pytest.mark.parametrize(
    ("kind", "stage", "parameters"),
    [
        ("HostReboot", power.SHUTTING_DOWN, {"graceSeconds": "60"}),
        ("HostReboot", power.WAITING_OFF, {"force": "true"}),
        ("HostReboot", power.WAITING_ON, {}),
        ("HostPowerOn", power.WAITING_ON, {}),
        ("HostPowerOn", power.CONFIRMING_ON, {}),
    ],
)
@story
async def test_cancel_past_the_point_of_no_return_is_reported_and_ignored(
    world: World, kind: str, stage: str, parameters: dict[str, str]
) -> None:
    await _cancelled_in(world, kind, stage, **parameters)
    said = await world.until(
        "op", lambda op: op.terminal or "point of no return" in (op.status.message or ""), within_s=ANSWER_S
    )
    if not said.terminal:
        assert "it continues" in (said.status.message or "")
    assert result(await world.ended("op", within_s=120)) == ("Complete", "Succeeded")
    assert world.outside.host("m1").power == "On"


@story
async def test_a_cancel_while_the_bmc_is_silent_is_answered_in_the_message(world: World) -> None:
    await _start(world, "HostPowerOff", graceSeconds="60")
    await in_stage(world, "op", power.SHUTTING_DOWN)
    world.outside.unreachable = 1.0
    await asyncio.sleep(10)
    await world.cancel("op")
    await world.until("op", lambda op: "cancel requested" in (op.status.message or ""), within_s=12)
    world.outside.unreachable = 0.0
    assert result(await world.ended("op", within_s=300)) == ("Failed", reasons.CANCELLED)
    await asyncio.sleep(30)
    assert world.outside.host("m1").power == "On"


@pytest.mark.slow
@story
async def test_a_cancelled_operation_lets_the_next_one_go_on(world: World) -> None:
    await _cancelled_in(world, "HostPowerOff", power.SHUTTING_DOWN, graceSeconds="60")
    await world.operation("next", "HostReboot", "m1")
    assert result(await world.ended("op", within_s=300)) == ("Failed", reasons.CANCELLED)
    assert result(await world.ended("next", within_s=300)) == ("Complete", "Succeeded")


class SlowCalls(PowerExecutor):
    """An executor whose calls are answered after 25 seconds."""

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        await super().perform(target, action, before=before)
        await asyncio.sleep(25)


@pytest.mark.parametrize("after_s", [1, 4, 10])
@story
async def test_a_cancel_during_a_call_is_answered_before_the_call_is(world: World, after_s: float) -> None:
    await world.machine("m1")
    world.steward().start()
    world.executor("metalman/lab", lambda life, _api: SlowCalls("metalman/lab", life, world.outside)).start()
    await world.operation("op", "HostPowerOff", "m1")
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await asyncio.sleep(after_s)
    await world.cancel("op")
    await world.until("op", lambda op: "cancel requested" in (op.status.message or ""), within_s=6)
    assert result(await world.ended("op", within_s=400)) == ("Failed", reasons.CANCELLED)


class SluggishOff(PowerExecutor):
    """A host that goes off three seconds after that was accepted."""

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        await super().perform(target, action, before=before)
        if action == power.SWITCH_OFF:
            self.outside.host(target.machine.name).off_at = self.outside.now() + 3


@story
async def test_reboot_past_its_deadline_leaves_the_host_on(world: World) -> None:
    """The first reading after it gave up is still On."""
    await world.machine("m1")
    world.steward().start()
    world.executor("metalman/lab", lambda life, _api: SluggishOff("metalman/lab", life, world.outside)).start()
    await world.operation("op", "HostReboot", "m1", deadlineSeconds=2, parameters={"force": "true"})
    assert result(await world.ended("op", within_s=90)) == ("Failed", reasons.DEADLINE_EXCEEDED)
    assert world.outside.host("m1").was_off
    assert world.outside.host("m1").power == "On"
    await asyncio.sleep(30)
    assert world.outside.host("m1").power == "On"


class LateOff(PowerExecutor):
    """ForceOff reaches the host 25 s after it was sent, although its process has ended."""

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        if action != power.SWITCH_OFF:
            await super().perform(target, action, before=before)
            return
        asyncio.get_running_loop().call_later(25, self._arrive, target, action)
        await self.life.hang()

    def _arrive(self, target: Target, action: str) -> None:
        host = self.outside.host(target.machine.name)
        host.ask(action, self.outside.now(), self.outside.chance, deaf=False)
        self.outside.record(target, action, satisfied=False, life=self.life.name)


@story
async def test_late_force_off_leaves_no_host_off_after_a_failed_reboot(world: World) -> None:
    """The deadline passes while no process runs, and the next one reads the host On before ForceOff arrives."""
    await world.machine("m1")
    world.steward().start()
    metalman = world.executor("metalman/lab", lambda life, _api: LateOff("metalman/lab", life, world.outside))
    running = metalman.start()
    await world.operation("op", "HostReboot", "m1", deadlineSeconds=5, parameters={"force": "true"})
    await in_stage(world, "op", power.WAITING_OFF)
    await asyncio.sleep(1)
    await running.stop()
    await asyncio.sleep(6)
    metalman.start()
    assert result(await world.ended("op", within_s=90)) == ("Failed", reasons.DEADLINE_EXCEEDED)
    assert _asked(world) == [power.SWITCH_OFF, power.SWITCH_ON]
    await asyncio.sleep(60)
    assert world.outside.host("m1").was_off
    assert world.outside.host("m1").power == "On"
