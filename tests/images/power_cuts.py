"""Losses of power while an operation writes disks, which are loop devices.

A cut ends every process of the operation with SIGKILL. A write that was not flushed is then on the disk, or not, in
blocks of 4 KiB: the device's file has what was flushed, the device itself the rest. A cut comes at a moment, or in the
middle of a write of a block device, before its flush.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.images.content import MIB
from tests.images.disk_set_host import BLOCK, NetbootedHost
from tests.images.disk_sets import DiskSet
from tests.images.loops import PART_MIB
from tests.images.support import busybox, needed

SURVIVALS: Final = (0.0, 0.0, 0.3, 0.7, 1.0)  # of a write that was not flushed
WRITES: Final = """#!/bin/sh
case " $*" in *" of=$DEV/"*) ;; *) exec {busybox} dd "$@" ;; esac
count=$(($(cat "$CUTS/writes" 2>/dev/null || echo 0) + 1))
echo $count >"$CUTS/writes"
[ "$count" = "$CUT_AT" ] || exec {busybox} dd "$@"
for word do
    case $word in conv=*) word=conv=notrunc ;; oflag=*) word=bs=1048576 ;; esac
    set -- "$@" "$word"
    shift
done
{busybox} dd "$@"
kill -9 0
"""
"""A dd that counts the writes of disks, and at one of them ends its process group before the flush."""


@dataclass(frozen=True)
class CutCase:
    """An operation that is cut.

    Args:
        written: name of the disk that it writes.
        is_done: raises AssertionError unless the disk is as the operation leaves it.
        is_safe: raises AssertionError if the disk is in a state that no cut may leave.
        remains: words, one of which is in the message of an operation that does not end right.
    """

    of: DiskSet
    written: str
    is_done: Callable[[Path], None]
    is_safe: Callable[[Path], None]
    remains: tuple[str, ...]
    small: Mapping[str, str]  # environment of the installer: more and smaller writes


@dataclass(frozen=True)
class Cut:
    """When the power is lost: before the flush of a write, or after so many seconds.

    Args:
        survival: share of the blocks that are on the disk without a flush.
    """

    write: int = 0
    moment_s: float = 0.0
    survival: float = 0.0

    @classmethod
    def drawn(cls, chance: random.Random, writes: int, lasts_s: float) -> Cut:
        survival = chance.choice(SURVIVALS)
        if chance.random() < 0.5:
            return cls(write=chance.randint(1, writes), survival=survival)
        return cls(moment_s=chance.uniform(0.0, lasts_s), survival=survival)


class PoweredHost:
    """A machine whose power can be lost."""

    def __init__(self, at: NetbootedHost, case: CutCase) -> None:
        self.at, self.case = at, case
        self._cuts = at.host.host.root / "cuts"
        self._cuts.mkdir()
        dd = at.host.host.command("dd")
        dd.unlink()
        dd.write_text(WRITES.format(busybox=busybox()))
        dd.chmod(0o755)

    @property
    def device(self) -> Path:
        return next(device for device, disk in self.at.disks.items() if disk.name == self.case.written)

    @property
    def writes(self) -> int:
        """Writes of block devices since the start of the machine."""
        counted = self._cuts / "writes"
        return int(counted.read_text()) if counted.exists() else 0

    async def run(self, cut: Cut | None = None) -> int:
        """Start the machine, and run the installer to its end or to the cut; return its exit code."""
        self.at.host.start(self.at.disks)
        (self._cuts / "writes").unlink(missing_ok=True)
        self.at.recorder.failures.clear()
        told = {**self.case.small, "CUTS": str(self._cuts), "CUT_AT": str(cut.write if cut else 0)}
        process = await self.at.host.started(self.at.world.prefix(), self.at.uid, self.at.server.port, **told)
        try:
            within = cut.moment_s if cut and not cut.write else 300.0
            await asyncio.wait_for(process.communicate(), within)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()
        return process.returncode or 0

    async def lose_power(self, cut: Cut, chance: random.Random) -> None:
        """Run up to a cut, and replace each disk by what is left of it."""
        with _kept_open(self.at.disks):
            await self.run(cut)
            for device in list(self.at.disks):
                left = self._left(device, chance, cut.survival)
                disk = self.at.disks.pop(device)
                self.at.disks[self.at.host.adopted(left, disk.sector)] = disk
        _unmount(self.at.host.host.root)

    def _left(self, device: Path, chance: random.Random, survival: float) -> Path:
        """Copy the file of a device, with a part of what was not flushed."""
        file = self.at.host.file(device)
        left = file.with_name(f"{file.name}-left")
        subprocess.run(["cp", "--sparse=always", str(file), str(left)], check=True)
        with device.open("rb") as now, file.open("rb") as flushed, left.open("r+b") as kept:
            size = os.fstat(flushed.fileno()).st_size
            for start, end in ((0, min(size, 24 * MIB)), (max(0, size - 2 * MIB), size)):
                for at in range(start, end, BLOCK):
                    now.seek(at)
                    flushed.seek(at)
                    block = now.read(BLOCK)
                    if block != flushed.read(BLOCK) and chance.random() < survival:
                        kept.seek(at)
                        kept.write(block)
        return left


@contextmanager
def _kept_open(devices: Mapping[Path, object]) -> Iterator[None]:
    """Hold devices open: the kernel flushes one that nobody has open any more."""
    held = [os.open(device, os.O_RDONLY) for device in devices]
    try:
        yield
    finally:
        for each in held:
            os.close(each)


def _unmount(root: Path) -> None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        place = line.split()[1]
        if place.startswith(f"{root}/"):
            subprocess.run(["umount", "--lazy", place], check=True)


def files(device: Path, folder: Path, *paths: str) -> dict[str, bytes]:
    """Return files of the second partition, after a check as a start does it, on a copy; absent ones are left out."""
    part = folder / "part"
    with device.open("rb") as disk:
        disk.seek(2 * MIB)
        part.write_bytes(disk.read(PART_MIB * MIB))
    subprocess.run([needed("e2fsck"), "-fy", str(part)], capture_output=True, check=False)
    found = {}
    for path in paths:
        ran = subprocess.run([needed("debugfs"), "-R", f"cat {path}", str(part)], capture_output=True, check=False)
        if b"File not found" not in ran.stderr:
            found[path] = ran.stdout
    return found
