"""A disk that is full, broken or read-only: writes are refused with a clear error, reads continue, nothing is lost."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import apsw
import pytest

from tests.apiserver.processes import ServerProcess, parent
from tests.apiserver.support import MADE_HERE, Answer, running
from tests.support.lossy_disk import LossyDisk
from tests.support.waiting import eventually
from unbounded_apiserver.collection import StoredObject
from unbounded_apiserver.data_dir import DataUnusable
from unbounded_apiserver.journal import Journal
from unbounded_apiserver.store import NotStored, Store

PATH = "/api/v1/namespaces/default/configmaps"
DISK_BYTES = 4 * 2**20
NOBODY = 65534


def left_on(disk: LossyDisk, directory: Path) -> Path:
    """Return what a loss of power would leave of a disk."""
    directory.mkdir()
    for name, content in disk.what_survives().items():
        (directory / name).write_bytes(content)
    return directory


def _fails(where: str, code: int) -> Callable[[str], None]:
    def fault(what: str) -> None:
        if what == where:
            raise apsw.exception_for(code)

    return fault


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "code", "words"),
    [
        ("write", apsw.SQLITE_FULL, "no space is left on the disk"),
        ("write", apsw.SQLITE_IOERR_WRITE, "the disk reports an error"),
        ("write", apsw.SQLITE_READONLY, "the disk is read-only"),
        ("sync", apsw.SQLITE_IOERR_FSYNC, "the disk reports an error"),
    ],
    ids=["full", "broken", "read-only", "not synced"],
)
async def test_while_the_disk_fails_writes_are_refused_and_reads_go_on(
    tmp_path: Path, where: str, code: int, words: str
) -> None:
    disk = LossyDisk(random.Random(5))
    store = Store(history_changes=150, open_journal=partial(Journal, connector=disk.connect))
    (tmp_path / "data").mkdir()
    await store.open(tmp_path / "data")
    before = [await _put(store, number) for number in range(200)]
    disk.fault = _fails(where, code)
    for number in range(200, 230):
        with pytest.raises(NotStored, match=f"the write could not be stored: {words}"):
            await _put(store, number)
        assert store.storage_error is not None
        assert store.storage_error.startswith(words)
        assert store.get("things", f"k{number}") is None
        assert store.get("things", "k0") is before[0]
        store.compact(store.revision - 20)  # cannot be stored either, and is made up for
    disk.fault = lambda _what: None
    await eventually(lambda: _is_none(store.storage_error))  # found out without a write
    after = [await _put(store, number) for number in range(300, 320)]
    left = left_on(disk, tmp_path / "left")
    await store.close()
    again = Store()
    await again.open(left)
    kept = {record.key: record.body for record in again.snapshot("things").with_prefix("")}
    assert kept == {record.key: record.body for record in (*before, *after)}
    assert again.compacted >= store.compacted
    await again.close()


async def _put(store: Store, number: int) -> StoredObject:
    key = f"k{number}"
    await store.wait_current("things", key)
    return await store.write(
        "things", key, lambda r: b'{"metadata":{"resourceVersion":"%d"},"x":"%b"}' % (r, b"x" * 700)
    )


async def _is_none(value: object) -> bool:
    return value is None


async def mounted(directory: Path, *options: str) -> bool:
    command = ("mount", "-t", "tmpfs", "-o", ",".join((f"size={DISK_BYTES}", *options)), "none", str(directory))
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    return await process.wait() == 0


@asynccontextmanager
async def small_disk(directory: Path) -> AsyncIterator[Path]:
    """A file system of a few MiB; the test is skipped where that cannot be mounted."""
    await asyncio.to_thread(directory.mkdir)
    if os.geteuid() != 0 or not await mounted(directory):
        pytest.skip("needs the right to mount")
    try:
        yield directory
    finally:
        await (await asyncio.create_subprocess_exec("umount", "--lazy", str(directory))).wait()


async def create(server: ServerProcess, number: int) -> Answer:
    body = {"metadata": {"name": f"c{number}"}, "data": {"filling": "x" * 50_000}}
    return await server.client.ask("POST", PATH, body)


async def refused_writes(server: ServerProcess, words: str) -> list[str]:
    """Write until that is refused, and see how; the names of what was stored."""
    number = 0
    while (answer := await create(server, number)).status == 201:
        number += 1
    refused = answer.json()
    assert (answer.status, refused["reason"]) == (500, "InternalError")
    assert refused["message"].startswith(f"Internal error occurred: the write could not be stored: {words}")
    names = [f"c{stored}" for stored in range(number)]
    assert await stored_names(server) == sorted(names)
    assert (await server.client.ask("GET", f"{PATH}/c{number}")).status == 404
    assert (await server.client.ask("GET", "/livez")).status == 200
    ready = await server.client.ask("GET", "/readyz")
    assert (ready.status, ready.text) == (
        500,
        "[+]ping ok\n[-]storage failed: reason withheld\nreadyz check failed\n",
    )
    assert words in (await server.client.ask("GET", "/readyz/storage")).text
    return names


async def stored_names(server: ServerProcess) -> list[str]:
    return sorted(item["metadata"]["name"] for item in (await server.client.get(f"{PATH}?{MADE_HERE}"))["items"])


async def goes_on(server: ServerProcess, names: list[str]) -> None:
    """It becomes ready by itself, and takes writes."""

    async def ready() -> bool:
        return (await server.client.ask("GET", "/readyz")).status == 200

    await eventually(ready)
    answer = await create(server, len(names))
    assert answer.status == 201, answer.text
    names.append(f"c{len(names)}")


@pytest.mark.slow
@pytest.mark.root
async def test_a_full_disk_refuses_writes_until_there_is_room_again(tmp_path: Path) -> None:
    async with small_disk(tmp_path / "disk") as disk, parent() as started:
        data = disk / "data"
        async with started.serving(data) as server:
            (disk / "of-others").write_bytes(bytes(DISK_BYTES // 2))
            names = await refused_writes(server, "no space is left on the disk")
            (disk / "of-others").unlink()
            await goes_on(server, names)
            await server.end(signal.SIGKILL)
        async with started.serving(data) as server:
            assert await stored_names(server) == sorted(names)
            await server.end(signal.SIGTERM)


@pytest.mark.slow
async def test_a_file_that_may_not_grow_refuses_writes_until_it_may(tmp_path: Path) -> None:
    async with parent() as started:
        async with started.serving(tmp_path) as server:
            server.limit_files(2**20)
            names = await refused_writes(server, "the disk reports an error")
            server.limit_files(None)
            await goes_on(server, names)
            await server.end(signal.SIGKILL)
        async with started.serving(tmp_path) as server:
            assert await stored_names(server) == sorted(names)


@pytest.mark.slow
@pytest.mark.root
async def test_a_disk_that_can_only_be_read_is_named_at_the_start(tmp_path: Path) -> None:
    async with small_disk(tmp_path / "disk") as disk:
        async with running(disk / "data"):
            pass
        assert await mounted(disk, "remount", "ro")
        with pytest.raises(DataUnusable, match=r"data/lock cannot be written: Read-only file system"):
            async with running(disk / "data"):
                pass


def test_a_directory_that_may_not_be_written_is_named_at_the_start() -> None:
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        directory.chmod(0o555)
        with somebody(), pytest.raises(DataUnusable, match="data cannot be written: Permission denied"):
            Journal(directory / "data")


@contextmanager
def somebody() -> Iterator[None]:
    """Without the rights of root, who may write everywhere."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.slow
@pytest.mark.root
async def test_a_disk_that_is_full_at_the_start_is_named(tmp_path: Path) -> None:
    async with small_disk(tmp_path / "disk") as disk:
        data = disk / "data"
        data.mkdir()
        for left in (4096, 0):  # at first there is no data, then some
            (disk / "of-others").write_bytes(bytes(shutil.disk_usage(disk).free - left))
            with pytest.raises(DataUnusable, match=r"state\.db cannot be opened: no space is left on the disk"):
                async with running(data):
                    pass
            (disk / "of-others").unlink()
            async with running(data):
                pass
