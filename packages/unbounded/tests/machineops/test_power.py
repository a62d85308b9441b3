"""Host operations on a cloud's power, from end to end, as stories."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from tests.machineops.cloud import TAKES_S, SimProvider
from tests.machineops.world import CloudWorld, cloud_story
from tests.operations.staging import in_stage, result
from unbounded.api.failures import Transient, Uncertain
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MachineOperation
from unbounded.kube.tracing import SpanKind, trace_id
from unbounded.machineops import power, reasons
from unbounded.machineops.provider import Action, Instance, NotDone, OperationKind, Power, Refusal, Throttled
from unbounded.operations import reasons as common

READS = ("look", "follow", "look_replace")


async def _start(world: CloudWorld, kind: str, now: Power = Power.RUNNING, **parameters: str) -> None:
    vm = await world.instance()
    vm.story = [(-100.0, now)]
    world.steward().start()
    world.controller().start()
    await world.operation("op", kind, "m1", parameters=parameters)


def _asked(world: CloudWorld) -> list[str]:
    return [call.what for call in world.cloud.calls if call.what not in READS]


def _evidence(operation: MachineOperation) -> list[str]:
    return [evidence.what for evidence in operation.status.evidence]


def _check_spans(world: CloudWorld, operation: MachineOperation, asked: list[str]) -> None:
    """Fail unless each call to the cloud is below what the engine did, in the operation's trace."""
    spans = world.spans.spans
    assert {one.trace_id for one in spans} == {trace_id(operation.metadata.uid)}
    calls = [one for one in spans if one.kind is SpanKind.CLIENT]
    engine = {one.span_id: one.name for one in spans if one.name == "observe" or one.name.startswith("perform ")}
    assert [engine[one.parent_id or 0] for one in calls if one.name == "Sim ask"] == [f"perform {one}" for one in asked]
    assert {engine[one.parent_id or 0] for one in calls if one.name == "Sim look"} == {"observe"}


OFF = [power.EVIDENCE_OFF, power.EVIDENCE_OFF_AGAIN]
ON = [power.EVIDENCE_ON, power.EVIDENCE_ON_AGAIN]
RELEASE = {"deallocate": "true"}


@pytest.mark.parametrize("long_calls", [True, False])
@pytest.mark.parametrize(
    ("kind", "now", "parameters", "asked", "evidence"),
    [
        ("HostReboot", Power.RUNNING, {}, ["Restart"], [power.EVIDENCE_RESTARTED]),
        ("HostPowerOff", Power.RUNNING, {}, ["PowerOff"], OFF),
        ("HostPowerOff", Power.STOPPED, {}, [], OFF),
        ("HostPowerOff", Power.RELEASED, {}, [], OFF),
        ("HostPowerOff", Power.RUNNING, RELEASE, ["Deallocate"], OFF),
        ("HostPowerOff", Power.STOPPED, RELEASE, ["Deallocate"], OFF),
        ("HostPowerOff", Power.RELEASED, RELEASE, [], OFF),
        ("HostPowerOn", Power.STOPPED, {}, ["PowerOn"], ON),
        ("HostPowerOn", Power.RELEASED, {}, ["PowerOn"], ON),
        ("HostPowerOn", Power.RUNNING, {}, [], ON),
    ],
)
@cloud_story()
async def test_each_operation_asks_for_what_is_needed_and_proves_it(
    world: CloudWorld,
    kind: str,
    now: Power,
    parameters: dict[str, str],
    asked: list[str],
    evidence: list[str],
    long_calls: bool,
) -> None:
    world.cloud.long_calls = long_calls
    await _start(world, kind, now, **parameters)
    ended = await world.ended("op", within_s=60)
    assert result(ended) == ("Complete", "Succeeded")
    assert _asked(world) == asked
    _check_spans(world, ended, asked)
    assert _evidence(ended) == evidence
    if parameters:
        assert world.cloud.vms["sim://sub-1/m1"].end is Power.RELEASED
    if long_calls and kind == "HostReboot":
        assert "follow" in [call.what for call in world.cloud.calls]


