"""Layouts as metalman compiles them, written by hand: the root file system on RAID 1 and LVM, or on RAID 10."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Sequence
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


def striped(four: Sequence[str], large: Sequence[str], *more: str) -> str:
    """Four disks of 1 GiB: / on RAID 10 of metadata 1.1, two ESPs; two 4Kn disks: XFS on RAID 0 of metadata 1.2."""
    mirrors = [f"d{number}" for number in range(1, len(four) + 1)]
    stripes = [f"d{number + len(four)}" for number in range(1, len(large) + 1)]
    return layout(
        *(f"disk {disk} {path} Blank" for disk, path in zip((*mirrors, *stripes), (*four, *large), strict=True)),
        *(partition(disk, 1, 2, 64, ESP_TYPE) for disk in mirrors[:2]),
        *(partition(disk, 2, 66, 900, RAID_TYPE) for disk in mirrors),
        *(partition(disk, 1, 2, 500, RAID_TYPE, sector=4096) for disk in stripes),
        f"raid root 10 1.1 {identity('raid')} {' '.join(f'{disk}/2' for disk in mirrors)}",
        f"raid data 0 1.2 {identity('stripes')} {' '.join(f'{disk}/1' for disk in stripes)}",
        *(f"filesystem vfat {disk}/1 {name} -F,32" for disk, name in zip(mirrors, ESP_IDS, strict=False)),
        f"filesystem ext4 raid:root {identity('root')} -m,1",
        f"filesystem xfs raid:data {identity('data')} -",
        "mount raid:root / errors=remount-ro",
        "mount raid:data /var/lib/data -",
        "mount d1/1 /boot/efi umask=0077",
        "esp d1/1",
        "esp d2/1",
        *more,
    )
