"""Unpacked sizes of disk images: an installer rejects a disk that is too small before it erases the disk.

zstd mostly records the size in its first bytes; gzip does not. Those images are unpacked here once, on request.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from pathlib import Path
from typing import BinaryIO, Final, cast

import zstandard

from unbounded.metalman.http.ports import OnDisk

WAIT_S: Final = 60.0  # limit of one request; the next one gets a result that was found meanwhile
_GZIP: Final = b"\x1f\x8b"
_CHUNK: Final = 1 << 20


class UnpackedSizes:
    """Sizes of the images of one process, each computed once."""

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
