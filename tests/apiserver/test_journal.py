"""What is acknowledged is on the disk, once, in order; what is not stored is not seen."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from unbounded.apiserver.journal import FORMAT, DataInUse, DataUnusable, Journal
from unbounded.apiserver.store import NotStored, Store

ROUNDS = 5
CHILD = """
import asyncio, sys
from pathlib import Path
from unbounded.apiserver.store import Store

async def main():
    store = Store(history_changes=400)
    await store.open(Path(sys.argv[1]))
    async def writer(number):
        for count in range(1_000_000):
            key = f"{number}-{count % 50}"
            await store.turn("things", key)
            record = await store.write(
                "things", key, lambda r: b'{"metadata":{"resourceVersion":"%d"},"count":%d}' % (r, count)
            )
            sys.stdout.write(f"{record.revision} {key} {count}\\n")
            sys.stdout.flush()
    await asyncio.gather(*(writer(number) for number in range(8)))

asyncio.run(main())
"""


def body(text: str) -> Callable[[int], bytes]:
    return lambda revision: b'{"metadata":{"resourceVersion":"%d"},"text":"%b"}' % (revision, text.encode())


def test_a_second_process_is_told_who_has_the_data(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(DataInUse, match=f"is in use by process {os.getpid()}"):
        Journal(tmp_path)
    journal.close()
    Journal(tmp_path).close()


def test_data_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    with sqlite3.connect(tmp_path / "state.db") as database:
        database.execute(f"PRAGMA user_version = {FORMAT + 1}")
    database.close()
    with pytest.raises(DataUnusable, match=f"has format {FORMAT + 1}"):
        Journal(tmp_path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(DataUnusable, match="cannot be opened"):
        Journal(tmp_path)


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


@pytest.mark.slow
@pytest.mark.parametrize("number", range(ROUNDS))
async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, number: int) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    acknowledged: list[tuple[int, str, int]] = []
    while line := await child.stdout.readline():
        if not line.endswith(b"\n"):
            break  # cut off in the middle: not acknowledged
        parts = line.decode().split()
        acknowledged.append((int(parts[0]), parts[1], int(parts[2])))
        if len(acknowledged) == 500 + 173 * number and child.returncode is None:
            os.kill(child.pid, signal.SIGKILL)
    await child.wait()
    newest = {key: (revision, count) for revision, key, count in sorted(acknowledged)}
    store = Store()
    await store.open(tmp_path)
    try:
        assert store.revision >= max(revision for revision, _, _ in acknowledged)
        for key, (revision, count) in newest.items():
            record = store.get("things", key)
            assert record is not None
            assert record.revision >= revision
            assert record.decode()["count"] >= count
        revisions = [change.revision for change in store.changes("things", store.compacted)]
        assert revisions == sorted(set(revisions))
    finally:
        await store.close()
    check = sqlite3.connect(tmp_path / "state.db")
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()
