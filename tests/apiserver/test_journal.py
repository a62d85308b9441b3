"""What is acknowledged is on the disk, once, in order; what is not stored is not seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from unbounded.apiserver.journal import Journal
from unbounded.apiserver.store import NotStored, Store


def body(text: str) -> Callable[[int], bytes]:
    return lambda revision: b'{"metadata":{"resourceVersion":"%d"},"text":"%b"}' % (revision, text.encode())


def test_commits_are_synced(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    database = journal._database
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    journal.close()


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
