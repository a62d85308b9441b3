"""The folder of an image store: its files, their meaning, and the recovery after a crash.

Methods block, and only one thread at a time may call those that write.

lock              held by the one process that uses the folder
references.json   the last resolution of each reference
images/DIGEST/    an unpacked image; its mtime is the time of its last request
work/DIGEST/      blobs of an image that is being pulled
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from unbounded.api.failures import Rejected
from unbounded.fetch.failures import UnusableContent
from unbounded.fetch.reference import Digest
from unbounded.kube.durable_files import UNFINISHED, write_durably
from unbounded.kube.logs import Log

log = Log("fetch")
_REFERENCES: Final = "references.json"


class ReferenceRecord(msgspec.Struct, frozen=True):
    """Resolution of a reference for a platform: `top` is the digest of its manifest (perhaps an index), `digest` the
    image's.
    """

    reference: str
    platform: str
    top: str
    digest: str


class ImageDir:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._images = root / "images"
        self._work = root / "work"
        self.meanings: dict[tuple[str, str], ReferenceRecord] = {}
        self.sizes: dict[Digest, int] = {}
        self._lock: BinaryIO | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Own the folder while inside. Raises Rejected when another process does."""
        try:
            self.create()
            self._observe()
            yield
        finally:
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def create(self) -> None:
        """Create missing folders and own them: they may have been removed in between.

        Raises:
            Rejected: another process owns them.
        """
        for folder in (self.root, self._images, self._work):
            folder.mkdir(parents=True, exist_ok=True)
        path = self.root / "lock"
        if self._lock is not None and path.exists():
            return
        lock = path.open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise Rejected(f"{self.root}: another process uses this image store") from error
        if self._lock is not None:
            self._lock.close()
        self._lock = lock

    def _observe(self) -> None:
        for folder in self._images.iterdir():
            digest = _digest_of(folder.name)
            if digest is None:
                _remove(folder)  # only complete images have such a name
            else:
                self.sizes[digest] = _size(folder)
        self.meanings = {(entry.reference, entry.platform): entry for entry in self._read()}

    def _read(self) -> list[ReferenceRecord]:
        path = self.root / _REFERENCES
        try:
            return msgspec.json.decode(path.read_bytes(), type=list[ReferenceRecord])
        except FileNotFoundError:
            return []
        except msgspec.DecodeError as error:
            log.warning("references of the image store are lost; looking them up again", error=error)
            return []

    def path(self, digest: Digest) -> Path:
        return self._images / digest.file_name

    def work(self, digest: Digest) -> Path:
        """Return the folder for the blobs of an image; create it if missing."""
        folder = self._work / digest.file_name
        folder.mkdir(exist_ok=True)
        return folder

    def record_image(self, digest: Digest, size: int) -> None:
        """Record an image that has its name now; remove its blobs."""
        self.sizes[digest] = size
        shutil.rmtree(self._work / digest.file_name, ignore_errors=True)

    def record_use(self, digest: Digest) -> bool:
        """Record a request for an image; return whether it exists. An image whose folder was removed is forgotten."""
        if digest not in self.sizes:
            return False
        try:
            os.utime(self.path(digest))
        except (FileNotFoundError, NotADirectoryError):
            log.warning("directory of an image has disappeared", digest=str(digest), folder=str(self.path(digest)))
            del self.sizes[digest]
            return False
        return True

    def record_reference(self, meaning: ReferenceRecord) -> None:
        """Record a resolution durably; write nothing where it is recorded already."""
        key = (meaning.reference, meaning.platform)
        if self.meanings.get(key) != meaning or not (self.root / _REFERENCES).exists():
            self.meanings[key] = meaning
            self._write()

    def _write(self) -> None:
        content = msgspec.json.format(msgspec.json.encode(list(self.meanings.values())))
        write_durably(self.root / _REFERENCES, content, mode=0o644)

    def oldest_first(self) -> list[Digest]:
        """Return the images in the order of their last requests."""
        asked_at = {}
        for digest in self.sizes:
            with suppress(FileNotFoundError):
                asked_at[digest] = self.path(digest).stat().st_mtime_ns
        return sorted(asked_at, key=lambda digest: asked_at[digest])

    def drop(self, digest: Digest) -> None:
        """Remove an image: first its name, then its files. Open files stay readable."""
        self.sizes.pop(digest, None)
        doomed = self._images / (UNFINISHED + secrets.token_hex(8))
        with suppress(FileNotFoundError):
            os.rename(self.path(digest), doomed)
            _remove(doomed)

    def forget_lost(self, busy: set[Digest]) -> None:
        """Remove references without an image, and blobs that no active pull needs."""
        known = {key: entry for key, entry in self.meanings.items() if Digest.parse(entry.digest) in self.sizes}
        if known != self.meanings:
            self.meanings = known
            self._write()
        for folder in self._work.iterdir():
            if _digest_of(folder.name) not in busy:
                _remove(folder)


def _digest_of(name: str) -> Digest | None:
    try:
        return Digest.parse(name.replace("-", ":", 1))
    except UnusableContent:
        return None


def _size(folder: Path) -> int:
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            status = os.lstat(os.path.join(path, name))
            total += status.st_blocks * 512 // status.st_nlink
    return total


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
