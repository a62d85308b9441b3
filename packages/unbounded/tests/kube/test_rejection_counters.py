"""Counting odd packets: all are counted, few are logged."""

from __future__ import annotations

import logging

import pytest

from unbounded.kube.logs import Log
from unbounded.kube.rejection_counters import LOG_EVERY_S, REMEMBERED_THINGS, RejectionCounters, RepeatFilter


def test_a_flood_is_counted_whole_and_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    tally = RejectionCounters(Log("flood"), lambda: now[0])
    with caplog.at_level(logging.INFO, "flood"):
        for _ in range(100):
            for _ in range(50):
                tally.count("unknown MAC")
            now[0] += LOG_EVERY_S / 40
        tally.count("malformed")
    assert tally.counts == {"unknown MAC": 5000, "malformed": 1}
    fields = [record.fields for record in caplog.records if hasattr(record, "fields")]
    assert [(one["reason"], one["times"]) for one in fields] == [
        ("unknown MAC", 1),
        ("unknown MAC", 2000),
        ("unknown MAC", 2000),
        ("malformed", 1),
    ]


def test_a_finding_is_passed_on_once_and_again_later() -> None:
    now = [0.0]
    once = RepeatFilter(lambda: now[0], again_after_s=60)
    assert [once.allows("a"), once.allows("a"), once.allows("b")] == [True, False, True]
    now[0] = 61
    assert once.allows("a")


def test_only_so_many_findings_are_remembered() -> None:
    once = RepeatFilter(lambda: 0.0)
    assert all(once.allows(number) for number in range(REMEMBERED_THINGS + 1))
    assert once.allows(0)
    assert not once.allows(REMEMBERED_THINGS)
