"""ISO 9660 image of one boot, as a list of parts: the loader in an El Torito EFI partition, kernel, installer, and the
loader's configuration.

The configuration is the one that the loader would get over the network: its kernel command line has the network of the
installer and the secret of the boot. The loader, the kernel and the installer are the files of the netboot image: none
is copied, and laying out an image takes less than a millisecond. Names are those of Rock Ridge (IEEE P1282), as GRUB
reads them. The image has no time and no random number in it: equal content makes an equal image.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from unbounded.metalman.media import fat

SECTOR: Final = 2048
LONGEST_NAME: Final = 128  # with all else that a directory record has, it takes less than 255 bytes
SYSTEM_SECTORS: Final = 16
DESCRIPTORS: Final = 3  # of the volume, of the boot catalog, and their end
CATALOG_AT: Final = SYSTEM_SECTORS + DESCRIPTORS
TABLES_AT: Final = CATALOG_AT + 1
LABEL: Final = "UNBOUNDED_BOOT"
EFI_FOLDER: Final = "EFI/BOOT"
WORDS: Final = ".extra.d/boot.cred"  # behind the loader; systemd-stub(7) puts it at /.extra/credentials/boot.cred
DATE: Final = bytes(7)
LARGEST_COUNT: Final = 0xFFFF
LARGEST_FILE: Final = (1 << 32) - SECTOR


@dataclass(frozen=True, slots=True)
class FilePart:
    """File on disk that is a part of an image. `size` is checked when the file is read."""

    path: Path
    size: int


Part = bytes | FilePart


@dataclass(frozen=True)
class MediaImage:
    """Image as the sequence of its parts."""

    parts: tuple[Part, ...]

    @cached_property
    def size(self) -> int:
        return sum(map(part_size, self.parts))

    @cached_property
    def etag(self) -> str:
        """A bare tag that identifies the bytes, as long as the files do not change."""
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(part if isinstance(part, bytes) else f"{part.path}\n{part.size}\n".encode())
        return digest.hexdigest()[:32]

    def slices(self, start: int, stop: int) -> Iterator[tuple[Part, int, int]]:
        """Yield the parts of a range of bytes, each with the range within the part."""
        at = 0
        for part in self.parts:
            size = part_size(part)
            first, last = max(start - at, 0), min(stop - at, size)
            if first < last:
                yield part, first, last
            at += size
            if at >= stop:
                return


def part_size(part: Part) -> int:
    return len(part) if isinstance(part, bytes) else part.size


@dataclass(frozen=True, slots=True)
class MediaContent:
    """Content of an image.

    Args:
        loader: what the firmware starts.
        second_loader: what the loader starts from its own folder; None if it needs none.
        files: the other files by path, with at most one folder.
        words: the words of the boot, which systemd's stub gives to a loader that has kernel and installer in it.
        machine_type: part of the loaders' names on removable media: X64 or AA64 (UEFI 2.10, 3.5.1.1).
    """

    loader: Part
    second_loader: Part | None
    files: Mapping[str, Part]
    words: bytes | None = None
    machine_type: str = "X64"


def media_image(content: MediaContent) -> MediaImage:
    """Lay out an image.

    Raises:
        ValueError: a file is too large, or a path has more than one folder; the message names it.
    """
    first = f"{EFI_FOLDER}/BOOT{content.machine_type}.EFI"
    loaders = {first: content.loader}
    if content.second_loader is not None:
        loaders[f"{EFI_FOLDER}/GRUB{content.machine_type}.EFI"] = content.second_loader
    if content.words is not None:
        loaders[f"{first}{WORDS}"] = content.words
    esp = fat.fat_layout({name: part_size(part) for name, part in loaders.items()})
    esp_sectors = _sectors(esp.size)
    folders = _folders(content.files)
    esp_at = TABLES_AT + 2 + sum(_sectors(_records_size(names)) for names in folders.values())
    places = _places(content.files, esp_at + esp_sectors)
    total = esp_at + esp_sectors + sum(_sectors(part_size(part)) for part in content.files.values())
    head = _head(
        folders, places, {path: part_size(part) for path, part in content.files.items()}, esp_at, esp.size, total
    )
    behind_loaders = (
        esp_sectors * SECTOR - len(esp.head) - sum(_padded(loaders[name], esp.cluster) for name in esp.files)
    )
    parts: list[Part] = [head + esp.head]
    for name in esp.files:
        parts += _with_padding(loaders[name], esp.cluster)
    parts.append(bytes(behind_loaders))
    for part in content.files.values():
        parts += _with_padding(part, SECTOR)
    return MediaImage(_merged(parts))


def _merged(parts: list[Part]) -> tuple[Part, ...]:
    """Join neighbouring bytes, and leave out empty ones."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, bytes) and isinstance(last, bytes):
            merged[-1] = last + part
        elif part_size(part):
            merged.append(part)
    return tuple(merged)


