"""The durable side of the store: an append-only log in SQLite, one writer thread, group commit.

An entry is acknowledged after the transaction that holds it was synced (`synchronous=FULL`, WAL). All entries that
wait while a commit runs share the next one, so the number of syncs does not grow with the number of writers.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from unbounded.apiserver import database, disk
from unbounded.apiserver.database import Connect, Entry
from unbounded.apiserver.restore import finish as finish_restore
from unbounded.apiserver.tally import Tally
from unbounded.kube.logs import Log

BATCH_ENTRIES: Final = 2000
BATCH_BYTES: Final = 16 * 2**20
TRY_AGAIN_S: Final = 1.0  # while nothing can be stored: how often that is tried

log = Log(__name__)


@dataclass(frozen=True, slots=True)
class Compaction:
    """Forget what nobody can ask for any more: history up to `revision`; `dropped` are the rows that go with it."""

    revision: int
    dropped: tuple[int, ...]


@dataclass(slots=True)
class Commits:
    """What the writer thread has done."""

    took: Tally = field(default_factory=Tally)
    entries: int = 0
    failures: int = 0


Committed = Callable[[Sequence[Entry], BaseException | None], None]


class Journal:
    """The log of one data directory, held by this process alone until `close`."""

    def __init__(self, directory: Path, connector: Connect = database.connect) -> None:
        """Take the directory's lock and open the log, making both if they are not there.

        Raises:
            DataInUse: another process has it.
            DataUnusable: written by a newer version, damaged, or it cannot be written.
        """
        self.path = directory / database.FILE
        self.trouble: str | None = None  # why nothing can be stored at present
        self._lock = disk.take(directory)
        try:
            finish_restore(directory)
            self._database = database.open_database(self.path, connector)
        except BaseException:
            os.close(self._lock)
            raise
        self._queue: queue.SimpleQueue[Sequence[Entry] | Compaction | None] = queue.SimpleQueue()
        self._owed: list[Compaction] = []
        self._thread: threading.Thread | None = None
        self.commits = Commits()

    def compacted(self) -> int:
        """History begins after this revision. Raises DataUnusable."""
        return database.compacted(self._database, self.path)

    def entries(self) -> Iterator[Entry]:
        """All entries, oldest first. Only before `start`. Raises DataUnusable when something is damaged."""
        database.check(self._database, self.path)
        return database.entries(self._database, self.path)

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
            entries, stopping = self._gather()
            if entries:
                error = self._store(partial(database.add, self._database, entries))
                self.commits.entries += len(entries) if error is None else 0
                report(entries, error)
            elif self.trouble is not None and not self._owed:
                self._store(self._write_anything)
            while self._owed and self._store(partial(self._forget, self._owed[0])) is None:
                del self._owed[0]

    def _gather(self) -> tuple[list[Entry], bool]:
        """What waits to be written, up to one batch, and whether it is the last; waits for something to come."""
        entries: list[Entry] = []
        size = 0
        try:
            item = self._queue.get(timeout=TRY_AGAIN_S if self.trouble is not None else None)
        except queue.Empty:
            return entries, False
        while True:
            if item is None:
                return entries, True
            if isinstance(item, Compaction):
                self._owed.append(item)
            else:
                entries += item
                size += sum([len(entry.body) for entry in item])
            if len(entries) >= BATCH_ENTRIES or size >= BATCH_BYTES or self._queue.empty():
                return entries, False
            item = self._queue.get()

    def _store(self, work: Callable[[], None]) -> BaseException | None:
        """Commit `work`, and note whether anything can be stored at all; the error, if it is not durable."""
        error = self._commit(work)
        trouble = None if error is None else database.said(error)
        if error is not None and self.trouble is None:
            log.error("nothing can be stored; it is tried again and again", path=str(self.path), why=trouble)
        elif error is None and self.trouble is not None:
            log.warning("writes are stored again", path=str(self.path))
        self.trouble = trouble
        return error

    def _commit(self, work: Callable[[], None]) -> BaseException | None:
        """Run `work` in a transaction; the error, if it is not durable, after rolling back.

        Whatever it is, the thread goes on: who waits for a write has to hear of it.
        """
        began = time.perf_counter()
        try:
            if self._database.in_transaction:  # an earlier rollback has failed
                self._database.execute("ROLLBACK")
            self._database.execute("BEGIN IMMEDIATE")
            work()
            self._database.execute("COMMIT")
        except Exception as error:
            if self._database.in_transaction:
                try:
                    self._database.execute("ROLLBACK")
                except sqlite3.Error as second:
                    error.add_note(f"and the rollback failed: {second}")
            self.commits.failures += 1
            return error
        self.commits.took.add(time.perf_counter() - began)
        return None

    def _write_anything(self) -> None:
        """Rewrite what is there already, as a trial."""
        database.set_compacted(self._database, self.compacted())

    def _forget(self, compaction: Compaction) -> None:
        database.set_compacted(self._database, compaction.revision)
        self._database.executemany("DELETE FROM log WHERE revision = ?", ((r,) for r in compaction.dropped))
