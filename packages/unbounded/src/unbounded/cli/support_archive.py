"""A tar archive of bounded size: what does not fit is left out, and counted."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import zstandard

ENDINGS: Final = (".tar.zst", ".tar.gz", ".tgz")
MOST_BYTES: Final = 64 * 1024 * 1024  # of all files, before compression


class BoundedArchive:
    """Files of an archive that is being written.

    Args:
        folder: at the top of the archive.
        at: time of all files, in seconds since 1970.
        most: bytes of all files together.
    """

    def __init__(self, tar: tarfile.TarFile, folder: str, at: float, most: int = MOST_BYTES) -> None:
        self._tar, self._folder, self._at = tar, folder, at
        self.left = most
        self.files = 0

    def add(self, name: str, text: str) -> bool:
        """Add a file; return False where it does not fit."""
        content = text.encode()
        if len(content) > self.left:
            return False
        entry = tarfile.TarInfo(f"{self._folder}/{name}")
        entry.size, entry.mode, entry.mtime = len(content), 0o600, int(self._at)
        self._tar.addfile(entry, io.BytesIO(content))
        self.left -= len(content)
        self.files += 1
        return True


@contextmanager
def new_archive(path: Path) -> Iterator[tarfile.TarFile]:
    """Write an archive that only its owner can read; after an error, there is none.

    Raises:
        FileExistsError, OSError
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            _compressed(path, file) as stream,
            tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            yield tar
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        raise


def _compressed(path: Path, file: IO[bytes]) -> IO[bytes]:
    if path.name.endswith(".tar.zst"):
        return zstandard.ZstdCompressor(level=10).stream_writer(file, closefd=False)
    return gzip.GzipFile(filename="", mode="wb", fileobj=file)  # type: ignore[return-value]
