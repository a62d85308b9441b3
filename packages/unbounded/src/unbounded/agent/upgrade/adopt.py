"""Activation of the release that `start` runs from.

On a host without a release in use it becomes the first one, without a rollback. Where another one is in use, it goes on
trial like any new release. There is no operation then, so the daemon itself proves the release.
"""

from __future__ import annotations

import os

from unbounded.agent.layout import BINARY, DAEMON_UNIT
from unbounded.agent.upgrade.health import UpgradeContext
from unbounded.agent.upgrade.releases import Colour, ReleaseInfo, content_digest, copy_running
from unbounded.agent.upgrade.switching import make_trial, put_on_trial, restart_daemon
from unbounded.agent.upgrade.trial import TrialProgress
from unbounded.api.failures import Rejected


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
    command, current = ground.layout.command, ground.layout.current
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
    if (await ground.units.look(DAEMON_UNIT)).active in ("active", "activating", "failed"):
        await restart_daemon(ground)
