"""Next steps of an operation: the rules around the tables, one by one, and laws for any sequence of facts."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.operations.building import operation_of
from tests.workflow.test_procedure import SOUND, Light
from unbounded.api.fields import Evidence
from unbounded.api.operation import OperationKind
from unbounded.metalman import power
from unbounded.workflow import decisions
from unbounded.workflow.decisions import (
    CallAction,
    Decision,
    EnterStage,
    Finish,
    OwnerRequest,
    TargetLoss,
    Timing,
    Wait,
)
from unbounded.workflow.planner import decide
from unbounded.workflow.procedure import (
    COMPLETE,
    CallFailure,
    Cancel,
    NotObservable,
    Observation,
    Procedure,
    Repeat,
    Stage,
    Step,
)
from unbounded.workflow.run_record import NO_ANSWER, Answer, CallOutcome, LateCall, PendingFailure, RunRecord

NOW = "2030-01-01T00:00:00Z"
START = RunRecord(epoch="p1", stage="Start")
OTHER = TargetLoss("TargetChanged", "Machine m1 is not the claimed one any more")
GOING = replace(START, stage="Going", action="Go", attempt=1)
RED, GREEN = Observation(Light.RED, detail="it is red"), Observation(Light.GREEN, detail="it is green")
BLIND = NotObservable("NoAnswer", "nobody answers")
ACCEPTED, LOST = Answer(CallOutcome.ACCEPTED), Answer(CallOutcome.UNKNOWN, text="503")
FULL = Answer(CallOutcome.NOT_DONE, "NoRoom", "no room")


def _decide(
    run: RunRecord = START,
    sight: Observation | NotObservable = RED,
    *,
    procedure: Procedure = SOUND,
    answer: Answer = NO_ANSWER,
    cancel: bool = False,
    lost: TargetLoss | None = None,
    deadline_s: float = 1000.0,
    **timing: Any,
) -> Decision:
    when = Timing(**{"in_stage_s": 0.0, "since_call_s": 0.0, "spent_s": 0.0, **timing})
    return decide(procedure, run, sight, when, answer, OwnerRequest(deadline_s, cancel, lost))


def _failure(decision: Decision) -> str:
    assert isinstance(decision, Finish), decision
    assert not decision.is_complete
    assert decision.text
    return decision.reason


# Following the table


def test_a_row_that_asks_is_an_intent_of_its_first_attempt() -> None:
    decision = _decide()
    assert isinstance(decision, CallAction)
    assert (decision.stage, decision.action, decision.attempt) == ("Going", "Go", 1)
    assert decision.until_s == SOUND.stages["Going"].limit_s


def test_a_row_that_only_moves_moves() -> None:
    decision = _decide(sight=GREEN)
    assert isinstance(decision, EnterStage)
    assert decision.stage == "Going"


def test_complete_carries_the_evidence_that_was_seen() -> None:
    decision = _decide(GOING, GREEN, answer=ACCEPTED)
    assert isinstance(decision, Finish)
    assert (decision.is_complete, decision.reason, decision.evidence) == (True, "Succeeded", "green")


def test_complete_without_its_proof_is_an_unknown_outcome() -> None:
    unproven = dataclasses.replace(SOUND, proof=frozenset({"green", "seen elsewhere"}))
    assert _failure(_decide(GOING, GREEN, procedure=unproven)) == decisions.OUTCOME_UNKNOWN
    have = replace(GOING, evidence=(Evidence(what="seen elsewhere", at=NOW, where=""),))
    decision = _decide(have, GREEN, procedure=unproven)
    assert isinstance(decision, Finish)
    assert decision.is_complete


def test_a_row_can_fail_with_its_reason() -> None:
    broken = dataclasses.replace(SOUND, table={**SOUND.table, ("Start", Light.RED): Step("Start", fail="Broken")})
    assert _failure(_decide(procedure=broken)) == "Broken"


# Asking again


def test_accepted_call_without_effect_is_retried_like_a_rejected_one() -> None:
    nothing = dataclasses.replace(RED, failed=CallFailure("NoRoom", "no room"))
    decision = _decide(GOING, nothing, answer=ACCEPTED, since_call_s=1.0)
    assert isinstance(decision, Wait)
    assert decision.text.endswith("the last attempt failed: no room")
    decision = _decide(GOING, nothing, answer=ACCEPTED, since_call_s=5.0)
    assert isinstance(decision, CallAction)
    assert decision.attempt == 2
    spent = replace(GOING, attempt=SOUND.stages["Going"].attempts or 0)
    assert _failure(_decide(spent, nothing, answer=LOST, since_call_s=100.0)) == "NoRoom"
    assert isinstance(
        _decide(GOING, dataclasses.replace(GREEN, failed=CallFailure("NoRoom", "no room")), answer=ACCEPTED), Finish
    )


def test_an_accepted_ask_is_not_repeated_before_its_time() -> None:
    decision = _decide(GOING, answer=ACCEPTED, since_call_s=5.0)
    assert isinstance(decision, Wait)
    assert decision.requeue_s > 0


LONG = dataclasses.replace(
    SOUND,
    stages={
        **SOUND.stages,
        "Going": Stage("green", limit_s=100, cancel=Cancel.UNDO, undo=Step("Back", action="Stop")),
        "Back": Stage("red again", limit_s=100, retry_after_s=10),
    },
)


def test_an_ask_without_effect_is_repeated_as_the_next_attempt() -> None:
    decision = _decide(GOING, procedure=LONG, answer=ACCEPTED, in_stage_s=21.0, since_call_s=21.0)
    assert isinstance(decision, CallAction)
    assert (decision.action, decision.attempt) == ("Go", 2)


@pytest.mark.parametrize(
    ("answer", "reason", "text"),
    [
        (ACCEPTED, decisions.NO_EFFECT, "Go was requested 3 times and accepted, without effect: it is red"),
        (
            LOST,
            decisions.NO_ANSWER,
            "Go was requested 3 times, and the outcome of the last attempt is unknown: 503; it is red",
        ),
        (FULL, "NoRoom", "Go was requested 3 times, and the last attempt failed: no room; it is red"),
    ],
    ids=["accepted", "answer lost", "not done"],
)
def test_asks_are_bounded_by_the_attempts_of_the_stage(answer: Answer, reason: str, text: str) -> None:
    run = replace(GOING, attempt=3)
    early = _decide(run, procedure=LONG, answer=answer, since_call_s=21.0)
    assert isinstance(early, Finish if answer is FULL else Wait), "of what was sent something may come until the limit"
    decision = _decide(run, procedure=LONG, answer=answer, since_call_s=21.0, in_stage_s=LONG.stages["Going"].limit_s)
    assert (_failure(decision), decision.text) == (reason, text)


@pytest.mark.parametrize(
    ("answer", "reason", "words"),
    [
        (ACCEPTED, decisions.TIMED_OUT, "timed out waiting for green: it is red"),
        (
            LOST,
            decisions.NO_ANSWER,
            "Go was requested 40 times, and the outcome of the last attempt is unknown: 503; it is red",
        ),
        (FULL, "NoRoom", "Go was requested 40 times, and the last attempt failed: no room; it is red"),
    ],
    ids=["accepted", "answer lost", "not done"],
)
def test_call_without_attempt_limit_is_retried_until_the_stage_limit(answer: Answer, reason: str, words: str) -> None:
    stages = {**LONG.stages, "Going": dataclasses.replace(LONG.stages["Going"], attempts=None)}
    patient = dataclasses.replace(LONG, stages=stages)
    run = replace(GOING, attempt=40)
    asked = _decide(run, procedure=patient, answer=answer, in_stage_s=99.0, since_call_s=21.0)
    assert isinstance(asked, CallAction)
    why = f"; the last attempt failed: {answer.text}" if answer.outcome is CallOutcome.NOT_DONE else ""
    assert (asked.attempt, asked.text) == (41, f"Go requested (attempt 41); waiting for green{why}")
    over = _decide(run, procedure=patient, answer=answer, in_stage_s=100.0, since_call_s=21.0)
    assert (_failure(over), over.text) == (reason, words)


def test_a_wait_for_the_next_attempt_says_why_the_last_one_failed() -> None:
    decision = _decide(GOING, procedure=LONG, answer=FULL, since_call_s=1.0)
    assert isinstance(decision, Wait)
    assert decision.text == "Go requested; waiting for green; the last attempt failed: no room"


def test_an_ask_that_surely_was_not_done_is_repeated_sooner() -> None:
    not_done = Answer(CallOutcome.NOT_DONE, "NoAnswer", "refused")
    waiting = _decide(GOING, procedure=LONG, answer=not_done, since_call_s=3.0)
    assert isinstance(waiting, Wait)
    assert waiting.text.endswith("; the last attempt failed: refused")
    assert isinstance(_decide(GOING, procedure=LONG, answer=not_done, since_call_s=4.0), CallAction)
    spent = _decide(replace(GOING, attempt=3), procedure=LONG, answer=not_done, since_call_s=20.0)
    assert _failure(spent) == "NoAnswer"


@pytest.mark.parametrize("answer", [ACCEPTED, LOST], ids=["accepted", "answer lost"])
def test_what_must_not_be_sent_twice_is_not_sent_twice(answer: Answer) -> None:
    back = replace(GOING, stage="Back", action="Stop")
    for seconds in (0.0, 50.0, 99.0):
        decision = _decide(back, GREEN, procedure=LONG, answer=answer, in_stage_s=seconds, since_call_s=seconds)
        assert isinstance(decision, Wait), seconds
    late = _decide(back, GREEN, procedure=LONG, answer=answer, in_stage_s=100.0, since_call_s=100.0)
    assert _failure(late) == (decisions.OUTCOME_UNKNOWN if answer is LOST else decisions.TIMED_OUT)


def test_unrepeatable_call_may_be_retried_if_surely_not_done() -> None:
    back = replace(GOING, stage="Back", action="Stop")
    decision = _decide(back, GREEN, procedure=LONG, answer=Answer(CallOutcome.NOT_DONE), since_call_s=10.0)
    assert isinstance(decision, CallAction)
    assert decision.attempt == 2


def test_a_refusal_fails_with_its_reason_or_goes_the_other_way() -> None:
    refused = Answer(CallOutcome.REFUSED, "Forbidden", "not with me")
    assert _failure(_decide(GOING, answer=refused)) == "Forbidden"
    other_way = dataclasses.replace(
        SOUND, stages={**SOUND.stages, "Going": Stage("green", limit_s=10, on_timeout=Step("Back", action="Stop"))}
    )
    decision = _decide(GOING, procedure=other_way, answer=refused)
    assert isinstance(decision, CallAction)
    assert (decision.stage, decision.action) == ("Back", "Stop")


# Limits


def test_a_stage_past_its_limit_leaves_the_other_way_or_fails() -> None:
    decision = _decide(replace(START, action=None), Observation(Light.RED), procedure=_looking(), in_stage_s=10.0)
    assert isinstance(decision, EnterStage)
    assert decision.stage == "Going"
    assert _failure(_decide(GOING, answer=ACCEPTED, in_stage_s=10.0)) == decisions.TIMED_OUT


def _looking() -> Procedure:
    return dataclasses.replace(SOUND, table={**SOUND.table, ("Start", Light.RED): Step("Start")})


def test_the_wait_ends_no_later_than_the_stage() -> None:
    decision = _decide(procedure=_looking(), in_stage_s=9.5, observations=50)
    assert isinstance(decision, Wait)
    assert decision.requeue_s <= 0.5
    assert decision.until_s == pytest.approx(0.5)


def test_the_deadline_ends_any_stage() -> None:
    for run in (START, GOING, replace(GOING, stage="Back", action="Stop")):
        assert _failure(_decide(run, spent_s=1000.0)) == decisions.DEADLINE_EXCEEDED


def test_a_dwell_is_waited_for_before_an_end() -> None:
    back = replace(GOING, stage="Back", action="Stop")
    early = _decide(back, RED, answer=ACCEPTED, in_stage_s=4.0)
    assert isinstance(early, Wait)
    assert early.requeue_s <= 1.0
    assert _failure(_decide(back, RED, answer=ACCEPTED, in_stage_s=5.0)) == decisions.CANCELLED


def test_a_dwell_is_not_over_for_a_look_that_began_before() -> None:
    back = replace(GOING, stage="Back", action="Stop")
    decision = _decide(back, RED, answer=ACCEPTED, in_stage_s=6.0, observed_from_s=3.0)
    assert isinstance(decision, Wait)
    assert decision.requeue_s <= 2.0


# Cleanup

TIDY = dataclasses.replace(
    SOUND,
    stages={
        **SOUND.stages,
        "Going": dataclasses.replace(SOUND.stages["Going"], cleanup_stage="After"),
        "After": Stage("all to be put away", limit_s=10, attempts=2, retry_after_s=1.0, is_cleanup=True),
    },
    table={
        **SOUND.table,
        ("After", Light.RED): Step("After", action="Go"),
        ("After", Light.GREEN): Step("After", fail="NotNoted", message="nobody knows why"),
    },
)
TIDYING = replace(GOING, stage="After", action="Go", attempt=1, failing=PendingFailure("Broken", "it broke"))
REFUSED = Answer(CallOutcome.REFUSED, "No", "no way")
FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "its deadline": ({"spent_s": 1000.0}, decisions.DEADLINE_EXCEEDED),
    "its deadline, unseen": ({"spent_s": 1000.0, "sight": BLIND}, decisions.DEADLINE_EXCEEDED),
    "its limit": ({"in_stage_s": 10.0}, decisions.TIMED_OUT),
    "a refusal": ({"answer": REFUSED}, "No"),
    "a refusal, unseen": ({"answer": REFUSED, "sight": BLIND}, "No"),
    "attempts that are used up": ({"in_stage_s": 10.0, "run": replace(GOING, attempt=3)}, decisions.NO_EFFECT),
    "an outside that cannot be read": ({"sight": BLIND, "in_stage_s": SOUND.unobservable_limit_s}, "NoAnswer"),
}


def test_the_tidy_one_is_sound() -> None:
    assert TIDY.faults() == []


@pytest.mark.parametrize("what", FAILURES)
def test_a_failure_goes_through_the_aftermath_and_is_noted(what: str) -> None:
    given, reason = FAILURES[what]
    decision = _decide(**{"run": GOING, "procedure": TIDY, "answer": ACCEPTED, **given})
    assert isinstance(decision, EnterStage)
    assert decision.stage == "After"
    assert decision.failing is not None
    assert decision.failing.reason == reason
    plain = _decide(**{"run": GOING, "answer": ACCEPTED, **given})  # the same without an aftermath
    assert isinstance(plain, Finish)
    assert (decision.failing.reason, decision.failing.text) == (plain.reason, plain.text)


def test_what_the_aftermath_undoes_is_undone_when_it_is_cancelled() -> None:
    undone = dataclasses.replace(
        TIDY, stages={**TIDY.stages, "Going": dataclasses.replace(TIDY.stages["Going"], cancel=Cancel.UNDO, undo=None)}
    )
    assert undone.faults() == []
    decision = _decide(GOING, procedure=undone, answer=ACCEPTED, cancel=True)
    assert isinstance(decision, EnterStage)
    assert (decision.stage, decision.failing) == (
        "After",
        PendingFailure(decisions.CANCELLED, "cancelled after Go was requested; it is red"),
    )


def test_cleanup_stage_starts_blindly_without_observations() -> None:
    stages = {**TIDY.stages, "After": dataclasses.replace(TIDY.stages["After"], blind="Go", left="left on")}
    blind = dataclasses.replace(TIDY, stages=stages)
    assert blind.faults() == []
    asks = _decide(GOING, BLIND, procedure=blind, answer=ACCEPTED, spent_s=1000.0)
    assert isinstance(asks, CallAction)
    assert (asks.stage, asks.action, asks.failing and asks.failing.reason) == ("After", "Go", "DeadlineExceeded")
    assert isinstance(_decide(GOING, RED, procedure=blind, answer=ACCEPTED, spent_s=1000.0), EnterStage)
    left = _decide(TIDYING, BLIND, procedure=blind, answer=ACCEPTED, in_stage_s=10.0)
    assert isinstance(left, Finish)
    assert left.text.endswith("; the host is left on")


def test_the_end_of_an_aftermath_tells_what_it_has_seen() -> None:
    seeing = dataclasses.replace(
        TIDY, table={**TIDY.table, ("After", Light.GREEN): Step("After", fail="No", evidence="it is tidy")}
    )
    done = _decide(TIDYING, GREEN, procedure=seeing, answer=ACCEPTED)
    assert isinstance(done, Finish)
    assert (done.reason, done.text, done.evidence) == (
        "Broken",
        "in the end, it is tidy; it is green; before that: it broke",
        "it is tidy",
    )


@pytest.mark.parametrize("given", [{"in_stage_s": 10.0}, {"spent_s": 1000.0}, {"answer": REFUSED}])
def test_a_stage_on_which_nothing_rests_does_not_fail_what_is_complete(given: dict[str, Any]) -> None:
    stages = {**SOUND.stages, "Going": dataclasses.replace(SOUND.stages["Going"], on_timeout=Step(COMPLETE))}
    spare = dataclasses.replace(SOUND, stages=stages, proof=frozenset())
    decision = _decide(
        **{"run": GOING, "procedure": spare, "answer": Answer(CallOutcome.NOT_DONE, "No", "no way"), **given}
    )
    assert isinstance(decision, Finish)
    assert decision.is_complete
    assert decision.text == f"it is red; timed out waiting for {stages['Going'].waits_for}: no way"


def test_a_target_that_is_another_one_has_no_aftermath() -> None:
    assert _failure(_decide(GOING, procedure=TIDY, lost=OTHER)) == OTHER.reason


def test_cleanup_stage_acts_past_the_deadline_and_keeps_the_failure() -> None:
    asks = _decide(replace(TIDYING, action=None, attempt=0), procedure=TIDY, spent_s=5000.0)
    assert isinstance(asks, CallAction)
    assert (asks.stage, asks.action) == ("After", "Go")
    done = _decide(TIDYING, GREEN, procedure=TIDY, answer=ACCEPTED, spent_s=5000.0)
    assert isinstance(done, Finish)
    assert (done.reason, done.text) == ("Broken", "it broke")


@pytest.mark.parametrize(
    "given",
    [
        {"in_stage_s": 10.0},
        {"answer": REFUSED},
        {"sight": BLIND, "in_stage_s": 10.0},
        {"in_stage_s": 10.0, "run": replace(TIDYING, attempt=2)},
    ],
    ids=["limit", "refusal", "unseen", "attempts"],
)
def test_failed_cleanup_stage_is_reported_beside_the_failure(given: dict[str, Any]) -> None:
    decision = _decide(**{"run": TIDYING, "procedure": TIDY, "answer": ACCEPTED, **given})
    assert isinstance(decision, Finish)
    assert decision.reason == "Broken"
    assert decision.text.startswith("it broke; after that, ")
    assert len(decision.text) > len("it broke; after that, ")


# Nothing to see


def test_a_blind_look_waits_and_says_so() -> None:
    decision = _decide(GOING, BLIND)
    assert isinstance(decision, Wait)
    assert decision.reason == "NoAnswer"
    assert "nobody answers" in decision.text
    assert decision.until_s == SOUND.unobservable_limit_s


def test_a_blind_operation_ends_after_its_limit() -> None:
    assert _failure(_decide(GOING, BLIND, in_stage_s=SOUND.unobservable_limit_s)) == "NoAnswer"


def test_what_only_a_person_can_change_ends_an_untouched_operation_at_once() -> None:
    final = NotObservable("CredentialsMissing", "no Secret", final=True)
    assert _failure(_decide(START, final)) == "CredentialsMissing"
    assert isinstance(_decide(GOING, final), Wait)


# The right machine, cancel, settling


def test_another_machine_comes_before_everything() -> None:
    for sight in (RED, GREEN, BLIND):
        assert _failure(_decide(GOING, sight, lost=OTHER, cancel=True, spent_s=9999.0)) == OTHER.reason


def test_who_loses_its_machine_says_what_had_been_asked_of_it() -> None:
    asked, unseen = f"{GOING.action} had been requested", ", and its result was not observed"
    for run, sight, words in (
        (GOING, BLIND, f"{asked}{unseen}"),
        (GOING, GREEN, f"{asked}; it is green"),
        (START, BLIND, "no action had been requested"),
    ):
        decision = _decide(run, sight, lost=OTHER)
        assert isinstance(decision, Finish)
        assert decision.text.startswith(f"{OTHER.text}; ")
        assert decision.text.endswith(words)


@pytest.mark.parametrize(
    "given",
    [
        {"lost": OTHER},
        {"in_stage_s": SOUND.unobservable_limit_s},
        {"spent_s": 1000.0},
        {"answer": Answer(CallOutcome.REFUSED, "Forbidden", "not with me")},
    ],
    ids=["bound anew", "unseen", "deadline", "refused"],
)
def test_a_failure_that_sees_nothing_ends_with_what_was_seen_last(given: dict[str, Any]) -> None:
    decision = _decide(replace(GOING, standing="disk-1 is there"), BLIND, **given)
    assert isinstance(decision, Finish)
    assert decision.text.endswith("; last observation: disk-1 is there")


def test_cancel_at_once_undoes_or_says_that_it_is_too_late() -> None:
    careful = dataclasses.replace(
        SOUND, stages={**SOUND.stages, "Start": Stage("red", limit_s=10, cancel=Cancel.AT_ONCE)}
    )
    assert _failure(_decide(START, procedure=careful, cancel=True)) == decisions.CANCELLED
    undo = _decide(GOING, cancel=True, answer=ACCEPTED)
    assert isinstance(undo, CallAction)
    assert (undo.stage, undo.action) == ("Back", "Stop")
    too_late = _decide(replace(GOING, stage="Back", action="Stop"), GREEN, cancel=True, answer=ACCEPTED)
    assert isinstance(too_late, Wait)
    assert "point of no return" in too_late.text


def test_cancel_that_cannot_be_carried_out_yet_is_answered() -> None:
    decision = _decide(GOING, BLIND, cancel=True)
    assert isinstance(decision, Wait)
    assert "cancel requested" in decision.text


EVERYTHING: list[dict[str, Any]] = [
    {"sight": RED},
    {"sight": GREEN},
    {"sight": BLIND, "in_stage_s": 9999.0},
    {"lost": OTHER},
    {"cancel": True},
    {"in_stage_s": 9999.0},
    {"answer": Answer(CallOutcome.REFUSED, "No", "no")},
]


@pytest.mark.parametrize("trouble", EVERYTHING, ids=str)
def test_nothing_but_waiting_is_allowed_while_an_earlier_incarnation_can_act(trouble: dict[str, Any]) -> None:
    decision = _decide(GOING, settles_in_s=7.0, **trouble)
    assert isinstance(decision, Wait)
    assert decision.text
    assert 0 < decision.requeue_s <= 7.0


OPEN = Answer(CallOutcome.OPEN, text="an earlier process was about to send it")


def test_possible_call_of_another_process_settles_with_polling() -> None:
    for since_call_s in (0.0, 99.0):
        decision = _decide(GOING, answer=OPEN, since_call_s=since_call_s, settles_in_s=50.0)
        assert isinstance(decision, Wait)
        assert (decision.reason, decision.until_s) == (decisions.SETTLING, 50.0)
        assert "may have sent Go" in decision.text
        assert decision.requeue_s == SOUND.poll_s(0)


def test_the_deadline_is_kept_while_another_process_may_act() -> None:
    late = _decide(GOING, spent_s=1000.0, answer=OPEN, settles_in_s=50.0, late=(LateCall("p1", "Go", 50.0),))
    assert _failure(late) == decisions.DEADLINE_EXCEEDED


def test_a_wait_after_an_attempt_that_failed_has_the_reason_of_that() -> None:
    for answer, reason in (
        (FULL, "NoRoom"),
        (Answer(CallOutcome.NOT_DONE, decisions.NO_ANSWER, "429"), decisions.IN_PROGRESS),
    ):
        decision = _decide(GOING, answer=answer, since_call_s=1.0)
        assert isinstance(decision, Wait)
        assert decision.reason == reason


def test_wait_after_an_unknown_outcome_does_not_report_a_request() -> None:
    decision = _decide(GOING, answer=LOST, since_call_s=1.0)
    assert isinstance(decision, Wait)
    assert decision.text.startswith("the outcome of Go is unknown: 503; waiting for ")


# Late calls of ended processes

LATE = (LateCall("p1", "Go", 7.0),)
SETTLED = dataclasses.replace(SOUND, settled=frozenset({"Go"}))


def test_open_idempotent_call_is_repeated_at_once_without_attempt_limit() -> None:
    for run, procedure in ((GOING, SOUND), (replace(GOING, attempt=9), SOUND), (GOING, SETTLED)):
        again = _decide(run, procedure=procedure, answer=OPEN, late=LATE)
        assert isinstance(again, CallAction)
        assert (again.action, again.attempt) == ("Go", run.attempt + 1)


def test_an_open_call_that_must_not_be_sent_twice_is_not_repeated() -> None:
    once = dataclasses.replace(SOUND, actions={**SOUND.actions, "Go": Repeat.ONCE})
    assert isinstance(_decide(GOING, procedure=once, answer=OPEN, late=LATE), Wait)


def test_what_a_late_arrival_could_undo_is_watched_before_the_end() -> None:
    done = replace(GOING, stage="Back", action="Stop", epoch="p2")
    times: tuple[dict[str, Any], ...] = (
        {"in_stage_s": 9.0, "observed_from_s": 9.0},
        {"in_stage_s": 6.0, "observed_from_s": 6.0},
    )
    for timing in times:
        watched = _decide(done, RED, answer=ACCEPTED, late=LATE, **timing)
        assert isinstance(watched, Wait)
        assert (watched.reason, watched.until_s) == (decisions.SETTLING, 7.0)
        assert "may have sent Go; observing until" in watched.text
        assert _failure(_decide(done, RED, answer=ACCEPTED, **timing)) == decisions.CANCELLED


def test_the_end_that_the_late_call_itself_asks_for_is_not_watched() -> None:
    run = replace(GOING, attempt=2, epoch="p2")
    decision = _decide(run, GREEN, answer=ACCEPTED, late=LATE)
    assert isinstance(decision, Finish)
    assert decision.is_complete


def test_a_failure_does_not_wait_for_what_may_arrive() -> None:
    refused = Answer(CallOutcome.REFUSED, "No", "no")
    assert _failure(_decide(replace(GOING, epoch="p2"), answer=refused, late=LATE)) == "No"


def test_a_restored_target_is_watched_beyond_the_deadline_until_nothing_arrives() -> None:
    left = dataclasses.replace(
        TIDY, stages={**TIDY.stages, "After": dataclasses.replace(TIDY.stages["After"], left="left about")}
    )
    ends: dict[str, Any] = {"run": TIDYING, "sight": GREEN, "answer": ACCEPTED, "spent_s": 1000.0}
    stop = (LateCall("p1", "Stop", 7.0),)
    watched = _decide(**ends, procedure=left, late=stop)
    assert isinstance(watched, Wait)
    assert (watched.reason, watched.until_s) == (decisions.SETTLING, 7.0)
    harmless = dataclasses.replace(left, final=frozenset({"Stop"}))
    for one in ({"procedure": left}, {"procedure": harmless, "late": stop}, {"procedure": TIDY, "late": stop}):
        assert _failure(_decide(**ends, **one)) == "Broken"
    over = {**ends, "sight": RED, "in_stage_s": 10.0}  # its limit ends it, whatever may arrive
    assert _failure(_decide(**over, procedure=left, late=stop)) == "Broken"


def test_after_what_would_destroy_others_come_when_it_can_no_longer_arrive() -> None:
    undo: dict[str, Any] = {"procedure": SETTLED, "cancel": True, "answer": ACCEPTED}
    held = _decide(replace(GOING, epoch="p2"), late=LATE, **undo)
    assert isinstance(held, Wait)
    assert (held.reason, held.until_s) == (decisions.SETTLING, 7.0)
    assert "which would disturb the next step" in held.text
    assert isinstance(_decide(replace(GOING, epoch="p2"), **undo), CallAction)
    harmless = _decide(replace(GOING, epoch="p2"), late=LATE, cancel=True, answer=ACCEPTED)
    assert isinstance(harmless, CallAction)


@pytest.mark.parametrize(("lost", "waits"), [(False, False), (True, True)])
def test_call_with_observed_effect_is_not_late_unless_sent_twice(*, lost: bool, waits: bool) -> None:
    leads_on = dataclasses.replace(
        SETTLED, table={**SETTLED.table, ("Going", Light.GREEN): Step("Back", action="Stop", evidence="green")}
    )
    decision = _decide(GOING, GREEN, procedure=leads_on, answer=replace(OPEN, lost=lost), late=LATE)
    assert isinstance(decision, Wait if waits else CallAction)


# Calls with a key

KEYED = dataclasses.replace(SOUND, actions={**SOUND.actions, "Go": Repeat.KEYED})
UNHEARD = Answer(CallOutcome.NOT_DONE, "NoAnswer", "429", lost=True)
SOON: dict[str, Any] = {"since_call_s": 5.0, "in_stage_s": 5.0}


@pytest.mark.parametrize("answer", [LOST, UNHEARD])
def test_keyed_call_is_retried_until_answered_regardless_of_observations(answer: Answer) -> None:
    waits = dataclasses.replace(KEYED, table={**KEYED.table, ("Going", Light.RED): Step("Going")})
    for procedure in (KEYED, waits):
        again = _decide(GOING, procedure=procedure, answer=answer, **SOON)
        assert isinstance(again, CallAction)
        assert (again.action, again.attempt) == ("Go", 2)
        for answered in (ACCEPTED, replace(ACCEPTED, lost=True)):
            assert isinstance(_decide(GOING, procedure=procedure, answer=answered, in_stage_s=9, since_call_s=9), Wait)
    assert isinstance(_decide(GOING, procedure=waits, answer=replace(UNHEARD, lost=False), **SOON), Wait)


def test_only_keyed_calls_are_retried_while_an_earlier_epoch_settles() -> None:
    settling: dict[str, Any] = {"settles_in_s": 7.0, "since_call_s": -7.0}
    again = _decide(GOING, procedure=KEYED, answer=OPEN, **settling)
    assert isinstance(again, CallAction)
    assert isinstance(_decide(GOING, answer=OPEN, **settling), Wait)
    for trouble in EVERYTHING[1:]:
        assert isinstance(_decide(GOING, procedure=KEYED, **settling, **trouble), Wait)


def test_keyed_call_accepted_after_a_lost_answer_is_not_awaited() -> None:
    accepted, patient = replace(ACCEPTED, lost=True), dataclasses.replace(KEYED.stages["Going"], limit_s=900.0)
    procedure = dataclasses.replace(KEYED, stages={**KEYED.stages, "Going": patient})
    assert isinstance(_decide(GOING, procedure=procedure, answer=accepted, since_call_s=19.0), Wait)
    assert (
        _failure(_decide(GOING, procedure=procedure, answer=accepted, since_call_s=20.0)) == decisions.OUTCOME_UNKNOWN
    )
    assert isinstance(_decide(GOING, procedure=procedure, answer=ACCEPTED, since_call_s=20.0), Wait)


@pytest.mark.parametrize("answer", [LOST, UNHEARD])
def test_what_carries_a_key_and_was_never_answered_is_an_unknown_outcome(answer: Answer) -> None:
    last = replace(GOING, attempt=3)
    late: dict[str, Any] = {"since_call_s": 60.0, "in_stage_s": 60.0}
    assert _failure(_decide(last, procedure=KEYED, answer=answer, **late)) == decisions.OUTCOME_UNKNOWN
    assert _failure(_decide(GOING, procedure=KEYED, answer=answer, in_stage_s=11.0)) == decisions.OUTCOME_UNKNOWN


# Laws for any sequence

POWER = [
    (OperationKind.HOST_REBOOT, {}),
    (OperationKind.HOST_REBOOT, {"force": "true"}),
    (OperationKind.HOST_POWER_OFF, {}),
    (OperationKind.HOST_POWER_OFF, {"force": "true"}),
    (OperationKind.HOST_POWER_ON, {}),
]
REPLIES = [
    ACCEPTED,
    LOST,
    Answer(CallOutcome.NOT_DONE, "NoAnswer", "refused"),
    Answer(CallOutcome.REFUSED, "BMCRefused", "no"),
]
SIGHTS = st.sampled_from(
    [
        *(Observation(fact, detail=fact) for fact in power.BmcPowerFact),
        BLIND,
        NotObservable("CredentialsMissing", "no Secret", final=True),
    ]
)


class Walk:
    """One operation under a sequence of facts and answers, on a clock that advances by each decision's wait."""

    def __init__(self, procedure: Procedure, deadline_s: float) -> None:
        self.procedure = procedure
        self.deadline_s = deadline_s
        self.run = replace(START, stage=procedure.start)
        self.now = self.entered = self.asked = 0.0
        self.looks = 0
        self.answer = NO_ANSWER
        self.asks: list[tuple[str, str, int]] = []

    def step(self, sight: Observation | NotObservable, reply: Answer, *, cancel: bool) -> Finish | None:
        timing = Timing(self.now - self.entered, self.now - self.asked, self.now, observations=self.looks)
        self.looks += 1
        decision = decide(self.procedure, self.run, sight, timing, self.answer, OwnerRequest(self.deadline_s, cancel))
        match decision:
            case Wait(requeue_s=again_s):
                assert again_s > 0
                assert decision.text
                self.now += again_s
            case CallAction():
                self._enter(decision.stage, decision.evidence, decision.action, decision.attempt)
                self.asks.append((decision.stage, decision.action, decision.attempt))
                self.asked, self.answer = self.now, reply
                self.now += self.procedure.poll_s(0)
            case EnterStage():
                self._enter(decision.stage, decision.evidence, None, 0)
                self.answer = NO_ANSWER
                self.now += self.procedure.stages[decision.stage].dwell_s or self.procedure.poll_s(0)
            case Finish():
                self.run = replace(self.run, evidence=self.run.with_evidence(decision.evidence, at=NOW, where=""))
                return decision
        return None

    def _enter(self, stage: str, seen: str | None, action: str | None, attempt: int) -> None:
        if stage != self.run.stage:
            self.entered, self.looks = self.now, 0
        evidence = self.run.with_evidence(seen, at=NOW, where="")
        self.run = replace(self.run, stage=stage, action=action, attempt=attempt, evidence=evidence)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(POWER), st.lists(st.tuples(SIGHTS, st.sampled_from(REPLIES)), min_size=1, max_size=30), st.data()
)
def test_any_sequence_ends_within_its_limits_and_complete_has_its_proof(
    kind: tuple[OperationKind, dict[str, str]],
    facts: list[tuple[Observation | NotObservable, Answer]],
    data: st.DataObject,
) -> None:
    """The facts are repeated until the end; the deadline is far, so that the stages' own limits have to do."""
    operation = operation_of(kind=kind[0], parameters=kind[1])
    procedure = power.PROCEDURES[kind[0]](operation)
    walk = Walk(procedure, deadline_s=4_000.0)
    cancel_at = data.draw(st.none() | st.integers(0, 40), label="cancelled at step")
    for count in range(30_000):
        sight, reply = facts[count % len(facts)]
        ended = walk.step(sight, reply, cancel=cancel_at is not None and count >= cancel_at)
        if ended is not None:
            break
    else:
        raise AssertionError(f"no end after {walk.now} s in {walk.run}")
    assert walk.now <= walk.deadline_s + max(stage.limit_s for stage in procedure.stages.values())
    if ended.is_complete:
        assert procedure.proof <= {evidence.what for evidence in walk.run.evidence}
    assert ended.text
    for stage, _action, attempt in walk.asks:
        assert attempt <= (procedure.stages[stage].attempts or 0)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.sampled_from(POWER), SIGHTS, st.sampled_from(REPLIES))
