"""Conditions: what a write changes and what it leaves alone."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded.api.conditions import camel_reason, commands_last, fit_message, remove_condition, set_condition
from unbounded.api.fields import CONDITION_REASON, MAX_MESSAGE, MAX_REASON

EARLIER = "2026-01-01T00:00:00Z"
NOW = "2026-01-02T00:00:00Z"

REACHABLE: dict[str, Any] = {
    "type": "SSHReachable",
    "status": "True",
    "reason": "Reachable",
    "message": "port 22 answers",
    "lastTransitionTime": EARLIER,
    "futureField": 1,
}
OTHER: dict[str, Any] = {"type": "Repaved", "status": "False", "reason": "Pending", "lastTransitionTime": EARLIER}


def test_a_first_condition_starts_now() -> None:
    assert set_condition([], "SSHReachable", "True", "Reachable", "", NOW) == [
        {"type": "SSHReachable", "status": "True", "reason": "Reachable", "message": "", "lastTransitionTime": NOW}
    ]


def test_the_same_again_is_no_change() -> None:
    assert set_condition([REACHABLE], "SSHReachable", "True", "Reachable", "port 22 answers", NOW) is None


def test_an_absent_message_and_an_empty_one_are_the_same() -> None:
    assert set_condition([OTHER], "Repaved", "False", "Pending", "", NOW) is None


def test_another_message_keeps_the_transition_time_and_unknown_fields() -> None:
    changed = set_condition([REACHABLE, OTHER], "SSHReachable", "True", "Reachable", "port 2222 answers", NOW)
    assert changed == [REACHABLE | {"message": "port 2222 answers"}, OTHER]


def test_changed_status_updates_the_transition_time_of_the_condition() -> None:
    changed = set_condition([OTHER, REACHABLE], "Repaved", "True", "Succeeded", "", NOW)
    assert changed is not None
    assert [c["type"] for c in changed] == ["Repaved", "SSHReachable"]
    assert changed[0]["lastTransitionTime"] == NOW
    assert changed[1] == REACHABLE


def test_another_observed_generation_is_a_change() -> None:
    observed = REACHABLE | {"observedGeneration": 1}
    changed = set_condition(
        [observed], "SSHReachable", "True", "Reachable", "port 22 answers", NOW, observed_generation=2
    )
    assert changed == [observed | {"observedGeneration": 2}]


def test_what_was_read_is_not_altered() -> None:
    before = [dict(REACHABLE)]
    set_condition(before, "SSHReachable", "False", "Unreachable", "", NOW)
    assert before == [REACHABLE]


def test_removing_keeps_the_others_and_says_when_there_is_nothing_to_remove() -> None:
    assert remove_condition([REACHABLE, OTHER], "Repaved") == [REACHABLE]
    assert remove_condition([REACHABLE], "Repaved") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Reachable", "Reachable"),
        ("AuthFailed,Retry:2", "AuthFailed,Retry:2"),
        ("connection refused", "ConnectionRefused"),
        ("503 Service Unavailable", "ServiceUnavailable"),
        ("", "Unknown"),
        ("…", "Unknown"),
        ("Reason\n", "Reason"),
    ],
)
def test_text_becomes_a_reason_that_the_api_accepts(text: str, reason: str) -> None:
    assert camel_reason(text) == reason


@pytest.mark.slow
@given(st.text(st.characters(exclude_categories=[]), max_size=40))
def test_any_text_makes_a_condition_within_the_limits(text: str) -> None:
    made = set_condition([], "Repaved", "False", text, text, NOW)
    assert made is not None
    assert re.fullmatch(CONDITION_REASON, made[0]["reason"])
    made[0]["message"].encode()


def test_long_texts_are_cut_to_the_limits() -> None:
    assert len(camel_reason("aB" * MAX_REASON)) == MAX_REASON
    cut = fit_message("é" * (MAX_MESSAGE + 1))
    assert len(cut) == MAX_MESSAGE
    assert cut.endswith("é…")
    assert fit_message("é" * MAX_MESSAGE) == "é" * MAX_MESSAGE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no command: kubectl is a word here", "no command: kubectl is a word here"),
        ("it failed; drain it\nkubectl drain m1\n", "it failed; drain it\nkubectl drain m1"),
        (
            "drain it\nkubectl drain m1\n; the host is On [since 1]",
            "drain it; the host is On [since 1]\nkubectl drain m1",
        ),
        ("two\nkubectl a\nkubectl b\n; more", "two; more\nkubectl a\nkubectl b"),
        ("one\nkubectl a\n; after that\nkubectl a\n; more", "one; after that; more\nkubectl a"),
        ("lines\nof an error\nstay", "lines\nof an error\nstay"),
    ],
)
def test_a_message_ends_with_its_commands(text: str, message: str) -> None:
    assert commands_last(text) == message
    assert commands_last(message) == message
