"""Switch to a release on trial, in an order that makes any interruption harmless, and its manual reversal."""

from __future__ import annotations

import contextlib

import msgspec

from unbounded.agent.durations import Durations, TimedWork
from unbounded.agent.layout import DAEMON_UNIT
from unbounded.agent.upgrade import units as unit_files
from unbounded.agent.upgrade.health import UpgradeContext, overdue_s
from unbounded.agent.upgrade.releases import Colour
from unbounded.agent.upgrade.trial import Trial, TrialProgress
from unbounded.api.failures import Rejected, Transient
from unbounded.kube.threads import run_in_thread


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
        overdue_s=overdue_s(window_s, Durations(ground.layout).limit(TimedWork.DAEMON)),
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
        await unit_files.arm(ground.layout, ground.units, seconds=trial.overdue_s)
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
    await unit_files.disarm(ground.layout, ground.units)


def discard(ground: UpgradeContext, trial: Trial) -> None:
    """Remove a release that was never switched to, and its record.

    Raises:
        Transient: it is in use.
    """
    ground.releases.clear(trial.release)
    ground.store.forget()
