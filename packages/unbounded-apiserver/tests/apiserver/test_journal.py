"""An acknowledged write is on the disk, once, in order; a write that is not stored is not visible."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from unbounded_apiserver import database
from unbounded_apiserver.journal import LONGEST_S, SLOW_S, CommitGrouping, Journal
from unbounded_apiserver.store import NotStored, Store


def body(text: str) -> Callable[[int], bytes]:
    return lambda revision: b'{"metadata":{"resourceVersion":"%d"},"text":"%b"}' % (revision, text.encode())


def test_commits_are_synced(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    database = journal._database
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    journal.close()


@pytest.mark.slow
async def test_writes_that_wait_share_a_commit(tmp_path: Path) -> None:
    store = Store()
    await store.open(tmp_path)
    futures = [store.write("things", f"k{i}", body("x")) for i in range(500)]
    records = await asyncio.gather(*futures)
    assert [record.revision for record in records] == list(range(1, 501))
    await store.close()
    again = Store()
    await again.open(tmp_path)
    assert again.revision == 500
    assert len(again.snapshot("things").keys) == 500
    await again.close()


async def test_a_write_that_fails_is_not_seen_and_writing_goes_on(tmp_path: Path) -> None:
    store = Store()
    await store.open(tmp_path)
    await store.write("things", "a", body("kept"))
    heard: list[str] = []
    store.listen(lambda change: heard.append(change.record.key))
    journal = store._journal
    assert journal is not None
    pages = journal._database.execute("PRAGMA page_count").fetchone()[0]
    journal._database.execute(f"PRAGMA max_page_count = {pages}")  # as a disk that is full
    with pytest.raises(NotStored, match="full"):
        await store.write("things", "b", body("x" * 100_000))
    assert store.get("things", "b") is None
    assert store.changes("things", 1) == []
    assert heard == []
    journal._database.execute("PRAGMA max_page_count = 1000000")
    record = await store.write("things", "b", body("x" * 100_000))
    assert heard == ["b"]
    assert store.get("things", "b") is record
    await store.close()


LOG_BYTES = 2**20


async def write_much(store: Store, count: int) -> None:
    for number in range(count):
        await store.write("things", f"k{number}", body("x" * 4000))


@pytest.mark.slow
async def test_the_log_has_its_size_before_anything_is_written(tmp_path: Path) -> None:
    """To sync a file that grows waits for all that others write to the disk."""
    store = Store(open_journal=partial(Journal, log_bytes=LOG_BYTES))
    await store.open(tmp_path)
    await store.write("things", "a", body("kept"))
    size = (tmp_path / "state.db-wal").stat().st_size
    assert size >= LOG_BYTES
    await write_much(store, 100)
    assert (tmp_path / "state.db-wal").stat().st_size == size
    await store.close()
    again = Store()
    await again.open(tmp_path)
    assert len(again.snapshot("things").keys) == 101
    await again.close()


async def test_where_room_is_scarce_the_log_stays_small(tmp_path: Path) -> None:
    store = Store(open_journal=partial(Journal, log_bytes=2**50))
    await store.open(tmp_path)
    await store.write("things", "a", body("kept"))
    assert (tmp_path / "state.db-wal").stat().st_size < LOG_BYTES
    await store.close()


@pytest.mark.slow
async def test_the_log_is_copied_beside_the_commits_and_begins_again(tmp_path: Path) -> None:
    statements: list[str] = []

    def connect(path: Path) -> sqlite3.Connection:
        connection = database.connect(path)
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.set_trace_callback(statements.append)
        return connection

    store = Store(open_journal=partial(Journal, connector=connect, log_bytes=LOG_BYTES))
    await store.open(tmp_path)
    await write_much(store, 600)  # at four pages each: nine times as much as the log may hold
    assert (tmp_path / "state.db-wal").stat().st_size < 4 * LOG_BYTES
    assert (tmp_path / "state.db").stat().st_size > 2 * LOG_BYTES
    assert sum("wal_checkpoint" in statement for statement in statements) >= 3
    await store.close()


@pytest.mark.slow
async def test_writes_go_on_where_the_log_cannot_be_copied(tmp_path: Path) -> None:
    opened: list[Path] = []

    def connect(path: Path) -> sqlite3.Connection:
        opened.append(path)
        if len(opened) > 1:
            raise sqlite3.OperationalError("unable to open database file")
        return database.connect(path)

    store = Store(open_journal=partial(Journal, connector=connect, log_bytes=LOG_BYTES))
    await store.open(tmp_path)
    await write_much(store, 300)

    async def tried() -> bool:
        return len(opened) == 2

    assert await eventually(tried)
    assert store.storage_error is None
    await store.close()


def test_a_single_writer_never_waits_for_others() -> None:
    grouping = CommitGrouping()
    for _ in range(10):
        grouping.begin(0)
        assert grouping.wait_s(1, 0.0) == 0.0
        grouping.committed(1, 0.1)


def test_commit_on_slow_disk_waits_for_the_writers_of_the_previous_commit() -> None:
    grouping = CommitGrouping()
    for _ in range(10):
        grouping.begin(49)
        grouping.committed(1, 0.1)
    grouping.begin(49)
    grouping.committed(50, 0.1)
    grouping.begin(0)
    assert 0 < grouping.wait_s(1, 0.0) <= LONGEST_S
    assert grouping.wait_s(50, 0.0) == 0.0, "all are there"
    assert grouping.wait_s(1, LONGEST_S) == 0.0, "they do not come"


def test_commit_on_a_fast_disk_does_not_wait() -> None:
    grouping = CommitGrouping()
    for _ in range(10):
        grouping.begin(49)
        grouping.committed(1, SLOW_S / 2)
    grouping.begin(49)
    assert grouping.wait_s(1, 0.0) == 0.0
