"""The SQLite file of a data directory: its tables, its format, migrations from older formats, and signs of damage.

SQLite does not notice when the disk changes the content of a page. Every row therefore carries its own checksum.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from unbounded.kube.durable_files import move_durably
from unbounded_apiserver import data_dir
from unbounded_apiserver.data_dir import Damaged, DataUnusable

FILE: Final = "state.db"
FORMAT: Final = 2  # PRAGMA user_version; a change of the tables raises it and adds a row to MIGRATIONS
APPLICATION: Final = 0x756E6264  # PRAGMA application_id since format 2: "unbd"
COMPACTED: Final = "compacted"
BUSY_S: Final = 5.0
PAGE_BYTES: Final = 4096
CHECKPOINT_PAGES: Final = 8000  # SQLite checkpoints by itself at this size, should `Checkpoints` lag far behind
CACHE_PAGES: Final = 500
FEW_PAGES: Final = 16
FREE_FACTOR: Final = (
    16  # times the size of the write-ahead log: with less space free on the disk, the log is not extended
)
INSERT_ROWS: Final = 128  # the most in one statement; a power of two

_LOG: Final = """
CREATE TABLE {name} (
    revision INTEGER PRIMARY KEY,
    resource TEXT NOT NULL,
    key TEXT NOT NULL,
    deleted INTEGER NOT NULL,
    body BLOB NOT NULL,
    checksum INTEGER NOT NULL
)
"""
_FACTS: Final = (
    "CREATE TABLE {name} (name TEXT PRIMARY KEY, value INTEGER NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID"
)
_ADD_ENTRIES: Final = {
    rows: "INSERT INTO {name} (revision, resource, key, deleted, body, checksum) VALUES "  # noqa: S608  # of constants
    + ", ".join(["(?, ?, ?, ?, ?, ?)"] * rows)
    for rows in (2**power for power in range(INSERT_ROWS.bit_length()))
}
_ADD_FACT: Final = "INSERT OR REPLACE INTO {name} (name, value, checksum) VALUES (?, ?, ?)"

_WORDS: Final[Mapping[int, str]] = {
    sqlite3.SQLITE_FULL: "no space is left on the disk",
    sqlite3.SQLITE_IOERR_SHMSIZE: "no space is left on the disk",  # for the index of the log
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_READONLY: "the disk is read-only",
    sqlite3.SQLITE_CORRUPT: "the database is damaged",
    sqlite3.SQLITE_NOTADB: "it is not a database",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
}


class StatementResult(Protocol):
    """The result of a statement."""

    def fetchone(self) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...


class DatabaseConnection(Protocol):
    """The part of sqlite3.Connection in use, in autocommit mode. Its failures are sqlite3.Error."""

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> StatementResult: ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object: ...

    def close(self) -> None: ...


Connect = Callable[[Path], DatabaseConnection]


class LogEntry(msgspec.Struct, frozen=True):
    """One write: the whole object after the write, or its last state when `deleted`."""

    revision: int
    resource: str
    key: str
    deleted: bool
    body: bytes


def connect(path: Path) -> sqlite3.Connection:
    """Open the connection that the server uses; several threads may use it in turn."""
    return sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def describe_error(error: BaseException) -> str:
    """Describe a database error for people, followed by SQLite's own message."""
    code = getattr(error, "sqlite_errorcode", None)
    words = _WORDS.get(code) or _WORDS.get(code & 0xFF) if isinstance(code, int) else None
    return f"{words} ({error})" if words else str(error)


def open_database(path: Path, connector: Connect = connect) -> DatabaseConnection:
    """Open or create the file, migrate it to this format, and configure writing: WAL, synced at each commit.

    Raises:
        DataUnusable: the file is of a newer version or another program, is damaged, or cannot be written.
    """
    try:
        if not path.exists():
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        database = connector(path)
    except (OSError, sqlite3.Error) as error:
        raise DataUnusable(f"{path} cannot be opened: {describe_error(error)}") from error
    try:
        _prepare(database, path)
    except sqlite3.Error as error:
        database.close()
        raise _not_opened(path, error) from error
    except BaseException:
        database.close()
        raise
    return database