def test_a_world_that_never_changes_ends_every_operation_by_its_own_limits(
    kind: tuple[OperationKind, dict[str, str]], sight: Observation | NotObservable, reply: Answer
) -> None:
    procedure = power.PROCEDURES[kind[0]](operation_of(kind=kind[0], parameters=kind[1]))
    walk = Walk(procedure, deadline_s=float("inf"))
    most_s = sum(max(stage.limit_s, procedure.unobservable_limit_s) for stage in procedure.stages.values())
    while walk.now <= most_s + 60:
        if walk.step(sight, reply, cancel=False) is not None:
            return
    raise AssertionError(f"still at it after {walk.now} s: {walk.run}")


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.sampled_from(POWER), st.lists(st.sampled_from(list(power.BmcPowerFact)), min_size=1, max_size=40))
def test_a_graceful_shutdown_is_asked_for_once(
    kind: tuple[OperationKind, dict[str, str]], facts: list[power.BmcPowerFact]
) -> None:
    procedure = power.PROCEDURES[kind[0]](operation_of(kind=kind[0], parameters=kind[1]))
    walk = Walk(procedure, deadline_s=5_000.0)
    for count in range(20_000):
        if walk.step(Observation(facts[count % len(facts)]), ACCEPTED, cancel=False) is not None:
            break
    asked = [(stage, action) for stage, action, _attempt in walk.asks]
    once = {action for action, repeat in procedure.actions.items() if repeat is Repeat.ONCE}
    for before, after in pairwise(asked):
        assert not (before == after and before[1] in once)


