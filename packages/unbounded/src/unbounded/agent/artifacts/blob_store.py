"""Folder of blobs by digest, and of notes that record which blobs a URL or a reference delivered. Methods block.

sha256-DIGITS     a blob; it was complete and flushed to the disk before it got this name
notes/KIND-HASH   the record of one source; its mtime is the time of its last use
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from unbounded.api.failures import Transient
from unbounded.fetch.failures import UnusableContent
from unbounded.fetch.reference import Digest
from unbounded.kube.durable import write_durably

FORMAT: Final = 1
_CHUNK: Final = 1 << 20
N = TypeVar("N", bound="BlobNote")


class BlobNote(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="kind"):
    """Record of the blobs of one source.

    Args:
        source: URL, or reference and platform.
        blobs: digests of all blobs of the source.
    """

    source: str
    blobs: tuple[str, ...]
    format: int = FORMAT


class BlobStore:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._notes = root / "notes"

    def open(self) -> None:
        """Create the folders. Raises Transient where the disk refuses."""
        try:
            self._notes.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Transient(f"{self._notes}: {error.strerror}") from error

    def path(self, digest: Digest) -> Path:
        return self.root / digest.file_name

    def fresh(self, key: str) -> Path:
        """Return the path of a download whose digest is still unknown."""
        return self.root / f"fresh-{_hashed(key)}"

    def whole(self, digest: Digest) -> bool:
        """Return whether the blob is present and matches its digest; a damaged blob is removed, so that it is fetched
        again.
        """
        path = self.path(digest)
        try:
            with path.open("rb") as file:
                found = hashlib.new(digest.algorithm)
                while chunk := file.read(_CHUNK):
                    found.update(chunk)
        except OSError:
            return False
        if found.hexdigest() != digest.hex:
            path.unlink(missing_ok=True)
            return False
        return True

    def note(self, kind: type[N], key: str) -> N | None:
        """Return the note of a source; None when there is none that this version can read."""
        path = self._note(key)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError):
            return None
        return found if found.format <= FORMAT else None

    def used(self, key: str) -> None:
        """Record that a source was used now."""
        with suppress(OSError):  # a disk that refuses this only makes the note appear older
            os.utime(self._note(key))

    def remember(self, key: str, note: BlobNote) -> None:
        write_durably(self._note(key), msgspec.json.encode(note))

    def _note(self, key: str) -> Path:
        kind, _, rest = key.partition(" ")
        return self._notes / f"{kind}-{_hashed(rest)}"

    def collect(self, keep: int) -> None:
        """Remove all notes but the most recently used ones of each kind, and the blobs without a note.

        Args:
            keep: number of notes of each kind that stay.
        """
        kinds: dict[str, list[Path]] = {}
        for path in sorted(self._notes.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True):
            kinds.setdefault(path.name.rpartition("-")[0], []).append(path)
        for old in (path for paths in kinds.values() for path in paths[keep:]):
            old.unlink(missing_ok=True)
        digests = (noted_digest(text) for path in self._notes.iterdir() for text in _blobs(path))
        needed = {digest.file_name for digest in digests if digest is not None}
        for path in self.root.iterdir():
            if path.is_file() and path.name.removesuffix(".partial") not in needed:
                path.unlink(missing_ok=True)


def _hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:40]


def _blobs(path: Path) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_AnyNote).blobs
    except (OSError, msgspec.DecodeError):
        return ()


class _AnyNote(msgspec.Struct):
    blobs: tuple[str, ...] = ()


def noted_digest(text: str) -> Digest | None:
    """Return a digest from a note; None for an invalid one."""
    try:
        return Digest.parse(text)
    except UnusableContent:
        return None
