"""Limits that follow from how long a host took before, and the record that they rest on."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.virtual_time import run_virtual
from unbounded.agent.durations import BOUNDS, FACTOR, REMEMBERED, Durations, TimedWork, limit
from unbounded.agent.executor import CALL_LIMIT_S
from unbounded.agent.node.machine_runner import MachineLimits
from unbounded.agent.paths import HostPaths
from unbounded.agent.recreation.plan import RecreationLimits


@pytest.mark.parametrize(
    ("history", "expected"),
    [((), 30.0), ((2.0,), 30.0), ((10.0, 50.0, 20.0), 150.0), ((500.0,), 300.0)],
    ids=["no history", "a usual host", "the longest counts", "the ceiling"],
)
def test_a_limit_follows_the_history_between_floor_and_ceiling(history: tuple[float, ...], expected: float) -> None:
    assert limit(history, 30.0, 300.0, 3.0) == expected


def test_a_configured_floor_counts_even_above_the_ceiling() -> None:
    assert limit((), 4000.0, 1800.0) == 4000.0


def test_the_floors_are_the_limits_of_a_host_without_a_history() -> None:
    machine, recreation = MachineLimits(), RecreationLimits()
    floors = {work: bounds.floor for work, bounds in BOUNDS.items()}
    assert (floors[TimedWork.BOOT], floors[TimedWork.SERVICE]) == (machine.boot_s, machine.service_s)
    assert recreation.on_this_host(Durations()) == recreation
    assert all(bounds.floor < bounds.ceiling for bounds in BOUNDS.values())


def test_the_docs_have_these_floors_and_ceilings() -> None:
    page = ROOT.joinpath("docs/agent.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \|", page, re.MULTILINE)
    assert {work: (float(floor), float(ceiling)) for work, floor, ceiling in rows} == {
        str(work): (bounds.floor, bounds.ceiling) for work, bounds in BOUNDS.items()
    }


def test_longest_start_ends_within_the_call_limit() -> None:
    """The engine takes a call that is longer for one whose outcome is open."""
    machine, gpus = MachineLimits(), 3 * 60.0
    waits = machine.start_s + machine.vanish_s + machine.start_s + gpus
    assert waits + BOUNDS[TimedWork.BOOT].ceiling + BOUNDS[TimedWork.SERVICE].ceiling < CALL_LIMIT_S


@pytest.fixture
def paths(tmp_path: Path) -> HostPaths:
    paths = HostPaths(tmp_path)
    paths.state.mkdir(parents=True)
    return paths


def test_what_was_recorded_is_known_to_the_next_process(paths: HostPaths) -> None:
    Durations(paths).completed(TimedWork.BOOT, 40.0)
    assert Durations(paths).limit(TimedWork.BOOT) == 40.0 * FACTOR
    assert Durations(paths).known(TimedWork.BOOT)
    assert not Durations(paths).known(TimedWork.START)
    assert paths.durations.stat().st_mode & 0o777 == 0o600


def test_an_attempt_that_ran_out_of_time_counts_until_one_completes(paths: HostPaths) -> None:
    durations = Durations(paths)
    for spent_s, then_s in ((30.0, 90.0), (90.0, 270.0), (270.0, 300.0), (40.0, 300.0)):
        durations.overran(TimedWork.BOOT, spent_s)
        assert durations.limit(TimedWork.BOOT) == then_s
    durations.completed(TimedWork.BOOT, 20.0)
    assert durations.limit(TimedWork.BOOT) == 60.0


def test_a_slow_time_is_forgotten_and_a_usual_host_writes_once(paths: HostPaths) -> None:
    durations = Durations(paths)
    durations.completed(TimedWork.BOOT, 5.0)
    written = paths.durations.stat().st_ino
    durations.completed(TimedWork.BOOT, 6.0)
    assert paths.durations.stat().st_ino == written
    durations.completed(TimedWork.BOOT, 100.0)
    for _ in range(REMEMBERED - 1):
        durations.completed(TimedWork.BOOT, 5.0)
        assert durations.limit(TimedWork.BOOT) == 300.0
    durations.completed(TimedWork.BOOT, 5.0)
    assert durations.limit(TimedWork.BOOT) == 30.0


def test_comparable_work_counts_only_where_there_is_none_of_the_same(paths: HostPaths) -> None:
    durations = Durations(paths)
    assert durations.limit(TimedWork.BOOT, alike=(50.0,)) == 150.0
    durations.overran(TimedWork.BOOT, 60.0)
    assert durations.limit(TimedWork.BOOT, alike=(70.0,)) == 210.0
    durations.completed(TimedWork.BOOT, 20.0)
    assert durations.limit(TimedWork.BOOT, alike=(70.0,)) == 60.0


@pytest.mark.parametrize("content", [b"{", b'{"work": 7}', b""])
def test_a_record_that_cannot_be_read_is_begun_anew(paths: HostPaths, content: bytes) -> None:
    paths.durations.write_bytes(content)
    durations = Durations(paths)
    assert durations.limit(TimedWork.BOOT) == BOUNDS[TimedWork.BOOT].floor
    durations.completed(TimedWork.BOOT, 40.0)
    assert durations.limit(TimedWork.BOOT) == 120.0


def test_what_a_later_agent_records_is_kept(paths: HostPaths) -> None:
    paths.durations.write_bytes(b'{"work": {"later": {"completed": [1.0], "overran": 0.0}}}')
    Durations(paths).completed(TimedWork.BOOT, 40.0)
    assert b'"later":{"completed":[1.0]' in paths.durations.read_bytes()


def test_without_the_folder_of_a_start_nothing_is_written(tmp_path: Path) -> None:
    durations = Durations(HostPaths(tmp_path))
    durations.completed(TimedWork.BOOT, 40.0)
    assert list(tmp_path.iterdir()) == []


def test_only_what_completes_or_runs_out_of_time_is_recorded() -> None:
    async def story() -> None:
        durations = Durations()
        with pytest.raises(ValueError, match="at once"):
            async with durations.measured(TimedWork.BOOT, 30.0):
                raise ValueError("at once")
        assert durations.limit(TimedWork.BOOT) == 30.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30.0), durations.measured(TimedWork.BOOT, 30.0):
                await asyncio.sleep(100.0)
        assert durations.limit(TimedWork.BOOT) == 90.0
        async with durations.measured(TimedWork.BOOT, 90.0, whole=False):
            await asyncio.sleep(1.0)
        assert durations.limit(TimedWork.BOOT) == 90.0
        async with durations.measured(TimedWork.BOOT, 90.0):
            await asyncio.sleep(50.0)
        assert durations.limit(TimedWork.BOOT) == 150.0

    run_virtual(story())


@pytest.mark.slow
def test_the_age_of_a_process_counts_from_its_begin() -> None:
    program = (
        "import time; time.sleep(0.3); from unbounded.agent.durations import process_age_s; print(process_age_s())"
    )
    began = time.monotonic()
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0.3 <= float(ran.stdout) <= time.monotonic() - began + 0.02  # a tick of the kernel's clock
