"""Texts of durations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from unbounded.kube.clock import age, parsed_time, shown_seconds


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172800, "2d")],
)
def test_ages_are_short(seconds: int, shown: str) -> None:
    assert age("2030-01-01T00:00:00Z", datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)) == shown
    assert age("", datetime(2030, 1, 1, tzinfo=UTC)) == ""


@pytest.mark.parametrize(
    "written",
    ["2026-01-01T00:00:00z", "2026-01-01T00:00:00", "2026-01-01T00:00:00+99:99", "0000-01-01T00:00:00Z", "soon", ""],
)
def test_a_time_that_cannot_be_read_is_none(written: str) -> None:
    """A CRD takes most of them, and hosts write statuses."""
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert parsed_time(written) is None
    assert (age(written, now), shown_seconds(written, now)) == ("", 0.0)
    assert shown_seconds("2029-12-31T23:59:00Z", parsed_time(written)) == 0.0
    assert shown_seconds("2029-12-31T23:59:00Z", now) == 60.0
