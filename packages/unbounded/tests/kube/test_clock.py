"""Texts of durations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from unbounded.kube.clock import age


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172800, "2d")],
)
def test_ages_are_short(seconds: int, shown: str) -> None:
    assert age("2030-01-01T00:00:00Z", datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)) == shown
    assert age("", datetime(2030, 1, 1, tzinfo=UTC)) == ""
