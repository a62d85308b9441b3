"""The benchmark of the command line runs, and measures its figures."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from benchmarks.cli import LIMITS, QUICK, missing
from tests.support.paths import ROOT

ABSENT = missing()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(ABSENT is not None, reason=f"needs {ABSENT}")
def test_a_quick_run_ends_with_a_result() -> None:
    command = [sys.executable, "-m", "benchmarks.cli", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    result = msgspec.json.decode(run.stdout.splitlines()[-1], type=dict[str, Any])
    figures, ratios = result["figures"], result["ratios"]
    assert result["name"] == "cli"
    assert (figures["operations"], figures["starts"]) == (QUICK.operations, QUICK.starts)
    assert LIMITS.keys() <= figures.keys() | ratios.keys()
    measured = ("help_ms", "kubectl_help_ms", "kubectl_version_ms", "list_ms", "kubectl_get_ms")
    assert min(figures[name] for name in measured) > 0
