"""Layouts, installed and started, also without a disk: / on LVM on RAID 1; / on RAID 10 beside RAID 0 on 4Kn disks."""

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
from tests.images.layout_text import ESP_IDS, encoded, file, identity, mirrored, striped
from tests.images.support import UID, Site, site
from tests.support.qemu.tools import built, command

pytestmark = [pytest.mark.soak, pytest.mark.timeout(5400)]

INSTALLS_S: Final = 1800.0
STARTS_S: Final = 1500.0
BY_ID: Final = "/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_{}"
FSTAB: Final = f"""UUID={identity("root")} / ext4 errors=remount-ro 0 1
UUID={identity("data")} /var/lib/data xfs x-systemd.device-timeout=10min 0 2
UUID={ESP_IDS[0]} /boot/efi vfat umask=0077,nofail,x-systemd.device-timeout=2min 0 0
"""
SWAP: Final = f"UUID={identity('swap')} none swap x-systemd.device-timeout=10min 0 0\n"
ARRAYS: Final = f"HOMEHOST <ignore>\nMAILADDR root\nARRAY /dev/md/root UUID={identity('raid')}\n"
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
        (state,) = re.findall(r"told: .*blocks.*\[\d/\d\] (\[[U_]+\])", self.text)
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


def runs_on_volumes(told: Told) -> None:
    assert told.mounts["/"] == ("/dev/mapper/system-root", "ext4")
    assert told.mounts["/var/lib/data"] == ("/dev/mapper/data-data", "xfs")
    assert "told: /dev/dm-" in told.text  # swap
    runs_as_laid_out(told)


def runs_as_laid_out(told: Told) -> None:
    assert "layout.test=yes" in told.text
    assert "told: /var/lib/cloud/seed/nocloud/user-data 600 0" in told.text
    assert "told: /usr/local/bin/unbounded-agent 755 0" in told.text


def replace_archive(where: Site, first: int) -> None:
    """The first try finds another archive at its second piece: what is assembled by then has to be taken apart."""
    if first:
        where.tag = '"two"'


async def installed(text: str, disks: Sequence[ScsiDisk], image: Path, folder: Path, *, replaces: bool = False) -> Site:
    """Install a layout onto blank disks, to its end; `replaces` gives the first try another archive half way."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    async with site() as where:
        where.image((image / "rootfs.tar.zst").read_bytes(), "rootfs.tar.zst")
        where.image(b"#!/bin/sh\n", "unbounded-agent")
        where.files["layout"] = text.encode()
        where.files["cloud-init/vendor-data"] = b"#cloud-config\n{}\n"
        where.files["cloud-init/user-data"] = b"#cloud-config\n{}\n"
        where.answers = [(200, {"status": "ok", "action": "Layout", "layout": digest})] * 2
        if replaces:
            where.on_range = partial(replace_archive, where)
        async with installing(where, folder, disks, devices=("-m", "1024")) as machine:
            await machine.reported("Written", f"have the layout {digest}", within_s=INSTALLS_S)
            await machine.ended(within_s=STARTS_S)
    assert where.disabled == 1
    return where


async def test_mirrored_root_starts_and_starts_again_without_either_disk(tmp_path: Path) -> None:
    image = built("host-debian12/disk")
    if image is None:
        pytest.skip("the image of Debian is not built; scripts/host-image does")
    first, second = (ScsiDisk.made(tmp_path, name, size=6 << 30) for name in ("first", "second"))
    files = (file("/etc/fstab", FSTAB + SWAP), file("/etc/mdadm/mdadm.conf", ARRAYS), *FILES)
    text = mirrored(BY_ID.format("first"), BY_ID.format("second"), *files)
    where = await installed(text, (first, second), image, tmp_path, replaces=True)
    again = [each["message"] for each in where.reports if "once more" in each["message"]]
    assert again == ["once more from the start: the image was replaced while it was read"]
    for disk in (first, second):
        with disk.file.open("rb") as content:
            content.seek(1 << 19)
            assert f"machine={UID}\nname=rack1-01\nstate=installed\n".encode() in content.read(4096)

    both = await started(tmp_path / "both", (first, second), keeps=True)
    runs_on_volumes(both)
    assert both.mounts["/boot/efi"][1] == "vfat"
    assert both.raid == "[UU]"
    for left in (first, second):
        alone = await started(tmp_path / left.name, (left,))
        runs_on_volumes(alone)
        assert alone.raid in ("[U_]", "[_U]")
        assert "told: kept" in alone.text


async def test_root_on_raid_10_starts_beside_striped_4kn_disks_and_without_a_disk(tmp_path: Path) -> None:
    image = built("host-debian12/disk")
    if image is None:
        pytest.skip("the image of Debian is not built; scripts/host-image does")
    four = [ScsiDisk.made(tmp_path, f"m{number}", size=1 << 30) for number in range(4)]
    large = [ScsiDisk.made(tmp_path, f"s{number}", size=1 << 29, sector_bytes=4096) for number in range(2)]
    arrays = f"{ARRAYS}ARRAY /dev/md/data UUID={identity('stripes')}\n"
    files = (file("/etc/fstab", FSTAB), file("/etc/mdadm/mdadm.conf", arrays), *FILES)
    mirrors, stripes = ([BY_ID.format(disk.name) for disk in some] for some in (four, large))
    await installed(striped(mirrors, stripes, *files), (*four, *large), image, tmp_path)

    whole = await started(tmp_path / "whole", (*four, *large), keeps=True)
    runs_on_arrays(whole)
    assert whole.raid == "[UUUU]"
    without = await started(tmp_path / "without", (*four[1:], *large))  # the first has the first ESP, too
    runs_on_arrays(without)
    assert without.raid == "[_UUU]"
    assert "told: kept" in without.text


def runs_on_arrays(told: Told) -> None:
    assert told.mounts["/"][1] == "ext4"
    assert told.mounts["/"][0].startswith("/dev/md")
    assert told.mounts["/var/lib/data"][1] == "xfs"
    assert re.search(r"told: md\w+ : active raid10 .*\n.*super 1\.1", told.text)
    assert re.search(r"told: md\w+ : active raid0 .*\n.*super 1\.2", told.text)
    runs_as_laid_out(told)