@pytest.mark.parametrize("kind", ["HostReboot", "HostPowerOff"])
@cloud_story()
async def test_asynchronous_call_is_followed_after_a_restart_without_a_repeat(world: CloudWorld, kind: str) -> None:
    await world.instance()
    world.steward().start()
    first = world.controller().start()
    await world.operation("op", kind, "m1")
    await world.until("op", lambda one: bool(one.status.execution and one.status.execution.handle), within_s=30)
    await first.stop()
    before = len(world.cloud.calls)
    await asyncio.sleep(2 * TAKES_S)
    world.controller().start()
    ended = await world.ended("op", within_s=120)
    assert result(ended) == ("Complete", "Succeeded")
    assert len(_asked(world)) == 1
    assert "follow" in [call.what for call in world.cloud.calls[before:]]


@pytest.mark.parametrize(("kind", "action"), [("HostReboot", Action.RESTART), ("HostPowerOff", Action.POWER_OFF)])
@cloud_story()
async def test_a_long_call_that_fails_ends_the_operation_in_the_clouds_words(
    world: CloudWorld, kind: str, action: Action
) -> None:
    world.cloud.failing.add(action)
    await _start(world, kind)
    ended = await world.ended("op", within_s=60)
    assert result(ended) == ("Failed", reasons.PROVIDER_OPERATION_FAILED)
    assert "the call has ended" in (ended.status.message or "")
    assert _asked(world) == [action]


@cloud_story()
async def test_a_cloud_is_not_asked_again_before_it_wants_to_be(world: CloudWorld) -> None:
    world.cloud.hint_s = TAKES_S - 1
    await _start(world, "HostReboot")
    await world.ended("op", within_s=60)
    asked, *followed = [call.at for call in world.cloud.calls if call.what in ("Restart", "follow")]
    assert [after - before >= TAKES_S - 1 for before, after in pairwise((asked, *followed))] == [True, True]


# A restart that the cloud accepts, and shows no more of


async def _boots(world: CloudWorld, boot_id: str) -> None:
    await world.api.patch(MACHINES, "m1", {"status": {"agent": {"hostBootID": boot_id}}}, subresource="status")


@cloud_story()
async def test_a_restart_that_nothing_shows_is_not_taken_for_proven(world: CloudWorld) -> None:
    """As of EC2's RebootInstances: the instance stays "running", and no record shows more."""
    world.cloud.shows_restarts = False
    await _start(world, "HostReboot")
    ended = await world.ended("op", within_s=60)
    assert result(ended) == ("Failed", common.OUTCOME_UNKNOWN)
    assert "the provider accepted the restart, but no agent on the host reports" in (ended.status.message or "")
    assert _evidence(ended) == [power.EVIDENCE_ACCEPTED]
    assert _asked(world) == ["Restart"]


@pytest.mark.parametrize("crashes", [False, True])
@cloud_story()
async def test_restart_without_cloud_record_is_proven_by_the_boot_id(world: CloudWorld, crashes: bool) -> None:
    world.cloud.shows_restarts = False
    await world.instance()
    await _boots(world, "before")
    world.steward().start()
    first = world.controller().start()
    await world.operation("op", "HostReboot", "m1")
    await in_stage(world, "op", power.AWAITING_HOST)
    if crashes:
        await first.stop()
        world.controller().start()
    await asyncio.sleep(90)
    await _boots(world, "after")
    ended = await world.ended("op", within_s=60)
    assert result(ended) == ("Complete", "Succeeded")
    assert _evidence(ended) == [power.EVIDENCE_ACCEPTED, power.EVIDENCE_RESTARTED]
    assert ended.status.evidence[-1].where == "Machine m1 status.agent.hostBootID"
    assert _asked(world) == ["Restart"]


