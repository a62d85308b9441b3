"""The benchmark of operations runs, and what does not depend on the machine is within its limits."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from benchmarks.operations import LIMITS, QUICK
from tests.support.paths import ROOT


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_quick_run_ends_with_a_result_that_holds_its_counts() -> None:
    command = [sys.executable, "-m", "benchmarks.operations", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    result = msgspec.json.decode(run.stdout.splitlines()[-1], type=dict[str, Any])
    figures, ratios = result["figures"], result["ratios"]
    assert result["name"] == "operations"
    assert (figures["reboots"], figures["concurrent"]) == (QUICK.reboots, QUICK.concurrent)
    assert LIMITS.keys() <= figures.keys() | ratios.keys()
    assert 0 < figures["bmc_requests_per_reboot"] <= (LIMITS["bmc_requests_per_reboot"].most or 0)
    assert ratios["wall_vs_bare_client"] > 0
