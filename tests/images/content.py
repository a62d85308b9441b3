"""Content of disks, byte for byte: partition tables, file systems, LVM, RAID, and disk images."""

from __future__ import annotations

import gzip
import random
import struct
import uuid
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import zstandard

MIB: Final = 1024 * 1024
SECTOR: Final = 512
LINUX: Final = uuid.UUID("0fc63daf-8483-4772-8e79-3d69d8477de4")
TABLE: Final = uuid.UUID("5b1a1a1a-0000-4000-8000-00000000d15c")


def gpt(sectors: int, *parts: tuple[int, int], table: uuid.UUID = TABLE, sector: int = SECTOR) -> bytes:
    """The start of a disk with a GUID partition table (UEFI 2.10). Parts: first and last sector."""
    entries = b"".join(
        LINUX.bytes_le + uuid.uuid5(table, str(number)).bytes_le + struct.pack("<QQQ", first, last, 0) + bytes(72)
        for number, (first, last) in enumerate(parts)
    ).ljust(128 * 128, b"\0")
    first_usable = 2 + len(entries) // sector
    last_usable = sectors - first_usable

    def header(crc: int) -> bytes:
        head = struct.pack("<8sIIIIQQQQ", b"EFI PART", 0x10000, 92, crc, 0, 1, sectors - 1, first_usable, last_usable)
        return head + table.bytes_le + struct.pack("<QIII", 2, 128, 128, zlib.crc32(entries))

    protective = struct.pack("<B3sB3sII", 0, b"\0\2\0", 0xEE, b"\xff\xff\xff", 1, min(sectors - 1, 0xFFFFFFFF))
    record = (bytes(446) + protective + bytes(48) + b"\x55\xaa").ljust(sector, b"\0")
    return record + header(zlib.crc32(header(0))).ljust(sector, b"\0") + entries


def mbr() -> bytes:
    part = struct.pack("<B3sB3sII", 0, b"\0\2\0", 0x83, b"\xff\xff\xff", 2048, 8192)
    return bytes(440) + b"\x11\x22\x33\x44\0\0" + part + bytes(48) + b"\x55\xaa"


def lvm() -> bytes:
    """The label of an LVM physical volume, in the second sector; its checksum is a CRC-32 with a start of its own."""
    told = struct.pack("<I8s", 32, b"LVM2 001") + b"abcdefghijklmnopqrstuvwxyz012345" + struct.pack("<Q", 64 * MIB)
    told = told.ljust(SECTOR - 20, b"\0")
    crc = zlib.crc32(told, 0xF597A6CF ^ 0xFFFFFFFF) ^ 0xFFFFFFFF
    return bytes(SECTOR) + struct.pack("<8sQI", b"LABELONE", 1, crc) + told


def raid(sector: int) -> bytes:
    """Return a superblock of Linux software RAID, version 1, for its sector."""
    told = struct.pack("<IIII16s32s", 0xA92B4EFC, 1, 0, 0, uuid.UUID(int=7).bytes, b"rack1:0")
    told += struct.pack("<QIIQIIII", 0, 1, 0, 131072, 0, 2, 0, 0)
    told = told.ljust(128, b"\0") + struct.pack("<QQQQ", 2048, 131072 - 2048, sector, 0)
    words = struct.unpack("<64I", told.ljust(256, b"\0"))
    total = sum(words)
    total = (total & 0xFFFFFFFF) + (total >> 32)
    return told.ljust(216, b"\0") + struct.pack("<I", total) + bytes(36)


def xfs() -> bytes:
    sizes = struct.pack("<4s", b"XFSB") + struct.pack(">IQQQ", 4096, 16384, 0, 0) + uuid.UUID(int=9).bytes
    sizes += struct.pack(">QQQQIIIIIHHHH12sBBBBBBBB", 4, 32, 33, 34, 1, 4096, 4, 0, 1000, 0xB4A4, 512, 512, 8,
                         b"", 12, 9, 9, 3, 12, 0, 0, 25)  # fmt: skip
    return sizes.ljust(SECTOR, b"\0")


def ext4() -> bytes:
    """The start of an ext4 file system: the superblock behind its first KiB."""
    told = struct.pack("<IIIIIIIIIIIIIHHHHHHIIIIHH", 64, 4096, 0, 3000, 50, 0, 2, 2, 8192, 8192, 64, 0, 0, 0, 20,
                       0xEF53, 1, 1, 0, 0, 0, 0, 1, 0, 0)  # fmt: skip
    told += struct.pack("<IHHIII", 11, 256, 0, 0x3C, 0x2C2, 0x7B) + uuid.UUID(int=13).bytes + b"data".ljust(16, b"\0")
    return bytes(1024) + told.ljust(1024, b"\0")


def swap() -> bytes:
    page = bytearray(4096)
    struct.pack_into("<III", page, 1024, 1, 4095, 0)
    page[1036:1052] = uuid.UUID(int=11).bytes
    page[4086:4096] = b"SWAPSPACE2"
    return bytes(page)


FOREIGN: Final[Mapping[str, tuple[Callable[[int], list[tuple[int, bytes]]], str]]] = {
    # what is written where, by the size of the disk; and a word of the expected message
    "a GUID partition table": (lambda size: [(0, gpt(size // SECTOR, (2048, 4095)))], "gpt"),
    "a table without partitions": (lambda size: [(0, gpt(size // SECTOR))], "gpt"),
    "a DOS partition table": (lambda size: [(0, mbr())], "dos"),
    "LVM": (lambda size: [(0, lvm())], "LVM2_member"),
    "RAID 1.2": (lambda size: [(4096, raid(8))], "linux_raid_member"),
    "RAID 1.1": (lambda size: [(0, raid(0))], "linux_raid_member"),
    "RAID 1.0": (lambda size: [(size - 8192, raid((size - 8192) // SECTOR))], "linux_raid_member"),
    "XFS": (lambda size: [(0, xfs())], "xfs"),
    "swap": (lambda size: [(0, swap())], "swap"),
    "LUKS": (lambda size: [(0, b"LUKS\xba\xbe\0\1".ljust(592, b"\0"))], "crypto_LUKS"),
    "two at once": (lambda size: [(0, lvm()), (4096, raid(8))], ""),
    "ext4 at 1 MiB and no table": (lambda size: [(MIB, ext4())], "TYPE=ext4 at 1 MiB, without a partition table"),
    "XFS at 1 MiB and no table": (lambda size: [(MIB, xfs())], "TYPE=xfs at 1 MiB, without a partition table"),
    "something behind the first MiB": (lambda size: [(5 * MIB, b"x")], "unknown kind at its start"),
    "something at the start": (lambda size: [(700_000, b"x")], "unknown kind at its start"),
    "something at the end": (lambda size: [(size - 4, b"x")], "unknown kind at its end"),
}


def put(disk: Path, *pieces: tuple[int, bytes]) -> None:
    with disk.open("r+b") as file:
        for at, data in pieces:
            file.seek(at)
            file.write(data)


def image(mib: int = 5, *, extra: int = 0) -> bytes:
    """A disk image with one partition, filled with bytes that no packing makes smaller."""
    size = mib * MIB + extra
    head = gpt(mib * MIB // SECTOR, (2048, mib * MIB // SECTOR - 35)).ljust(MIB, b"\0")
    return head + random.Random(size).randbytes(size - MIB)


def packed(data: bytes, how: str) -> bytes:
    return gzip.compress(data, 1) if how == "gz" else zstandard.compress(data, 1)
