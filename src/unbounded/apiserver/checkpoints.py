"""Copies the log of SQLite into its database beside the thread that writes, which would have to wait for it.

The writer reports what it has added and goes on; a thread with a connection of its own copies, and syncs the database.
What came meanwhile is little: the writer copies it itself, and so begins the log from its start again. SQLite would do
all of this within a commit, and a disk that others use makes that commit take as long as dozens of others.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Final

from unbounded.apiserver import database
from unbounded.apiserver.database import Connection
from unbounded.kube.logs import Log

COMMIT_BYTES: Final = 4 * database.PAGE_BYTES  # that a commit adds beside the bodies
PASSES: Final = 2  # the second one copies what came during the first

log = Log(__name__)


class Checkpoints:
    """The copying of one database. `add` and `end_pass` are for the thread that writes."""

    def __init__(self, connect: Callable[[], Connection], log_bytes: int) -> None:
        """
        Args:
            log_bytes: about how long the log gets before it is copied.
        """
        self._connect = connect
        self._log_bytes = log_bytes
        self._added = 0
        self._wanted = threading.Event()
        self._copied = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._copy_on, name="checkpoints", daemon=True)
        self._thread.start()

    def add(self, size: int) -> None:
        """Note a commit of about so many bytes."""
        self._added += size + COMMIT_BYTES
        if self._added >= self._log_bytes:
            self._added = 0
            self._wanted.set()

    def finish(self, writer: Connection) -> None:
        """Copy what is left by the connection that writes, if most was copied since the last call."""
        if self._copied.is_set():
            self._copied.clear()
            _copy(writer)

    def close(self) -> None:
        """End the thread, when it has done what it is at."""
        self._stopping = True
        self._wanted.set()
        self._thread.join()

    def _copy_on(self) -> None:
        self._wanted.wait()
        if self._stopping:
            return
        try:
            connection = self._connect()
        except sqlite3.Error as error:  # SQLite copies by itself, later and within a commit
            log.warning("the log of the database is copied within commits", why=database.said(error))
            return
        try:
            while not self._stopping:
                self._wanted.clear()
                if all(_copy(connection) for _ in range(PASSES)):
                    self._copied.set()
                self._wanted.wait()
        finally:
            connection.close()


def _copy(connection: Connection) -> bool:
    """Copy what can be without waiting for anybody; tells whether that worked."""
    try:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.Error as error:  # the next commit finds out whether anything can be stored
        log.warning("the log of the database cannot be copied", why=database.said(error))
        return False
    return True
