"""The record of a running operation: what is written to its status is what is read back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.operations.building import operation_of
from tests.support.memory_store import merged
from unbounded.api.fields import MAX_EVIDENCE, Cause, Evidence
from unbounded.api.meta import Condition
from unbounded.api.operation import MAX_LATE, MachineOperation, OperationPhase, OperationsStatus, Waiting
from unbounded.api.run_history import CALL_REPLIES, EarlierAttempt, RunHistory, StageVisit
from unbounded.machineops import replacement
from unbounded.machineops.providers.azure.replacement_plan import STEPS as AZURE_STEPS
from unbounded.machineops.providers.oci.replacement_plan import STEPS as OCI_STEPS
from unbounded.metalman import power
from unbounded.operations import reasons
from unbounded.operations.execution_record import (
    MAX_MESSAGE,
    Run,
    completed_condition,
    run_of,
    running_patch,
    terminal_patch,
)
from unbounded.workflow.procedure import Procedure
from unbounded.workflow.run_record import LateCall, PendingFailure

NOW = "2030-01-01T00:00:00Z"
WORDS = st.text(min_size=1, max_size=20)
MAYBE = st.none() | WORDS
EVIDENCE = st.builds(Evidence, what=WORDS, at=st.just(NOW), where=st.text(max_size=20))
COUNTERS = st.builds(OperationsStatus, reboot_counter=st.integers(0, 99), repave_counter=st.integers(0, 99))
CAUSES = st.builds(Cause, code=WORDS, about=st.dictionaries(WORDS, st.text(max_size=9), max_size=3))
VISITS = st.builds(
    StageVisit,
    name=WORDS,
    started_at=st.none() | st.just(NOW),
    completed_at=st.none() | st.just(NOW),
    limit_seconds=st.none() | st.integers(0, 999),
    spent_seconds=st.none() | st.integers(0, 999),
)
ATTEMPTS = st.builds(
    EarlierAttempt,
    stage=WORDS,
    action=WORDS,
    number=st.integers(0, 9),
    started_at=st.none() | st.just(NOW),
    completed_at=st.just(NOW),
    reply=st.sampled_from(CALL_REPLIES),
    reason=MAYBE,
    message=MAYBE,
)
HISTORIES = st.builds(
    RunHistory,
    stages=st.lists(VISITS, max_size=3).map(tuple),
    dropped_stages=st.integers(0, 9),
    attempts=st.lists(ATTEMPTS, max_size=3).map(tuple),
    dropped_attempts=st.integers(0, 9),
)
RUNS = st.builds(
    Run,
    machine=WORDS,
    machine_uid=WORDS,
    executor=WORDS,
    epoch=WORDS,
    target_digest=st.text(max_size=20),
    stage=WORDS,
    started_at=st.just(NOW),
    action=MAYBE,
    attempt=st.integers(0, 9),
    called_at=st.none() | st.just(NOW),
    next_target_digest=MAYBE,
    boot_id=MAYBE,
    handle=MAYBE,
    spent_s=st.integers(0, 10**6),
    generation=st.none() | st.integers(1, 99),
    counters=st.none() | COUNTERS,
    evidence=st.lists(EVIDENCE, max_size=4).map(tuple),
    history=HISTORIES,
    failing=st.none() | st.builds(PendingFailure, reason=WORDS, text=st.text(max_size=20), cause=st.none() | CAUSES),
)
RUN = Run("m1", "u", "e", "b", NOW, epoch="p", stage="S")
WAITING = Waiting(reason="NoAnswer", held_by="metalman/lab", since=NOW, until=NOW)


def _stored(operation: MachineOperation, patch: dict[str, Any]) -> MachineOperation:
    """The operation after a merge patch of its status, as a server would give it back."""
    body = merged(msgspec.to_builtins(operation), {"status": patch})
    return msgspec.json.decode(msgspec.json.encode(body), type=MachineOperation)


def _written(run: Run, onto: MachineOperation | None = None) -> MachineOperation:
    before = onto or operation_of()
    patch = running_patch(run, message="m", waiting=WAITING, conditions=[], before=before.status)
    return _stored(before, patch)


@pytest.mark.slow
@given(RUNS)
def test_what_is_written_is_read_back(run: Run) -> None:
    assert run_of(_written(run)) == run


@pytest.mark.slow
@given(RUNS, RUNS)
def test_a_later_record_leaves_nothing_of_an_earlier_one(before: Run, after: Run) -> None:
    assert run_of(_written(after, onto=_written(before))) == after


@pytest.mark.slow
@given(RUNS)
def test_the_last_status_keeps_the_record_and_ends_the_wait(run: Run) -> None:
    before = _written(run)
    patch = terminal_patch(
        run, OperationPhase.COMPLETE, reasons.SUCCEEDED, "done", now=NOW, conditions=[], before=before.status
    )
    operation = _stored(before, patch)
    assert run_of(operation) == run
    assert (operation.terminal, operation.status.waiting, operation.status.completed_at) == (True, None, NOW)


@pytest.mark.slow
@given(st.none() | CAUSES, st.none() | CAUSES)
def test_a_later_cause_leaves_nothing_of_an_earlier_one(before: Cause | None, after: Cause | None) -> None:
    run, operation = RUN, operation_of()
    for cause in (before, after):
        patch = running_patch(run, message="m", waiting=None, conditions=[], cause=cause, before=operation.status)
        operation = _stored(operation, patch)
        assert operation.status.cause == cause
    end = terminal_patch(
        run, OperationPhase.FAILED, "Bad", "m", now=NOW, conditions=[], cause=before, before=operation.status
    )
    assert _stored(operation, end).status.cause == before


def test_a_write_repeats_no_history_that_is_stored() -> None:
    run = replace(RUN, history=RunHistory().with_stage_begun("S", at=NOW, limit_s=60))
    stored = _written(run)
    patches = {
        before is stored: running_patch(run, message="m", waiting=None, conditions=[], before=before.status)
        for before in (operation_of(), stored)
    }
    assert ("history" in patches[False], "history" in patches[True]) == (True, False)
    assert _stored(stored, patches[True]).status.history == run.history


def test_there_is_no_record_before_a_claim() -> None:
    assert run_of(operation_of()) is None


def test_a_parent_has_no_record() -> None:
    targets = [{"machineRef": "m1"}, {"machineRef": "m2"}]
    assert run_of(operation_of(status={"targets": targets})) is None


def test_a_wait_that_is_over_is_cleared() -> None:
    run = RUN
    waiting = _written(run)
    assert waiting.status.waiting == WAITING
    going_on = _stored(waiting, running_patch(run, message="m", waiting=None, conditions=[]))
    assert going_on.status.waiting is None


def test_evidence_of_the_same_words_is_kept_once_and_the_newest() -> None:
    run = replace(RUN, evidence=(Evidence(what="Off", at="early", where="x"),))
    evidence = run.with_evidence("Off", at="late", where="y")
    assert [(one.what, one.at) for one in evidence] == [("Off", "late")]
    assert run.with_evidence(None, at="late", where="y") == run.evidence


@pytest.mark.slow
@given(st.lists(WORDS, max_size=3 * MAX_EVIDENCE))
def test_evidence_never_exceeds_what_the_schema_admits(words: list[str]) -> None:
    run = RUN
    for what in words:
        run = replace(run, evidence=run.with_evidence(what, at=NOW, where=""))
    assert len(run.evidence) <= MAX_EVIDENCE
    if words:
        assert run.evidence[-1].what == words[-1]


def test_record_stores_the_longest_late_calls_up_to_the_schema_limit() -> None:
    late = tuple(LateCall(f"p{number}", "On", float(number)) for number in range(MAX_LATE + 9))
    stored = run_of(_written(replace(RUN, late=late)))
    assert stored is not None
    assert stored.late == tuple(reversed(late[-MAX_LATE:]))


def test_a_message_is_cut_to_what_the_schema_admits() -> None:
    run = RUN
    patch = running_patch(run, message="x" * 10_000, waiting=None, conditions=[])
    assert len(patch["message"]) == len(patch["targets"][0]["message"]) == MAX_MESSAGE


def test_the_transition_time_moves_with_the_status_only() -> None:
    def one(old: tuple[Condition, ...], status: str, now: str) -> Condition:
        built = completed_condition(old, status=status, reason="R", message="m", now=now)
        return next(c for c in msgspec.convert(built, tuple[Condition, ...]) if c.type == "Completed")

    first = one((), "False", "t1")
    assert one((first,), "False", "t2").last_transition_time == "t1"
    assert one((first,), "True", "t3").last_transition_time == "t3"


def test_conditions_of_others_are_kept() -> None:
    other = Condition(type="Other", status="True", reason="R", last_transition_time="t0")
    built = completed_condition((other,), status="True", reason="R", message="m", now="t1")
    assert [condition["type"] for condition in built] == ["Other", "Completed"]


FORMER_PROOF = [
    (power.reboot(operation_of()), "the host was seen Off"),
    (replacement.replace(AZURE_STEPS), "the old OS disk is gone"),
    (replacement.replace(OCI_STEPS), "the old instance and its boot volume are gone"),
]


@pytest.mark.parametrize(
    ("procedure", "former"), FORMER_PROOF, ids=lambda value: value if isinstance(value, str) else ""
)
def test_evidence_of_the_former_release_counts_as_proof(procedure: Procedure, former: str) -> None:
    run = run_of(_written(replace(RUN, evidence=(Evidence(what=former, at=NOW, where="w"),))))
    assert run is not None
    assert {evidence.what for evidence in run.evidence} <= procedure.proof
