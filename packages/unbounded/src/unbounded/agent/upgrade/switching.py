"""Switch to a release on trial, in an order that makes any interruption harmless, and its manual reversal.

`adopt` activates the release that `start` runs from. On a host without a release in use it becomes the first one,
without a rollback. Where another one is in use, it goes on trial like any new release, and the daemon itself proves it.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from unbounded.agent.durations import Durations, TimedWork
from unbounded.agent.paths import BINARY, DAEMON_UNIT
from unbounded.agent.upgrade import units as unit_files
from unbounded.agent.upgrade.health import UpgradeContext, overdue_s
from unbounded.agent.upgrade.releases import Colour, ReleaseInfo, content_digest, copy_running
from unbounded.agent.upgrade.trial import Trial, TrialProgress
from unbounded.api.failures import Rejected, Transient
from unbounded.kube.tasks import run_in_thread


def make_trial(
    ground: UpgradeContext,
    *,
    release: Colour,
    version: str,
    window_s: int,
    progress: TrialProgress,
    operation: str = "",
    uid: str = "",
    sha256: str = "",
) -> Trial:
    """Return the record of a release in its slot, relative to the one in use now."""
    former = ground.releases.selection().current
    return Trial(
        progress=progress,
        operation=operation,
        uid=uid,
        release=release,
        former=former,
        version=version,
        former_version=ground.releases.about(former).version if former else "",
        sha256=sha256,
        window_s=window_s,
        overdue_s=overdue_s(window_s, Durations(ground.paths).limit(TimedWork.DAEMON)),
    )


async def put_on_trial(ground: UpgradeContext, trial: Trial) -> None:
    """Switch to the release. The rollback is armed before the link changes, and records of an earlier trial are
    removed.

    Raises:
        Rejected: the release cannot be started.
        Transient: another one is on trial, or systemd does not answer; the link is unchanged.
    """
    switching = msgspec.structs.replace(trial, progress=TrialProgress.SWITCHING)
    if not _is_noted(ground, switching):
        ground.store.begin_trial()  # first: records of an earlier trial must not count for this one
        ground.store.write(switching)
    elif ground.store.rollback_note() is not None:
        raise Transient(f"{trial.release} was selected before, and rolled back")
    if ground.releases.selection().current != trial.release:
        await unit_files.arm(ground.paths, ground.units, seconds=trial.overdue_s)
    await run_in_thread(ground.releases.switch, trial.release)


def _is_noted(ground: UpgradeContext, trial: Trial) -> bool:
    with contextlib.suppress(Rejected):
        return ground.store.read() == trial
    return False


async def restart_daemon(ground: UpgradeContext) -> None:
    """Restart the daemon with the release in use; return once systemd has queued the job."""
    await ground.units.reset_failed(DAEMON_UNIT)  # starts of the former release must not count for the one on trial
    await ground.units.restart(DAEMON_UNIT, block=False)


async def revert_switch(ground: UpgradeContext, trial: Trial) -> None:
    """Revert a switch whose release was never started: restore the links and disarm the rollback."""
    await run_in_thread(ground.releases.roll_back, trial.release)
    await unit_files.disarm(ground.paths, ground.units)


def discard(ground: UpgradeContext, trial: Trial) -> None:
    """Remove a release that was never switched to, and its record.

    Raises:
        Transient: it is in use.
    """
    ground.releases.clear(trial.release)
    ground.store.forget()


def adopted(ground: UpgradeContext) -> bool:
    """Return whether this process's release is in use and has its command in the users' path."""
    selection = ground.releases.selection()
    if not ground.releases.works(selection.current) or not ground.releases.works(selection.last_good):
        return False
    return _is_same(ground, selection.current) and _is_named(ground)


def _is_same(ground: UpgradeContext, colour: Colour | None) -> bool:
    if colour is None or not ground.releases.works(colour):
        return False
    mine = ground.releases.colour_of(ground.running)
    return mine == colour or content_digest(ground.running) == content_digest(ground.releases.executable(colour))


def _is_named(ground: UpgradeContext) -> bool:
    command, current = ground.paths.command, ground.paths.current
    return command.is_symlink() and os.path.normpath(command.parent / os.readlink(command)) == str(current)


async def adopt(ground: UpgradeContext, *, version: str, window_s: int) -> None:
    """Activate this process's release. An interrupted call may be repeated; the caller holds the host's lock.

    Args:
        version: of this process.
        window_s: for which it has to stay healthy where it replaces another release.
    Raises:
        Rejected: this process does not run from a release.
        Transient: another release is on trial.
    """
    if ground.running.resolve().name != BINARY:
        text = f"{ground.running} is not a release of the agent: run start from the file {BINARY} of a release"
        raise Rejected(text)
    selection = ground.releases.selection()
    if not ground.releases.works(selection.last_good):
        mine = ground.releases.colour_of(ground.running)
        ground.releases.first(mine or _copy(ground, version))
    elif not _is_same(ground, selection.current):
        await _take_over(ground, version, window_s)
    ground.releases.name_command()


def _copy(ground: UpgradeContext, version: str) -> Colour:
    with ground.releases.scratch() as scratch:
        copy_running(ground.running, scratch)
        return ground.releases.place(scratch, ReleaseInfo(version=version))


async def _take_over(ground: UpgradeContext, version: str, window_s: int) -> None:
    trial = make_trial(
        ground, release=_copy(ground, version), version=version, window_s=window_s, progress=TrialProgress.VERIFIED
    )
    await put_on_trial(ground, trial)
    if (await ground.units.observe(DAEMON_UNIT)).active in ("active", "activating", "failed"):
        await restart_daemon(ground)
