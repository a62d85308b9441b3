"""What a process knows of its own asks outlasts records that are read late."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from unbounded.operations.memory import Memory
from unbounded.operations.plan import Answer, Reply
from unbounded.operations.record import Run

ME: Final = "me"
BEFORE: Final = Run(
    machine="m",
    machine_uid="uid",
    executor="cloud",
    incarnation=ME,
    binding="vm",
    stage="Starting",
    started_at="2026-01-01T00:00:00Z",
)
ASKED: Final = replace(BEFORE, stage="Restarting", action="Restart", attempt=1)
ACCEPTED: Final = Answer(Reply.ACCEPTED)


def _asked() -> Memory:
    """The memory of a process that has written its intent and sent its request."""
    memory = Memory("uid")
    memory.wrote(BEFORE, ME, 0.0)
    memory.wrote(ASKED, ME, 1.0)
    memory.asks(2.0)
    return memory


def test_an_answer_is_not_forgotten_for_a_record_that_is_read_late() -> None:
    memory = _asked()
    memory.answered(ACCEPTED, 3.0)

    memory.follow(BEFORE, ME, 4.0)
    memory.follow(ASKED, ME, 5.0)

    assert (memory.answer, memory.asked_at, memory.foreign) == (ACCEPTED, 3.0, False)


def test_an_answer_that_comes_while_the_record_is_late_is_known_when_it_is_not_any_more() -> None:
    memory = _asked()

    memory.follow(BEFORE, ME, 3.0)
    memory.answered(ACCEPTED, 4.0)
    late = memory.answer
    memory.follow(ASKED, ME, 5.0)

    assert [late.reply, memory.answer.reply, memory.asked_at] == [Reply.NONE, Reply.ACCEPTED, 4.0]


def test_what_is_on_its_way_is_not_taken_for_never_sent() -> None:
    memory = _asked()

    memory.follow(BEFORE, ME, 3.0)
    memory.follow(ASKED, ME, 4.0)

    assert memory.answer.reply is Reply.UNKNOWN


def test_what_was_written_and_not_sent_is_known_as_that() -> None:
    memory = Memory("uid")

    memory.wrote(ASKED, ME, 1.0)

    assert memory.answer.reply is Reply.NOT_DONE


def test_the_answer_to_an_earlier_ask_of_the_same_words_is_not_that_to_this_one() -> None:
    memory = _asked()
    memory.answered(ACCEPTED, 3.0)

    memory.wrote(BEFORE, ME, 4.0)
    memory.wrote(ASKED, ME, 5.0)
    memory.follow(BEFORE, ME, 6.0)
    memory.follow(ASKED, ME, 7.0)

    assert memory.answer.reply is Reply.NOT_DONE


@pytest.mark.parametrize("incarnation", [ME, "another"])
def test_a_handle_that_is_read_later_than_its_intent_tells_that_it_was_accepted(incarnation: str) -> None:
    memory, run = Memory("uid"), replace(ASKED, incarnation=incarnation)
    memory.follow(run, ME, 1.0)
    first = memory.answer.reply

    memory.follow(replace(run, handle="call-7"), ME, 2.0)

    assert first is not Reply.ACCEPTED
    assert (memory.answer.reply, memory.foreign, memory.asked_at) == (Reply.ACCEPTED, False, 2.0)
    assert memory.answer.lost is (incarnation != ME)


def test_a_stage_that_asks_for_nothing_takes_no_answer_from_the_handle_of_the_one_before() -> None:
    memory, moved = Memory("uid"), replace(BEFORE, handle="call-7")

    memory.follow(moved, ME, 1.0)
    memory.follow(moved, ME, 2.0)

    assert (memory.answer.reply, memory.asked_at) == (Reply.NONE, 1.0)
