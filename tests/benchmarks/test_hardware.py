"""The benchmark of inspections runs, and measures its figures."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from benchmarks.hardware import LIMITS, QUICK
from tests.support.paths import ROOT


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_quick_run_ends_with_a_result() -> None:
    command = [sys.executable, "-m", "benchmarks.hardware", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    result = msgspec.json.decode(run.stdout.splitlines()[-1], type=dict[str, Any])
    figures, ratios = result["figures"], result["ratios"]
    assert result["name"] == "hardware"
    assert figures["hosts"] == QUICK.hosts
    assert LIMITS.keys() <= figures.keys() | ratios.keys()
    assert ratios["wall_vs_bare_boot"] > 0
    assert 5 <= figures["reboot_requests_with_events"] <= 6 < figures["reboot_requests_without_events"]
    assert 0 <= figures["detection_with_events_p95_s"] <= 2
    assert ratios["requests_with_events_vs_without"] < 1
    assert 0 < figures["report_to_status_p50_s"] <= figures["report_to_status_p99_s"]