@cloud_story()
async def test_a_host_that_tells_of_no_other_boot_leaves_the_restart_unproven(world: CloudWorld) -> None:
    world.cloud.shows_restarts = False
    await world.instance()
    await _boots(world, "before")
    world.steward().start()
    world.controller().start()
    await world.operation("op", "HostReboot", "m1")
    ended = await world.ended("op", within_s=power.CHANGE_LIMIT_S + 60)
    assert result(ended) == ("Failed", common.OUTCOME_UNKNOWN)
    assert "reports no other boot ID" in (ended.status.message or "")


@cloud_story()
async def test_an_agent_that_comes_after_the_restart_proves_nothing_of_it(world: CloudWorld) -> None:
    world.cloud.shows_restarts = False
    world.cloud.stalled["sub-1"] = 5.0
    await _start(world, "HostReboot")
    await in_stage(world, "op", power.RESTARTING)
    await _boots(world, "some")
    assert result(await world.ended("op", within_s=60)) == ("Failed", common.OUTCOME_UNKNOWN)


# Lost answers


@pytest.mark.slow
@pytest.mark.parametrize("long_calls", [True, False])
@pytest.mark.parametrize("error", [None, Uncertain("connection reset"), RuntimeError("a bug of the provider")])
@cloud_story()
async def test_restart_with_lost_answer_has_unknown_outcome_and_no_retry(
    world: CloudWorld, error: Exception | None, long_calls: bool
) -> None:
    world.cloud.long_calls = long_calls
    if error is None:
        world.cloud.loses.add("Restart")
    else:
        world.cloud.raises["Restart"] = error
    await _start(world, "HostReboot")
    if error is not None:
        await _changed_by_somebody_else(world)
    assert result(await world.ended("op", within_s=1000)) == ("Failed", common.OUTCOME_UNKNOWN)
    assert _asked(world) == (["Restart"] if error is None else [])


LOST = ["it is done", "it is not done", "it is done, and then the cloud is throttled", "a crash"]


@pytest.mark.parametrize("long_calls", [True, False])
@pytest.mark.parametrize("what", LOST)
@cloud_story()
async def test_restart_with_idempotency_key_is_retried_and_happens_once(
    world: CloudWorld, what: str, long_calls: bool
) -> None:
    world.cloud.long_calls = long_calls
    if what == "it is not done":
        world.cloud.raises["Restart"] = Uncertain("connection reset")
    else:
        world.cloud.loses.add("Restart")
    vm = await world.instance()
    world.steward().start()
    first = world.controller(restarts_once=True).start()
    await world.operation("op", "HostReboot", "m1")
    if what == "a crash":
        await world.until("op", lambda _: vm.restarts == 1, within_s=30)
        await first.stop()
        world.controller(restarts_once=True).start()
    elif what == LOST[2]:
        await world.until("op", lambda _: vm.restarts == 1, within_s=30)
        world.cloud.raises["Restart"] = Throttled("too many requests", 1.0)
    elif what == "it is not done":
        await _changed_by_somebody_else(world)
    ended = await world.ended("op", within_s=60)
    assert result(ended) == ("Complete", "Succeeded")
    assert _evidence(ended) == [power.EVIDENCE_RESTARTED]
    assert vm.restarts == 1
    assert vm.power_at(world.cloud.now()) is Power.RUNNING
    assert not any((world.cloud.raises, world.cloud.loses))


@pytest.mark.slow
@cloud_story()
async def test_restart_with_idempotency_key_but_no_answer_has_unknown_outcome(world: CloudWorld) -> None:
    world.cloud.long_calls, world.cloud.unanswered = False, True
    vm = await world.instance()
    world.steward().start()
    world.controller(restarts_once=True).start()
    await world.operation("op", "HostReboot", "m1")
    ended = await world.ended("op", within_s=1000)
    assert result(ended) == ("Failed", common.OUTCOME_UNKNOWN)
    assert "times, and its outcome is unknown: connection reset; m1 is Running" in (ended.status.message or "")
    assert vm.restarts == 1


