"""A child process, the peer of a create: bare sqlite3 with group commit, and as many writers as there are clients.

Each writer is a thread that waits until its write is durable before it makes the next; one more thread commits all that
wait in one transaction (WAL, `synchronous=FULL`). No HTTP, no TLS, no checks, nothing in memory.
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


class Wanted(msgspec.Struct, kw_only=True):
    """How much to write, and where: a directory that is made if it is not there."""

    path: str
    writes: int
    writers: int
    bytes: int


class Done(msgspec.Struct, kw_only=True):
    """`writes` is what the file holds afterwards."""

    seconds: float
    per_s: float
    commits: int
    writes: int


class Log(Generic[Turn]):
    """The table, and the thread that commits.

    Args:
        tell: is called by that thread with the turns of all writes that have just become durable.
    """

    def __init__(self, path: Path, tell: Callable[[Sequence[Turn]], None]) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute(TABLE)
        self._tell = tell
        self._queue: queue.SimpleQueue[tuple[int, str, bytes, Turn] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._commit)
        self._thread.start()
        self.commits = 0

    def write(self, revision: int, key: str, body: bytes, turn: Turn) -> None:
        """Begin a write."""
        self._queue.put((revision, key, body, turn))

    def close(self) -> int:
        """The number of rows in it."""
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
            self._tell([turn for *_, turn in batch])


def run(wanted: Wanted) -> Done:
    """Write it all, in a new file."""
    Path(wanted.path).mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=wanted.path) as folder:
        log = Log(Path(folder) / "state.db", _release)
        body = os.urandom(wanted.bytes)
        numbers = iter(range(1, wanted.writes + 1))  # shared: taking one is a single step for Python's threads
        writers = [threading.Thread(target=_writer, args=(log, numbers, body)) for _ in range(wanted.writers)]
        began = time.perf_counter()
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        seconds = time.perf_counter() - began
        rows = log.close()
        return Done(seconds=seconds, per_s=wanted.writes / seconds, commits=log.commits, writes=rows)


def _release(turns: Sequence[threading.Lock]) -> None:
    for turn in turns:
        turn.release()


def _writer(log: Log[threading.Lock], numbers: Iterator[int], body: bytes) -> None:
    turn = threading.Lock()  # its own, and held by it
    turn.acquire()
    for number in numbers:
        log.write(number, f"round-0/widget-{number}", body, turn)
        turn.acquire()  # which it can when the write is durable


def main() -> None:
    """Carry out what is asked for until the input ends."""
    sys.stdout.buffer.write(b"{}\n")
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(run(msgspec.json.decode(line, type=Wanted))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
