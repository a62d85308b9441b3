"""The durable side of the store: an append-only log in SQLite, one writer thread, group commit, and its checkpoints.

An entry is acknowledged after the transaction that contains it was synced (`synchronous=FULL`, WAL). All entries that
wait during a commit share the next one, so that the number of syncs does not grow with the number of writers.

A second thread with its own connection copies the write-ahead log into the database, and syncs that. The writer reports
the size of each commit to it and continues; the writer itself copies the small rest, and so restarts the log at its
beginning. SQLite alone would do all of this within a commit. On a disk that others use, that commit takes as long as
dozens of others.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Final

from unbounded.kube.logs import Log
from unbounded_apiserver import data_dir, database
from unbounded_apiserver.database import Connect, DatabaseConnection, LogEntry
from unbounded_apiserver.restore import finish as finish_restore

BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SLOW_S: Final = 0.004  # waiting does not pay off for a faster commit
SHARE: Final = 0.5  # of a commit's duration
LONGEST_S: Final = 0.05
GAP_S: Final = 0.002  # without another write: no more are expected then
RECENT: Final = 0.3  # weight of the last commit
BATCH_ENTRIES: Final = 2000
BATCH_BYTES: Final = 16 * 2**20
LOG_BYTES: Final = 12 * 2**20  # approximate size of the write-ahead log at which it is copied into the database
RETRY_S: Final = 1.0  # between attempts while nothing can be stored
log = Log(__name__)
Committed = Callable[[Sequence[LogEntry], BaseException | None], None]
COMMIT_BYTES: Final = 4 * database.PAGE_BYTES  # added by a commit beside the bodies
PASSES: Final = 2  # the second pass copies commits that arrived during the first


class Histogram:
    """A histogram of durations. One thread adds observations; others may read."""

    __slots__ = ("_buckets", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._buckets = [0] * (len(BUCKETS_S) + 1)

    def observe(self, seconds: float) -> None:
        self.seconds += seconds
        self._buckets[bisect_left(BUCKETS_S, seconds)] += 1

    @property
    def count(self) -> int:
        return sum(self._buckets)

    def cumulative(self) -> list[tuple[str, float]]:
        """Return for each bound, as Prometheus writes it, the number of observations up to it."""
        bounds = [*map(str, BUCKETS_S), "+Inf"]
        return list(zip(bounds, accumulate(self._buckets), strict=True))


class CommitGrouping:
    """The time that the next commit waits for more writes.

    Writers that wait for their answers write again soon after the answer. On a slow disk, the first of them would get a
    commit of its own and all others the next one: two syncs instead of one. The commit therefore waits for them, for a
    part of the time that this saves. A single writer never waits for others.
    """

    def __init__(self) -> None:
        self._writers = 1
        self._last = 0
        self._usual_s = 0.0

    def committed(self, entries: int, took_s: float) -> None:
        """Note a commit."""
        self._last = entries
        self._usual_s += RECENT * (took_s - self._usual_s)

    def begin(self, waiting: int) -> None:
        """Note the number of writes that arrived during the last commit. All of them have different writers."""
        self._writers = self._last + waiting

    def wait_s(self, count: int, waited_s: float) -> float:
        """Return the seconds to wait for one more write beside the `count` present ones; 0 to commit now."""
        if count >= self._writers or self._usual_s < SLOW_S:
            return 0.0
        left = min(SHARE * self._usual_s, LONGEST_S) - waited_s
        return max(min(left, max(GAP_S, self._usual_s / 8)), 0.0)


@dataclass(frozen=True, slots=True)
class Compaction:
    """A compaction: history up to `revision` becomes unavailable; `dropped` are the rows to delete."""

    revision: int
    dropped: tuple[int, ...]


@dataclass(slots=True)
class CommitStats:
    """Statistics of the writer thread."""

    durations: Histogram = field(default_factory=Histogram)
    entries: int = 0
    failures: int = 0


@dataclass(slots=True)
class _Batch:
    """Writes that share a commit."""

    entries: list[LogEntry] = field(default_factory=list)
    size: int = 0  # bytes of their bodies
    is_last: bool = False

    @property
    def is_complete(self) -> bool:
        """Return whether nothing more may be added."""
        return self.is_last or len(self.entries) >= BATCH_ENTRIES or self.size >= BATCH_BYTES


class Journal:
    """The log of one data directory, locked for this process until `close`."""

    def __init__(self, directory: Path, connector: Connect = database.connect, *, log_bytes: int = LOG_BYTES) -> None:
        """Lock the directory and open the log; both are created if missing.

        Raises:
            DataInUse: another process has the lock.
            DataUnusable: written by a newer version, damaged, or not writable.
        """
        self.path = directory / database.FILE
        self.storage_error: str | None = None  # the reason why nothing can be stored at present
        self._lock = data_dir.lock_directory(directory)
        try:
            finish_restore(directory)
            self._database = database.open_database(self.path, connector)
        except BaseException:
            os.close(self._lock)
            raise
        self._checkpoints: Checkpoints | None = None
        self._connector = connector
        self._log_bytes = log_bytes
        self._grouping = CommitGrouping()
        self._queue: queue.SimpleQueue[Sequence[LogEntry] | Compaction | None] = queue.SimpleQueue()
        self._compactions: list[Compaction] = []
        self._thread: threading.Thread | None = None
        self.commits = CommitStats()

    def compacted(self) -> int:
        """Return the revision after which history begins. Raises DataUnusable."""
        return database.compacted(self._database, self.path)

    def entries(self) -> Iterator[LogEntry]:
        """Yield all entries, oldest first. Only before `start`. Raises DataUnusable if something is damaged."""
        database.check(self._database, self.path)
        return database.entries(self._database, self.path)

    def start(self, committed: Committed) -> None:
        """Start the writer thread; `committed` is called in the running event loop, in the order of `append`."""
        loop = asyncio.get_running_loop()

        def report(entries: Sequence[LogEntry], error: BaseException | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(committed, entries, error)

        self._checkpoints = Checkpoints(lambda: self._connector(self.path), self._log_bytes)
        self._thread = threading.Thread(target=self._write, args=(report,), name="journal", daemon=True)
        self._thread.start()

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Queue writes, which share a transaction; the result is passed to `committed`."""
        self._queue.put(entries)

    def compact(self, compaction: Compaction) -> None:
        self._queue.put(compaction)

    def close(self) -> None:
        """Write the queued entries and release the data directory. Blocks for as long as one commit takes."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        if self._checkpoints is not None:
            self._checkpoints.close()
            self._checkpoints = None
        self._database.close()
        os.close(self._lock)

    def _write(self, report: Committed) -> None:
        database.extend_log(self._database, self.path, self._log_bytes * 5 // 4)
        is_last = False
        while not is_last:
            batch = self._collect_batch()
            is_last = batch.is_last
            if batch.entries:
                self._write_batch(batch, report)
            elif self.storage_error is not None and not self._compactions:
                self._store(self._probe_write)
            while self._compactions and self._store(partial(self._delete_compacted, self._compactions[0])) is None:
                self._copy_log(database.PAGE_BYTES * len(self._compactions.pop(0).dropped))

    def _write_batch(self, batch: _Batch, report: Committed) -> None:
        began = time.perf_counter()
        error = self._store(partial(database.add, self._database, batch.entries))
        self._grouping.committed(len(batch.entries), time.perf_counter() - began)
        self.commits.entries += len(batch.entries) if error is None else 0
        report(batch.entries, error)
        self._copy_log(batch.size)

    def _copy_log(self, added: int) -> None:
        """Start a copy of a long log, after a commit that added about this many bytes."""
        if self._checkpoints is not None:
            self._checkpoints.add(added)
            self._checkpoints.finish(self._database)

    def _collect_batch(self) -> _Batch:
        """Return the queued writes, up to one batch. Waits for the first write and for those about to follow."""
        batch = _Batch()
        self._take_all(batch)
        self._grouping.begin(len(batch.entries))
        if not batch.entries and not batch.is_last:
            self._take(batch, RETRY_S if self.storage_error is not None else None)
            self._take_all(batch)
        began = time.perf_counter()
        while batch.entries and not batch.is_complete:
            wait_s = self._grouping.wait_s(len(batch.entries), time.perf_counter() - began)
            if not wait_s or not self._take(batch, wait_s):
                break
            self._take_all(batch)
        return batch

    def _take_all(self, batch: _Batch) -> None:
        while not batch.is_complete and not self._queue.empty():
            self._take(batch, None)

    def _take(self, batch: _Batch, within_s: float | None) -> bool:
        """Take the next item if it arrives in time; without a limit, wait for it."""
        try:
            item = self._queue.get(timeout=within_s)
        except queue.Empty:
            return False
        if item is None:
            batch.is_last = True
        elif isinstance(item, Compaction):
            self._compactions.append(item)
        else:
            batch.entries += item
            batch.size += sum([len(entry.body) for entry in item])
        return True

    def _store(self, work: Callable[[], None]) -> BaseException | None:
        """Commit `work`, and note whether anything can be stored at all. Returns the error if `work` is not durable."""
        error = self._commit(work)
        trouble = None if error is None else database.describe_error(error)
        if error is not None and self.storage_error is None:
            log.error("cannot store changes, will retry", path=str(self.path), why=trouble)
        elif error is None and self.storage_error is not None:
            log.warning("changes are stored again", path=str(self.path))
        self.storage_error = trouble
        return error

    def _commit(self, work: Callable[[], None]) -> BaseException | None:
        """Run `work` in a transaction. On an error roll back and return the error.

        The thread survives any error, as the callers that wait for their writes need an answer.
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
        self.commits.durations.observe(time.perf_counter() - began)
        return None

    def _probe_write(self) -> None:
        """Rewrite a row that exists already, as a trial."""
        database.set_compacted(self._database, self.compacted())

    def _delete_compacted(self, compaction: Compaction) -> None:
        database.set_compacted(self._database, compaction.revision)
        self._database.executemany("DELETE FROM log WHERE revision = ?", ((r,) for r in compaction.dropped))


