"""Taking away what is left of a slot. Nothing that is mounted from elsewhere is ever deleted."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Final

from unbounded.agent.host.mounts import unmount_below
from unbounded.agent.layout import Layout
from unbounded.agent.ports import Commands
from unbounded.api.failures import Transient
from unbounded.kube.durable import remove_durably, sync_directory

DELETE_S: Final = 300.0
TRIES: Final = 5
PAUSE_S: Final = 2.0


def workspace(layout: Layout, slot: str) -> Path:
    """Where a slot is built, beside its place."""
    return layout.machines / f".building-{slot}"


def _doomed(slot: str) -> str:
    """Begins the names of trees that are being removed; no machine can have such a name."""
    return f".removing-{slot}-"


async def remove_trees(layout: Layout, commands: Commands, slot: str) -> None:
    """The root file system, and what was being built or removed; they lose their names first. And the lock of a
    systemd-nspawn that was killed.

    Raises:
        Transient: something is left, and what.
    """
    if not layout.machines.is_dir():
        return
    for path in (layout.rootfs(slot), workspace(layout, slot)):
        await unmount_below(layout, commands, path)
        _rename(path, layout.machines / f"{_doomed(slot)}{secrets.token_hex(4)}")
    (layout.machines / f".#{slot}.lck").unlink(missing_ok=True)
    sync_directory(layout.machines)
    for path in sorted(layout.machines.glob(f"{_doomed(slot)}*")):
        await _delete(layout, commands, path)


def remove_settings(layout: Layout, slot: str) -> bool:
    """What the host's systemd has of a slot, as files; whether there was any, and `disable` and `reload` are due."""
    nspawn, override = layout.nspawn(slot), layout.override(slot)
    removed = [path.parent.is_dir() and remove_durably(path) for path in (nspawn, override)]
    if override.parent.is_dir() and not any(override.parent.iterdir()):
        override.parent.rmdir()
        sync_directory(override.parent.parent)
    return any(removed)


def _rename(path: Path, target: Path) -> None:
    try:
        path.rename(target)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Transient(f"{path}: it cannot be removed: {error.strerror}") from error


async def _delete(layout: Layout, commands: Commands, path: Path) -> None:
    """Retried: a file system that was just left may be busy for a moment."""
    for attempt in range(1, TRIES + 1):
        await unmount_below(layout, commands, path)
        try:
            await commands.run("rm", "--recursive", "--force", "--one-file-system", "--", str(path), timeout_s=DELETE_S)
        except Transient:
            if attempt == TRIES:
                raise
            await asyncio.sleep(PAUSE_S)
        else:
            return
