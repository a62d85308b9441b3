"""Mapping of a path to a file of an image, and to the clients that may have it.

A path is resolved in this order: `cloud-init/user-data` and `cloud-init/network-config`, which belong to the Machine;
`<path>.tmpl`, rendered; `<path>` as it is. `disk.img.*` and `rootfs.tar.*` come from the image of `spec.pxe.image`.
Everything else comes from `spec.pxe.netbootImage` if it is set.

A host that is identified only by its source address gets only the first stages: loaders, their configuration, kernel,
initrd. Their one secret is the prefix of the boot, which the configuration passes on. All other files require the
prefix.

The TFTP server gets the content of a file; disk images are sent with their unpacked sizes.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import stat
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, cast

import zstandard

from unbounded.api.machine import Machine
from unbounded.gotemplate import Template
from unbounded.metalman.dhcp.model import Loader
from unbounded.metalman.disk_choice import SECTOR_BYTES, SECTORS
from unbounded.metalman.http.boot_service import OnDisk
from unbounded.metalman.layout.model import LayoutImage
from unbounded.metalman.netboot.model import BootImages, NetbootImage
from unbounded.metalman.netboot.template_context import TemplateContext, template_data

USER_DATA: Final = "cloud-init/user-data"
NETWORK_CONFIG: Final = "cloud-init/network-config"
TEMPLATE: Final = ".tmpl"
LONGEST_PATH: Final = 1024
MOST_DIGITS: Final = 19  # of a size
LARGEST_TEMPLATE_BYTES: Final = 1 << 20
CACHED_PATHS: Final = 4096  # resolved paths, wrong guesses included
CONFIG_FOLDERS: Final = frozenset({"grub", "boot", "efi", "debian-installer", "pxelinux.cfg", "loader"})
STATEMENT: Final = "statement"  # what a signed kernel takes for its command line, once it runs
KERNEL_NAMES: Final = ("vmlinuz", "linux", "initrd", "initramfs", "init.cpio", "microcode", STATEMENT)
LOADER_ENDINGS: Final = (".efi", ".ipxe", ".kpxe", ".pxe", ".lkrn", ".0", ".c32")
DISK_NAME: Final = "disk.img"
ROOTFS_NAME: Final = "rootfs.tar"  # a root file system, for layouts of several disks
LOADER_BYTES: Final = "rootfs.tar.zst.loader"  # size of the files that a layout has on each EFI system partition
LARGE_SECTOR_IMAGES: Final = ("disk.img.4k.zst", "disk.img.4k.gz")  # for disks with sectors of 4096 bytes


class FileRole(Enum):
    """Purpose of a file."""

    LOADER = "loader"  # a boot file that DHCP names
    CONFIG = "config"  # requested by loaders on their own
    KERNEL = "kernel"  # started by loaders
    DISK = "disk"
    OTHER = "other"


FIRST_STAGES: Final = frozenset({FileRole.LOADER, FileRole.CONFIG, FileRole.KERNEL})


def normalized_path(path: str) -> str | None:
    """Return the path without repeated slashes; None if it is absolute, leads upwards, or has unusual characters."""
    parts = [part for part in path.split("/") if part]
    odd = not path.isprintable() or "\\" in path or len(path) > LONGEST_PATH  # NUL is not printable
    if odd or not parts or path.startswith("/") or not {".", ".."}.isdisjoint(parts):
        return None
    return "/".join(parts)


def file_role(path: str, loaders: Mapping[Loader, str]) -> FileRole:
    """Return the purpose of a plain path by the image's boot files and the names that loaders request."""
    if path in loaders.values():
        return FileRole.LOADER
    pure = PurePosixPath(path.lower())
    if pure.name.startswith(DISK_NAME) or is_rootfs(path):
        return FileRole.DISK
    folder = pure.parts[0] if len(pure.parts) > 1 else ""
    if folder not in CONFIG_FOLDERS | {""}:
        return FileRole.OTHER
    if pure.name.startswith(KERNEL_NAMES):
        return FileRole.KERNEL
    return FileRole.CONFIG if folder or pure.name.endswith(LOADER_ENDINGS) else FileRole.OTHER


def is_rootfs(path: str) -> bool:
    """Return whether a plain path is that of an archive of a root file system, or of a file beside it."""
    return PurePosixPath(path.lower()).name.startswith(ROOTFS_NAME)


def image_of(path: str, served: BootImages) -> NetbootImage:
    """Return the image that has the files of a plain path's role."""
    return served.disk if file_role(path, served.loaders) is FileRole.DISK else served.netboot


@dataclass(frozen=True)
class TemplateFile:
    """Template that is rendered for each Machine."""

    path: Path
    name: str  # within its image

    @cached_property
    def _template(self) -> Template:
        if self.path.stat().st_size > LARGEST_TEMPLATE_BYTES:
            raise OSError(f"{self.name} exceeds the limit for templates ({LARGEST_TEMPLATE_BYTES} bytes)")
        return Template(self.name, self.path.read_text(encoding="utf-8", errors="surrogateescape"))

    def content(self, machine: Machine, around: TemplateContext) -> bytes:
        """Render the file for a Machine. Blocks for long: call it in a thread.

        Raises:
            TemplateError: the template is wrong or does not fit; the message names file, line and expression.
            OSError: the template cannot be read.
        """
        text = self._template.render(template_data(machine, around))
        return text.encode(encoding="utf-8", errors="surrogateescape")


