"""A child process, the peer of a create: bare sqlite3 with group commit, and a writer for each client.

Each writer is a thread that waits until its write is durable before it starts the next. One more thread commits all
waiting writes in one transaction (WAL, `synchronous=FULL`). There is no HTTP, no TLS, no check and no cache.
"""

from __future__ import annotations

import os
import queue
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Generic, TypeVar

import msgspec

Turn = TypeVar("Turn")

TABLE: Final = """
CREATE TABLE log (revision INTEGER PRIMARY KEY, resource TEXT NOT NULL, key TEXT NOT NULL, deleted INTEGER NOT NULL,
    body BLOB NOT NULL)
"""
INSERT: Final = "INSERT INTO log VALUES (?, 'widgets', ?, 0, ?)"


class CommitJob(msgspec.Struct, kw_only=True):
    """Number and size of the writes, and their directory, which is created if missing."""

    path: str
    writes: int
    writers: int
    bytes: int


class CommitResult(msgspec.Struct, kw_only=True):
    """Result of a job. `writes` is the number of rows in the file afterwards."""

    seconds: float
    per_s: float
    commits: int
    writes: int


class Log(Generic[Turn]):
    """The table, and the thread that commits.

    Args:
        on_durable: that thread calls it with the turns of all writes that have become durable.
    """

    def __init__(self, path: Path, on_durable: Callable[[Sequence[Turn]], None]) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute(TABLE)
        self._on_durable = on_durable
        self._queue: queue.SimpleQueue[tuple[int, str, bytes, Turn] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._commit)
        self._thread.start()
        self.commits = 0

    def write(self, revision: int, key: str, body: bytes, turn: Turn) -> None:
        """Begin a write."""
        self._queue.put((revision, key, body, turn))

    def close(self) -> int:
        """Close the log; return the number of its rows."""
        self._queue.put(None)
        self._thread.join()
        rows: int = self._database.execute("SELECT count(*) FROM log").fetchone()[0]
        self._database.close()
        return rows

    def _commit(self) -> None:
        while (item := self._queue.get()) is not None:
            batch = [item]
            while not self._queue.empty() and (more := self._queue.get()) is not None:
                batch.append(more)
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(INSERT, [(revision, key, body) for revision, key, body, _ in batch])
            self._database.execute("COMMIT")
            self.commits += 1
            self._on_durable([turn for *_, turn in batch])


def run(job: CommitJob) -> CommitResult:
    """Carry out a job in a new file."""
    Path(job.path).mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=job.path) as folder:
        log = Log(Path(folder) / "state.db", _release)
        body = os.urandom(job.bytes)
        numbers = iter(range(1, job.writes + 1))  # shared: `next` is atomic for Python's threads
        writers = [threading.Thread(target=_writer, args=(log, numbers, body)) for _ in range(job.writers)]
        began = time.perf_counter()
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        seconds = time.perf_counter() - began
        rows = log.close()
        return CommitResult(seconds=seconds, per_s=job.writes / seconds, commits=log.commits, writes=rows)


def _release(turns: Sequence[threading.Lock]) -> None:
    for turn in turns:
        turn.release()


def _writer(log: Log[threading.Lock], numbers: Iterator[int], body: bytes) -> None:
    turn = threading.Lock()  # of this writer alone, and locked
    turn.acquire()
    for number in numbers:
        log.write(number, f"round-0/widget-{number}", body, turn)
        turn.acquire()  # succeeds when the write is durable


def main() -> None:
    """Carry out jobs until the input ends."""
    sys.stdout.buffer.write(b"{}\n")
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(run(msgspec.json.decode(line, type=CommitJob))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
