"""The benchmark of the console runs, and measures its figures."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from benchmarks.console import LIMITS, QUICK, missing
from tests.support.paths import ROOT

ABSENT = missing()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(ABSENT is not None, reason=f"needs {ABSENT}")
def test_a_quick_run_ends_with_a_result() -> None:
    command = [sys.executable, "-m", "benchmarks.console", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    result = msgspec.json.decode(run.stdout.splitlines()[-1], type=dict[str, Any])
    figures, ratios = result["figures"], result["ratios"]
    assert result["name"] == "console"
    assert (figures["machines"], figures["sessions"]) == (QUICK.machines, QUICK.sessions)
    assert LIMITS.keys() <= figures.keys() | ratios.keys()
    measured = ("first_paint_ms", "first_session_ms", "change_p95_ms", "change_busy_p95_ms", "memory_mib")
    filters = [name for name in figures if name.startswith("filter_")]
    assert min(figures[name] for name in (*measured, *filters)) > 0
    assert len(filters) == 5
