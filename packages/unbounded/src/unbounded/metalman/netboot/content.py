"""Content of image files for the TFTP server, and the unpacked sizes of disk images."""

from __future__ import annotations

import asyncio
import gzip
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, cast

import zstandard

from unbounded.metalman.http.ports import OnDisk


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
