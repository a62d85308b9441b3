"""The daemon's handling of a release on trial: at its start, and during its work."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.agent.upgrade.making import host_with, make_release, place_release
from tests.agent.upgrade.test_units import RecordingUnits
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.agent.durations import Durations, TimedWork
from unbounded.agent.lock import host_lock
from unbounded.agent.paths import DAEMON_UNIT, RECOVERY_TIMER, RECOVERY_UNIT
from unbounded.agent.upgrade.health import ReleaseHealth, UpgradeContext, overdue_s
from unbounded.agent.upgrade.releases import Colour, ReleaseLinks
from unbounded.agent.upgrade.switching import adopt, make_trial, put_on_trial
from unbounded.agent.upgrade.trial import Trial, TrialProgress
from unbounded.agent.upgrade.units import arm
from unbounded.api.failures import Transient
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS


def _ground(root: Path, colour: Colour) -> UpgradeContext:
    paths = host_with(root, "1")
    return UpgradeContext.of(paths, RecordingUnits(), paths.release(colour) / "unbounded-agent")


def _trial(ground: UpgradeContext, **more: str) -> Trial:
    return make_trial(
        ground,
        release=place_release(ground.releases, "2"),
        version="2",
        window_s=20,
        progress=TrialProgress.VERIFIED,
        sha256="ab" * 32,
        **more,
    )


def _asked(ground: UpgradeContext) -> list[str]:
    units = ground.units
    assert isinstance(units, RecordingUnits)
    return units.asked


async def test_nothing_is_done_where_nothing_is_on_trial(tmp_path: Path) -> None:
    ground = _ground(tmp_path, Colour.BLUE)
    health = ReleaseHealth(ground, "m1")
    await health.note_start()
    await health.run(MemoryApi(now=virtual_now))
    assert _asked(ground) == []


async def test_the_recovered_daemon_remembers_what_failed_and_removes_the_timer(tmp_path: Path) -> None:
    ground = _ground(tmp_path, Colour.BLUE)
    await put_on_trial(ground, _trial(ground, operation="up", uid="u1"))
    ground.paths.upgrade_signal.write_text("1 green it hung\n")
    ground.releases.roll_back(Colour.GREEN)
    await ReleaseHealth(ground, "m1").note_start()
    failed = ground.store.failed()["ab" * 32]
    assert (failed.version, failed.cause) == ("2", "it hung")
    assert not (ground.paths.units / RECOVERY_TIMER).exists()


async def test_a_timer_is_left_alone_while_its_release_is_on_trial(tmp_path: Path) -> None:
    ground = _ground(tmp_path, Colour.GREEN)
    await put_on_trial(ground, _trial(ground, operation="up", uid="u1"))
    await ReleaseHealth(ground, "m1").note_start()
    assert (ground.paths.units / RECOVERY_TIMER).exists()
    assert dict(ground.store.failed()) == {}


async def test_a_file_that_cannot_be_read_keeps_the_daemon_from_nothing(tmp_path: Path) -> None:
    ground = _ground(tmp_path, Colour.BLUE)
    ground.paths.etc.mkdir(parents=True)
    ground.paths.upgrade.write_text('{"format": 9}')
    await arm(ground.paths, ground.units, seconds=5)
    await ReleaseHealth(ground, "m1").note_start()
    assert ground.paths.upgrade.read_text() == '{"format": 9}'
    assert not (ground.paths.units / RECOVERY_TIMER).exists()


def test_a_release_whose_operation_has_ended_otherwise_is_taken_back(tmp_path: Path) -> None:
    async def story() -> None:
        ground = _ground(tmp_path, Colour.GREEN)
        api = MemoryApi(now=virtual_now)
        spec = {"operationKind": "AgentUpgrade", "machineRef": "m1"}
        made = await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "up"}, "spec": spec})
        await put_on_trial(ground, _trial(ground, operation="up", uid=made.metadata.uid))
        running = asyncio.create_task(ReleaseHealth(ground, "m1").run(api))
        await asyncio.sleep(30)
        assert f"start {RECOVERY_UNIT}" not in _asked(ground)
        patch = {"status": {"phase": "Failed", "reason": "DeadlineExceeded"}}
        await api.patch(MACHINE_OPERATIONS, "up", patch, subresource="status")
        await running
        assert _asked(ground)[-1] == f"start {RECOVERY_UNIT}"
        assert "DeadlineExceeded" in (ground.paths.upgrade_notes / "trouble").read_text()

    run_virtual(story())


@pytest.mark.slow
def test_a_way_back_that_cannot_be_taken_is_asked_for_again(tmp_path: Path) -> None:
    class Busy(RecordingUnits):
        refusals = 2

        async def start(self, unit: str, *, timeout_s: float = 90.0) -> None:
            await super().start(unit)
            if self.refusals:
                self.refusals -= 1
                raise Transient("systemd does not answer")

    async def story() -> None:
        paths, manager = host_with(tmp_path, "1"), Busy()
        ground = UpgradeContext.of(paths, manager, paths.release(Colour.GREEN) / "unbounded-agent")
        await put_on_trial(ground, _trial(ground, operation="up", uid="u1"))
        async with host_lock(paths, "unbounded-agent start"):
            running = asyncio.create_task(ReleaseHealth(ground, "m1").run(MemoryApi(now=virtual_now)))
            await asyncio.sleep(100)
            assert f"start {RECOVERY_UNIT}" not in manager.asked, "the host is somebody else's"
        await running
        assert manager.asked.count(f"start {RECOVERY_UNIT}") == 3

    run_virtual(story())


async def _brought_by_start(folder: Path) -> UpgradeContext:
    before = _ground(folder / "host", Colour.BLUE)
    brought = UpgradeContext.of(before.paths, before.units, make_release(folder / "new", "2"))
    await adopt(brought, version="2", window_s=20)
    return UpgradeContext.of(before.paths, before.units, before.releases.executable(Colour.GREEN))


async def _api() -> MemoryApi:
    api = MemoryApi(now=virtual_now)
    await api.create(MACHINES, {"metadata": {"name": "m1"}, "spec": {}})
    return api


def test_release_is_proven_in_time_despite_a_locked_host(tmp_path: Path) -> None:
    """A node that is built takes longer than a trial may."""

    async def story() -> None:
        ground = await _brought_by_start(tmp_path)
        async with host_lock(ground.paths, "unbounded-agent start"), asyncio.timeout(overdue_s(20)):
            await ReleaseHealth(ground, "m1").run(await _api())
        assert ground.releases.selection() == ReleaseLinks(Colour.GREEN, Colour.GREEN)

    run_virtual(story())


@pytest.mark.slow
def test_what_a_reset_has_taken_away_is_not_written_again(tmp_path: Path) -> None:
    async def story() -> None:
        ground = await _brought_by_start(tmp_path)
        ground.paths.reset_state.write_text("{}")
        running = asyncio.create_task(ReleaseHealth(ground, "m1").run(await _api()))
        await asyncio.sleep(200)
        assert ground.releases.selection() == ReleaseLinks(Colour.GREEN, Colour.BLUE)
        assert not (ground.paths.units / DAEMON_UNIT).exists()
        ground.paths.reset_state.unlink()
        await running
        assert (ground.paths.units / DAEMON_UNIT).exists(), "proving a release writes its units"

    run_virtual(story())


def test_a_release_that_start_brought_is_proven_without_an_operation(tmp_path: Path) -> None:
    async def story() -> None:
        ground = await _brought_by_start(tmp_path)
        api = MemoryApi(now=virtual_now)
        running = asyncio.create_task(ReleaseHealth(ground, "m1").run(api))
        await asyncio.sleep(60)
        assert ground.releases.selection() == ReleaseLinks(Colour.GREEN, Colour.BLUE), "it reads nothing yet"
        await api.create(MACHINES, {"metadata": {"name": "m1"}, "spec": {}})
        await running
        assert ground.releases.selection() == ReleaseLinks(Colour.GREEN, Colour.GREEN)
        assert asyncio.get_running_loop().time() >= 80

    run_virtual(story())


def test_a_release_has_more_time_than_its_window() -> None:
    assert (overdue_s(90), overdue_s(3), overdue_s(3600)) == (160, 29, 5425)


def test_a_host_whose_daemon_starts_slowly_gives_a_release_more_time(tmp_path: Path) -> None:
    """Seen on a busy host in emulation: a new daemon needed a minute, and was taken back before its window."""
    ground = _ground(tmp_path, Colour.BLUE)
    ground.paths.state.mkdir(parents=True, exist_ok=True)
    Durations(ground.paths).completed(TimedWork.DAEMON, 66.0)
    assert _trial(ground).overdue_s == 20 + 10 + 3 * 66
