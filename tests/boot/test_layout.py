"""A layout of two disks, installed and started: the root file system on LVM on RAID 1, and a mirrored volume of LVM."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.boot.installing import ScsiDisk, installing, uefi
from tests.images.layout_text import ESP_IDS, encoded, file, identity, mirrored
from tests.images.support import UID, Site, site
from tests.support.qemu.tools import built, command

pytestmark = [pytest.mark.soak, pytest.mark.timeout(5400)]

INSTALLS_S: Final = 1800.0
STARTS_S: Final = 900.0
BY_ID: Final = "/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_{}"
FSTAB: Final = f"""UUID={identity("root")} / ext4 errors=remount-ro 0 1
UUID={identity("data")} /var/lib/data xfs x-systemd.device-timeout=10min 0 2
UUID={ESP_IDS[0]} /boot/efi vfat umask=0077,nofail,x-systemd.device-timeout=2min 0 0
UUID={identity("swap")} none swap x-systemd.device-timeout=10min 0 0
"""
TELLS: Final = r"""
echo; echo told: begin
mountpoint -q /boot/efi || mount /boot/efi # which nothing waits for, as its disk may be away
for at in / /var/lib/data /boot/efi; do echo told: mount $(findmnt -rno TARGET,SOURCE,FSTYPE $at); done
sed "s/^/told: /" /proc/mdstat /proc/swaps
echo told: parameters $(cat /proc/cmdline)
stat -c "told: %n %a %u" /var/lib/cloud/seed/nocloud/user-data /usr/local/bin/unbounded-agent
cat /var/lib/data/kept 2>/dev/null
echo "told: kept" >/var/lib/data/kept
sync
echo told: end
systemctl poweroff --no-block
"""
UNIT: Final = """[Unit]
Description=Tells the test what runs
After=local-fs.target swap.target
[Service]
Type=oneshot
StandardOutput=tty
TTYPath=/dev/ttyS0
ExecStart=/bin/sh /etc/tells
"""
FILES: Final = (
    file("/etc/fstab", FSTAB),
    file("/etc/mdadm/mdadm.conf", f"HOMEHOST <ignore>\nMAILADDR root\nARRAY /dev/md/root UUID={identity('raid')}\n"),
    file("/etc/tells", TELLS),
    file("/etc/systemd/system/tells.service", UNIT),
    file("/etc/systemd/system/multi-user.target.d/tells.conf", "[Unit]\nWants=tells.service\n"),
    # a login prompt that starts meanwhile would hang up the line
    file("/etc/systemd/system/serial-getty@.service.d/none.conf", "[Unit]\nConditionPathExists=/none\n"),
    f"cmdline {encoded('layout.test=yes')}",
)


@dataclass(frozen=True, slots=True)
class Told:
    """What the installed system printed of itself."""

    text: str

    @property
    def mounts(self) -> dict[str, tuple[str, str]]:
        found = re.findall(r"told: mount (\S+) (\S+) (\S+)", self.text)
        return {path: (device, kind) for path, device, kind in found}

    @property
    def raid(self) -> str:
        (state,) = re.findall(r"told: .*blocks.*\[2/\d\] (\[[U_]{2}\])", self.text)
        return str(state)


async def started(folder: Path, disks: Sequence[ScsiDisk], *, keeps: bool = False) -> Told:
    """Start the machine from these disks until it switches itself off; what it writes is kept or forgotten."""
    folder.mkdir()
    console, log = folder / "console", folder / "qemu.log"
    parts = [part for disk in disks for part in disk.drive]
    if not keeps:
        parts = [f"{part},snapshot=on" if part.startswith("if=none") else part for part in parts]
    for disk in disks:
        parts += ["-device", json.dumps({**disk.device, "bootindex": len(parts)})]
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(command("setpriv"), "--pdeathsig", "KILL", command("qemu-system-x86_64")),
            *("-machine", "q35", "-accel", "tcg", "-m", "1024", "-display", "none", "-vga", "none", "-nodefaults"),
            *("-no-reboot", "-serial", f"file:{console}", "-device", "virtio-rng-pci"),
            *("-device", "virtio-scsi-pci,id=scsi0", *uefi(folder), *parts),
            *("-netdev", "user,id=net0,restrict=on", "-device", "virtio-net-pci,netdev=net0,romfile="),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        async with asyncio.timeout(STARTS_S):
            await process.wait()
    except TimeoutError:
        raise AssertionError(f"not off in time\n{console.read_text(errors='replace')[-6000:]}") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = console.read_text(errors="replace").replace("\r", "")
    assert "told: end" in text, text[-6000:] + log.read_text()
    return Told(text)


def runs_as_laid_out(told: Told) -> None:
    assert told.mounts["/"] == ("/dev/mapper/system-root", "ext4")
    assert told.mounts["/var/lib/data"] == ("/dev/mapper/data-data", "xfs")
    assert "told: /dev/dm-" in told.text  # swap
    assert "layout.test=yes" in told.text
    assert "told: /var/lib/cloud/seed/nocloud/user-data 600 0" in told.text
    assert "told: /usr/local/bin/unbounded-agent 755 0" in told.text


def replace_archive(where: Site, first: int) -> None:
    """The first try finds another archive at its second piece: what is assembled by then has to be taken apart."""
    if first:
        where.tag = '"two"'


async def test_mirrored_root_starts_and_starts_again_without_either_disk(tmp_path: Path) -> None:
    image = built("host-debian12/disk")
    if image is None:
        pytest.skip("the image of Debian is not built; scripts/host-image does")
    first, second = (ScsiDisk.made(tmp_path, name, size=6 << 30) for name in ("first", "second"))
    text = mirrored(BY_ID.format("first"), BY_ID.format("second"), *FILES)
    digest = hashlib.sha256(text.encode()).hexdigest()
    async with site() as where:
        where.image((image / "rootfs.tar.zst").read_bytes(), "rootfs.tar.zst")
        where.image(b"#!/bin/sh\n", "unbounded-agent")
        where.files["layout"] = text.encode()
        where.files["cloud-init/vendor-data"] = b"#cloud-config\n{}\n"
        where.files["cloud-init/user-data"] = b"#cloud-config\n{}\n"
        where.answers = [(200, {"status": "ok", "action": "Layout", "layout": digest})] * 2
        where.on_range = partial(replace_archive, where)
        async with installing(where, tmp_path, (first, second), devices=("-m", "1024")) as machine:
            await machine.reported("Written", f"have the layout {digest}", within_s=INSTALLS_S)
            await machine.ended(within_s=STARTS_S)
        assert where.disabled == 1
        again = [each["message"] for each in where.reports if "once more" in each["message"]]
        assert again == ["once more from the start: the image was replaced while it was read"]
    for disk in (first, second):
        with disk.file.open("rb") as file:
            file.seek(1 << 19)
            assert f"machine={UID}\nname=rack1-01\nstate=installed\n".encode() in file.read(4096)

    both = await started(tmp_path / "both", (first, second), keeps=True)
    runs_as_laid_out(both)
    assert both.mounts["/boot/efi"][1] == "vfat"
    assert both.raid == "[UU]"
    for left in (first, second):
        alone = await started(tmp_path / left.name, (left,))
        runs_as_laid_out(alone)
        assert alone.raid in ("[U_]", "[_U]")
        assert "told: kept" in alone.text
