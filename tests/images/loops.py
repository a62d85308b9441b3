"""Disks of the installed host, as loop devices of this one, and their content."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.images.content import MIB, SECTOR, gpt
from tests.images.support import INSTALLER, Host, needed

PART_MIB: Final = 12
Attach = Callable[..., str]  # a file, and options of losetup: the device


@contextmanager
def loop_devices() -> Iterator[Attach]:
    """Make loop devices of files, until the end; the kernel reads partitions at the installer's request."""
    losetup, made = needed("losetup"), []

    def loop(file: Path, *options: str) -> str:
        command = [losetup, "--find", "--show", "-P", *options, str(file)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            pytest.skip(f"no loop device: {ran.stderr.strip()}")
        made.append(ran.stdout.strip())
        return made[-1]

    try:
        yield loop
    finally:
        for device in made:
            for part in Path("/sys/block", Path(device).name).glob(f"{Path(device).name}p*"):
                number = part.name.rpartition("p")[2]
                subprocess.run([needed("delpart"), device, number], check=False)
            subprocess.run([losetup, "--detach", device], check=False)


def system(folder: Path, *, cloud_init: bool = True, sector: int = SECTOR) -> bytes:
    """Return a disk with two partitions: an empty one, and ext4 with the content of `folder`."""
    root = folder / "root"
    (root / "etc" / ("cloud" if cloud_init else "nothing")).mkdir(parents=True)
    if cloud_init:
        (root / "etc" / "cloud" / "cloud-init.disabled").touch()
    part = folder / "part.img"
    with part.open("wb") as file:
        file.truncate(PART_MIB * MIB)
    blocks = ["-b", "4096"]  # which disks of both sectors can read
    subprocess.run([needed("mke2fs"), "-q", "-t", "ext4", *blocks, "-d", str(root), str(part)], check=True)
    size, start = (PART_MIB + 4) * MIB // sector, 2 * MIB // sector
    parts = (MIB // sector, start - 1), (start, start + PART_MIB * MIB // sector - 1)
    head = gpt(size, *parts, sector=sector)
    return head.ljust(2 * MIB, b"\0") + part.read_bytes() + bytes(2 * MIB)


class Disk:
    """A disk of the host that is a loop device: its name, and the place of its second partition.

    The kernel of the tests may not read partition tables; then `blockdev --rereadpt` adds that partition.
    """

    def __init__(self, host: Host, device: str) -> None:
        self.name, self.part = Path(device).name, Path(f"{device}p2")
        (host.root / "sys/block" / self.name).symlink_to(f"/sys/block/{self.name}")
        for path in (Path(device), self.part):
            (host.root / "dev" / path.name).symlink_to(path)
        blockdev = host.command("blockdev")
        start, size = 2 * MIB // SECTOR, PART_MIB * MIB // SECTOR
        blockdev.unlink()
        blockdev.write_text(
            f'#!/bin/sh\n{needed("busybox")} blockdev "$@"\n'
            f'[ "$1" != --rereadpt ] || [ -b {self.part} ] || {needed("addpart")} {device} 2 {start} {size}\n'
        )
        blockdev.chmod(0o755)


def loop_disk(host: Host, folder: Path, attach: Attach, mib: int = 40, sector: int = SECTOR) -> Disk:
    """A disk of zeros, the only one of the host."""
    file = folder / "disk.img"
    with file.open("wb") as made:
        made.truncate(mib * MIB)
    return Disk(host, attach(file, "--sector-size", str(sector)))


@contextmanager
def mounted(device: str, folder: Path) -> Iterator[Path]:
    """Mount a partition to read it. While the kernel reads the table of a disk, it has no partitions for a moment."""
    folder.mkdir()
    command = ["mount", "-o", "ro", device, str(folder)]
    ends_at = time.monotonic() + 10.0
    while (done := subprocess.run(command, check=False, capture_output=True, text=True)).returncode:
        if time.monotonic() > ends_at:
            raise OSError(f"{device} cannot be mounted: {done.stderr}")
        time.sleep(0.1)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def planted(part: Path, folder: Path) -> dict[str, str]:
    """The files below /etc/cloud, /var/lib/cloud and /usr/local of the installed system."""
    with mounted(str(part), folder):
        files = [path for name in ("etc/cloud", "var/lib/cloud", "usr/local") for path in (folder / name).rglob("*")]
        return {str(path.relative_to(folder)): path.read_text() for path in files if path.is_file()}


LOOPS: Final = 'disks() { set +f; for d in "$SYS"/block/*; do echo "${d##*/}"; done; set -f; }'


def that_takes_loops(host: Host) -> Path:
    """Return the installer's parts for a host whose disk is a loop device; the installer itself would ignore it."""
    folder = host.root / "lib"
    if not folder.exists():
        shutil.copytree(INSTALLER, folder)
        with (folder / "disks.sh").open("a") as file:
            file.write(f"{LOOPS}\n")
    return folder
