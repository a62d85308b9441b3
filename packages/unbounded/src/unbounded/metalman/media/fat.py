"""FAT16 file system of an EFI system partition, laid out for files that stay where they are on disk.

Its clusters have the size of a sector, so that a loader of some megabytes makes a valid FAT16 without padding. Each
file occupies consecutive clusters: the layout needs the sizes of the files, and not their content (UEFI 2.10, 13.3).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SECTOR: Final = 512
FATS: Final = 2
ROOT_ENTRIES: Final = 512
ROOT_SECTORS: Final = ROOT_ENTRIES * 32 // SECTOR
LEAST_CLUSTERS: Final = 4085 + 16  # fewer are FAT12; the specification advises to keep a distance
MOST_CLUSTERS: Final = 65524 - 16
FOLDER: Final = 0x10
LAST: Final = 0xFFFF
FIRST_DAY: Final = 0x21  # 1980-01-01


class LoadersTooLarge(ValueError):
    """The files do not fit into a FAT16 of small clusters."""


@dataclass(frozen=True, slots=True)
class FatLayout:
    """Layout of a file system.

    Args:
        head: everything in front of the first file: boot sector, tables and folders.
        files: the names in the order of their content, which follows the head; each is padded to SECTOR.
        size: bytes of the file system, a multiple of SECTOR.
    """

    head: bytes
    files: tuple[str, ...]
    size: int


def fat_layout(files: Mapping[str, int], folders: tuple[str, ...] = ("EFI", "BOOT")) -> FatLayout:
    """Return the layout for files of these sizes in one nested folder.

    Args:
        files: size by name; a name has up to eight and three letters.
    Raises:
        LoadersTooLarge: the files need more clusters than there are.
        ValueError: a name is too long.
    """
    ends = _chains([1] * len(folders) + [_sectors(size) for size in files.values()])
    clusters = max(LEAST_CLUSTERS, ends[-1] - 2)
    if clusters > MOST_CLUSTERS:
        raise LoadersTooLarge(
            f"loaders of {sum(files.values())} bytes do not fit; the limit is {MOST_CLUSTERS * SECTOR}"
        )
    table_sectors = _sectors((clusters + 2) * 2)
    table = _table(ends).ljust(table_sectors * SECTOR, b"\0")
    starts = [2, *ends][: len(folders) + len(files)]
    entries = [_entry(name, FOLDER, start, 0) for name, start in zip(folders, starts, strict=False)]
    of_files = b"".join(
        _entry(name, 0, start if size else 0, size)
        for (name, size), start in zip(files.items(), starts[len(folders) :], strict=True)
    )
    below = [*entries[1:], of_files]
    parents = [0, *starts[: len(folders) - 1]]
    sectors = 1 + FATS * table_sectors + ROOT_SECTORS + clusters
    head = b"".join(
        (
            _boot_sector(sectors, table_sectors),
            table * FATS,
            entries[0].ljust(ROOT_SECTORS * SECTOR, b"\0"),
            *(
                _folder(own, parent, content)
                for own, parent, content in zip(starts[: len(folders)], parents, below, strict=True)
            ),
        )
    )
    return FatLayout(head, tuple(files), sectors * SECTOR)


def _sectors(size: int) -> int:
    return -(-size // SECTOR)


def _chains(counts: list[int]) -> list[int]:
    """Return for each chain of clusters the first cluster behind it; the first chain begins with cluster 2."""
    ends, at = [], 2
    for count in counts:
        at += count
        ends.append(at)
    return ends


def _table(ends: list[int]) -> bytes:
    following = list(range(3, ends[-1] + 1))
    for start, end in zip([2, *ends], ends, strict=False):
        if end > start:
            following[end - 3] = LAST
    return struct.pack(f"<HH{len(following)}H", 0xFFF8, LAST, *following)


def _folder(own: int, parent: int, content: bytes) -> bytes:
    dots = _entry(".", FOLDER, own, 0) + _entry("..", FOLDER, parent, 0)
    if len(dots + content) > SECTOR:
        raise LoadersTooLarge("more files than a folder of one sector has entries")
    return (dots + content).ljust(SECTOR, b"\0")


def _entry(name: str, attributes: int, cluster: int, size: int) -> bytes:
    stem, _, suffix = name.upper().partition(".") if name.strip(".") else (name, "", "")
    short = stem.ljust(8).encode("ascii") + suffix.ljust(3).encode("ascii")
    if len(short) != 11:
        raise ValueError(f"{name} is not a name of eight and three letters")
    return struct.pack("<11sB8xHHHHI", short, attributes, 0, 0, FIRST_DAY, cluster, size)


def _boot_sector(sectors: int, table_sectors: int) -> bytes:
    short, long = (sectors, 0) if sectors < 1 << 16 else (0, sectors)
    head = struct.pack(
        "<3s8sHBHBHHBHHHII",
        *(b"\xeb\x3c\x90", b"MSWIN4.1", SECTOR, 1, 1, FATS, ROOT_ENTRIES, short, 0xF8, table_sectors),
        *(32, 8, 0, long),
    )
    tail = struct.pack("<BBBI11s8s", 0x80, 0, 0x29, 1, b"NO NAME    ", b"FAT16   ")
    return (head + tail).ljust(510, b"\0") + b"\x55\xaa"