# Declarations of a procedure about its limits, its progress, and a world that continues


def _with_going(**fields: Any) -> Procedure:
    return dataclasses.replace(
        SOUND, stages={**SOUND.stages, "Going": dataclasses.replace(SOUND.stages["Going"], **fields)}
    )


def test_what_is_on_its_way_at_the_limit_has_longer() -> None:
    late = dataclasses.replace(SOUND.stages["Start"], limit_s=10.0, late_s=5.0, on_timeout=None)
    table = {**SOUND.table, ("Start", Light.RED): Step("Start"), ("Start", Light.GREEN): Step("Start", action="Go")}
    slow = dataclasses.replace(SOUND, stages={**SOUND.stages, "Start": late}, table=table)
    asked = replace(START, action="Go", attempt=1)
    waits = _decide(asked, RED, procedure=slow, answer=ACCEPTED, in_stage_s=14.0)
    assert isinstance(waits, Wait)
    assert waits.until_s == 1.0
    for sight, in_stage_s in ((RED, 15.0), (GREEN, 14.0)):
        ended = _decide(asked, sight, procedure=slow, answer=ACCEPTED, in_stage_s=in_stage_s)
        assert _failure(ended) == decisions.TIMED_OUT


@pytest.mark.parametrize("sight", [RED, BLIND])
def test_a_limit_can_have_its_own_reason_and_words(sight: Observation | NotObservable) -> None:
    procedure = _with_going(on_timeout=Step("Going", fail="TooSlow", message="it never turned green"))
    assert procedure.faults() == []
    decision = _decide(
        GOING, sight, procedure=procedure, answer=Answer(CallOutcome.REFUSED, "No", "no"), in_stage_s=9.0
    )
    assert _failure(decision) == "TooSlow"
    assert isinstance(decision, Finish)
    assert decision.text.startswith("it never turned green: ")
    if isinstance(sight, Observation):
        late = _decide(GOING, sight, procedure=procedure, answer=ACCEPTED, in_stage_s=11.0)
        assert _failure(late) == "TooSlow"


