"""The benchmark of templates runs, and measures what its limits are about."""

from __future__ import annotations

import pytest

from benchmarks.templates import LIMITS, QUICK, measure


@pytest.mark.slow
async def test_a_quick_run_measures_what_the_limits_are_about() -> None:
    measured = await measure(True)
    assert measured.figures["renders"] == QUICK
    assert LIMITS.keys() <= measured.figures.keys() | measured.ratios.keys()
    assert measured.ratios["render_vs_plain_format"] > 0