def extend_log(database: DatabaseConnection, path: Path, size: int) -> None:
    """Extend the write-ahead log to this many bytes, if the disk has ample space.

    Syncing a file that grows makes the file system wait for its journal, and so for the writes of other programs. That
    takes several times as long as syncing bytes that are already allocated. A rolled back transaction leaves the log
    long.
    """
    try:
        free = os.statvfs(path.parent)
        if free.f_bavail * free.f_frsize < FREE_FACTOR * size:
            return
        database.execute(f"PRAGMA cache_size = {FEW_PAGES}")  # pages beyond the cache go to the log at once
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO log VALUES (-1, '', '', 0, zeroblob(?), 0)", (size,))
    except (OSError, sqlite3.Error):  # real writes detect whether anything can be stored
        pass
    finally:
        with suppress(sqlite3.Error):
            if database.in_transaction:
                database.execute("ROLLBACK")
            database.execute(f"PRAGMA cache_size = {CACHE_PAGES}")


def _prepare(database: DatabaseConnection, path: Path) -> None:
    version = format_of(database, path)
    if database.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise DataUnusable(f"{path}: its file system does not support a write-ahead log; choose another data directory")
    database.execute("PRAGMA synchronous = FULL")
    database.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    if version < FORMAT:
        _migrate(database, path, version)


