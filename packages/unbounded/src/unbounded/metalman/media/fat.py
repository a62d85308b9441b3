"""FAT16 file system of an EFI system partition, laid out for files that stay where they are on disk.

Its clusters are as small as the files allow, so that a loader of some megabytes makes a valid FAT16 without padding.
Each file occupies consecutive clusters: the layout needs the sizes of the files, and not their content (UEFI 2.10,
13.3). A name that is not of eight and three letters is stored as a long one.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

SECTOR: Final = 512
FATS: Final = 2
ROOT_ENTRIES: Final = 512
ROOT_SECTORS: Final = ROOT_ENTRIES * 32 // SECTOR
LEAST_CLUSTERS: Final = 4085 + 16  # fewer are FAT12; the specification advises to keep a distance
MOST_CLUSTERS: Final = 65524 - 16
CLUSTER_SECTORS: Final = (1, 2, 4, 8, 16, 32, 64)
ROOT: Final = ""
FOLDER: Final = 0x10
LONG_NAME: Final = 0x0F
LONG_NAME_CHARS: Final = 13  # in one entry
LAST: Final = 0xFFFF
FIRST_DAY: Final = 0x21  # 1980-01-01
SHORT_NAME: Final = re.compile(r"[A-Z0-9_-]{1,8}(?:\.[A-Z0-9_-]{1,3})?")
STORABLE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,250}", re.ASCII)


class LoadersTooLarge(ValueError):
    """The files do not fit into a FAT16."""


@dataclass(frozen=True, slots=True)
class FatLayout:
    """Layout of a file system.

    Args:
        head: everything in front of the first file: boot sector, tables and folders.
        files: the paths in the order of their content, which follows the head; each is padded to `cluster`.
        cluster: bytes of a cluster.
        size: bytes of the file system, a multiple of SECTOR.
    """

    head: bytes
    files: tuple[str, ...]
    cluster: int
    size: int


def fat_layout(files: Mapping[str, int]) -> FatLayout:
    """Return the layout for files of these sizes, by path.

    Raises:
        LoadersTooLarge: the files need more clusters than there are.
        ValueError: a name cannot be stored.
    """
    folders = sorted({folder for path in files for folder in _parents(path)})
    for sectors in CLUSTER_SECTORS:
        cluster = sectors * SECTOR
        starts, end = _starts([1] * len(folders) + [-(-size // cluster) for size in files.values()])
        if end - 2 <= MOST_CLUSTERS:
            break
    else:
        raise LoadersTooLarge(f"loaders of {sum(files.values())} bytes do not fit into a FAT16")
    clusters = max(LEAST_CLUSTERS, end - 2)
    table = _table([*starts, end])
    table_sectors = -(-(clusters + 2) * 2 // SECTOR)
    places = dict(zip([*folders, *files], starts, strict=True))
    total = 1 + FATS * table_sectors + ROOT_SECTORS + clusters * sectors
    head = b"".join(
        (
            _boot_sector(total, table_sectors, sectors),
            table.ljust(table_sectors * SECTOR, b"\0") * FATS,
            _filled(ROOT, files, places, ROOT_SECTORS * SECTOR),
            *(_filled(folder, files, places, cluster) for folder in folders),
        )
    )
    return FatLayout(head, tuple(files), cluster, total * SECTOR)


def _parents(path: str) -> Iterator[str]:
    folder = _folder_of(path)
    while folder != ROOT:
        yield folder
        folder = _folder_of(folder)


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def _starts(counts: list[int]) -> tuple[list[int], int]:
    """Return the first cluster of each chain, and the one behind the last; the first chain begins with cluster 2."""
    starts, at = [], 2
    for count in counts:
        starts.append(at)
        at += count
    return starts, at


def _table(borders: list[int]) -> bytes:
    """Return the allocation table of chains that lie between these clusters."""
    following = list(range(3, borders[-1] + 1))
    for start, end in itertools.pairwise(borders):
        if end > start:
            following[end - 3] = LAST
    return struct.pack(f"<HH{len(following)}H", 0xFFF8, LAST, *following)


def _filled(folder: str, files: Mapping[str, int], places: Mapping[str, int], room: int) -> bytes:
    """Return the entries of a folder, padded to its room."""
    content = b""
    if folder != ROOT:
        content = _entry(b".          ", FOLDER, places[folder], 0)
        content += _entry(b"..         ", FOLDER, places.get(_folder_of(folder), 0), 0)
    inside = [path for path in places if _folder_of(path) == folder]
    for number, path in enumerate(inside, start=1):
        size = files.get(path, 0)
        start = 0 if path in files and not size else places[path]
        content += _named(path.rpartition("/")[2], number, 0 if path in files else FOLDER, start, size)
    if len(content) > room:
        raise LoadersTooLarge(f"more files than the folder {folder or '/'} has entries")
    return content.ljust(room, b"\0")


def _named(name: str, number: int, attributes: int, cluster: int, size: int) -> bytes:
    """Return the entries of a file or folder; `number` tells its short name from others of its folder."""
    if SHORT_NAME.fullmatch(name):
        stem, _, suffix = name.partition(".")
        return _entry(f"{stem:8}{suffix:3}".encode(), attributes, cluster, size)
    if not STORABLE_NAME.fullmatch(name):
        raise ValueError(f"{name} has characters that a FAT does not store here, or is too long")
    tail = f"~{number}"
    stem, dot, suffix = name.upper().rpartition(".")
    if not dot:
        stem, suffix = suffix, ""
    short = f"{stem.replace('.', '')[: 8 - len(tail)] + tail:8}{suffix[:3]:3}".encode()
    return _long_name(name, short) + _entry(short, attributes, cluster, size)


def _long_name(name: str, short: bytes) -> bytes:
    """Return the entries of a long name, its end first, which belong to a short name by its checksum."""
    checksum = 0
    for byte in short:
        checksum = (((checksum & 1) << 7) + (checksum >> 1) + byte) & 0xFF
    count = -(-len(name) // LONG_NAME_CHARS)
    text = name.encode("utf-16-le")
    if len(name) % LONG_NAME_CHARS:
        text = (text + b"\0\0").ljust(count * LONG_NAME_CHARS * 2, b"\xff")
    entries = []
    for index in reversed(range(count)):
        part = text[index * LONG_NAME_CHARS * 2 :][: LONG_NAME_CHARS * 2]
        order = index + 1 | (0x40 if index + 1 == count else 0)
        entries.append(
            struct.pack("<B10sBBB12sH4s", order, part[:10], LONG_NAME, 0, checksum, part[10:22], 0, part[22:])
        )
    return b"".join(entries)


def _entry(short: bytes, attributes: int, cluster: int, size: int) -> bytes:
    return struct.pack("<11sB8xHHHHI", short, attributes, 0, 0, FIRST_DAY, cluster, size)


def _boot_sector(sectors: int, table_sectors: int, cluster_sectors: int) -> bytes:
    short, long = (sectors, 0) if sectors < 1 << 16 else (0, sectors)
    head = struct.pack(
        "<3s8sHBHBHHBHHHII",
        *(b"\xeb\x3c\x90", b"MSWIN4.1", SECTOR, cluster_sectors, 1, FATS, ROOT_ENTRIES, short, 0xF8, table_sectors),
        *(32, 8, 0, long),
    )
    tail = struct.pack("<BBBI11s8s", 0x80, 0, 0x29, 1, b"NO NAME    ", b"FAT16   ")
    return (head + tail).ljust(510, b"\0") + b"\x55\xaa"