@pytest.mark.parametrize("long_calls", [True, False])
@cloud_story()
async def test_a_change_that_somebody_else_makes_is_not_taken_for_the_restart(
    world: CloudWorld, long_calls: bool
) -> None:
    world.cloud.long_calls = long_calls
    world.cloud.always["Restart"] = Transient("409 Conflict: another change is under way")
    await _start(world, "HostReboot")
    await _changed_by_somebody_else(world)
    world.cloud.always.clear()
    assert result(await world.ended("op", within_s=300)) == ("Complete", "Succeeded")
    assert _asked(world) == ["Restart"]


@cloud_story()
async def test_accepted_restart_is_proven_by_the_cloud_record_after_a_crash(world: CloudWorld) -> None:
    world.cloud.long_calls = False
    await world.instance()
    world.steward().start()
    first = world.controller().start()
    await world.operation("op", "HostReboot", "m1")
    await world.until(
        "op", lambda one: bool(one.status.execution and one.status.execution.handle is not None), within_s=30
    )
    await first.stop()
    world.controller().start()
    assert result(await world.ended("op", within_s=300)) == ("Complete", "Succeeded")
    assert _asked(world) == ["Restart"]


async def _changed_by_somebody_else(world: CloudWorld) -> None:
    """The record shows a change that has nothing to do with the restart."""
    await in_stage(world, "op", power.RESTARTING)
    world.cloud.vms["sim://sub-1/m1"].becomes(Power.RUNNING, world.cloud.now())
    await asyncio.sleep(2 * TAKES_S)


@pytest.mark.parametrize("error", [Transient("refused"), NotDone("Busy", "another call is under way")])
@cloud_story()
async def test_a_restart_that_was_surely_not_done_is_sent_again(world: CloudWorld, error: Exception) -> None:
    world.cloud.raises["Restart"] = error
    await _start(world, "HostReboot")
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")
    assert _asked(world) == ["Restart"]


@pytest.mark.parametrize("fault", ["loses", "hangs", "raises"])
@pytest.mark.parametrize("call", ["look", "PowerOff", "follow"])
@cloud_story()
async def test_powering_off_survives_each_call_that_fails_once(world: CloudWorld, call: str, fault: str) -> None:
    match fault:
        case "raises":
            world.cloud.raises[call] = ValueError("nobody foresaw this")
        case _:
            getattr(world.cloud, fault).add(call)
    await _start(world, "HostPowerOff")
    assert result(await world.ended("op", within_s=300)) == ("Complete", "Succeeded")
    assert not any((world.cloud.raises, world.cloud.loses, world.cloud.hangs))


@cloud_story()
async def test_a_call_is_cut_off_at_the_providers_limit(world: CloudWorld) -> None:
    world.cloud.hangs.add("PowerOff")
    await world.instance()
    world.steward().start()
    world.controller(call_limit_s=40.0).start()
    await world.operation("op", "HostPowerOff", "m1")
    await in_stage(world, "op", power.STOPPING, within_s=10)
    asked = asyncio.get_running_loop().time()
    await world.until("op", lambda one: "attempt 2" in (one.status.message or ""), within_s=200)
    assert 100 <= asyncio.get_running_loop().time() - asked <= 110  # the limit, then the wait between two calls
    await world.ended("op", within_s=60)


# Refusals, and what only a person can change


@pytest.mark.parametrize(
    ("kind", "spec", "now", "reason", "words"),
    [
        ("HostReboot", {}, Power.STOPPED, reasons.INSTANCE_NOT_RUNNING, "m1 is Stopped"),
        ("HostReboot", {}, Power.GONE, reasons.INSTANCE_NOT_FOUND, "m1 is Gone"),
        ("HostPowerOn", {"providerID": "aws:///i-1"}, Power.RUNNING, reasons.INVALID_PROVIDER_ID, "spec.providerID"),
        ("HostPowerOn", {"providerID": None}, Power.RUNNING, reasons.INVALID_PROVIDER_ID, "no spec.providerID"),
    ],
)
@cloud_story()
async def test_what_cannot_be_done_is_said_at_once(
    world: CloudWorld, kind: str, spec: dict[str, Any], now: Power, reason: str, words: str
) -> None:
    vm = await world.instance(**spec)
    vm.story = [(-100.0, now)]
    world.steward().start()
    world.controller().start()
    await world.operation("op", kind, "m1")
    ended = await world.ended("op", within_s=10)
    assert result(ended) == ("Failed", reason)
    assert words in (ended.status.message or "")
    assert _asked(world) == []
    world.cloud.vms.clear()  # the Machine is bound to the instance of the story
    await world.api.delete(MACHINES, "m1")