class ImageFiles:
    """Files of images by path. Images never change, so the library caches each resolved path."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[str, str], OnDisk | TemplateFile | None] = OrderedDict()

    def find(self, image: NetbootImage, path: str) -> OnDisk | TemplateFile | None:
        """Resolve a plain path in an image; None if the image has no such file."""
        key = (image.digest, path)
        if key in self._found:
            self._found.move_to_end(key)
            return self._found[key]
        found = _resolve(image, path)
        if found is None and not image.is_on_disk:
            return None  # not cached: the folder may be restored soon
        self._found[key] = found
        if len(self._found) > CACHED_PATHS:
            self._found.popitem(last=False)
        return found


def image_sectors(files: ImageFiles, image: NetbootImage) -> tuple[int, ...]:
    """Return the sector sizes of the disks that an image can be written to."""
    has_large = any(isinstance(files.find(image, name), OnDisk) for name in LARGE_SECTOR_IMAGES)
    return SECTORS if has_large else (SECTOR_BYTES,)


def is_signed(files: ImageFiles, image: NetbootImage) -> bool:
    """Return whether the loader of an image is a signed program, which takes its boot from the template `STATEMENT`."""
    return isinstance(files.find(image, STATEMENT), TemplateFile)


def layout_image(files: ImageFiles, served: BootImages) -> LayoutImage:
    """Return the facts of an image that limit the layouts that it can be installed by; an older image has no size."""
    found = files.find(served.disk, LOADER_BYTES)
    size = found.path.read_bytes()[:MOST_DIGITS].strip() if isinstance(found, OnDisk) else b""
    return LayoutImage(is_signed(files, served.netboot), int(size) if size.isdigit() else 0)


def content_etag(content: bytes) -> str:
    """Return the ETag of generated content."""
    return hashlib.sha256(content).hexdigest()[:32]


def _resolve(image: NetbootImage, path: str) -> OnDisk | TemplateFile | None:
    if path.endswith(TEMPLATE):  # a template is served under its name without the suffix
        return None
    template = _file(image.root, path + TEMPLATE)
    if template is not None:
        return TemplateFile(template[0], path + TEMPLATE)
    found = _file(image.root, path)
    if found is None:
        return None
    return OnDisk(found[0], found[1], content_etag(f"{image.digest}/{path}".encode()), found[2])


def _file(root: Path, path: str) -> tuple[Path, int, float] | None:
    """Return path, size and mtime of a regular file below a root, with links resolved; None if there is none inside."""
    try:
        base = root.resolve(strict=True)
        there = (base / path).resolve(strict=True)
        facts = there.stat()
    except (OSError, RuntimeError, ValueError):  # a loop of links is a RuntimeError before Python 3.13
        return None
    if not there.is_relative_to(base) or not stat.S_ISREG(facts.st_mode):
        return None
    return there, facts.st_size, facts.st_mtime


class FileContent:
    """File of an image that stays open until `close`.

    Args:
        sent: called by `close` if the file was read to its end.
    """

    def __init__(self, path: Path, sent: Callable[[], None]) -> None:
        """Open the file.

        Raises:
            OSError: the file cannot be opened.
        """
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._descriptor).st_size
        self._sent = sent
        self._whole = False

    def read(self, at: int, count: int) -> bytes:
        self._whole = self._whole or at + count >= self.size
        return os.pread(self._descriptor, count, at)

    def close(self) -> None:
        os.close(self._descriptor)
        if self._whole:
            self._sent()


class TextContent:
    """Generated text; `sent` as in `FileContent`."""

    def __init__(self, content: bytes, sent: Callable[[], None]) -> None:
        self._content = content
        self.size = len(content)
        self._sent = sent
        self._whole = False

    def read(self, at: int, count: int) -> bytes:
        self._whole = self._whole or at + count >= self.size
        return self._content[at : at + count]

    def close(self) -> None:
        if self._whole:
            self._sent()


WAIT_S: Final = 60.0  # limit of one request; the next one gets a result that was found meanwhile
_GZIP: Final = b"\x1f\x8b"
_CHUNK: Final = 1 << 20


class UnpackedSizes:
    """Sizes of the images of one process, each computed once.

    An installer rejects a disk that is too small before it erases the disk. zstd mostly records the size in its first
    bytes; gzip does not. Those images are unpacked here once, on request.
    """

    def __init__(self) -> None:
        self._found: dict[str, asyncio.Task[int | None]] = {}

    async def of(self, image: OnDisk) -> int | None:
        """Return the size of an image in bytes; None if it cannot be unpacked.

        Raises:
            TimeoutError: the size is not known yet.
        """
        if image.etag not in self._found:
            self._found[image.etag] = asyncio.create_task(asyncio.to_thread(unpacked_bytes, image.path))
        async with asyncio.timeout(WAIT_S):
            return await asyncio.shield(self._found[image.etag])


def unpacked_bytes(path: Path) -> int | None:
    """Unpack a gzip or zstd file and count its bytes; None for other or incomplete files. Blocks."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_GZIP))
            file.seek(0)
            if start == _GZIP:
                return _count(cast("BinaryIO", gzip.GzipFile(fileobj=file, mode="rb")))
            return _count(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
    except (OSError, EOFError, zlib.error, zstandard.ZstdError):  # a file that is not gzip raises OSError
        return None


def _count(source: BinaryIO) -> int:
    total = 0
    while chunk := source.read(_CHUNK):
        total += len(chunk)
    return total
