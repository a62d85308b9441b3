"""A disk that forgets unsynced writes, under SQLite: a VFS of apsw with a model of the platter.

A loss of power may leave what POSIX and SQLite's unix VFS promise. An unsynced write may be there, or not, or in part,
sector by sector, and a sector may be torn. A created or removed name is sure only after a sync of its directory. The
unix VFS syncs it with the first sync of a log, and when it deletes one that has to be gone. The SQLite below is that
of apsw, and not that of Python's sqlite3.
"""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import apsw

SECTOR: Final = 512
TORN: Final = 0.05
_LOGS: Final = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL

Files = dict[str, bytes]


@dataclass(eq=False)
class Inode:
    """A file: the state of the platter, and the writes since then; bytes at an offset, or a size."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def sync(self) -> None:
        for offset, data in self.pending:
            _apply(self.durable, offset, data)
        self.pending.clear()

    def after_loss(self, chance: random.Random, survival: float) -> bytes:
        content = bytearray(self.durable)
        for offset, data in self.pending:
            if data is None:
                if chance.random() < survival:
                    _apply(content, offset, None)
                continue
            for start, piece in _sectors(offset, data):
                if chance.random() < survival:
                    torn = chance.random() < TORN
                    _apply(content, start, piece[: chance.randrange(len(piece) + 1)] if torn else piece)
        return bytes(content)


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    size = offset if data is None else offset + len(data)
    if len(content) < size:
        content.extend(bytes(size - len(content)))
    if data is None:
        del content[size:]
    else:
        content[offset:size] = data


def _sectors(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    at = offset
    while at < offset + len(data):
        end = min((at // SECTOR + 1) * SECTOR, offset + len(data))
        yield at, data[at - offset : end - offset]
        at = end


class LossyDisk:
    """One machine's disk. `connect` is what a Journal opens its file with."""

    _number = 0

    def __init__(self, chance: random.Random) -> None:
        LossyDisk._number += 1
        self.name = f"lossy-{LossyDisk._number}"
        self.fault: Callable[[str], None] = lambda _what: None  # may raise an apsw.Error: "write" or "sync"
        self._chance = chance
        self._names: dict[str, Inode] = {}
        self._sure: dict[str, Inode] = {}  # as the directory has it on the platter
        self._left = 0
        self._lock = threading.Lock()
        self._on_loss: Callable[[], None] | None = None
        self._vfs = _Vfs(self)

    def connect(self, path: Path) -> LossyConnection:
        if path.exists() and path.name not in self._names:
            self.mount(path)
        return LossyConnection(path, self.name)

    def mount(self, path: Path) -> None:
        """Put existing files on the platter before the disk is used."""
        for found in path.parent.iterdir():
            if found.name.startswith(path.name) and not found.name.endswith("-shm"):
                self._names[found.name] = self._sure[found.name] = Inode(bytearray(found.read_bytes()))

    def lose_power(self, after: int, on_loss: Callable[[], None]) -> None:
        """Call `on_loss` in the middle of the operation that is `after` from now, in SQLite's thread."""
        self._left = after
        self._on_loss = on_loss

    def what_survives(self) -> Files:
        """The files that the next start would find."""
        survival = self._chance.choice((0.0, 0.3, 0.7, 0.95, 1.0))
        names = self._names if self._chance.random() < survival else self._sure
        with self._lock:  # a thread that copies the log may continue
            return {name: inode.after_loss(self._chance, survival) for name, inode in names.items()}

    def opened(self, name: str) -> Inode:
        return self._names.setdefault(name, Inode())

    def wrote(self, inode: Inode, offset: int, data: bytes | None) -> None:
        with self._lock:
            inode.pending.append((offset, data))
        self._tick()

    def synced(self, inode: Inode, *, directory: bool) -> None:
        self._tick()
        with self._lock:
            inode.sync()
        if directory:
            self._sure = dict(self._names)
        self._tick()

    def lost_sync(self, inode: Inode) -> None:
        """As Linux does when the disk fails: what was to be written counts as written, and is not there."""
        inode.pending.clear()

    def deleted(self, name: str, *, directory: bool) -> None:
        self._names.pop(name, None)
        if directory:
            self._sure = dict(self._names)
        self._tick()

    def _tick(self) -> None:
        if self._on_loss is not None:
            self._left -= 1
            if self._left <= 0:
                happens, self._on_loss = self._on_loss, None
                happens()


class _Vfs(apsw.VFS):
    def __init__(self, disk: LossyDisk) -> None:
        super().__init__(disk.name, "")
        self._disk = disk

    def xOpen(self, name: Any, flags: list[int]) -> _File:  # noqa: N802  # SQLite's names, here and below
        return _File(self._disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        self._disk.deleted(Path(filename).name, directory=syncdir)


class _File(apsw.VFSFile):
    def __init__(self, disk: LossyDisk, name: Any, flags: list[int]) -> None:
        text = name.filename() if isinstance(name, apsw.URIFilename) else name
        asked = flags[0]
        super().__init__("", name, flags)
        self._disk = disk
        self._inode = disk.opened(Path(text).name) if text else Inode()
        self._names_unsure = bool(asked & _LOGS and asked & apsw.SQLITE_OPEN_CREATE)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.fault("write")
        super().xWrite(data, offset)
        self._disk.wrote(self._inode, offset, bytes(data))

    def xTruncate(self, size: int) -> None:  # noqa: N802
        super().xTruncate(size)
        self._disk.wrote(self._inode, size, None)

    def xSync(self, flags: int) -> None:  # noqa: N802
        try:
            self._disk.fault("sync")
        except apsw.Error:
            self._disk.lost_sync(self._inode)
            raise
        self._disk.synced(self._inode, directory=self._names_unsure)
        self._names_unsure = False


class LossyConnection:
    """The part of sqlite3.Connection that the journal uses, on apsw."""

    def __init__(self, path: Path, vfs: str) -> None:
        try:
            self._connection = apsw.Connection(str(path), vfs=vfs)
        except apsw.Error as error:
            raise _as_sqlite3(error) from error

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> LossyRows:
        try:
            return LossyRows(self._connection.execute(sql, tuple(parameters)))
        except apsw.Error as error:
            raise _as_sqlite3(error) from error

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        try:
            self._connection.executemany(sql, (tuple(row) for row in parameters))
        except apsw.Error as error:
            raise _as_sqlite3(error) from error

    def close(self) -> None:
        self._connection.close()


class LossyRows:
    """The rows of a statement."""

    def __init__(self, cursor: apsw.Cursor) -> None:
        self._cursor = cursor

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._cursor
        except apsw.Error as error:
            raise _as_sqlite3(error) from error

    def fetchone(self) -> Any:
        return next(iter(self), None)


def _as_sqlite3(error: apsw.Error) -> sqlite3.Error:
    translated = sqlite3.OperationalError(str(error))
    translated.sqlite_errorcode = int(getattr(error, "extendedresult", 0))
    return translated
