"""The benchmark of rollouts runs, and what does not depend on the machine is within its limits."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from benchmarks.rollouts import LIMITS, QUICK
from tests.support.paths import ROOT


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_a_quick_run_of_rollouts_ends_with_a_result_within_its_counts() -> None:
    command = [sys.executable, "-m", "benchmarks.rollouts", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=350, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    result = msgspec.json.decode(run.stdout.splitlines()[-1], type=dict[str, Any])
    figures, ratios = result["figures"], result["ratios"]
    assert result["name"] == "rollouts"
    assert (figures["machines"], figures["pods"], figures["budgets"]) == (QUICK.machines, QUICK.pods, QUICK.budgets)
    assert LIMITS.keys() <= figures.keys() | ratios.keys()
    assert 0 < figures["api_writes_per_reboot"] <= 1.5 * (LIMITS["api_writes_per_reboot"].most or 0)  # conflicts count
    assert figures["grant_late_s"] > 0
    assert ratios["rollout_vs_ideal"] > 0