class Checkpoints:
    """The checkpoints of one database. Only the writer thread calls `add` and `finish`."""

    def __init__(self, connect: Callable[[], DatabaseConnection], log_bytes: int) -> None:
        """Connect the checkpoints to a database.

        Args:
            log_bytes: approximate size of the log at which a checkpoint begins.
        """
        self._connect = connect
        self._log_bytes = log_bytes
        self._added = 0
        self._requested = threading.Event()
        self._copied = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def add(self, size: int) -> None:
        """Note a commit of about this many bytes."""
        self._added += size + COMMIT_BYTES
        if self._added >= self._log_bytes:
            self._added = 0
            self._requested.set()

    def finish(self, writer: DatabaseConnection) -> None:
        """Copy the rest with the writer's connection, if most was copied since the last call."""
        if self._copied.is_set():
            self._copied.clear()
            _copy(writer)

    def close(self) -> None:
        """End the thread after its current copy."""
        self._stopping = True
        self._requested.set()
        self._thread.join()

    def _run(self) -> None:
        self._requested.wait()
        if self._stopping:
            return
        try:
            connection = self._connect()
        except sqlite3.Error as error:  # SQLite copies the log itself, later and within a commit
            log.warning(
                "cannot copy the write-ahead log beside commits; commits copy it", why=database.describe_error(error)
            )
            return
        try:
            while not self._stopping:
                self._requested.clear()
                if all(_copy(connection) for _ in range(PASSES)):
                    self._copied.set()
                self._requested.wait()
        finally:
            connection.close()


def _copy(connection: DatabaseConnection) -> bool:
    """Copy as much as is possible without waiting for readers or writers; return whether that worked."""
    try:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.Error as error:  # the next commit detects whether anything can be stored
        log.warning("cannot copy the write-ahead log", why=database.describe_error(error))
        return False
    return True