def format_of(database: DatabaseConnection, path: Path) -> int:
    """Return the format of a file that is ours; 0 for an empty file. Raises DataUnusable for any other."""
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    application = int(database.execute("PRAGMA application_id").fetchone()[0])
    tables = {row[0] for row in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if not tables and not version:
        return 0
    ours = application == APPLICATION if version != 1 else tables == {"log", "facts"}
    if not ours:
        raise DataUnusable(f"{path} is a database of another program; choose another data directory")
    if version > FORMAT:
        raise DataUnusable(f"{path} has format {version}; this version of unbounded reads up to {FORMAT}")
    return version


def entries(database: DatabaseConnection, path: Path) -> Iterator[LogEntry]:
    """Yield all entries, oldest first. Raises DataUnusable if an entry differs from the one written."""
    try:
        for revision, resource, key, deleted, body, checksum in database.execute(
            "SELECT revision, resource, key, deleted, body, checksum FROM log ORDER BY revision"
        ):
            entry = LogEntry(revision, resource, key, bool(deleted), body)
            if _sum_of_entry(entry) != checksum:
                raise Damaged(path, f"revision {revision} has a wrong checksum")
            yield entry
    except (sqlite3.Error, TypeError, ValueError) as error:  # damage can even change the type of a column
        raise Damaged(path, describe_error(error)) from error


def compacted(database: DatabaseConnection, path: Path) -> int:
    """Return the revision after which history begins. Raises DataUnusable."""
    try:
        row = database.execute("SELECT value, checksum FROM facts WHERE name = ?", (COMPACTED,)).fetchone()
    except sqlite3.Error as error:
        raise Damaged(path, describe_error(error)) from error
    if row is None or _sum_of_fact(COMPACTED, row[0]) != row[1]:
        raise Damaged(path, "the start of history has a wrong checksum")
    return int(row[0])


def check(database: DatabaseConnection, path: Path) -> None:
    """Check the structure of all pages, which reads the whole file. Raises DataUnusable."""
    try:
        found = [row[0] for row in database.execute("PRAGMA quick_check(1)")]
    except sqlite3.Error as error:
        raise Damaged(path, describe_error(error)) from error
    if found != ["ok"]:
        raise Damaged(path, " ".join(found[0].split()))


def add(database: DatabaseConnection, added: Sequence[LogEntry], table: str = "log") -> None:
    """Insert entries; the caller has begun a transaction.

    Few statements of many rows: after each statement this thread waits to get Python's lock back from other threads.
    """
    at, rows = 0, INSERT_ROWS
    while at < len(added):
        while rows > len(added) - at:
            rows //= 2
        values = [value for entry in added[at : at + rows] for value in _row(entry)]
        database.execute(_ADD_ENTRIES[rows].format(name=table), values)
        at += rows


def set_compacted(database: DatabaseConnection, revision: int, table: str = "facts") -> None:
    """Store the compacted revision; the caller has begun a transaction."""
    database.execute(_ADD_FACT.format(name=table), (COMPACTED, revision, _sum_of_fact(COMPACTED, revision)))


def copy_to(database: DatabaseConnection, target: Path) -> None:
    """Copy one consistent state of the file to a file of its own (0600), synced. An existing file is replaced.

    Raises sqlite3.Error, OSError.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    # VACUUM fills an empty file
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        database.execute("VACUUM INTO ?", (str(temporary),))
        data_dir.sync_file(temporary)
        move_durably(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _row(entry: LogEntry) -> tuple[int, str, str, bool, bytes, int]:
    return (entry.revision, entry.resource, entry.key, entry.deleted, entry.body, _sum_of_entry(entry))


def _sum_of_entry(entry: LogEntry) -> int:
    """Return a checksum over all columns, so that rows cannot be exchanged."""
    head = f"{entry.revision}\0{entry.resource}\0{entry.key}\0{entry.deleted:d}\0"
    return zlib.crc32(entry.body, zlib.crc32(head.encode()))


def _sum_of_fact(name: str, value: int) -> int:
    return zlib.crc32(f"{name}\0{value}".encode())


def _migrate(database: DatabaseConnection, path: Path, version: int) -> None:
    """Migrate the file to this format in one transaction. A copy of the old file stays beside it."""
    if version:
        try:
            copy_to(database, path.with_name(f"{path.name}.format-{version}"))
        except OSError as error:
            raise DataUnusable(f"{path} cannot be copied before its format is changed: {error.strerror}") from error
    database.execute("BEGIN IMMEDIATE")
    try:
        for step in range(version, FORMAT):
            MIGRATIONS[step](database)
        database.execute(f"PRAGMA user_version = {FORMAT}")
        database.execute(f"PRAGMA application_id = {APPLICATION}")
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _first_tables(database: DatabaseConnection) -> None:
    """Create the tables of format 1."""
    database.execute(
        "CREATE TABLE log (revision INTEGER PRIMARY KEY, resource TEXT NOT NULL, key TEXT NOT NULL,"
        " deleted INTEGER NOT NULL, body BLOB NOT NULL)"
    )
    database.execute("CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID")
    database.execute("INSERT INTO facts VALUES (?, 0)", (COMPACTED,))


def _add_checksums(database: DatabaseConnection) -> None:
    """Migrate to format 2: each row has a checksum."""
    database.execute(_LOG.format(name="log_2"))
    database.execute(_FACTS.format(name="facts_2"))
    rows = database.execute("SELECT revision, resource, key, deleted, body FROM log ORDER BY revision")
    older = (LogEntry(revision, resource, key, bool(deleted), body) for revision, resource, key, deleted, body in rows)
    while some := list(islice(older, INSERT_ROWS)):
        add(database, some, "log_2")
    value = database.execute("SELECT value FROM facts WHERE name = ?", (COMPACTED,)).fetchone()[0]
    set_compacted(database, value, "facts_2")
    for name in ("log", "facts"):
        database.execute(f"DROP TABLE {name}")
        database.execute(f"ALTER TABLE {name}_2 RENAME TO {name}")


MIGRATIONS: Final[Mapping[int, Callable[[DatabaseConnection], None]]] = {0: _first_tables, 1: _add_checksums}


def _not_opened(path: Path, error: sqlite3.Error) -> DataUnusable:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return Damaged(path, describe_error(error))
    return DataUnusable(f"{path} cannot be opened: {describe_error(error)}")
