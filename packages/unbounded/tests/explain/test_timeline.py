"""The timeline of an operation: with its history, of a former release, and of an executor that is not known."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.operations.building import claim, operation_of
from unbounded.api.operation import MachineOperation
from unbounded.explain.facts import procedure_of
from unbounded.explain.timeline import OperationTimeline, StageState, timeline_of
from unbounded.metalman import power

AT, LATER, END = (f"2030-01-01T00:{minute:02}:00Z" for minute in (0, 1, 2))
NOW = datetime(2030, 1, 1, 0, 1, 30, tzinfo=UTC)
OFF = {"name": power.SHUTTING_DOWN, "startedAt": AT, "completedAt": LATER, "limitSeconds": 90, "spentSeconds": 55}
ON = {"name": power.WAITING_ON, "startedAt": LATER, "limitSeconds": 300}
BEFORE = (power.STARTING, power.SHUTTING_DOWN, power.WAITING_OFF)
ATTEMPT = {
    "stage": power.SHUTTING_DOWN, "action": power.SHUT_DOWN, "number": 1, "completedAt": LATER, "reply": "Accepted",
}  # fmt: skip


def operation(stage: str, history: dict[str, Any] | None = None, **status: Any) -> MachineOperation:
    found = claim(stage=stage)
    counted = {"stageSeconds": 20, "recordedAt": LATER, "action": power.SWITCH_ON}
    target = {**found["targets"][0], "attempts": 2, "lastAttemptAt": LATER}
    changed = {"execution": {**found["execution"], **counted}, "targets": [target], "history": history}
    return operation_of(status={**found, **changed, **status})


def timeline(found: MachineOperation, *, known: bool = True) -> OperationTimeline:
    execution = found.status.execution
    assert execution is not None
    result = timeline_of(found, procedure_of(found, execution.executor, None) if known else None, NOW)
    assert result is not None
    return result


def states(found: OperationTimeline) -> list[tuple[str, str]]:
    return [(one.name, one.state) for one in found.stages]


def test_stages_have_their_times_and_the_present_one_grows() -> None:
    found = timeline(operation(power.WAITING_ON, {"stages": [OFF, ON], "attempts": [ATTEMPT], "droppedAttempts": 3}))
    off, on = found.stages
    assert states(found) == [(power.SHUTTING_DOWN, StageState.DONE), (power.WAITING_ON, StageState.CURRENT)]
    assert (off.started_at, off.completed_at, off.limit_seconds, off.spent_seconds) == (AT, LATER, 90, 55)
    assert (on.started_at, on.completed_at, on.limit_seconds, on.spent_seconds) == (LATER, "", 300, 50)
    assert on.waits_for
    assert [(one.action, one.number, one.reply) for one in found.attempts] == [
        (power.SHUT_DOWN, 1, "Accepted"),
        (power.SWITCH_ON, 2, ""),
    ]
    assert found.dropped_attempts == 3


def test_stages_ahead_follow_the_present_one() -> None:
    found = timeline(operation(power.SHUTTING_DOWN, {"stages": [{**ON, "name": power.SHUTTING_DOWN}]}))
    assert [one.state for one in found.stages] == [StageState.CURRENT, *[StageState.AHEAD] * (len(found.stages) - 1)]
    assert power.WAITING_ON in [one.name for one in found.stages]
    assert all(one.limit_seconds and not one.started_at for one in found.stages[1:])


@pytest.mark.parametrize(
    ("phase", "state"), [("Complete", StageState.DONE), ("Failed", StageState.FAILED)], ids=["complete", "failed"]
)
def test_the_last_stage_of_an_ended_operation_tells_how(phase: str, state: StageState) -> None:
    ended = {**ON, "completedAt": END, "spentSeconds": 58}
    found = timeline(operation(power.WAITING_ON, {"stages": [OFF, ended]}, phase=phase, completedAt=END))
    last = found.stages[-1]
    assert (last.name, last.state, last.completed_at, last.spent_seconds) == (power.WAITING_ON, state, END, 58)
    assert found.attempts[-1].completed_at == END


def test_an_operation_that_the_supervisor_ended_has_its_last_stage_until_then() -> None:
    found = timeline(operation(power.WAITING_ON, {"stages": [OFF, ON]}, phase="Failed", completedAt=END))
    assert (found.stages[-1].state, found.stages[-1].spent_seconds) == (StageState.FAILED, 80)


def test_a_record_of_a_former_release_shows_the_present_stage_and_no_other_times() -> None:
    found = timeline(operation(power.WAITING_ON))
    *before, on = found.stages
    assert [(one.name, one.state, one.spent_seconds) for one in before] == [
        (name, StageState.PASSED, None) for name in BEFORE
    ]
    assert (on.state, on.started_at, on.limit_seconds, on.spent_seconds) == (StageState.CURRENT, "", 300, 50)
    ended = timeline(operation(power.WAITING_ON, phase="Complete", completedAt=END))
    assert states(ended) == [*states(found)[:-1], (power.WAITING_ON, StageState.DONE)]


def test_a_history_that_began_in_the_middle_leaves_the_rest_open() -> None:
    found = timeline(operation(power.WAITING_ON, {"stages": [{**OFF, "startedAt": None}, ON]}))
    assert states(found) == [
        (power.STARTING, StageState.PASSED),
        (power.WAITING_OFF, StageState.PASSED),
        (power.SHUTTING_DOWN, StageState.DONE),
        (power.WAITING_ON, StageState.CURRENT),
    ]


def test_a_history_that_a_former_release_did_not_continue_is_shown_first() -> None:
    stale = {key: OFF[key] for key in ("name", "startedAt", "limitSeconds")}
    found = timeline(operation(power.WAITING_ON, {"stages": [stale]}))
    assert states(found) == [(power.SHUTTING_DOWN, StageState.DONE), (power.WAITING_ON, StageState.CURRENT)]
    assert (found.stages[0].spent_seconds, found.stages[1].spent_seconds) == (None, 50)


def test_stages_of_an_unknown_executor_have_what_was_recorded() -> None:
    found = timeline(operation("Melting", {"stages": [OFF, {**ON, "name": "Melting"}]}), known=False)
    assert [(one.name, one.limit_seconds, one.waits_for) for one in found.stages] == [
        (power.SHUTTING_DOWN, 90, ""),
        ("Melting", 300, ""),
    ]


def test_an_operation_without_a_claim_or_on_several_machines_has_no_timeline() -> None:
    assert timeline_of(operation_of(), None, NOW) is None
    several = {"targets": [{"machineRef": "m1"}, {"machineRef": "m2"}]}
    assert timeline_of(operation_of(machine=None, status=several), None, NOW) is None


def test_an_operation_that_ended_before_its_first_stage_has_an_empty_timeline() -> None:
    found = timeline(operation("", phase="Failed", completedAt=END))
    assert found.stages == ()
