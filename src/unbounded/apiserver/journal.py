"""The durable side of the store: an append-only log in SQLite, one writer thread, group commit.

An entry is acknowledged after the transaction that holds it was synced (`synchronous=FULL`, WAL). All entries that
wait while a commit runs share the next one, so the number of syncs does not grow with the number of writers.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

FORMAT: Final = 1  # PRAGMA user_version; a change of the tables raises it and adds a migration
BATCH_ENTRIES: Final = 2000
BATCH_BYTES: Final = 16 * 2**20
BUSY_S: Final = 5.0
INSERT_ROWS: Final = 128  # the most in one statement; a power of two

_TABLES: Final = """
CREATE TABLE log (
    revision INTEGER PRIMARY KEY,
    resource TEXT NOT NULL,
    key TEXT NOT NULL,
    deleted INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO facts VALUES ('compacted', 0);
"""
_INSERT: Final = {
    rows: f"INSERT INTO log (revision, resource, key, deleted, body) VALUES {', '.join(['(?, ?, ?, ?, ?)'] * rows)}"  # noqa: S608 - of constants
    for rows in (2**power for power in range(INSERT_ROWS.bit_length()))
}


class DataInUse(Exception):
    """Another process holds the data directory."""


class DataUnusable(Exception):
    """The data directory cannot be read by this version, or is damaged."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One write: the whole object after it, or, when `deleted`, the object as it was last seen."""

    revision: int
    resource: str
    key: str
    deleted: bool
    body: bytes


@dataclass(frozen=True, slots=True)
class Compaction:
    """Forget what nobody can ask for any more: history up to `revision`; `dropped` are the rows that go with it."""

    revision: int
    dropped: tuple[int, ...]


Committed = Callable[[Sequence[Entry], BaseException | None], None]


class Journal:
    """The log of one data directory, held by this process alone until `close`."""

    def __init__(self, directory: Path) -> None:
        """Take the directory's lock and open the log, making both if they are not there.

        Raises:
            DataInUse: another process has it.
            DataUnusable: written by a newer version, or not a database.
        """
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _lock(directory / "lock")
        try:
            self._database = _open(directory / "state.db")
        except BaseException:
            os.close(self._lock)
            raise
        self._queue: queue.SimpleQueue[Sequence[Entry] | Compaction | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def compacted(self) -> int:
        """History begins after this revision."""
        row = self._database.execute("SELECT value FROM facts WHERE name = 'compacted'").fetchone()
        return int(row[0])

    def entries(self) -> Iterator[Entry]:
        """All entries, oldest first. Only before `start`."""
        for revision, resource, key, deleted, body in self._database.execute(
            "SELECT revision, resource, key, deleted, body FROM log ORDER BY revision"
        ):
            yield Entry(revision, resource, key, bool(deleted), body)

    def start(self, committed: Committed) -> None:
        """Begin to write; `committed` is called in the running event loop, in the order of `append`."""
        loop = asyncio.get_running_loop()

        def report(entries: Sequence[Entry], error: BaseException | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(committed, entries, error)

        self._thread = threading.Thread(target=self._write, args=(report,), name="journal", daemon=True)
        self._thread.start()

    def append(self, entries: Sequence[Entry]) -> None:
        """Queue writes, which share a transaction; the answer comes through `committed`."""
        self._queue.put(entries)

    def compact(self, compaction: Compaction) -> None:
        self._queue.put(compaction)

    def close(self) -> None:
        """Write what is queued, then let the data directory go. Blocks for as long as one commit takes."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        self._database.close()
        os.close(self._lock)

    def _write(self, report: Committed) -> None:
        stopping = False
        while not stopping:
            entries: list[Entry] = []
            compactions: list[Compaction] = []
            size = 0
            item = self._queue.get()
            while True:
                if item is None:
                    stopping = True
                elif isinstance(item, Compaction):
                    compactions.append(item)
                else:
                    entries += item
                    size += sum([len(entry.body) for entry in item])
                if stopping or len(entries) >= BATCH_ENTRIES or size >= BATCH_BYTES or self._queue.empty():
                    break
                item = self._queue.get()
            if entries:
                report(entries, self._commit(partial(self._insert, entries)))
            for compaction in compactions:
                self._commit(partial(self._forget, compaction))

    def _commit(self, work: Callable[[], None]) -> BaseException | None:
        """Run `work` in a transaction; the error, if it is not durable, after rolling back."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            work()
            self._database.execute("COMMIT")
        except (sqlite3.Error, MemoryError) as error:
            if self._database.in_transaction:
                try:
                    self._database.execute("ROLLBACK")
                except sqlite3.Error as second:
                    error.add_note(f"and the rollback failed: {second}")
            return error
        return None

    def _insert(self, entries: Sequence[Entry]) -> None:
        """Few statements of many rows: after each one this thread waits for its turn among the others of Python."""
        at, rows = 0, INSERT_ROWS
        while at < len(entries):
            while rows > len(entries) - at:
                rows //= 2
            values = [
                value for e in entries[at : at + rows] for value in (e.revision, e.resource, e.key, e.deleted, e.body)
            ]
            self._database.execute(_INSERT[rows], values)
            at += rows

    def _forget(self, compaction: Compaction) -> None:
        self._database.execute("UPDATE facts SET value = ? WHERE name = 'compacted'", (compaction.revision,))
        self._database.executemany("DELETE FROM log WHERE revision = ?", [(r,) for r in compaction.dropped])


def _lock(path: Path) -> int:
    """An exclusive lock on the data directory, kept by the returned descriptor; it ends with the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        os.close(descriptor)
        by = f"process {holder}" if holder else "another process"
        raise DataInUse(f"{path.parent} is in use by {by}; stop it, or choose another data directory") from error
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


def _open(path: Path) -> sqlite3.Connection:
    fresh = not path.exists()
    database = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        if fresh:
            path.chmod(0o600)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA wal_autocheckpoint = 4000")
        _migrate(database, path)
    except sqlite3.DatabaseError as error:
        database.close()
        raise DataUnusable(f"{path} cannot be opened: {error}") from error
    except BaseException:
        database.close()
        raise
    return database


def _migrate(database: sqlite3.Connection, path: Path) -> None:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version > FORMAT:
        raise DataUnusable(f"{path} has format {version}; this version of unbounded reads up to {FORMAT}")
    if version == 0:
        database.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {FORMAT}; COMMIT;")
