"""The benchmark of the agent runs, and measures its figures."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from benchmarks.agent import LIMITS, QUICK
from tests.support.hosts.tools import missing
from tests.support.paths import ROOT

ABSENT = missing()


@pytest.mark.soak
@pytest.mark.root
@pytest.mark.timeout(400)
@pytest.mark.skipif(ABSENT is not None, reason=f"needs {ABSENT}")
def test_a_quick_run_ends_with_a_result() -> None:
    command = [sys.executable, "-m", "benchmarks.agent", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380, check=False)
    assert run.returncode == 0, run.stderr[-6000:]
    result = msgspec.json.decode(run.stdout.splitlines()[-1], type=dict[str, Any])
    figures, ratios = result["figures"], result["ratios"]
    assert result["name"] == "agent"
    assert (figures["idle_s"], figures["reboots"]) == (QUICK.idle_s, QUICK.reboots)
    assert LIMITS.keys() <= figures.keys() | ratios.keys()
    assert figures["idle_bytes_sent"] == 0
    assert min(figures["version_s"], figures["daemon_pss_mib"], figures["rollback_s"]) > 0
