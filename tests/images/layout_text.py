"""Layouts as metalman compiles them, written by hand: RAID 1 for the root file system, LVM on it, on two disks."""

from __future__ import annotations

import base64
import uuid
from typing import Final

from tests.images.content import MIB

ESP_TYPE: Final = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
RAID_TYPE: Final = "a19d880f-05fc-4d3b-a006-743f0f84911e"
LVM_TYPE: Final = "e6d6d379-f507-44c2-a23c-238f2a3df928"
LINUX_TYPE: Final = "0fc63daf-8483-4772-8e79-3d69d8477de4"
ESP_IDS: Final = ("0DEB-0001", "0DEB-0002")


def identity(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def file(path: str, text: str, mode: str = "0644") -> str:
    return f"file {path} {mode} {encoded(text)}"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def partition(disk: str, number: int, at_mib: int, mib: int, kind: str, sector: int = 512) -> str:
    start, sectors = at_mib * MIB // sector, mib * MIB // sector
    return f"partition {disk} {number} {start} {sectors} {kind} {identity(f'{disk}/{number}')} {disk}-{number}"


def layout(*lines: str) -> str:
    return "\n".join(("unbounded-layout 1", *lines, "end", ""))


def mirrored(first: str, second: str, *more: str) -> str:
    """Two disks of 6 GiB: an ESP on each; / and swap on LVM on RAID 1; XFS on a mirrored volume of LVM."""
    return layout(
        f"disk d1 {first} Blank",
        f"disk d2 {second} Blank",
        *(
            line
            for disk in ("d1", "d2")
            for line in (
                partition(disk, 1, 2, 64, ESP_TYPE),
                partition(disk, 2, 66, 1536, RAID_TYPE),
                partition(disk, 3, 1602, 512, LVM_TYPE),
            )
        ),
        f"raid root 1 1.0 {identity('raid')} d1/2 d2/2",
        "group system raid:root",
        "group data d1/3 d2/3",
        f"volume system root {1280 * MIB} linear",
        "volume system swap rest linear",
        "volume data data rest raid1",
        f"filesystem vfat d1/1 {ESP_IDS[0]} -F,32",
        f"filesystem vfat d2/1 {ESP_IDS[1]} -F,32",
        f"filesystem ext4 volume:system/root {identity('root')} -m,1",
        f"filesystem swap volume:system/swap {identity('swap')} -",
        f"filesystem xfs volume:data/data {identity('data')} -",
        "mount volume:system/root / errors=remount-ro",
        "mount volume:data/data /var/lib/data -",
        "mount d1/1 /boot/efi umask=0077",
        "esp d1/1",
        "esp d2/1",
        *more,
    )
