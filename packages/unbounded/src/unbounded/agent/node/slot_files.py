"""Files of a slot: their description, the record of a complete build, and their removal.

The record is a file with its sha256 in a second one. It is written last and removed first. Content that is mounted from
elsewhere is never deleted.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from unbounded.agent.host import unmount_below
from unbounded.agent.interfaces import Commands
from unbounded.agent.model import BuildRecord, Slot
from unbounded.agent.paths import HostPaths
from unbounded.api.failures import Rejected, Transient
from unbounded.kube.durable_files import remove_durably, sync_directory, write_durably
from unbounded.kube.logs import Log


@dataclass(frozen=True)
class SlotFile:
    """A file that is written into a slot, with its full mode."""

    path: str
    content: bytes
    mode: int = 0o644


def unit_word(text: str) -> str:
    """Return the text as one word of a unit file (systemd.syntax(7), systemd.unit(5))."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


log = Log("agent")

FORMAT: Final = 1


class _Header(msgspec.Struct):
    format: int = 1


def read_build_record(paths: HostPaths, slot: Slot) -> BuildRecord | None:
    """Return the record of a slot's build; None where the slot is incomplete.

    Raises:
        Rejected: the file does not match its checksum, has another format, or is from a later agent.
    """
    path = paths.applied(slot)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Rejected(f"{path}: {error.strerror}") from error
    _check(path, content)
    try:
        if (given := msgspec.json.decode(content, type=_Header).format) > FORMAT:
            raise Rejected(
                f"{path}: its format is {given}, but this agent supports formats up to {FORMAT}: use a later agent"
            )
        return msgspec.json.decode(content, type=BuildRecord)
    except msgspec.DecodeError as error:
        raise Rejected(f"{path}: {error}") from error


def _check(path: Path, content: bytes) -> None:
    try:
        message = _sidecar(path).read_text().split()
    except FileNotFoundError:  # power was lost between the two writes
        log.warning(
            "checksum of a slot's description is missing; using the description without verification", path=str(path)
        )
        return
    if message[:1] != [hashlib.sha256(content).hexdigest()]:
        raise Rejected(f"{path}: it does not match its checksum; build the slot again, or remove both files")


def write_build_record(paths: HostPaths, slot: Slot, applied: BuildRecord) -> None:
    """Write the record durably. A loss of power leaves the previous one, this one, or either without its checksum."""
    path = paths.applied(slot)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = msgspec.json.format(msgspec.json.encode(applied), indent=2)
    remove_durably(_sidecar(path))
    write_durably(path, content)
    write_durably(_sidecar(path), f"{hashlib.sha256(content).hexdigest()}  {path.name}\n".encode())


def remove_build_record(paths: HostPaths, slot: Slot) -> None:
    """Remove the record. From then on the slot is incomplete."""
    if paths.applied(slot).parent.is_dir():
        remove_durably(paths.applied(slot))
        remove_durably(_sidecar(paths.applied(slot)))


def _sidecar(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


DELETE_S: Final = 300.0
TRIES: Final = 5
PAUSE_S: Final = 2.0


def workspace(paths: HostPaths, slot: str) -> Path:
    """Return the work folder in which a slot is built, a sibling of its final path."""
    return paths.machines / f".building-{slot}"


def _doomed(slot: str) -> str:
    """Return the name prefix of trees that are being removed, which no machine can have as its name."""
    return f".removing-{slot}-"


async def remove_trees(paths: HostPaths, commands: Commands, slot: str) -> None:
    """Remove the root file system, half-built and half-removed ones, and the lock of a killed systemd-nspawn. Trees are
    renamed before their removal.

    Raises:
        Transient: the message names what remains.
    """
    if not paths.machines.is_dir():
        return
    for path in (paths.rootfs(slot), workspace(paths, slot)):
        await unmount_below(paths, commands, path)
        _rename(path, paths.machines / f"{_doomed(slot)}{secrets.token_hex(4)}")
    (paths.machines / f".#{slot}.lck").unlink(missing_ok=True)
    sync_directory(paths.machines)
    for path in sorted(paths.machines.glob(f"{_doomed(slot)}*")):
        await _delete(paths, commands, path)


def remove_settings(paths: HostPaths, slot: str) -> bool:
    """Remove the slot's files of the host's systemd. Return whether there were any, so that `disable` and `reload` are
    due.
    """
    nspawn, override = paths.nspawn(slot), paths.override(slot)
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


async def _delete(paths: HostPaths, commands: Commands, path: Path) -> None:
    """Delete a tree, with retries: a file system that was just unmounted may be busy for a moment."""
    for attempt in range(1, TRIES + 1):
        await unmount_below(paths, commands, path)
        try:
            await commands.run("rm", "--recursive", "--force", "--one-file-system", "--", str(path), timeout_s=DELETE_S)
        except Transient:
            if attempt == TRIES:
                raise
            await asyncio.sleep(PAUSE_S)
        else:
            return