@cloud_story()
async def test_a_kind_that_the_provider_does_not_carry_out_is_refused(world: CloudWorld) -> None:
    await world.instance()
    world.steward().start()
    world.controller(kinds=frozenset({OperationKind.HOST_POWER_ON})).start()
    await world.operation("op", "HostReboot", "m1")
    ended = await world.ended("op", within_s=10)
    assert result(ended) == ("Failed", common.UNSUPPORTED_OPERATION)
    assert "Sim does not support HostReboot" in (ended.status.message or "")


@cloud_story()
async def test_a_parameter_that_the_provider_does_not_heed_is_refused(world: CloudWorld) -> None:
    await _start(world, "HostPowerOff", force="true")
    ended = await world.ended("op", within_s=10)
    assert result(ended) == ("Failed", common.INVALID_PARAMETERS)
    assert "spec.parameters.force is not a parameter of HostPowerOff" in (ended.status.message or "")
    assert "supported: deallocate (provider Sim)" in (ended.status.message or "")
    assert world.cloud.calls == []


@cloud_story()
async def test_unprintable_or_long_provider_message_still_ends_the_operation(world: CloudWorld) -> None:
    world.cloud.raises["PowerOff"] = Refusal("not a reason", "the \x1b[31minstance\nis " + "x" * 20_000)
    await _start(world, "HostPowerOff")
    ended = await world.ended("op", within_s=60)
    assert result(ended) == ("Failed", reasons.PROVIDER_REFUSED)
    message = ended.status.message or ""
    assert "not a reason: the [31minstance is xxx" in message
    assert message.isprintable()
    assert len(message) < 4096


@cloud_story()
async def test_a_provider_that_stumbles_over_an_id_is_not_asked_again(
    world: CloudWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(_self: SimProvider, _provider_id: str) -> Instance:
        raise IndexError

    monkeypatch.setattr(SimProvider, "instance", stumble)
    await _start(world, "HostPowerOff")
    ended = await world.ended("op", within_s=60)
    assert result(ended) == ("Failed", reasons.INVALID_PROVIDER_ID)
    assert "cannot read it (IndexError)" in (ended.status.message or "")


@cloud_story()
async def test_an_action_that_is_refused_ends_the_operation(world: CloudWorld) -> None:
    world.cloud.raises["PowerOff"] = Refusal(reasons.PROVIDER_REFUSED, "the instance is locked")
    await _start(world, "HostPowerOff")
    ended = await world.ended("op", within_s=30)
    assert result(ended) == ("Failed", reasons.PROVIDER_REFUSED)
    assert "the instance is locked" in (ended.status.message or "")


# Records that lag, and instances that do not obey


@pytest.mark.parametrize("kind", ["HostPowerOff", "HostPowerOn"])
@cloud_story()
async def test_a_record_that_lags_behind_is_waited_for(world: CloudWorld, kind: str) -> None:
    world.cloud.lag_s = 20.0
    world.cloud.long_calls = False
    await _start(world, kind, Power.STOPPED if kind == "HostPowerOn" else Power.RUNNING)
    assert result(await world.ended("op", within_s=300)) == ("Complete", "Succeeded")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("HostPowerOff", reasons.DOES_NOT_STAY_OFF), ("HostPowerOn", reasons.DOES_NOT_STAY_ON)],
)
@cloud_story()
async def test_instance_that_leaves_the_desired_power_state_fails_the_operation(
    world: CloudWorld, kind: str, reason: str
) -> None:
    before = Power.RUNNING if kind == "HostPowerOff" else Power.STOPPED
    await _start(world, kind, before)
    await world.until("op", lambda one: bool(one.status.evidence), within_s=60)
    now = asyncio.get_running_loop().time()
    world.cloud.vms["sim://sub-1/m1"].story.append((now, before))
    ended = await world.ended("op", within_s=200)
    assert result(ended) == ("Failed", reason)
    assert "the instance did not stay" in (ended.status.message or "")


