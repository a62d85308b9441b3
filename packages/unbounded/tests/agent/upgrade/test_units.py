"""The units: what is written, what differs, and the timer of a trial."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from unbounded.agent.interfaces import UnitFacts
from unbounded.agent.paths import DAEMON_UNIT, RECOVERY_TIMER, RECOVERY_UNIT, HostPaths
from unbounded.agent.upgrade import units


class RecordingUnits:
    """A service manager that records its calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def observe(self, unit: str) -> UnitFacts:
        return UnitFacts(unit)

    async def start(self, unit: str, *, timeout_s: float = 90.0) -> None:
        self.asked.append(f"start {unit}")

    async def stop(self, unit: str, *, timeout_s: float = 90.0) -> None:
        self.asked.append(f"stop {unit}")

    async def restart(self, unit: str, *, block: bool = True, timeout_s: float = 90.0) -> None:
        self.asked.append(f"restart {unit}")

    async def kill(self, unit: str, signal: str = "SIGKILL") -> None:
        self.asked.append(f"kill {unit}")

    async def enable(self, *names: str) -> None:
        self.asked.append(f"enable {' '.join(names)}")

    async def disable(self, *names: str) -> None:
        self.asked.append(f"disable {' '.join(names)}")

    async def mask(self, *names: str) -> None:
        self.asked.append(f"mask {' '.join(names)}")

    async def unmask(self, *names: str) -> None:
        self.asked.append(f"unmask {' '.join(names)}")

    async def reset_failed(self, unit: str) -> None:
        self.asked.append(f"reset-failed {unit}")

    async def reload(self) -> None:
        self.asked.append("reload")


def test_units_are_written_once(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    assert not units.units_present(paths)
    assert units.install_units(paths)
    assert units.units_present(paths)
    assert not units.install_units(paths)
    assert os.access(paths.recovery_script, os.X_OK)


def test_a_unit_that_was_edited_is_written_again(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    units.install_units(paths)
    (paths.units / DAEMON_UNIT).write_text("[Service]\n")
    assert not units.units_present(paths)
    assert units.install_units(paths)


async def test_nothing_is_left_of_the_units_and_removing_them_twice_is_fine(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    units.install_units(paths)
    await units.arm(paths, RecordingUnits(), seconds=9)
    wants = paths.units / "multi-user.target.wants"
    wants.mkdir()
    (wants / DAEMON_UNIT).symlink_to(f"../{DAEMON_UNIT}")
    assert units.remove_units(paths)
    assert not units.remove_units(paths)
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


def test_a_crash_loop_reaches_the_start_limit_before_it_is_over() -> None:
    """Each start may last some seconds, and the pauses lie between: all of them must fit into the interval."""
    text = units.unit_files(HostPaths())[HostPaths().units / DAEMON_UNIT][0]
    number = {
        key: int(value)
        for key, value in re.findall(r"^(StartLimitIntervalSec|StartLimitBurst|RestartSec)=(\d+)$", text, re.M)
    }
    lasts_s = number["StartLimitBurst"] * (number["RestartSec"] + 15)
    assert lasts_s <= 90, "a crash loop is taken back within 90 s"
    assert lasts_s <= number["StartLimitIntervalSec"]
    assert f"OnFailure={RECOVERY_UNIT}" in text


def test_a_daemon_that_hangs_is_killed_and_started_again_proven_or_not() -> None:
    lines = units.unit_files(HostPaths())[HostPaths().units / DAEMON_UNIT][0].splitlines()
    assert {"Type=notify", "NotifyAccess=all", f"WatchdogSec={units.WATCHDOG_S}", "Restart=always"} <= set(lines)
    assert 0 < units.WATCHDOG_S <= 30


async def test_units_of_a_host_that_never_had_any_are_removed_as_well(tmp_path: Path) -> None:
    assert not units.remove_units(HostPaths(tmp_path))
    units.install_units(HostPaths(tmp_path))
    (HostPaths(tmp_path).units / RECOVERY_TIMER).touch()
    await units.disarm(HostPaths(tmp_path), RecordingUnits())
    assert not units.is_armed(HostPaths(tmp_path))


async def test_the_timer_is_there_for_the_next_boot_before_it_is_started(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    manager = RecordingUnits()
    await units.arm(paths, manager, seconds=31)
    link = paths.units / "timers.target.wants" / RECOVERY_TIMER
    assert "OnActiveSec=31\n" in link.read_text()
    assert manager.asked == ["reload", f"restart {RECOVERY_TIMER}"]
    await units.disarm(paths, manager)
    assert not os.path.lexists(link)
    assert manager.asked[2:] == [f"stop {RECOVERY_TIMER}", "reload"]


async def test_nothing_is_asked_of_systemd_where_no_timer_is_armed(tmp_path: Path) -> None:
    manager = RecordingUnits()
    await units.disarm(HostPaths(tmp_path), manager)
    assert manager.asked == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    units.install_units(paths)
    asyncio.run(units.arm(paths, RecordingUnits(), seconds=31))
    paths.current.parent.mkdir(parents=True, exist_ok=True)
    paths.current.symlink_to("/bin/true")
    files = [paths.units / name for name in (DAEMON_UNIT, RECOVERY_UNIT, RECOVERY_TIMER)]
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *files],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{paths.units}:/lib/systemd/system"},
    )
    ours = [line for line in said.stderr.splitlines() if "unbounded" in line and "machines.target" not in line]
    assert ours == []
