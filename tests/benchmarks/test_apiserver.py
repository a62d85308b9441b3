"""The benchmark of the API server runs, and measures its figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import busy_disk, raw_commits
from benchmarks.apiserver import BODY_BYTES, LIMITS, QUICK, widget
from tests.support.paths import ROOT


def test_a_widget_has_the_size_that_is_promised() -> None:
    assert BODY_BYTES <= len(widget()) + len('"serial":0') - len('"serial":@') <= BODY_BYTES + 10


def test_the_peer_of_a_create_writes_durably_what_it_was_told_to(tmp_path: Path) -> None:
    wanted = raw_commits.CommitJob(path=str(tmp_path), writes=200, writers=10, bytes=100)
    done = raw_commits.run(wanted)
    assert done.writes == 200
    assert 200 / 10 <= done.commits <= 200


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_quick_run_ends_with_a_result() -> None:
    command = [sys.executable, "-m", "benchmarks.apiserver", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    result = msgspec.json.decode(run.stdout.splitlines()[-1], type=dict[str, Any])
    figures, ratios = result["figures"], result["ratios"]
    assert result["name"] == "apiserver"
    assert (figures["objects"], figures["clients"]) == (QUICK.objects, QUICK.clients)
    assert LIMITS.keys() <= figures.keys() | ratios.keys()
    assert all(value > 0 for value in (*figures.values(), *ratios.values()))
    assert figures["watch_p50_ms"] <= figures["watch_p99_ms"]
    assert figures["memory_after_mib"] < 330


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_quick_run_on_a_busy_disk_ends_with_a_result() -> None:
    command = [sys.executable, "-m", "benchmarks.busy_disk", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    result = msgspec.json.decode(run.stdout.splitlines()[-1], type=dict[str, Any])
    assert busy_disk.LIMITS.keys() <= result["figures"].keys() | result["ratios"].keys()
    assert all(value > 0 for value in (*result["figures"].values(), *result["ratios"].values()))
