"""A model of files that forgets unsynced writes: it replaces `os` under functions that promise durability.

A loss of power may leave what POSIX promises, and no more. Everything since the last sync of a file (bytes, mode) or a
folder (names) may be there or not, each on its own and in any order. A write may be torn at any byte, with zeros where
a later part of it arrived first. A name changes at once: it means the old file, the new one, or none.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Final

State = dict[str, "Content | None"]  # what each name of the folder leads to


class PowerLost(BaseException):
    """Nothing runs on: no clean-up code has an effect any more."""


@dataclass(frozen=True)
class Content:
    """The target of a name: bytes with their mode, or the target of a link."""

    data: bytes = b""
    mode: int = 0
    target: str | None = None


@dataclass(eq=False)
class Inode:
    """A file: its state on the disk, and the writes since then."""

    durable: Content
    now: Content
    pending: list[tuple[int, bytes]] = field(default_factory=list)

    def sync(self) -> None:
        self.durable = self.now
        self.pending.clear()

    def after_loss(self) -> Iterator[Content]:
        """Everything that may be left of it."""
        modes = {self.durable.mode, self.now.mode}
        for kept in itertools.product(*(tuple(_torn(data)) for _offset, data in self.pending)):
            content = bytearray(self.durable.data)
            for (offset, _data), pieces in zip(self.pending, kept, strict=True):
                for start, piece in pieces:
                    _put(content, offset + start, piece)
            yield from (Content(bytes(content), mode, self.now.target) for mode in modes)


def _torn(data: bytes) -> Iterator[tuple[tuple[int, bytes], ...]]:
    """A write in the ways in which it may have arrived: its beginning, and its end with a hole before it."""
    for cut in range(len(data) + 1):
        yield ((0, data[:cut]),)
    for cut in range(1, len(data)):
        yield ((cut, data[cut:]),)


def _put(content: bytearray, offset: int, piece: bytes) -> None:
    if piece:
        content.extend(bytes(max(0, offset + len(piece) - len(content))))
        content[offset : offset + len(piece)] = piece


@dataclass
class Folder:
    """Names: as they are on the disk, and each one's meanings since then, oldest first."""

    durable: dict[str, Inode] = field(default_factory=dict)
    pending: list[tuple[str, Inode | None]] = field(default_factory=list)

    @property
    def now(self) -> dict[str, Inode]:
        names: dict[str, Inode | None] = {**self.durable, **dict(self.pending)}
        return {name: inode for name, inode in names.items() if inode is not None}

    def sync(self) -> None:
        self.durable = self.now
        self.pending.clear()

    def meanings(self) -> dict[str, list[Inode | None]]:
        """For each name everything that it may mean after a loss."""
        found: dict[str, list[Inode | None]] = {name: [inode] for name, inode in self.durable.items()}
        for name, inode in self.pending:
            found.setdefault(name, [None]).append(inode)
        return found


