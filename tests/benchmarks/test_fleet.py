"""The benchmark of a large fleet runs, and what does not depend on the machine is within its limits."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from benchmarks.fleet import LIMITS, QUICK
from benchmarks.fleet_data import MACHINE_BYTES, OPERATION_BYTES, SERVER_BYTES, machine, operation
from tests.support.paths import ROOT


@pytest.mark.parametrize("number", [0, 9_999])
def test_objects_have_the_size_that_is_promised(number: int) -> None:
    for made, size in ((machine(number), MACHINE_BYTES), (operation(number), OPERATION_BYTES)):
        assert abs(len(msgspec.json.encode(made)) + SERVER_BYTES - size) <= 5


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_quick_run_ends_with_a_result_and_an_idle_control_plane() -> None:
    command = [sys.executable, "-m", "benchmarks.fleet", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    result = msgspec.json.decode(run.stdout.splitlines()[-1], type=dict[str, Any])
    figures, ratios = result["figures"], result["ratios"]
    assert result["name"] == "fleet"
    assert (figures["machines"], figures["watches"]) == (QUICK.machines, QUICK.watches)
    assert LIMITS.keys() <= figures.keys() | ratios.keys()
    assert figures["memory_empty_mib"] < figures["memory_mib"] < 400
    # The first readings of 50 hosts are spread over 100 s, and each looks for a Secret. Some fall into these 8 s.
    assert figures["idle_calls_per_s"] <= 2.0
    assert figures["synced_s"] > 0
    assert figures["list_ms"] > 0
