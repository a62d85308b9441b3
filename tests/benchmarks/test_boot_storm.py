"""The benchmark of boots from the network runs, and measures its figures."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from benchmarks import netboot_peers
from benchmarks.__main__ import _possible
from benchmarks.boot_storm import LIMITS, QUICK
from benchmarks.netboot_peers import missing
from tests.support.paths import ROOT

ABSENT = missing()


def test_a_benchmark_that_is_not_possible_here_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _possible("templates")
    monkeypatch.setattr(netboot_peers, "TOOLS", ("no-such-tool",))
    assert missing() is not None
    assert (missing() or "").startswith(("root", "no-such-tool"))


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.timeout(240)
@pytest.mark.skipif(ABSENT is not None, reason=f"needs {ABSENT}")
def test_a_quick_run_ends_with_a_result() -> None:
    command = [sys.executable, "-m", "benchmarks.boot_storm", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    result = msgspec.json.decode(run.stdout.splitlines()[-1], type=dict[str, Any])
    figures, ratios = result["figures"], result["ratios"]
    assert result["name"] == "boot_storm"
    assert (figures["hosts"], figures["image_mib"]) == (QUICK.hosts, QUICK.image_mib)
    assert LIMITS.keys() <= figures.keys() | ratios.keys()
    # in the seconds of a quick run, the downloads of a busy machine may leave no time for a lease
    maybe_none = {"leases_during_downloads", "dhcp_during_downloads"}
    values = {**figures, **ratios}
    assert [name for name, value in values.items() if value <= 0 and name not in maybe_none] == []
