"""A process's knowledge of its own calls outlasts records that are read late."""

from __future__ import annotations

from typing import Final

import pytest
from msgspec.structs import replace

from unbounded.workflow.run_record import NO_ANSWER, Answer, CallEvent, CallOutcome, LateCall, RunRecord
from unbounded.workflow.run_state import DOWN_S, OwnCall, RecordReader, RunState

ME: Final = "me"
BEFORE: Final = RunRecord(epoch=ME, stage="Starting")
ASKED: Final = replace(BEFORE, stage="Restarting", action="Restart", attempt=1)
ACCEPTED: Final = Answer(CallOutcome.ACCEPTED)


def _asked() -> tuple[RunState, OwnCall]:
    """The state of a process that has written its intent and sent its request, and the call."""
    state = RunState("uid")
    state.record_written(BEFORE, ME, 0.0)
    state.record_written(ASKED, ME, 1.0)
    return state, state.record_call(ASKED.intent, 2.0)


def test_an_answer_is_not_forgotten_for_a_record_that_is_read_late() -> None:
    state, call = _asked()
    state.record_answer(call, CallEvent.ACCEPT, "", "", 3.0)

    state.update(BEFORE, RecordReader(ME, 4.0))
    state.update(ASKED, RecordReader(ME, 5.0))

    assert (state.answer, state.answered_at, state.late) == (ACCEPTED, 3.0, {})


def test_answer_during_a_stale_record_is_kept_until_it_catches_up() -> None:
    state, call = _asked()

    state.update(BEFORE, RecordReader(ME, 3.0))
    state.record_answer(call, CallEvent.ACCEPT, "", "", 4.0)
    late = state.answer
    state.update(ASKED, RecordReader(ME, 5.0))

    assert [late.outcome, state.answer.outcome, state.answered_at] == [CallOutcome.NONE, CallOutcome.ACCEPTED, 4.0]


def test_what_is_on_its_way_is_not_taken_for_never_sent() -> None:
    state, _call = _asked()

    state.update(BEFORE, RecordReader(ME, 3.0))
    state.update(ASKED, RecordReader(ME, 4.0))

    assert state.answer.outcome is CallOutcome.SENT


def test_what_was_written_and_not_sent_is_known_as_that() -> None:
    state = RunState("uid")

    state.record_written(ASKED, ME, 1.0)

    assert state.answer.outcome is CallOutcome.WRITTEN


def test_answer_to_an_earlier_equal_call_is_not_reused() -> None:
    state, call = _asked()
    state.record_answer(call, CallEvent.ACCEPT, "", "", 3.0)

    state.record_written(BEFORE, ME, 4.0)
    state.record_written(ASKED, ME, 5.0)
    state.update(BEFORE, RecordReader(ME, 6.0))
    state.update(ASKED, RecordReader(ME, 7.0))

    assert state.answer.outcome is CallOutcome.WRITTEN


@pytest.mark.parametrize("incarnation", [ME, "another"])
def test_handle_read_after_its_intent_means_an_accepted_call(incarnation: str) -> None:
    state, run = RunState("uid"), replace(ASKED, epoch=incarnation)
    state.update(run, RecordReader(ME, 1.0))
    first = state.answer.outcome

    state.update(replace(run, handle="call-7"), RecordReader(ME, 2.0))

    assert first is not CallOutcome.ACCEPTED
    assert (state.answer.outcome, state.late, state.answered_at) == (CallOutcome.ACCEPTED, {}, 2.0)
    assert state.answer.lost is (incarnation != ME)


def test_stage_without_action_ignores_the_handle_of_the_previous_stage() -> None:
    state, moved = RunState("uid"), replace(BEFORE, handle="call-7")

    state.update(moved, RecordReader(ME, 1.0))
    state.update(moved, RecordReader(ME, 2.0))

    assert (state.answer.outcome, state.answered_at) == (CallOutcome.NONE, 1.0)


# Traces of another process

ENDED, ACTS = (lambda _identity: True), (lambda _identity: False)


def _reader(now: float, *, ended: bool = True, down_s: float = 0.0) -> RecordReader:
    return RecordReader("successor", now, ENDED if ended else ACTS, landing_s=30.0, settle_s=45.0, down_s=down_s)


def _late(state: RunState, at: float) -> list[tuple[str, str, float]]:
    return [(one.epoch, one.action, one.left_s) for one in state.late_calls(at)]


