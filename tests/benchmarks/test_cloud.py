"""The benchmark of cloud operations runs, and what does not depend on the machine is within its limits."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from benchmarks.cloud import LIMITS, QUICK, SUBSCRIPTIONS, allowed_s
from tests.support.paths import ROOT


def test_the_kind_of_request_that_takes_longest_says_what_the_limits_allow() -> None:
    assert allowed_s({"reads": 250, "writes": 200, "deletes": 200}) == 0.0
    assert allowed_s({"reads": 500, "writes": 210}) == 10.0
    assert allowed_s({"reads": 500, "writes": 400}) == 20.0


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_quick_run_ends_with_a_result_that_holds_its_counts() -> None:
    command = [sys.executable, "-m", "benchmarks.cloud", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    result = msgspec.json.decode(run.stdout.splitlines()[-1], type=dict[str, Any])
    figures, ratios = result["figures"], result["ratios"]
    assert result["name"] == "cloud"
    assert (figures["operations"], figures["subscriptions"]) == (QUICK.operations, SUBSCRIPTIONS)
    assert LIMITS.keys() <= figures.keys() | ratios.keys()
    assert figures["refused_as_too_many"] == 0
    assert 2 <= figures["restart_calls_beside_polls"] <= (LIMITS["restart_calls_beside_polls"].most or 0) + 0.5
    assert figures["restart_polls"] >= 1
    assert ratios["p99_with_stalled_subscription"] > 0