def test_spent_attempts_have_the_reason_of_the_stage() -> None:
    procedure = _with_going(on_timeout=Step("Going", fail="TooSlow"), attempts=1)
    decision = _decide(GOING, RED, procedure=procedure, answer=ACCEPTED, since_call_s=1000.0, in_stage_s=1000.0)
    assert _failure(decision) == "TooSlow"
    assert isinstance(decision, Finish)
    assert "Go was requested once" in decision.text


def test_cancel_after_the_point_of_no_return_is_ignored() -> None:
    table = {**SOUND.table, ("Going", Light.GREEN): Step("Back", evidence="green")}
    procedure = dataclasses.replace(SOUND, table=table)
    assert SOUND.stages["Back"].cancel is Cancel.TOO_LATE
    gone_on = _decide(GOING, GREEN, procedure=procedure, cancel=True)
    assert isinstance(gone_on, EnterStage)
    assert (gone_on.stage, gone_on.evidence) == ("Back", "green")
    undone = _decide(GOING, RED, procedure=procedure, cancel=True)
    assert isinstance(undone, CallAction)
    assert undone.action == "Stop"


def test_a_wait_tells_how_far_it_is() -> None:
    some = Observation(Light.RED, detail="it is red", progress="42 % of the light")
    decision = _decide(GOING, some, answer=ACCEPTED)
    assert isinstance(decision, Wait)
    assert decision.text == "Go requested; waiting for green: 42 % of the light"


def test_a_stage_in_which_nothing_moves_ends_before_its_limit() -> None:
    procedure = _with_going(stalled_s=4.0)
    moving = _decide(GOING, RED, procedure=procedure, answer=ACCEPTED, in_stage_s=9.0, stalled_s=3.9)
    assert isinstance(moving, Wait)
    stuck = _decide(GOING, RED, procedure=procedure, answer=ACCEPTED, in_stage_s=9.0, stalled_s=4.0)
    assert _failure(stuck) == decisions.TIMED_OUT
    assert isinstance(stuck, Finish)
    assert stuck.text == "no progress for 4 s while Go requested; waiting for green: it is red"


def test_a_failure_of_a_row_has_its_own_words() -> None:
    failing = Step("Start", fail="Broken", message="the lamp is broken")
    broken = dataclasses.replace(SOUND, table={**SOUND.table, ("Start", Light.RED): failing})
    decision = _decide(procedure=broken)
    assert isinstance(decision, Finish)
    assert decision.text == "the lamp is broken: it is red"
