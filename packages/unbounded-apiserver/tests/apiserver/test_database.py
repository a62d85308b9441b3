"""The file of a data directory: older formats are brought up to date, what is not ours or is damaged is refused."""

from __future__ import annotations

import os
import random
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from unbounded_apiserver import data_dir, database
from unbounded_apiserver.data_dir import Damaged, DataInUse, DataUnusable
from unbounded_apiserver.database import FORMAT, LogEntry
from unbounded_apiserver.journal import Journal
from unbounded_apiserver.pki import CertificateAuthority

FLIPS = 100
ENTRIES = [
    LogEntry(
        number, "configmaps", f"default/c{number % 40}", number % 7 == 0, bytes([65 + number % 26]) * (number % 900)
    )
    for number in range(1, 400)
]
FORMAT_1 = """
CREATE TABLE log (
    revision INTEGER PRIMARY KEY,
    resource TEXT NOT NULL,
    key TEXT NOT NULL,
    deleted INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO facts VALUES ('compacted', 17);
PRAGMA user_version = 1;
PRAGMA journal_mode = WAL;
"""


def older_file(path: Path) -> None:
    """Write a file as the first version did."""
    with sqlite3.connect(path) as old:
        old.executescript(FORMAT_1)
        old.executemany(
            "INSERT INTO log VALUES (?, ?, ?, ?, ?)",
            [(e.revision, e.resource, e.key, e.deleted, e.body) for e in ENTRIES],
        )
    old.close()


def whole_file(directory: Path) -> Path:
    """A file of this version, closed."""
    path = directory / "state.db"
    opened = database.open_database(path)
    opened.execute("BEGIN")
    database.add(opened, ENTRIES)
    database.set_compacted(opened, 17)
    opened.execute("COMMIT")
    opened.close()
    return path


def content(directory: Path) -> tuple[int, list[LogEntry]]:
    journal = Journal(directory)
    try:
        return journal.compacted(), list(journal.entries())
    finally:
        journal.close()


def test_second_process_gets_the_pid_of_the_data_holder(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(DataInUse, match=f"is in use by process {os.getpid()}"):
        Journal(tmp_path)
    journal.close()
    Journal(tmp_path).close()


@pytest.mark.slow
def test_an_older_file_is_brought_up_to_date_and_kept(tmp_path: Path) -> None:
    older_file(tmp_path / "state.db")
    assert content(tmp_path) == (17, ENTRIES)
    assert content(tmp_path) == (17, ENTRIES)
    kept = tmp_path / "state.db.format-1"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    again = tmp_path / "again"
    again.mkdir()
    kept.rename(again / "state.db")
    assert content(again) == (17, ENTRIES)


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    older_file(path)
    pages = os.path.getsize(path) // 4096

    def small(path: Path) -> sqlite3.Connection:
        opened = database.connect(path)
        opened.execute(f"PRAGMA max_page_count = {pages + 3}")  # as a disk that is full
        return opened

    with pytest.raises(DataUnusable, match="no space is left on the disk"):
        Journal(tmp_path, small)
    assert content(tmp_path) == (17, ENTRIES)


def test_data_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = whole_file(tmp_path)
    with sqlite3.connect(path) as newer:
        newer.execute(f"PRAGMA user_version = {FORMAT + 1}")
    newer.close()
    with pytest.raises(DataUnusable, match=f"has format {FORMAT + 1}; this version of unbounded reads up to {FORMAT}"):
        Journal(tmp_path)


@pytest.mark.parametrize("version", [0, 1, FORMAT, FORMAT + 1])
def test_a_database_of_another_program_is_left_alone(tmp_path: Path, version: int) -> None:
    with sqlite3.connect(tmp_path / "state.db") as other:
        other.executescript(f"CREATE TABLE things (a); PRAGMA user_version = {version};")
    other.close()
    before = (tmp_path / "state.db").read_bytes()
    with pytest.raises(DataUnusable, match=r"state\.db is a database of another program"):
        Journal(tmp_path)
    assert (tmp_path / "state.db").read_bytes() == before


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(DataUnusable, match=r"state\.db is damaged: it is not a database"):
        Journal(tmp_path)


@pytest.mark.slow
def test_no_byte_that_the_disk_has_changed_is_believed(tmp_path: Path) -> None:
    path = whole_file(tmp_path)
    good = path.read_bytes()
    chance = random.Random(7)
    refused = 0
    for _ in range(FLIPS):
        bad = bytearray(good)
        bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        path.write_bytes(bad)
        try:
            assert content(tmp_path) == (17, ENTRIES)
        except DataUnusable as error:
            assert str(path) in str(error)  # noqa: PT017  # what is believed has to be right, what is refused named
            refused += 1
    assert refused > FLIPS / 3


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda good: good.replace(b"KKKKKKKK", b"KKKKkKKK", 1), r"revision \d+ has a wrong checksum"),
        (lambda good: good[:8192] + b"\xa5" * 4096 + good[12288:], "is damaged"),
        (lambda good: good[: len(good) // 2], "is damaged"),
    ],
    ids=["a bit in an object", "a page", "the second half"],
)
def test_damage_is_said_with_the_name_of_the_file(tmp_path: Path, spoil: Callable[[bytes], bytes], words: str) -> None:
    path = whole_file(tmp_path)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(Damaged, match=words) as refused:
        content(tmp_path)
    assert str(refused.value).startswith(f"{path} is damaged: ")


def test_what_is_made_is_synced_with_the_directory_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    data = tmp_path / "a" / "b"
    data_dir.make_directory(data)
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    CertificateAuthority(data)
    for key in ("ca.key", "ca.crt"):
        written = next(i for i, path in enumerate(synced) if path.startswith(str(data / "pki" / f".unfinished-{key}")))
        assert synced[written + 1] == str(data / "pki")
