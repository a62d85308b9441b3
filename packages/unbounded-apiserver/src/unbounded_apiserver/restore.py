"""Restore of a backup over a data directory: complete or not at all, also when the power fails.

The files are unpacked beside the directory and checked. One rename then decides. From there on `finish` moves the old
files aside and the new ones in place. After a crash, the next process to open the directory resumes `finish`.

Clients may have seen revisions newer than the backup. Revisions after a restore must be newer still, or a client would
take old objects for new. The restore raises the revision beyond any that can have been used, and marks history up to
there as compacted. A watch from before gets 410, and its client lists again.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from unbounded.kube.durable_files import move_durably, sync_directory
from unbounded_apiserver import backup, data_dir, database, metadata
from unbounded_apiserver.backup import RESTORED_PREFIX, Manifest
from unbounded_apiserver.data_dir import DataUnusable
from unbounded_apiserver.database import FILE, LogEntry

STAGING: Final = ".restoring-"
ASIDE: Final = "before-restore-"
LOGS: Final = (f"{FILE}-wal", f"{FILE}-shm")  # of the old database, and never of another one
REVISION_JUMP: Final = 1_000_000_000  # as etcd's documentation recommends for --bump-revision
REVISIONS_PER_S: Final = 10_000  # more than a second can write, so that the clock alone exceeds them


Objects = Mapping[tuple[str, str], bytes]  # JSON by resource and key, as in the store


@dataclass(frozen=True)
class RestoreWrite:
    """An object to write over one of the backup, or in addition."""

    resource: str
    key: str
    obj: dict[str, Any]


Edit = Callable[[Objects], Sequence[RestoreWrite]]


@dataclass(frozen=True)
class RestoreResult:
    """The result of a restore. `aside` is None if the directory was empty before."""

    manifest: Manifest
    revision: int
    aside: Path | None


def no_edit(_: Objects) -> Sequence[RestoreWrite]:
    return ()


def restore(
    archive: Path, data: Path, *, extras: Sequence[str] = (), edit: Edit = no_edit, now: datetime | None = None
) -> RestoreResult:
    """Replace the content of a data directory by that of a backup.

    Args:
        extras: as in `back_up`.
        edit: returns objects to write before any client sees the restored ones.
    Raises:
        DataInUse: a server works on it.
        BackupFailed: the backup cannot be used; nothing was changed.
        DataUnusable: the directory cannot be written.
    """
    lock = data_dir.lock_directory(data)
    try:
        finish(data)
        stamp = _free_stamp(data, now or datetime.now(UTC))
        staging = data / f"{STAGING}{stamp}"
        staging.mkdir(mode=0o700)
        try:
            manifest = backup.unpack(archive, staging, extras)
            known = max(manifest.revision, newest_revision(data))
            revision = _start_history(staging / FILE, known, edit, now or datetime.now(UTC))
            sync_directory(staging)
            move_durably(staging, data / f"{RESTORED_PREFIX}{stamp}")
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        finish(data)
        aside = data / f"{ASIDE}{stamp}"
        return RestoreResult(manifest, revision, aside if aside.exists() else None)
    except OSError as error:
        raise DataUnusable(f"{error.filename or data} cannot be written: {error.strerror}") from error
    finally:
        os.close(lock)


def finish(data: Path) -> None:
    """Complete a restore that was decided, and delete one that was not. The caller holds the lock."""
    for undecided in data.glob(f"{STAGING}*"):
        shutil.rmtree(undecided)
    for decided in sorted(data.glob(f"{RESTORED_PREFIX}*")):
        aside = data / f"{ASIDE}{decided.name.removeprefix(RESTORED_PREFIX)}"
        aside.mkdir(mode=0o700, exist_ok=True)
        if (decided / FILE).exists():
            for name in LOGS:
                _move_aside(data / name, aside)
        for new in sorted(decided.iterdir(), key=lambda path: path.name == FILE):
            _move_aside(data / new.name, aside)
            move_durably(new, data / new.name)
        decided.rmdir()
        with suppress(OSError):  # usually not empty
            aside.rmdir()
        sync_directory(data)


def newest_revision(data: Path) -> int:
    """Return the newest revision of the present data; 0 if it is damaged or missing."""
    path = data / FILE
    if not path.exists():
        return 0
    try:
        opened = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            (written,) = opened.execute("SELECT max(revision) FROM log").fetchone()
            (compacted,) = opened.execute("SELECT value FROM facts WHERE name = ?", (database.COMPACTED,)).fetchone()
            return max(int(written or 0), int(compacted))
        finally:
            opened.close()
    except (sqlite3.Error, TypeError, ValueError):
        return 0


def _start_history(path: Path, known: int, edit: Edit, now: datetime) -> int:
    """Set and return the start of history, after every revision in use by this data or by writes since the backup."""
    revision = max(known + REVISION_JUMP, int(now.timestamp()) * REVISIONS_PER_S)
    opened = database.open_database(path)
    try:
        puts = edit(_objects_of(opened, path))
        entries = [_entry(put, revision + number, now) for number, put in enumerate(puts, 1)]
        opened.execute("BEGIN IMMEDIATE")
        database.set_compacted(opened, revision)
        database.add(opened, entries)
        opened.execute("COMMIT")
    except sqlite3.Error as error:
        raise DataUnusable(f"{path} cannot be written: {database.describe_error(error)}") from error
    finally:
        opened.close()
    data_dir.sync_file(path)
    return revision


def _objects_of(opened: database.DatabaseConnection, path: Path) -> Objects:
    there: dict[tuple[str, str], bytes] = {}
    for entry in database.entries(opened, path):
        if entry.deleted:
            there.pop((entry.resource, entry.key), None)
        else:
            there[entry.resource, entry.key] = entry.body
    return there


def _entry(put: RestoreWrite, revision: int, now: datetime) -> LogEntry:
    if "uid" not in put.obj["metadata"]:
        metadata.initialize(put.obj["metadata"], now, generation=False)
    return LogEntry(revision, put.resource, put.key, False, metadata.encode(put.obj, revision))


def _move_aside(path: Path, aside: Path) -> None:
    if path.exists():
        move_durably(path, aside / path.name)


def _free_stamp(data: Path, now: datetime) -> str:
    """Return a name for this restore that no earlier one has."""
    base = f"{now:%Y%m%dT%H%M%SZ}"
    taken = {path.name for path in data.iterdir()}
    stamps = (base, *(f"{base}-{number}" for number in range(2, 1000)))
    return next(stamp for stamp in stamps if f"{ASIDE}{stamp}" not in taken)