class LosingFiles:
    """`os` for the functions under test; anything that it does not model is that of the real one.

    Args:
        cut_before: the number of the call before which the power goes (PowerLost); None for never.
        ignored: numbers of syncs that do nothing, as if they were not in the code.
        chunk: `write` takes so many bytes at most.
    """

    _MODELLED: Final = frozenset(
        {
            "open",
            "close",
            "write",
            "fsync",
            "fchmod",
            "replace",
            "unlink",
            "symlink",
            "rename",
            "ftruncate",
            "fdatasync",
        }
    )

    def __init__(self, *, cut_before: int | None = None, ignored: frozenset[int] = frozenset(), chunk: int = 3) -> None:
        self.folders: dict[str, Folder] = {}
        self.calls = 0
        self.syncs = 0
        self._cut_before, self._ignored, self._chunk = cut_before, ignored, chunk
        self._dead = False
        self._open: dict[int, tuple[Inode | Folder, int]] = {}
        self._numbers = itertools.count(1000)

    def __getattr__(self, name: str) -> Any:
        """Constants of `os`; a call that is not modelled must not reach the real disk."""
        found = getattr(os, name)
        if callable(found) and name not in {"fspath", "fsdecode", "fsencode"}:
            raise NotImplementedError(f"os.{name} is not modelled")
        return found

    # ---- what a test sees

    def make(self, folder: Path, **files: Content) -> None:
        """A folder with files, all of it on the disk."""
        self.folders[str(folder)] = Folder({name: Inode(content, content) for name, content in files.items()})

    def now(self, folder: Path) -> State:
        return {name: inode.now for name, inode in self.folders[str(folder)].now.items()}

    def after_loss(self, folder: Path) -> Iterator[State]:
        """Every state in which the power may leave a folder."""
        meanings = self.folders[str(folder)].meanings()
        for chosen in itertools.product(*meanings.values()):
            named = dict(zip(meanings, chosen, strict=True))
            options = [(None,) if inode is None else tuple(dict.fromkeys(inode.after_loss())) for inode in chosen]
            for contents in itertools.product(*options):
                yield dict(zip(named, contents, strict=True))

    def restart(self) -> None:
        """Only the process was killed: all is as it was, and its successor can work on."""
        self._dead, self._cut_before = False, None
        self._open.clear()

    # ---- os

    def _call(self) -> None:
        if self._dead or self.calls == self._cut_before:
            self._dead = True
            raise PowerLost
        self.calls += 1

    def _at(self, path: str | PurePath) -> tuple[Folder, str]:
        where = PurePath(path)
        return self.folders[str(where.parent)], where.name

    def open(self, path: str | PurePath, flags: int, mode: int = 0o777, **_named: Any) -> int:
        self._call()
        number = next(self._numbers)
        if flags & os.O_DIRECTORY:
            self._open[number] = (self.folders[str(path)], 0)
            return number
        folder, name = self._at(path)
        inode = folder.now.get(name)
        if inode is not None and flags & os.O_EXCL:
            raise FileExistsError(17, "File exists", str(path))
        if inode is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(2, "No such file or directory", str(path))
            empty = Content(mode=mode & ~0o022)
            inode = Inode(Content(mode=0), empty)
            folder.pending.append((name, inode))
        self._open[number] = (inode, 0)
        return number

    def close(self, descriptor: int) -> None:
        self._call()
        del self._open[descriptor]

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        self._call()
        inode, offset = self._open[descriptor]
        assert isinstance(inode, Inode)
        piece = bytes(data[: self._chunk])
        content = bytearray(inode.now.data)
        _put(content, offset, piece)
        inode.now = Content(bytes(content), inode.now.mode)
        inode.pending.append((offset, piece))
        self._open[descriptor] = (inode, offset + len(piece))
        return len(piece)

    def fchmod(self, descriptor: int, mode: int) -> None:
        self._call()
        inode, _offset = self._open[descriptor]
        assert isinstance(inode, Inode)
        inode.now = Content(inode.now.data, mode)

    def fsync(self, descriptor: int) -> None:
        self._call()
        self.syncs += 1
        if self.syncs - 1 not in self._ignored:
            self._open[descriptor][0].sync()

    def replace(self, path: str | PurePath, to: str | PurePath) -> None:
        self._call()
        (source, old), (target, new) = self._at(path), self._at(to)
        inode = source.now[old]
        target.pending.append((new, inode))
        source.pending.append((old, None))

    def unlink(self, path: str | PurePath) -> None:
        self._call()
        folder, name = self._at(path)
        if name not in folder.now:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        folder.pending.append((name, None))

    def listdir(self, path: str | PurePath) -> list[str]:
        return list(self.folders[str(path)].now)

    def symlink(self, target: str, path: str | PurePath) -> None:
        self._call()
        folder, name = self._at(path)
        link = Content(target=target)
        folder.pending.append((name, Inode(link, link)))
