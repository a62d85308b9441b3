"""A folder of blobs by digest, and of notes that say what a URL or a reference gave. Methods block.

sha256-DIGITS     a blob; what has this name was whole and on the disk when it got it
notes/KIND-HASH   what a source gave; its time of change is when it was last used
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from unbounded.api.failures import Transient
from unbounded.fetch.digests import Digest
from unbounded.fetch.failures import Unusable
from unbounded.kube.durable import write_durably

FORMAT: Final = 1
_CHUNK: Final = 1 << 20
N = TypeVar("N", bound="Note")


class Note(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="kind"):
    """What a source gave.

    Args:
        source: URL, or reference and platform.
        blobs: digests of all that it needs.
    """

    source: str
    blobs: tuple[str, ...]
    format: int = FORMAT


class Shelf:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._notes = root / "notes"

    def open(self) -> None:
        """Make the folders. Raises Transient where the disk refuses."""
        try:
            self._notes.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Transient(f"{self._notes}: {error.strerror}") from error

    def path(self, digest: Digest) -> Path:
        return self.root / digest.file_name

    def fresh(self, key: str) -> Path:
        """Where something grows whose digest nobody knows yet."""
        return self.root / f"fresh-{_hashed(key)}"

    def whole(self, digest: Digest) -> bool:
        """Whether the blob is there and still what it was; one that is not is removed, so that it is fetched again."""
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
        """What was noted; None when there is nothing, or nothing that this version reads."""
        path = self._note(key)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError):
            return None
        return found if found.format <= FORMAT else None

    def used(self, key: str) -> None:
        """What is noted was used now."""
        with suppress(OSError):  # a disk that refuses this only makes it look older
            os.utime(self._note(key))

    def remember(self, key: str, note: Note) -> None:
        write_durably(self._note(key), msgspec.json.encode(note))

    def _note(self, key: str) -> Path:
        kind, _, rest = key.partition(" ")
        return self._notes / f"{kind}-{_hashed(rest)}"

    def collect(self, keep: int) -> None:
        """Forget all but the notes of each kind that were used last, and the blobs that no note needs any more.

        Args:
            keep: how many notes of each kind stay.
        """
        kinds: dict[str, list[Path]] = {}
        for path in sorted(self._notes.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True):
            kinds.setdefault(path.name.rpartition("-")[0], []).append(path)
        for old in (path for paths in kinds.values() for path in paths[keep:]):
            old.unlink(missing_ok=True)
        digests = (parsed(text) for path in self._notes.iterdir() for text in _blobs(path))
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


def parsed(text: str) -> Digest | None:
    """A digest that was noted; None when it cannot be one."""
    try:
        return Digest.parse(text)
    except Unusable:
        return None
