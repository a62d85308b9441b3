"""Assembly and output of results."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from benchmarks.__main__ import BEGIN, END, LIMITS, PAGE, part, with_parts
from benchmarks.frame import Measured, machine, median, percentile
from tests.support.paths import ROOT


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100)])
def test_a_percentile_is_a_value_that_was_measured(share: float, value: int) -> None:
    assert percentile(range(100, 0, -1), share) == value


def test_nothing_measured_has_no_percentile() -> None:
    assert math.isnan(percentile([], 0.5))


def test_several_runs_give_their_median_and_say_how_far_ratios_were_apart() -> None:
    runs = [Measured({"wall_s": wall_s}, {"against_peer": wall_s / 10}) for wall_s in (12.0, 11.0, 19.0)]
    assert median(runs) == {
        "figures": {"wall_s": 12.0},
        "ratios": {"against_peer": 1.2},
        "spread": {"against_peer": [1.1, 1.9]},
    }


def test_one_run_has_no_spread() -> None:
    assert median([Measured({"wall_s": 1.0}, {})]) == {"figures": {"wall_s": 1.0}, "ratios": {}}


def test_the_machine_is_told() -> None:
    assert machine().keys() >= {"cpus", "cpu", "memory_gib", "kernel", "python"}


def test_what_was_measured_replaces_what_was_said_of_it_and_nothing_else() -> None:
    page = f"# Title\n\n{BEGIN}\n`operations`: old\n\n| a |\n\n`ssh`: kept\n\n| b |\n{END}\n\n## After\n"
    found = {"cli": "`cli`: more", "operations": "`operations`: new"}
    shown = "`operations`: new\n\n`ssh`: kept\n\n| b |\n\n`cli`: more"
    assert with_parts(page, found) == f"# Title\n\n{BEGIN}\n{shown}\n{END}\n\n## After\n"


def test_the_page_s_own_tables_are_read_whole() -> None:
    page = PAGE.read_text()
    assert with_parts(page, {}) == page
    assert page.count("| measured |") == len(LIMITS)


def test_a_page_without_markers_gets_them_once() -> None:
    once = with_parts("# Title\n", {"ssh": "`ssh`: new"})
    assert once.startswith("# Title\n")
    assert with_parts(once, {"ssh": "`ssh`: new"}) == once


def test_a_table_shows_what_was_promised_beside_what_was_measured() -> None:
    result = {
        "name": "operations",
        "figures": {
            "reboots": 60,
            "concurrent": 20,
            "controller_cpu_ms_per_reboot": 9.5,
            "api_writes_per_operation": 8,
            "bmc_requests_per_reboot": 8,
        },
        "ratios": {"wall_vs_bare_client": 1.3, "controller_cpu_vs_bare_client": 4.1, "p99_with_stalled_bmcs": 1.1},
        "spread": {"wall_vs_bare_client": [1.2, 1.4]},
        "machine": machine(),
    }
    rows = [line for line in part(result).splitlines() if line.startswith("| time for all reboots")]
    assert len(rows) == 1
    assert rows[0].endswith("| 1.3 (1.2 to 1.4) | 1.25 | ≤ 1.6 |")


def test_a_long_title_is_wrapped_and_replaced_as_a_whole() -> None:
    long = {"cpus": 2, "cpu": "A CPU with a name " * 6, "memory_gib": 24, "python": "3.11.7"}
    figures = dict.fromkeys(LIMITS["templates"], 1.0) | {"renders": 50}
    made = part({"name": "templates", "figures": figures, "ratios": {}, "machine": long})
    title = made.partition("\n\n")[0].splitlines()
    assert len(title) == 2
    assert max(map(len, title)) <= 120
    once = with_parts("", {"templates": made})
    assert with_parts(once, {"templates": "`templates`: new"}) == f"{BEGIN}\n`templates`: new\n{END}\n"


@pytest.mark.slow
def test_all_benchmarks_can_be_started_by_the_command_of_the_page() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert all(name in run.stdout for name in LIMITS)