@pytest.mark.parametrize(("ended", "left_s"), [(True, 30.0), (False, 45.0)])
def test_unanswered_call_is_late_for_the_longest_call_time(*, ended: bool, left_s: float) -> None:
    state = RunState("uid")
    state.update(ASKED, _reader(100.0, ended=ended))
    assert state.answer.outcome is CallOutcome.OPEN
    assert _late(state, 110.0) == [(ME, "Restart", left_s - 10.0)]
    assert state.timing(110.0).settles_in_s == (0.0 if ended else left_s - 10.0)
    assert _late(state, 100.0 + left_s) == []


@pytest.mark.parametrize(
    ("stored", "reply"),
    [
        (replace(ASKED, answer=ACCEPTED), CallOutcome.ACCEPTED),
        (replace(ASKED, answer=Answer(CallOutcome.UNKNOWN, "NoAnswer", "503")), CallOutcome.UNKNOWN),
        (replace(ASKED, answer=Answer(CallOutcome.REFUSED, "No", "no")), CallOutcome.REFUSED),
        (replace(ASKED, handle="call-7"), CallOutcome.ACCEPTED),
        (BEFORE, CallOutcome.NONE),
    ],
)
def test_what_was_answered_needs_no_wait(stored: RunRecord, reply: CallOutcome) -> None:
    state = RunState("uid")
    state.update(stored, _reader(100.0))
    assert (state.answer.outcome, state.late) == (reply, {})


def test_an_answer_that_its_process_stored_late_ends_the_wait() -> None:
    state = RunState("uid")
    state.update(ASKED, _reader(100.0))
    state.update(replace(ASKED, answer=ACCEPTED), _reader(101.0))
    assert (state.answer.outcome, state.late) == (CallOutcome.ACCEPTED, {})


def test_a_stored_answer_is_as_old_as_the_first_sight_of_it() -> None:
    state, run = RunState("uid"), replace(ASKED, answer=Answer(CallOutcome.UNKNOWN, "NoAnswer", "503"))
    state.update(run, _reader(100.0))
    state.update(run, _reader(170.0))
    assert state.timing(170.0).since_call_s == 70.0


def test_late_time_of_a_call_is_counted_across_processes() -> None:
    second, third = RunState("uid"), RunState("uid")
    second.update(ASKED, _reader(100.0))
    record = second.recorded(ASKED, 120.5, "2026-01-01T00:01:00Z")
    assert record.late == (LateCall(ME, "Restart", 9.5),)

    third.update(record, _reader(7.0))
    assert _late(third, 7.0) == [(ME, "Restart", 9.5)]


def test_each_process_that_ends_with_an_open_call_is_waited_for() -> None:
    second, third = RunState("uid"), RunState("uid")
    second.update(ASKED, _reader(100.0))
    again = replace(ASKED, attempt=2, epoch="successor", answer=replace(NO_ANSWER, lost=True))
    record = second.recorded(again, 110.0, "2026-01-01T00:01:00Z")

    third.update(record, RecordReader("third", 0.0, ENDED, landing_s=30.0))
    assert _late(third, 0.0) == [("successor", "Restart", 30.0), (ME, "Restart", 20.0)]
    assert third.answer.lost


def test_times_go_on_where_the_process_before_left_them() -> None:
    state, run = RunState("uid"), replace(ASKED, spent_s=40, stage_s=25)
    state.update(run, _reader(100.0, down_s=12.0))
    timing = state.timing(101.0)
    assert (timing.spent_s, timing.in_stage_s) == (53, 26.0)


@pytest.mark.parametrize(("down_s", "counted"), [(-7200.0, 0), (86400.0, DOWN_S)])
def test_a_wall_clock_that_jumped_counts_for_little(down_s: float, counted: float) -> None:
    state = RunState("uid")
    state.update(replace(ASKED, spent_s=40), _reader(100.0, down_s=down_s))
    assert state.spent(100.0) == 40 + counted


def test_an_answer_is_kept_for_the_next_write_of_the_record() -> None:
    state, call = _asked()
    assert not state.has_unstored_answer
    state.record_answer(call, CallEvent.ACCEPT, "", "", 3.0)
    assert state.has_unstored_answer
    record = state.recorded(ASKED, 4.0, "2026-01-01T00:01:00Z")
    assert record.answer == ACCEPTED
    state.update(record, RecordReader(ME, 5.0))
    assert not state.has_unstored_answer
