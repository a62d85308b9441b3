"""A file that grows during its download, with the digest of its present content. It survives its process."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from unbounded.fetch.failures import TooLarge, Unavailable
from unbounded.kube.durable import place_durably
from unbounded.kube.threads import run_in_thread

CHUNK_BYTES: Final = 1 << 20


@dataclass
class Partial:
    """A file opened by `growing`. Writes go to the page cache and need no thread; syncs to the disk run in one."""

    path: Path
    descriptor: int
    limit: int
    algorithm: str = "sha256"
    size: int = 0
    _hash: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._hash = hashlib.new(self.algorithm)

    def write(self, chunk: bytes) -> None:
        """Append a chunk. Raises TooLarge past the limit, and Unavailable when the disk is full."""
        if self.size + len(chunk) > self.limit:
            raise TooLarge(f"{self.path.name}: more than {self.limit} bytes")
        rest = memoryview(chunk)
        try:
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError as error:
            self.restart()  # the digest lacks the part of the chunk that was written
            raise _disk_trouble(self.path, error) from error
        self._hash.update(chunk)
        self.size += len(chunk)

    def restart(self) -> None:
        os.ftruncate(self.descriptor, 0)
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        self._hash, self.size = hashlib.new(self.algorithm), 0

    @property
    def hex(self) -> str:
        return str(self._hash.hexdigest())

    def read_back(self) -> None:
        """Add the content from an earlier process to the digest."""
        while chunk := os.read(self.descriptor, CHUNK_BYTES):
            self._hash.update(chunk)
            self.size += len(chunk)

    async def put_in_place(self, target: Path) -> None:
        """Sync the file, and rename it to its final name."""
        try:
            await run_in_thread(place_durably, self.descriptor, self.path, target)
        except OSError as error:
            raise _disk_trouble(target, error) from error


@asynccontextmanager
async def growing(path: Path, *, limit: int, algorithm: str = "sha256", resume: bool = True) -> AsyncIterator[Partial]:
    """Open the file, with its earlier content if `resume`; the file stays unchanged when the block ends."""
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise _disk_trouble(path, error) from error
    try:
        partial = Partial(path, descriptor, limit, algorithm)
        if resume and os.fstat(descriptor).st_size <= limit:
            await run_in_thread(partial.read_back)
        else:
            partial.restart()
        yield partial
    finally:
        os.close(descriptor)


def _disk_trouble(path: Path, error: OSError) -> Unavailable:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "the disk is full; free some space" if full else error.strerror or str(error)
    return Unavailable(f"{path}: {hint}")
