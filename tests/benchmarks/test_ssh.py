"""The benchmark of provisioning over SSH runs, and measures its figures."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from benchmarks.ssh import LIMITS, QUICK, missing
from tests.support.paths import ROOT

ABSENT = missing()


@pytest.mark.soak
@pytest.mark.root
@pytest.mark.timeout(240)
@pytest.mark.skipif(ABSENT is not None, reason=f"needs {ABSENT}")
def test_a_quick_run_ends_with_a_result() -> None:
    command = [sys.executable, "-m", "benchmarks.ssh", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    result = msgspec.json.decode(run.stdout.splitlines()[-1], type=dict[str, Any])
    figures, ratios = result["figures"], result["ratios"]
    assert result["name"] == "ssh"
    assert (figures["hosts"], figures["connections"]) == (QUICK.hosts, QUICK.hosts * QUICK.logins)
    assert LIMITS.keys() <= figures.keys() | ratios.keys()
    assert min(figures["machina_cpu_s"], figures["openssh_cpu_s"], figures["ansible_cpu_s"]) > 0
