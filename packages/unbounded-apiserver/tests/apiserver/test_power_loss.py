"""Power is lost at any moment of a storm of writes: acknowledged writes are there, in order, and watches resume.

The server's storage runs on a disk that forgets unsynced writes (tests/support/lossy_disk.py); the remains are opened
as the server opens them. A chain of rounds is one seed:
UNBOUNDED_SEED=1234 .venv/bin/python -m pytest -k power_is_lost
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.apiserver.ledger import Ledger, Loss, Seen
from tests.apiserver.test_database import ENTRIES, content, older_file
from tests.support.lossy_disk import Files, LossyDisk
from tests.support.seeds import first_seed
from unbounded_apiserver.builtin_resources import CONFIG_MAPS
from unbounded_apiserver.collection import StoredObject
from unbounded_apiserver.data_dir import DataUnusable
from unbounded_apiserver.database import Connect
from unbounded_apiserver.decoding import RequestDocument
from unbounded_apiserver.journal import Journal
from unbounded_apiserver.options import DeleteOptions, ListOptions, WriteOptions
from unbounded_apiserver.patches import MERGE
from unbounded_apiserver.reads import Reads
from unbounded_apiserver.server_core import ServerCore
from unbounded_apiserver.store import Store
from unbounded_apiserver.workloads.pod_admission import ROOT_CA
from unbounded_apiserver.writes import WriteTarget

SOAK: Final = bool(os.environ.get("UNBOUNDED_SOAK"))
ROUNDS: Final = 200 if SOAK else 20
CHAIN: Final = 10  # losses one after another on the same data
WRITERS: Final = 6
KEYS: Final = 3  # of each writer
HISTORY: Final = 150
NAMESPACE: Final = "default"
CHECKPOINT_PAGES: Final = 40
OPERATIONS: Final = 900  # within so many operations of the disk the power goes
ROUND_S: Final = 30.0
SEEDS: Final = (
    [int(os.environ["UNBOUNDED_SEED"])]
    if "UNBOUNDED_SEED" in os.environ
    else [first_seed() + number for number in range(ROUNDS // CHAIN)]
)


@dataclass(frozen=True)
class Photo:
    """The remains on the disk, and the progress of the clients."""

    files: Files
    acknowledged: int
    begun: int

    def put(self, directory: Path) -> Path:
        directory.mkdir()
        for name, data in self.files.items():
            (directory / name).write_bytes(data)
        return directory


def opener(disk: LossyDisk, synchronous: str) -> Callable[[Path], Journal]:
    """Journals on that disk, whose log is written back often."""

    class Tuned(Journal):
        def __init__(self, directory: Path, connector: Connect) -> None:
            super().__init__(directory, connector, log_bytes=4096 * CHECKPOINT_PAGES)
            self._database.execute(f"PRAGMA synchronous = {synchronous}")

    return partial(Tuned, connector=disk.connect)


async def write_on(core: ServerCore, ledger: Ledger, writer: int, chance: random.Random) -> None:
    """Create, patch and delete objects until cancelled."""
    count = len(ledger.begun)
    while True:
        count += 1
        name = f"w{writer}-{chance.randrange(KEYS)}"
        key = f"{NAMESPACE}/{name}"
        target = WriteTarget(CONFIG_MAPS, NAMESPACE, name)
        there = core.store.get(CONFIG_MAPS.name, key) is not None
        if there and chance.random() < 0.2:
            step = ledger.begin(key, "")
            await core.deletes.delete(target, DeleteOptions())
            ledger.acknowledge(step)
            continue
        step = ledger.begin(key, f"{writer}.{count}")
        body = b'{"data":{"token":"%b","filling":"%b"}}' % (step.token.encode(), b"x" * chance.randrange(3000))
        if there:
            outcome = await core.writes.patch(target, MERGE, body, WriteOptions())
        else:
            whole = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%b"},%b' % (name.encode(), body[1:])
            document = RequestDocument.read(whole, "ConfigMap")
            outcome = await core.writes.create(CONFIG_MAPS, NAMESPACE, document, WriteOptions())
        written = RequestDocument.read(outcome.body, "ConfigMap").value
        ledger.acknowledge(step, int(written["metadata"]["resourceVersion"]))


async def storm(directory: Path, disk: LossyDisk, ledger: Ledger, chance: random.Random, synchronous: str) -> Photo:
    """Serve and write until the power goes."""
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[Photo] = loop.create_future()

    def power_goes() -> None:
        acknowledged = len(ledger.acknowledged)
        files = disk.what_survives()
        photo = Photo(files, acknowledged, len(ledger.begun))
        loop.call_soon_threadsafe(lost.set_result, photo)

    disk.lose_power(chance.randrange(1, OPERATIONS), power_goes)
    core = ServerCore(Store(history_changes=HISTORY, open_journal=opener(disk, synchronous)))
    await core.open(directory)
    numbers = [chance.random() for _ in range(WRITERS)]
    writers = [
        asyncio.create_task(write_on(core, ledger, writer, random.Random(number)))
        for writer, number in enumerate(numbers)
    ]
    try:
        async with asyncio.timeout(ROUND_S):
            waiting: list[asyncio.Future[Any]] = [lost, *writers]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert lost.done(), [writer.exception() for writer in writers if writer.done()]
        return lost.result()
    finally:
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        await core.close()


async def check(directory: Path, ledger: Ledger, chance: random.Random) -> None:
    """Open what is left, as the server does, and hold it against the ledger. Raises Loss, DataUnusable."""
    store = Store(history_changes=HISTORY * 10)
    await store.open(directory)
    try:
        newest = store.revision
        if newest < ledger.newest():
            raise Loss(f"revision {ledger.newest()} was acknowledged, and {newest} is the newest")
        revisions = sorted(c.revision for name in store.resources() for c in store.changes(name, store.compacted))
        if revisions != list(range(store.compacted + 1, newest + 1)):
            raise Loss(f"revisions from {store.compacted} to {newest} are not whole: {revisions}")
        ledger.settle(await watched(store, store.compacted), store.compacted)
        for _ in range(3):
            since = chance.randint(store.compacted, newest)
            ledger.settle(await watched(store, since), since)
        stored = [r for r in store.snapshot(CONFIG_MAPS.name).with_prefix("") if r.name != ROOT_CA]
        found = {r.key: (r.decode()["data"]["token"], r.revision) for r in stored}
        wanted = {key: (step.token, step.revision) for key, step in ledger.state().items()}
        if found != wanted:
            raise Loss(f"found {found}, and {wanted} were written")
    finally:
        await store.close()
    opened = sqlite3.connect(directory / "state.db")
    assert opened.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    opened.close()


async def watched(store: Store, since: int) -> list[Seen]:
    """Return the events of a client that resumes its watch after `since`."""
    if since == 0:  # 0 requests the present state; before the first write there are no events
        changes = store.changes(CONFIG_MAPS.name, 0)
        return [_seen(c.record, deleted=c.deleted) for c in changes if c.record.name != ROOT_CA]
    selection = ListOptions(fields=f"metadata.name!={ROOT_CA}", revision=since, watch=True)
    watch = await Reads(store).watch(CONFIG_MAPS, "", selection)
    try:
        assert watch.compacted is None
        return [_seen(event.record, deleted=event.type == "DELETED") for event in watch.take()]
    finally:
        watch.close()


def _seen(record: StoredObject, *, deleted: bool) -> Seen:
    return Seen(record.revision, record.key, "" if deleted else record.decode()["data"]["token"])


async def losses(tmp_path: Path, seed: int, rounds: int, synchronous: str = "FULL") -> None:
    """Lose power again and again on the same data."""
    chance = random.Random(seed)
    ledger = Ledger()
    directory = tmp_path / "0"
    directory.mkdir()
    for number in range(1, rounds + 1):
        photo = await storm(directory, LossyDisk(chance), ledger, chance, synchronous)
        ledger.rewind(photo.acknowledged, photo.begun)
        shutil.rmtree(directory)
        directory = photo.put(tmp_path / str(number))
        try:
            await check(photo.put(tmp_path / f"{number}-checked"), ledger, chance)
        except (Loss, DataUnusable) as error:
            raise Loss(f"seed {seed}, loss {number}: {error}") from error
        shutil.rmtree(tmp_path / f"{number}-checked")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
async def test_what_was_acknowledged_is_there_when_power_is_lost(tmp_path: Path, seed: int) -> None:
    await losses(tmp_path, seed, CHAIN)


@pytest.mark.slow
@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL"])
async def test_less_syncing_is_found_out(tmp_path: Path, synchronous: str) -> None:
    """The test above can fail: without syncs at each commit it finds what is missing."""
    with pytest.raises(Loss):
        await losses(tmp_path, 1, 10, synchronous)


@pytest.mark.slow
def test_a_migration_that_power_ends_at_any_operation_is_made_up_for(tmp_path: Path) -> None:
    older_file(tmp_path / "state.db")
    older = (tmp_path / "state.db").read_bytes()
    chance = random.Random(3)
    for operation in range(1, 1000, 1 if SOAK else 5):
        directory = tmp_path / f"{operation}"
        directory.mkdir()
        (directory / "state.db").write_bytes(older)
        disk = LossyDisk(chance)
        photos: list[Photo] = []
        disk.lose_power(operation, lambda: photos.append(Photo(disk.what_survives(), 0, 0)))  # noqa: B023  # called here
        Journal(directory, disk.connect).close()
        if not photos:
            assert operation > 30  # it has ended at each of them
            return
        assert content(photos[0].put(tmp_path / f"{operation}-left")) == (17, ENTRIES)
        shutil.rmtree(directory)
    raise AssertionError("the migration does not come to an end")