# Cancel, and Machines that change


@cloud_story()
async def test_a_cancel_before_anything_was_asked_for_ends_it(world: CloudWorld) -> None:
    await _start(world, "HostReboot", Power.CHANGING)
    await in_stage(world, "op", power.STARTING)
    await world.cancel("op")
    assert result(await world.ended("op", within_s=6)) == ("Failed", common.CANCELLED)
    assert _asked(world) == []
    world.cloud.vms["sim://sub-1/m1"].story.append((0.0, Power.RUNNING))


@cloud_story()
async def test_a_cancel_that_comes_too_late_is_answered_and_it_goes_on(world: CloudWorld) -> None:
    world.cloud.long_calls = False
    await _start(world, "HostReboot")
    await world.until("op", lambda one: "Restart" in _asked(world), within_s=30)
    await world.cancel("op")
    await world.until("op", lambda one: "point of no return" in (one.status.message or ""), within_s=6)
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")


@cloud_story()
async def test_a_machine_that_is_bound_to_another_instance_meanwhile_is_left_alone(world: CloudWorld) -> None:
    await _start(world, "HostReboot", Power.CHANGING)
    await in_stage(world, "op", power.STARTING)
    other = await world.instance("m2")
    await world.api.patch(MACHINES, "m1", {"spec": {"providerID": other.id}})
    assert result(await world.ended("op", within_s=10)) == ("Failed", common.TARGET_CHANGED)
    assert _asked(world) == []
    await world.api.patch(MACHINES, "m1", {"spec": {"providerID": "sim://sub-1/m1"}})


@cloud_story()
async def test_a_handle_that_is_too_long_to_be_stored_is_done_without(world: CloudWorld) -> None:
    world.cloud.handle = "x" * 5000
    await _start(world, "HostReboot")
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")
    assert "follow" not in [call.what for call in world.cloud.calls]


@pytest.mark.parametrize("kind", ["HostReboot", "HostReplace"])
@cloud_story()
async def test_nothing_is_done_to_an_instance_that_two_machines_are_bound_to(world: CloudWorld, kind: str) -> None:
    await world.instance("m1")
    await world.instance("m2", "sub-2", site="elsewhere")
    await world.api.patch(MACHINES, "m2", {"spec": {"providerID": "sim://sub-1/m1"}})
    world.steward().start()
    world.controller().start()
    await world.operation("op1", kind, "m1")
    ended = await world.ended("op1", within_s=10)
    assert result(ended) == ("Failed", reasons.PROVIDER_ID_SHARED)
    assert "spec.providerID of Machine m1 is also that of Machine m2:" in (ended.status.message or "")
    assert world.cloud.calls == []
    await world.api.patch(MACHINES, "m2", {"spec": {"providerID": "sim://sub-2/m2"}})
    await world.operation("op2", kind, "m1")
    assert result(await world.ended("op2", within_s=200)) == ("Complete", "Succeeded")


@cloud_story()
async def test_running_operation_continues_when_another_machine_binds_its_instance(world: CloudWorld) -> None:
    await _start(world, "HostReboot")
    await in_stage(world, "op", power.RESTARTING)
    await world.instance("m2")
    await world.api.patch(MACHINES, "m2", {"spec": {"providerID": "sim://sub-1/m1"}})
    await world.operation("other", "HostPowerOff", "m2")
    assert result(await world.ended("other", within_s=10)) == ("Failed", reasons.PROVIDER_ID_SHARED)
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")
    await world.api.patch(MACHINES, "m2", {"spec": {"providerID": "sim://sub-1/m2"}})
