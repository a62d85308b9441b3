"""A disk with sectors of 4096 bytes: our installer writes the whole Debian to it, and real firmware starts that."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.boot.installing import ScsiDisk, installing, uefi
from tests.images.support import site
from tests.support.qemu.tools import built, command
from unbounded.metalman.disk_choice import DiskSelection

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(2400)]

WRITES_S: Final = 900.0
STARTS_S: Final = 900.0
IMAGES: Final = ("disk.img.zst", "disk.img.4k.zst")


@pytest.mark.skipif(os.geteuid() != 0, reason="the image is built by root")
async def test_debian_is_installed_on_a_4kn_disk_and_starts_from_it(tmp_path: Path) -> None:
    folder = built("host-debian12/disk")
    if folder is None:
        pytest.skip("the image of Debian is not built; scripts/host-image does")
    disk = ScsiDisk.made(tmp_path, "large", sector_bytes=4096)
    async with site() as where:
        for name in IMAGES:
            where.image((folder / name).read_bytes(), name)
        where.selection = DiskSelection()
        async with installing(where, tmp_path, (disk,)) as machine:
            written = await machine.reported("Written", "has the image", within_s=WRITES_S)
    assert written["disk"] == "/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_large"
    assert "GET disk.img.4k.zst.sha256" in where.asked
    await starts(disk, tmp_path)


async def starts(disk: ScsiDisk, folder: Path) -> None:
    """Start a machine from a disk, until the system on it has mounted its root file system and runs cloud-init."""
    console = folder / "started"
    console.touch()
    machine = started(disk, folder, console)
    try:
        async with asyncio.timeout(STARTS_S):
            while b"cloud-init" not in console.read_bytes():
                assert machine.poll() is None
                await asyncio.sleep(1.0)
    except TimeoutError:
        raise AssertionError(console.read_text(errors="replace")[-4000:]) from None
    finally:
        machine.kill()
        machine.wait(30)


def started(disk: ScsiDisk, folder: Path, console: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(command("setpriv"), "--pdeathsig", "KILL", command("qemu-system-x86_64")),
            *("-machine", "q35", "-accel", "tcg", "-m", "1024", "-display", "none", "-vga", "none", "-nodefaults"),
            *("-no-reboot", "-serial", f"file:{console}", "-device", "virtio-rng-pci"),
            *("-device", "virtio-scsi-pci,id=scsi0", *disk.drive, "-device", json.dumps(disk.device)),
            *uefi(folder),
        ],
        stdin=subprocess.DEVNULL,
    )
