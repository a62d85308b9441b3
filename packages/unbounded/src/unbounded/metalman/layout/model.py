"""Results of the compiler, their summary for people, and the error of a disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from unbounded.api.hardware import DiskFacts
from unbounded.api.machine_status import DiskErasure

MIB: Final = 1 << 20


class NoDisk(Exception):
    """A device has no disk, or one that may not be written. `may_come` is set where a late disk would help."""

    def __init__(self, text: str, *, may_come: bool = False) -> None:
        super().__init__(text)
        self.may_come = may_come


@dataclass(frozen=True)
class LayoutImage:
    """Facts of an image that limit the layouts that it can be installed by.

    Args:
        is_signed: its kernel starts with the command line that was signed with it, and with no other.
        loader_bytes: size of the files on each EFI system partition; 0 if unknown.
    """

    is_signed: bool = False
    loader_bytes: int = 0


@dataclass(frozen=True)
class LayoutDisk:
    """A disk of a layout: its ID in the text, and the path by which the installer finds it."""

    id: str
    path: str
    disk: DiskFacts


@dataclass(frozen=True)
class DiskLayout:
    """A compiled layout.

    Args:
        lines: without the first and the last one.
        erasures: data of others that the install destroys.
    """

    profile: str
    disks: tuple[LayoutDisk, ...]
    lines: tuple[str, ...]
    erasures: tuple[DiskErasure, ...] = ()

    @cached_property
    def text(self) -> str:
        return "\n".join(("unbounded-layout 1", *self.lines, "end", ""))

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class LayoutWait:
    """A disk may still appear, and the installer is to report again."""

    message: str


@dataclass(frozen=True)
class LayoutRefused:
    """Nothing may be written."""

    message: str


LayoutChoice = DiskLayout | LayoutWait | LayoutRefused


def rounded_up(amount: int, unit: int) -> int:
    """Return the least multiple of a unit that is not below an amount."""
    return -(-amount // unit) * unit


def size_text(amount: int) -> str:
    """Return bytes for people: `480.1 GB`."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB")):
        if amount >= unit:
            return f"{amount / unit:.1f} {name}"
    return f"{amount} bytes"


def summary(layout: DiskLayout) -> Iterator[str]:
    """Yield lines that describe a layout: its disks with their partitions, then arrays, groups and volumes."""
    yield f"layout {layout.digest} of MachineProfile {layout.profile}"
    words = [line.split() for line in layout.lines]
    systems = {line[2]: line[1] for line in words if line[0] == "filesystem"}
    for line in words:
        if line[0] == "mount":
            systems[line[1]] += f" at {line[2]}"
    for line in words:
        if line[0] == "esp":
            systems[line[1]] += ", with the loader"
    members = {
        member: f"in {what} {name}"
        for what, name, devices in (
            (line[0], line[1], line[5:] if line[0] == "raid" else line[2:])
            for line in words
            if line[0] in ("raid", "group")
        )
        for member in devices
    }
    for disk in layout.disks:
        state = disk.disk.state or "Foreign"
        yield f"  {disk.path} ({disk.disk.name}, {size_text(disk.disk.size_bytes or 0)}, {state})"
        for line in words:
            if line[:2] == ["partition", disk.id]:
                device = f"{disk.id}/{line[2]}"
                size = size_text(int(line[4]) * (disk.disk.sector_bytes or 0))
                yield f"    {line[2]}: {line[7]}, {size}, {systems.get(device) or members.get(device) or 'unused'}"
    for line in words:
        match line:
            case ["raid", name, level, metadata, _, *devices]:
                device = f"raid:{name}"
                use = systems.get(device) or members.get(device) or "unused"
                yield f"  raid{level} /dev/md/{name} of {len(devices)} partitions (metadata {metadata}): {use}"
            case ["volume", group, name, size, kind]:
                shown = "the rest" if size == "rest" else size_text(int(size))
                yield f"  volume {group}/{name}, {shown}, {kind}: {systems.get(f'volume:{group}/{name}') or 'unused'}"
