"""Removal of a slot's files. Content that is mounted from elsewhere is never deleted."""

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
    """Return the work folder in which a slot is built, a sibling of its final path."""
    return layout.machines / f".building-{slot}"


def _doomed(slot: str) -> str:
    """Return the name prefix of trees that are being removed, which no machine can have as its name."""
    return f".removing-{slot}-"


async def remove_trees(layout: Layout, commands: Commands, slot: str) -> None:
    """Remove the root file system, half-built and half-removed ones, and the lock of a killed systemd-nspawn. Trees are
    renamed before their removal.

    Raises:
        Transient: the message names what remains.
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
    """Remove the slot's files of the host's systemd. Return whether there were any, so that `disable` and `reload` are
    due.
    """
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
        raise Transient(f"cannot remove {path}: {error.strerror}") from error


async def _delete(layout: Layout, commands: Commands, path: Path) -> None:
    """Delete a tree, with retries: a file system that was just unmounted may be busy for a moment."""
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
