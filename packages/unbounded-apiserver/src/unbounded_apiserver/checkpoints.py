"""Copying of SQLite's write-ahead log into its database, beside the writer thread, which would otherwise wait for it.

The writer reports the size of each commit and continues. A second thread with its own connection copies the log and
syncs the database. The writer itself copies the small rest, and so restarts the log at its beginning.

SQLite alone would do all of this within a commit. On a disk that others use, that commit takes as long as dozens of
others.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Final

from unbounded.kube.logs import Log
from unbounded_apiserver import database
from unbounded_apiserver.database import DatabaseConnection

COMMIT_BYTES: Final = 4 * database.PAGE_BYTES  # added by a commit beside the bodies
PASSES: Final = 2  # the second pass copies commits that arrived during the first

log = Log(__name__)


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