def _with_padding(part: Part, unit: int) -> list[Part]:
    return [part, bytes(_padded(part, unit) - part_size(part))]


def _padded(part: Part, unit: int) -> int:
    return -(-part_size(part) // unit) * unit


def _sectors(size: int) -> int:
    return -(-size // SECTOR)


ROOT: Final = ""
Folders = Mapping[str, tuple[str, ...]]
"""Names in each folder, sorted; the root comes first."""


def _folders(files: Mapping[str, Part]) -> Folders:
    names: dict[str, list[str]] = {ROOT: []}
    for path, part in files.items():
        folder, _, name = path.rpartition("/")
        if "/" in folder or not name:
            raise ValueError(f"{path} has more than one folder")
        if part_size(part) > LARGEST_FILE:
            raise ValueError(f"{path} is too large for a file of ISO 9660")
        if max(len(folder.encode()), len(name.encode())) > LONGEST_NAME:
            raise ValueError(f"{path} has a name of more than {LONGEST_NAME} bytes")
        names.setdefault(folder, []).append(name)
    names[ROOT] += [folder for folder in names if folder != ROOT]
    return {folder: tuple(sorted(names[folder])) for folder in sorted(names)}


def _places(files: Mapping[str, Part], at: int) -> Mapping[str, int]:
    """Return the first sector of each file."""
    places = {}
    for path, part in files.items():
        places[path] = at
        at += _sectors(part_size(part))
    return places


def _head(
    folders: Folders, places: Mapping[str, int], sizes: Mapping[str, int], esp_at: int, esp_size: int, total: int
) -> bytes:
    """Return all sectors in front of the EFI partition."""
    folder_places, at = {}, TABLES_AT + 2
    for folder, names in folders.items():
        folder_places[folder] = (at, _sectors(_records_size(names)) * SECTOR)
        at += _sectors(_records_size(names))
    table = [_table(folder_places, order) for order in "<>"]
    descriptors = (
        _volume_descriptor(folder_places[ROOT], len(table[0]), total),
        b"\0CD001\1" + b"EL TORITO SPECIFICATION".ljust(64, b"\0") + struct.pack("<I", CATALOG_AT),
        b"\xffCD001\1",
        _catalog(esp_at, esp_size),
        *table,
    )
    whole = [part.ljust(SECTOR, b"\0") for part in descriptors]
    for folder, names in folders.items():
        content = _folder_content(folder, names, folder_places, places, sizes)
        whole.append(content.ljust(folder_places[folder][1], b"\0"))
    return bytes(SYSTEM_SECTORS * SECTOR) + b"".join(whole)


def _both(form: str, value: int) -> bytes:
    """Return a number in both byte orders, as ISO 9660 has most of them (ECMA-119, 7.2.3 and 7.3.3)."""
    return struct.pack("<" + form, value) + struct.pack(">" + form, value)


def _volume_descriptor(root: tuple[int, int], table_size: int, total: int) -> bytes:
    texts = b"".join(b" " * length for length in (128, 128, 128, 128, 37, 37, 37))
    return b"".join(
        (
            b"\1CD001\1\0" + b" " * 32 + LABEL.encode().ljust(32) + bytes(8) + _both("I", total) + bytes(32),
            _both("H", 1) * 2 + _both("H", SECTOR) + _both("I", table_size),
            struct.pack("<II", TABLES_AT, 0) + struct.pack(">II", TABLES_AT + 1, 0),
            _record(b"\0", root[0], root[1], is_folder=True),
            texts,
            (b"0" * 16 + b"\0") * 4 + b"\1",
        )
    )


def _catalog(esp_at: int, esp_size: int) -> bytes:
    """Return the boot catalog: one entry for EFI without emulation (El Torito 1.0, 2; UEFI 2.10, 13.3.2.1)."""
    validation = struct.pack("<BBH24sHBB", 1, 0xEF, 0, LABEL.encode(), 0, 0x55, 0xAA)
    checksum = -sum(struct.unpack("<16H", validation)) & 0xFFFF
    validation = validation[:28] + struct.pack("<H", checksum) + validation[30:]
    count = esp_size // fat.SECTOR
    count = 0 if count > LARGEST_COUNT else count  # which stands for all to the end of the image
    return validation + struct.pack("<BBHBBHI20x", 0x88, 0, 0, 0, 0, count, esp_at)


def _table(folders: Mapping[str, tuple[int, int]], order: str) -> bytes:
    """Return the path table in a byte order."""
    entries = [
        (b"\0" if folder == ROOT else _identifier(folder, is_folder=True), at) for folder, (at, _) in folders.items()
    ]
    return b"".join(
        struct.pack(f"{order}BBIH", len(name), 0, at, 1) + name + bytes(len(name) % 2) for name, at in entries
    )


def _folder_content(
    folder: str,
    names: tuple[str, ...],
    folders: Mapping[str, tuple[int, int]],
    places: Mapping[str, int],
    sizes: Mapping[str, int],
) -> bytes:
    own, parent = folders[folder], folders[ROOT]
    start = SUSP_START + RRIP if folder == ROOT else b""
    records = [
        _record(b"\0", *own, is_folder=True, more=start + _posix(is_folder=True)),
        _record(b"\1", *parent, is_folder=True, more=_posix(is_folder=True)),
    ]
    for name in names:
        path = f"{folder}/{name}".lstrip("/")
        is_folder = folder == ROOT and name in folders
        at, size = folders[name] if is_folder else (places[path], sizes[path])
        more = _posix(is_folder=is_folder) + _name(name)
        records.append(_record(_identifier(name, is_folder=is_folder), at, size, is_folder=is_folder, more=more))
    return _packed(records)


def _packed(records: list[bytes]) -> bytes:
    """Join the records of a folder: none crosses the border of a sector."""
    content = b""
    for record in records:
        room = -len(content) % SECTOR
        content += bytes(room if len(record) > room else 0) + record
    return content


def _records_size(names: tuple[str, ...]) -> int:
    """Return a limit on the size of a folder that does not depend on the places of its files."""
    records = [bytes(FIXED_RECORD + len(SUSP_START + RRIP)), bytes(FIXED_RECORD)]
    records += [bytes(FIXED_RECORD + len(name.encode()) + IDENTIFIER_CHARS) for name in names]
    return len(_packed(records))


IDENTIFIER_CHARS: Final = 31
FIXED_RECORD: Final = 33 + 1 + 44 + 5 + 2  # record, padding, PX, head of NM, and the bytes that round up
SUSP_START: Final = b"SP\7\1\xbe\xef\0"
_RRIP_TEXTS: Final = (b"RRIP_1991A", b"THE ROCK RIDGE INTERCHANGE PROTOCOL", b"SEE PUBLISHER")
RRIP: Final = b"ER" + bytes((8 + sum(map(len, _RRIP_TEXTS)), 1, *map(len, _RRIP_TEXTS), 1)) + b"".join(_RRIP_TEXTS)


def _posix(*, is_folder: bool) -> bytes:
    mode, links = (0o040555, 2) if is_folder else (0o100444, 1)
    return b"PX" + bytes((44, 1)) + b"".join(_both("I", value) for value in (mode, links, 0, 0, 0))


def _name(name: str) -> bytes:
    text = name.encode()
    return b"NM" + bytes((5 + len(text), 1, 0)) + text


def _identifier(name: str, *, is_folder: bool) -> bytes:
    """Return the name for readers without Rock Ridge: capitals, digits, `_`, and one dot in that of a file."""
    stem, _, suffix = name.rpartition(".") if "." in name and not is_folder else (name, "", "")
    letters = [
        "".join(char if char.isascii() and char.isalnum() else "_" for char in part.upper()) for part in (stem, suffix)
    ]
    plain = letters[0][:20]
    return (plain if is_folder else f"{plain}.{letters[1][:8]};1").encode()


def _record(name: bytes, at: int, size: int, *, is_folder: bool, more: bytes = b"") -> bytes:
    """Return a directory record (ECMA-119, 9.1); `more` is its system use area."""
    body = b"".join(
        (
            b"\0" + _both("I", at) + _both("I", size) + DATE,
            bytes((2 if is_folder else 0, 0, 0)) + _both("H", 1) + bytes((len(name),)) + name,
            bytes(1 - len(name) % 2),
            more,
        )
    )
    body += bytes((len(body) + 1) % 2)
    return bytes((len(body) + 1,)) + body
