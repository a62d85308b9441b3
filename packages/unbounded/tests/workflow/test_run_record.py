"""The table of what changes what is known of a call."""

from __future__ import annotations

import pytest

from unbounded.workflow.run_record import (
    NOT_SENT,
    STORED,
    TRANSITIONS,
    Answer,
    CallEvent,
    CallOutcome,
    LateCall,
    longest,
)

ANSWERS = {CallEvent.ACCEPT, CallEvent.FAIL, CallEvent.LOSE, CallEvent.REFUSE}


def test_takeover_opens_only_unanswered_calls() -> None:
    for reply in CallOutcome:
        after = TRANSITIONS[reply, CallEvent.TAKE_OVER]
        assert after is (
            CallOutcome.OPEN if reply in (CallOutcome.WRITTEN, CallOutcome.SENT, CallOutcome.OPEN) else reply
        )


def test_a_call_is_answered_once_and_only_when_it_was_sent() -> None:
    answered = {reply for reply, event in TRANSITIONS if event in ANSWERS}
    assert answered == {CallOutcome.SENT, CallOutcome.OPEN}
    assert {TRANSITIONS[CallOutcome.SENT, event] for event in ANSWERS} == STORED
    with pytest.raises(KeyError):
        Answer(CallOutcome.ACCEPTED).after(CallEvent.FAIL)
    with pytest.raises(KeyError):
        NOT_SENT.after(CallEvent.ACCEPT)


def test_a_call_is_sent_once() -> None:
    assert [reply for reply, event in TRANSITIONS if event is CallEvent.SEND] == [CallOutcome.WRITTEN]


def test_the_call_that_may_arrive_last_comes_first() -> None:
    calls = [LateCall("a", "On", 3.0), LateCall("b", "Off", 0.0), LateCall("c", "Off", 9.0), LateCall("d", "On", 1.0)]
    assert [call.epoch for call in longest(calls)] == ["c", "a", "d"]
