"""A disk that firmware starts from: one FAT16 file system over all of it, without a partition table."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

SECTOR: Final = 512
CLUSTER: Final = 8 * SECTOR
FATS: Final = 2
FAT_SECTORS: Final = 64  # for 16384 clusters
ROOT_ENTRIES: Final = 512
DATA_AT: Final = (1 + FATS * FAT_SECTORS) * SECTOR + ROOT_ENTRIES * 32
FOLDER: Final = 0x10
LAST: Final = 0xFFFF
FIRST_DAY: Final = 0x21  # 1980-01-01


def fat_disk(files: Mapping[str, bytes], *, size: int = 32 << 20) -> bytes:
    """The disk's bytes; paths have names of eight and three letters at most, and no case.

    Raises:
        ValueError: it does not fit in.
    """
    volume = _Volume((size - DATA_AT) // CLUSTER)
    root = volume.folder(_tree(files), parent=None)
    image = bytearray(size)
    image[:SECTOR] = _boot_sector(size // SECTOR)
    table = volume.table()
    for copy in range(FATS):
        at = (1 + copy * FAT_SECTORS) * SECTOR
        image[at : at + len(table)] = table
    at = (1 + FATS * FAT_SECTORS) * SECTOR
    image[at : at + len(root)] = root
    image[DATA_AT : DATA_AT + len(volume.data)] = volume.data
    return bytes(image)


Tree = dict[str, "Tree | bytes"]


def _tree(files: Mapping[str, bytes]) -> Tree:
    root: Tree = {}
    for path, content in files.items():
        *folders, name = path.upper().split("/")
        here = root
        for folder in folders:
            below = here.setdefault(folder, {})
            assert isinstance(below, dict)
            here = below
        here[name] = content
    return root


class _Volume:
    """Clusters, given out one after the other; the first has number 2."""

    def __init__(self, clusters: int) -> None:
        self.data = bytearray()
        self._clusters = clusters
        self._next: list[int] = []

    def table(self) -> bytes:
        return struct.pack(f"<HH{len(self._next)}H", 0xFFF8, LAST, *self._next)

    def folder(self, tree: Tree, parent: int | None) -> bytes:
        """The entries of a folder; None is for the root, which has no `.` and `..`."""
        entries = []
        for name, content in tree.items():
            if isinstance(content, bytes):
                entries.append(_entry(name, 0, self._keep(content), len(content)))
            else:
                entries.append(_entry(name, FOLDER, self._subfolder(content, parent or 0), 0))
        return b"".join(entries)

    def _subfolder(self, tree: Tree, parent: int) -> int:
        at = self._keep(bytes(CLUSTER))  # one cluster: its entries name what follows it
        dots = _entry(".", FOLDER, at, 0) + _entry("..", FOLDER, parent, 0)
        entries = dots + self.folder(tree, at)
        start = (at - 2) * CLUSTER
        self.data[start : start + len(entries)] = entries
        return at

    def _keep(self, content: bytes) -> int:
        first, count = len(self._next) + 2, max(1, -(-len(content) // CLUSTER))
        if first + count > self._clusters:
            raise ValueError("the files do not fit into the disk")
        self._next += [*range(first + 1, first + count), LAST]
        self.data += content.ljust(count * CLUSTER, b"\0")
        return first


def _entry(name: str, attributes: int, cluster: int, size: int) -> bytes:
    stem, _, suffix = name.partition(".") if name.strip(".") else (name, "", "")
    short = stem.ljust(8).encode() + suffix.ljust(3).encode()
    if len(short) != 11:
        raise ValueError(f"{name} is no name of eight and three letters")
    return struct.pack("<11sB8xHHHHI", short, attributes, 0, 0, FIRST_DAY, cluster, size)


def _boot_sector(sectors: int) -> bytes:
    head = struct.pack(
        "<3s8sHBHBHHBHHHII",
        *(b"\xeb\x3c\x90", b"MSWIN4.1", SECTOR, CLUSTER // SECTOR, 1, FATS, ROOT_ENTRIES, 0, 0xF8, FAT_SECTORS),
        *(32, 8, 0, sectors),
    )
    tail = struct.pack("<BBBI11s8s", 0x80, 0, 0x29, 1, b"NO NAME    ", b"FAT16   ")
    return (head + tail).ljust(510, b"\0") + b"\x55\xaa"
