"""Decisions of the supervisor about one operation, rule by rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.operations.building import claim, config_map, ended, machine_of, operation_of, slot_of
from unbounded.api.core import ConfigMap
from unbounded.api.machine import Machine
from unbounded.api.names import ANNOTATION_PAUSED, FINALIZER_OPERATION
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.operations import reasons
from unbounded.operations.deadline import DEADLINE_S, LOST_AFTER_S, deadline_s
from unbounded.operations.executor_selection import Unavailability
from unbounded.operations.supervisor_plan import (
    EVIDENCE_SILENT,
    LISTEN_EVERY_S,
    LISTEN_FOR_S,
    LOST_SLOT_S,
    MACHINE_WAIT_S,
    RELEASE_WITHIN_S,
    SILENT_AFTER_S,
    AddEvidence,
    DeleteOperation,
    EndOperation,
    NoAction,
    OperationAges,
    RecordResult,
    RemoveOperationFinalizer,
    ReportWait,
    SupervisorAction,
    SupervisorView,
    expects_silence,
    plan_action,
)

EARLY, LATE = "2030-01-01T00:00:00Z", "2030-01-01T00:00:09Z"
HELD = {"finalizers": [FINALIZER_OPERATION]}
DELETED = {"deletionTimestamp": LATE}


def _verdict(
    operation: MachineOperation,
    machine: Machine | None = None,
    *,
    missing: bool = False,
    others: Sequence[MachineOperation] = (),
    pause: ConfigMap | None = None,
    busy: bool = False,
    last_heard: str = "",
    recorded: bool = True,
    silent_s: float | None = None,
    under_way: int = 0,
    absent: Unavailability | None = None,
    **ages: float,
) -> SupervisorAction:
    there = None if missing else machine or machine_of()
    when = OperationAges(**{"known_s": 5.0, "created_s": ages.get("known_s", 5.0), **ages})
    others = [operation, *others]
    return plan_action(
        SupervisorView(operation, there, others, pause, when, busy, last_heard, recorded, silent_s, under_way, absent)
    )


def _said(decided: SupervisorAction) -> ReportWait:
    assert isinstance(decided, ReportWait), decided
    assert decided.text
    assert decided.held_by
    assert decided.until_s is not None
    return decided


def _ended(decided: SupervisorAction) -> str:
    assert isinstance(decided, EndOperation), decided
    assert decided.text
    return decided.reason


# Before the claim


def test_an_executor_has_four_seconds_before_anything_is_explained() -> None:
    decided = _verdict(operation_of(), known_s=0.5)
    assert decided == NoAction(3.5)


def test_waiting_for_its_executor_names_it_and_until_when() -> None:
    said = _said(_verdict(operation_of(startDeadlineSeconds=100)))
    assert (said.reason, said.held_by, said.until_s) == (reasons.WAITING_FOR_EXECUTOR, "metalman/lab", 95.0)
    assert "metalman/lab" in said.text


def test_an_executor_that_does_not_claim_is_said_not_to_be_there() -> None:
    said = _said(_verdict(operation_of(kind="NodeReboot"), known_s=11.0, last_heard="its lease is old"))
    assert said.held_by == "unbounded-agent/m1"
    assert "not running" in said.text
    assert "its lease is old" in said.text


def test_a_busy_executor_is_not_said_to_be_away() -> None:
    said = _said(_verdict(operation_of(), known_s=30.0, busy=True))
    assert "which works on other operations" in said.text


@pytest.mark.parametrize("busy", [False, True])
def test_unavailable_executor_is_not_reported_as_busy(*, busy: bool) -> None:
    said = _said(
        _verdict(operation_of(), known_s=30.0, busy=busy, absent=Unavailability("its package is not installed"))
    )
    assert (said.reason, said.held_by) == (reasons.PROVIDER_NOT_SERVED, "metalman/lab")
    assert said.text == "metalman/lab does not serve: its package is not installed"


def test_an_executor_that_is_starting_is_not_said_to_be_away() -> None:
    absent = Unavailability("its process was started at T", is_problem=False)
    said = _said(_verdict(operation_of(), known_s=30.0, absent=absent))
    assert (said.reason, said.held_by) == (reasons.WAITING_FOR_EXECUTOR, "metalman/lab")
    assert said.text == "metalman/lab is starting: its process was started at T"


def test_an_executor_whose_operations_do_not_move_may_be_full() -> None:
    said = _said(_verdict(operation_of(), known_s=300.0, under_way=10, last_heard="its last write was at T"))
    assert said.text == (
        "metalman/lab has 10 in progress, none of which changed for 60 s: it is at its concurrency limit, or "
        "not running; its last write was at T"
    )


@pytest.mark.parametrize(
    ("machine", "others", "pause", "reason", "held_by"),
    [
        (machine_of(annotations={ANNOTATION_PAUSED: "1"}), [], None, reasons.PAUSED, "Machine m1"),
        (machine_of(), [], config_map(**{ANNOTATION_PAUSED: "1"}), reasons.PAUSED, "ConfigMap unbounded-operations"),
        (machine_of(), [operation_of("old", created=EARLY)], None, reasons.WAITING_FOR_OLDER, "old"),
        (machine_of(status={"activeOperation": slot_of("x")}), [], None, reasons.SLOT_HELD, "x"),
    ],
    ids=["paused", "all paused", "older", "slot"],
)
def test_the_gate_that_holds_is_the_wait_reason(
    machine: Machine, others: list[MachineOperation], pause: ConfigMap | None, reason: str, held_by: str
) -> None:
    said = _said(_verdict(operation_of(created=LATE), machine, others=others, pause=pause))
    assert (said.reason, said.held_by) == (reason, held_by)


def test_a_missing_machine_is_waited_for_and_then_missed() -> None:
    said = _said(_verdict(operation_of(), missing=True, machine_missing_s=20.0))
    assert (said.reason, said.held_by, said.until_s) == (reasons.WAITING_FOR_MACHINE, "Machine m1", 40.0)
    late = _verdict(operation_of(), missing=True, machine_missing_s=MACHINE_WAIT_S, known_s=61.0)
    assert _ended(late) == reasons.MACHINE_NOT_FOUND


def test_a_machine_that_is_being_deleted_is_said_to_be() -> None:
    leaving = msgspec.convert({**msgspec.to_builtins(machine_of()), "metadata": {"name": "m1", **DELETED}}, Machine)
    said = _said(_verdict(operation_of(), leaving, known_s=30.0))
    assert (said.reason, said.held_by) == (reasons.WAITING_FOR_MACHINE, "Machine m1")
    assert "being deleted" in said.text


@pytest.mark.parametrize("kind", ["HostReboot", "HostPowerOff", "HostPowerOn", "HostReplace"])
def test_what_nobody_can_carry_out_is_said_at_once(kind: str) -> None:
    decided = _verdict(operation_of(kind=kind), machine_of(pxe={"image": "i"}), known_s=0.0)
    assert _ended(decided) == reasons.UNSUPPORTED_TARGET
    assert isinstance(decided, EndOperation)
    assert "spec.pxe.redfish" in decided.text


def test_invalid_parameters_are_said_at_once() -> None:
    decided = _verdict(operation_of(parameters={"force": "maybe"}), known_s=0.0)
    assert _ended(decided) == reasons.INVALID_PARAMETERS
    assert isinstance(decided, EndOperation)
    assert "spec.parameters.force" in decided.text


def test_a_cancel_before_the_claim_ends_it() -> None:
    assert _ended(_verdict(operation_of(cancel=True), known_s=0.0)) == reasons.CANCELLED
    assert _ended(_verdict(operation_of(cancel=True), missing=True, known_s=0.0)) == reasons.CANCELLED


def test_a_deletion_before_the_claim_is_not_held_up() -> None:
    assert _verdict(operation_of(metadata={**DELETED, **HELD})) == RemoveOperationFinalizer()
    assert _verdict(operation_of(metadata=DELETED)) == NoAction()


def test_unclaimed_operation_ends_at_its_start_deadline_with_its_blocker() -> None:
    decided = _verdict(operation_of(startDeadlineSeconds=30), known_s=30.0)
    assert _ended(decided) == reasons.NOT_STARTED
    assert isinstance(decided, EndOperation)
    assert "metalman/lab" in decided.text
    paused = _verdict(
        operation_of(startDeadlineSeconds=30), machine_of(annotations={ANNOTATION_PAUSED: ""}), known_s=30.0
    )
    assert _ended(paused) == reasons.NOT_STARTED


@pytest.mark.parametrize(
    ("stage", "reason", "stage_s", "left_s"),
    [
        ("Returning", reasons.EXECUTOR_SILENT, 1, 99),
        ("Waiting", reasons.EXECUTOR_SILENT, 60, 40),
        ("Waiting", reasons.EXECUTOR_SILENT, 100, 0),
        ("Waiting", reasons.EXECUTOR_SILENT, 9000, 0),
        ("Drained", None, 9000, -500),
    ],
)
def test_start_deadline_counts_the_part_of_a_pause_that_has_passed(
    stage: str, reason: str | None, stage_s: float, left_s: float
) -> None:
    holder = {"kind": "HostReboot", "name": "op", "uid": "uid-op"}
    record = {"holder": holder, "stage": stage, "reason": reason, "since": EARLY, "silences": 2}  # 300 and 600 s
    always = operation_of(startDeadlineSeconds=400, drain={"mode": "Always"})
    decided = _verdict(always, machine_of(status={"disruption": record}), stage_s=stage_s, created_s=9999.0)
    if left_s <= 0:
        assert _ended(decided) == reasons.NOT_STARTED
    else:
        assert _said(decided).until_s == left_s


def test_an_agents_operation_that_a_younger_host_operation_overtook_is_preempted() -> None:
    agents = operation_of("agents", "NodeReboot", created=EARLY)
    host = operation_of("host", created=LATE, status=claim())
    assert _ended(_verdict(agents, others=[host])) == reasons.PREEMPTED


@pytest.mark.parametrize(
    "host",
    [
        operation_of("host", created=LATE),
        operation_of("host", created=LATE, status=ended()),
        operation_of("host", created="2029-12-31T00:00:00Z", status=claim()),
    ],
    ids=["not claimed", "ended", "older"],
)
def test_these_host_operations_preempt_nothing(host: MachineOperation) -> None:
    agents = operation_of("agents", "NodeReboot", created=EARLY)
    assert not isinstance(_verdict(agents, others=[host]), EndOperation)


# After the claim


def test_a_running_operation_is_left_alone() -> None:
    decided = _verdict(operation_of(status=claim()), claimed_s=10.0)
    assert isinstance(decided, NoAction)


def test_a_running_operation_is_not_cancelled_or_unheld_by_the_steward() -> None:
    operation = operation_of(status=claim(), cancel=True, metadata={**DELETED, **HELD})
    assert isinstance(_verdict(operation, claimed_s=100.0), NoAction)


@pytest.mark.parametrize("kind", DEADLINE_S)
def test_executor_silent_past_the_deadline_is_lost_and_keeps_the_lock(kind: OperationKind) -> None:
    operation = operation_of(kind=kind, status=claim())
    limit_s = deadline_s(operation) + LOST_AFTER_S
    before = _verdict(operation, claimed_s=limit_s - 1, unchanged_s=limit_s - 1)
    assert before == NoAction(1.0)
    decided = _verdict(operation, claimed_s=limit_s, unchanged_s=limit_s)
    assert _ended(decided) == reasons.EXECUTOR_LOST
    assert isinstance(decided, EndOperation)
    assert decided.lost
    assert "metalman/lab" in decided.text


def test_an_executor_that_still_writes_is_not_lost() -> None:
    operation = operation_of(deadlineSeconds=10, status=claim())
    assert isinstance(_verdict(operation, claimed_s=1000.0, unchanged_s=5.0), NoAction)


def test_stalled_agent_operation_is_preempted_by_a_host_operation() -> None:
    agents = operation_of("agents", "AgentUpgrade", created=EARLY, status=claim(executor="unbounded-agent/m1"))
    host = operation_of("host", created=LATE)
    waiting = _verdict(agents, others=[host], claimed_s=100.0, unchanged_s=59.0)
    assert isinstance(waiting, NoAction)
    assert waiting.requeue_s is not None
    assert waiting.requeue_s <= 5.0
    decided = _verdict(agents, others=[host], claimed_s=100.0, unchanged_s=60.0)
    assert _ended(decided) == reasons.PREEMPTED
    assert isinstance(decided, EndOperation)
    assert "host" in decided.text


def test_an_agent_without_progress_gives_way_to_nobody_else() -> None:
    agents = operation_of("agents", "AgentUpgrade", created=EARLY, status=claim(executor="unbounded-agent/m1"))
    assert isinstance(_verdict(agents, claimed_s=100.0, unchanged_s=90.0), NoAction)
    other = operation_of("other", "NodeReboot", created=LATE)
    assert isinstance(_verdict(agents, others=[other], claimed_s=100.0, unchanged_s=90.0), NoAction)


def test_a_host_operation_is_preempted_by_nobody() -> None:
    running = operation_of("running", created=EARLY, status=claim())
    host = operation_of("host", created=LATE)
    assert isinstance(_verdict(running, others=[host], claimed_s=100.0, unchanged_s=90.0), NoAction)


# After the end


def test_an_ended_operation_is_unheld_and_without_a_ttl_kept() -> None:
    assert _verdict(operation_of(status=ended(), metadata=HELD)) == RemoveOperationFinalizer()
    assert _verdict(operation_of(status=ended()), ended_s=10**6) == NoAction()


def test_finalizer_stays_until_lock_release_or_for_a_minute() -> None:
    operation = operation_of(status=ended(), metadata=HELD)
    machine = machine_of(status={"activeOperation": slot_of("op")})
    assert _verdict(operation, machine, ended_s=10.0) == NoAction(RELEASE_WITHIN_S - 10.0)
    assert _verdict(operation, machine, ended_s=RELEASE_WITHIN_S) == RemoveOperationFinalizer()


def test_lock_of_a_lost_executor_keeps_the_finalizer_until_its_limit() -> None:
    operation = operation_of(status=ended("Failed"), metadata=HELD)
    lost = {"activeOperation": slot_of("op", lost=True)}
    assert _verdict(operation, machine_of(status=lost), ended_s=10.0) == RecordResult()
    past = {"name": "op", "uid": "uid-op", "kind": "HostReboot", "phase": "Failed"}
    machine = machine_of(status=lost | {"recentOperations": [past]})
    assert _verdict(operation, machine, ended_s=10.0) == NoAction(LOST_SLOT_S - 10.0)
    assert _verdict(operation, machine, ended_s=LOST_SLOT_S) == RemoveOperationFinalizer()
    assert _verdict(operation, machine_of(status={"activeOperation": slot_of("next")})) == RemoveOperationFinalizer()


def test_a_child_keeps_its_finalizer_until_its_parent_has_recorded_it() -> None:
    child = operation_of(status=ended(), metadata=HELD)
    assert isinstance(_verdict(child, recorded=False, ended_s=1000.0), NoAction)
    assert _verdict(child, recorded=True) == RemoveOperationFinalizer()


@pytest.mark.parametrize(
    ("ttl", "ended_s", "wanted"),
    [(0, 0.0, DeleteOperation()), (30, 10.0, NoAction(20.0)), (30, 30.0, DeleteOperation())],
)
def test_the_ttl_counts_from_the_end(ttl: int, ended_s: float, wanted: SupervisorAction) -> None:
    assert _verdict(operation_of(status=ended(), ttlSecondsAfterFinished=ttl), ended_s=ended_s) == wanted


def test_what_is_being_deleted_is_not_deleted_again() -> None:
    assert _verdict(operation_of(status=ended(), ttlSecondsAfterFinished=0, metadata=DELETED)) == NoAction()


# After a reset


def _reset(*seen: str, phase: str = "Complete", kind: str = "AgentReset", **spec: Any) -> MachineOperation:
    evidence = [{"what": what, "at": LATE, "where": "somewhere"} for what in seen]
    return operation_of(kind=kind, status={**ended(phase), "evidence": evidence}, **spec)


def _after(*operations: str, **status: Any) -> Machine:
    """A Machine with these in its history."""
    history = [{"name": name, "uid": f"uid-{name}", "kind": "AgentReset", "phase": "Complete"} for name in operations]
    return machine_of(status={"recentOperations": history, **status})


def test_silence_is_expected_after_an_agent_reset_until_observed() -> None:
    free, taken = _after("before", "op"), _after("op", activeOperation=slot_of("other"))
    assert expects_silence(_reset("the agent is gone"), free, 0.0)
    assert not expects_silence(_reset(), taken, 0.0)
    assert not expects_silence(_reset(), None, 0.0)
    assert not expects_silence(_reset(), free, LISTEN_FOR_S)
    assert not expects_silence(_reset(EVIDENCE_SILENT), free, 0.0)
    assert not expects_silence(_reset(phase="Failed"), free, 0.0)
    assert not expects_silence(_reset(kind="HostReboot"), free, 0.0)


def test_a_reset_that_is_long_over_is_not_listened_after_again() -> None:
    """Its object may live on for weeks, and each steward that begins sees it for the first time."""
    join = {"purpose": "agent", "request": "r", "at": LATE}
    assert not expects_silence(_reset(), _after("op", "another"), 0.0)
    assert not expects_silence(_reset(), _after("another"), 0.0)
    assert not expects_silence(_reset(), _after("op", join={"used": [{**join, "cause": "AgentReset/uid-op"}]}), 0.0)
    assert expects_silence(_reset(), _after("op", join={"used": [{**join, "cause": "AgentReset/uid-before"}]}), 0.0)


def test_silence_is_noted_after_a_minute_of_it() -> None:
    assert _verdict(_reset(), silent_s=0.0) == NoAction(LISTEN_EVERY_S)
    assert _verdict(_reset(), silent_s=SILENT_AFTER_S) == AddEvidence(EVIDENCE_SILENT)
    assert _verdict(_reset(ttlSecondsAfterFinished=30), ended_s=25.0, silent_s=0.0) == NoAction(5.0)
    assert _verdict(_reset(ttlSecondsAfterFinished=30), ended_s=30.0, silent_s=0.0) == DeleteOperation()
    assert _verdict(_reset(metadata=HELD), silent_s=SILENT_AFTER_S) == RemoveOperationFinalizer()


AGES = st.builds(
    OperationAges,
    known_s=st.floats(0, 10_000),
    machine_missing_s=st.floats(0, 100),
    claimed_s=st.floats(0, 10_000),
    unchanged_s=st.floats(0, 10_000),
)


@pytest.mark.slow
@given(
    kind=st.sampled_from(OperationKind),
    status=st.sampled_from([{}, claim()]),
    machine=st.sampled_from([None, machine_of()]),
    held=st.booleans(),
    deleted=st.booleans(),
    cancel=st.booleans(),
    ages=AGES,
)
def test_an_open_operation_always_has_a_next_look_or_an_end(
    kind: OperationKind,
    status: dict[str, Any],
    machine: Machine | None,
    held: bool,
    deleted: bool,
    cancel: bool,
    ages: OperationAges,
) -> None:
    metadata = {**(HELD if held else {}), **(DELETED if deleted else {})}
    parameters = {"downloadURL": "https://x/y"} if kind is OperationKind.AGENT_UPGRADE else {}
    operation = operation_of(kind=kind, status=status, metadata=metadata, cancel=cancel, parameters=parameters)
    decided = plan_action(SupervisorView(operation, machine, [operation], None, ages))
    gone = deleted and not status  # as soon as the API server has processed it
    if isinstance(decided, NoAction | ReportWait) and not gone:
        assert decided.requeue_s is not None
        assert decided.requeue_s > 0
