"""The benchmark of Container Cloud runs, and what does not depend on the machine is within its limits."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from benchmarks.container_cloud import LIMITS, QUICK
from tests.support.paths import ROOT


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_quick_run_of_container_cloud_ends_with_a_result_within_its_counts() -> None:
    command = [sys.executable, "-m", "benchmarks.container_cloud", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=690, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    result = msgspec.json.decode(run.stdout.splitlines()[-1], type=dict[str, Any])
    figures, ratios = result["figures"], result["ratios"]
    assert (result["name"], figures["hosts"]) == ("container_cloud", QUICK.hosts)
    assert LIMITS.keys() <= figures.keys() | ratios.keys()
    assert 15 < figures["api_writes_per_machine"] <= 40  # conflicts count
    assert ratios["claims_vs_bare_writes"] > 0
