"""The release that start was run from: the first on a host, the same again, and another one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.agent.upgrade.making import host_with, make_release, version_in_use
from tests.agent.upgrade.test_units import RecordingUnits
from unbounded.agent.paths import RECOVERY_TIMER, HostPaths
from unbounded.agent.upgrade.health import TrialVerdict, UpgradeContext
from unbounded.agent.upgrade.releases import Colour, ReleaseLinks
from unbounded.agent.upgrade.switching import adopt, adopted
from unbounded.agent.upgrade.trial import TrialProgress
from unbounded.api.failures import Rejected, Transient


def _ground(paths: HostPaths, running: Path) -> UpgradeContext:
    return UpgradeContext.of(paths, RecordingUnits(), running)


async def test_the_first_release_is_taken_into_use_at_once(tmp_path: Path) -> None:
    ground = _ground(HostPaths(tmp_path / "host"), make_release(tmp_path / "unpacked", "1"))
    assert not adopted(ground)
    await adopt(ground, version="1", window_s=9)
    assert adopted(ground)
    assert version_in_use(ground.paths) == "1"
    assert ground.releases.selection() == ReleaseLinks(Colour.BLUE, Colour.BLUE)
    assert ground.releases.about(Colour.BLUE).version == "1"


async def test_the_same_release_once_more_changes_nothing(tmp_path: Path) -> None:
    running = make_release(tmp_path / "unpacked", "1")
    ground = _ground(HostPaths(tmp_path / "host"), running)
    await adopt(ground, version="1", window_s=9)
    before = sorted(tmp_path.rglob("*"))
    await adopt(ground, version="1", window_s=9)
    assert sorted(tmp_path.rglob("*")) == before


async def test_the_file_of_an_installer_in_the_commands_place_becomes_a_link(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path / "host")
    running = make_release(paths.bin, "1", libraries=False)
    ground = _ground(paths, running)
    await adopt(ground, version="1", window_s=9)
    assert os.readlink(paths.command) == "unbounded-agent-current"
    assert version_in_use(paths) == "1"


async def test_another_release_goes_on_trial_and_the_daemon_proves_it(tmp_path: Path) -> None:
    paths = host_with(tmp_path / "host", "1")
    ground = _ground(paths, make_release(tmp_path / "unpacked", "2"))
    await adopt(ground, version="2", window_s=9)
    assert ground.releases.selection() == ReleaseLinks(Colour.GREEN, Colour.BLUE)
    trial = ground.store.read()
    assert trial is not None
    assert (trial.uid, trial.version, trial.window_s, trial.progress) == ("", "2", 9, TrialProgress.SWITCHING)
    assert (paths.units / RECOVERY_TIMER).exists()
    assert _ground(paths, ground.releases.executable(Colour.GREEN)).verdict() is TrialVerdict.ON_TRIAL
    assert _ground(paths, ground.releases.executable(Colour.BLUE)).verdict() is TrialVerdict.LEAVING


async def test_trial_record_of_a_later_agent_does_not_block_adoption(
    tmp_path: Path,
) -> None:
    paths = host_with(tmp_path / "host", "1")
    paths.etc.mkdir(parents=True)
    paths.upgrade.write_text('{"format": 9}')
    ground = _ground(paths, make_release(tmp_path / "unpacked", "2"))
    await adopt(ground, version="2", window_s=9)
    trial = ground.store.read()
    assert trial is not None
    assert trial.version == "2"


async def test_a_third_release_waits_for_the_trial_of_the_second(tmp_path: Path) -> None:
    paths = host_with(tmp_path / "host", "1")
    await adopt(_ground(paths, make_release(tmp_path / "two", "2")), version="2", window_s=9)
    with pytest.raises(Transient, match="on trial"):
        await adopt(_ground(paths, make_release(tmp_path / "three", "3")), version="3", window_s=9)


async def test_lost_links_are_made_again_by_the_release_in_a_slot(tmp_path: Path) -> None:
    paths = host_with(tmp_path / "host", "1")
    executable = paths.release(Colour.BLUE) / "unbounded-agent"
    for link in (paths.current, paths.last_good, paths.command):
        link.unlink()
    ground = _ground(paths, executable)
    assert not adopted(ground)
    await adopt(ground, version="1", window_s=9)
    assert adopted(ground)
    assert [path.name for path in paths.releases.iterdir()] == ["blue"]


async def test_what_runs_from_no_release_is_refused(tmp_path: Path) -> None:
    (tmp_path / "python3").touch()
    with pytest.raises(Rejected, match="not a release of the agent"):
        await adopt(_ground(HostPaths(tmp_path / "host"), tmp_path / "python3"), version="1", window_s=9)
