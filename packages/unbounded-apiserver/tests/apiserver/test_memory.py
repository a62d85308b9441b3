"""The stored past is bounded, in memory and on the disk, for any number of writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.apiserver.support import admin_context, refusal, running
from tests.support.server_process import ServerProcess, server_process
from unbounded_apiserver.builtin_resources import CONFIG_MAPS
from unbounded_apiserver.collection import StoredObject
from unbounded_apiserver.http.api_call import BODIES_BYTES, ApiCall, BodyMemory
from unbounded_apiserver.http.streams import REMEMBERED_BYTES, EventLines
from unbounded_apiserver.reads import ObjectEvent
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store

MAPS: Final = "/api/v1/namespaces/default/configmaps"
OBJECTS: Final = 200
MIB: Final = 2**20


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store(history_changes=500, history_bytes=MIB)
    await opened.open(tmp_path)
    yield opened
    await opened.close()


async def write(store: Store, key: str, text: str) -> None:
    await store.wait_current("things", key)

    def body(revision: int) -> bytes:
        return json.dumps({"metadata": {"name": key, "resourceVersion": str(revision)}, "x": text}).encode()

    await store.write("things", key, body)


def on_disk(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("state.db*"))


@pytest.mark.slow
async def test_the_journal_stays_as_large_as_what_it_must_hold(store: Store, tmp_path: Path) -> None:
    """The database and its write-ahead log, after 4,000 and after 20,000 writes of the same objects."""
    sizes = []
    for _ in range(5):
        for _ in range(4000 // OBJECTS):
            await asyncio.gather(*(write(store, f"k{number}", "x" * 1000) for number in range(OBJECTS)))
        sizes.append(on_disk(tmp_path))
    assert store.revision >= 20_000
    assert store.compacted > store.revision - 1000
    assert len(store.changes("things", store.compacted)) <= 500
    assert sizes[-1] < sizes[0] + 8 * MIB, [f"{size / MIB:.1f} MiB" for size in sizes]
    assert sizes[-1] < 32 * MIB


@pytest.mark.slow
async def test_history_of_large_objects_is_bounded_by_their_bytes(store: Store) -> None:
    for number in range(40):
        await write(store, f"k{number % 3}", "x" * 100_000)
    held = sum(len(change.record.body) for change in store.changes("things", store.compacted))
    assert held <= MIB


@pytest.mark.slow
def test_the_lines_that_are_remembered_for_watchers_are_bounded_by_their_bytes() -> None:
    lines = EventLines()
    for revision in range(1, 40):
        body = b'{"metadata":{"name":"a","resourceVersion":"%d"},"data":{"a":"%b"}}' % (revision, b"x" * MIB)
        assert len(lines.plain(CONFIG_MAPS, ObjectEvent("MODIFIED", StoredObject("default/a", revision, body)))) > MIB
        assert lines.size <= REMEMBERED_BYTES
    assert lines.size > REMEMBERED_BYTES // 2


def test_bodies_that_are_being_read_have_so_much_room_and_no_more() -> None:
    memory = BodyMemory()
    none: Any = None  # an unused argument
    calls = [ApiCall(request=none, head=none, query={}, memory=memory) for _ in range(50)]
    held = 0
    for call in calls:
        refused = refusal(StatusError, partial(call.reserve, 3 * MIB))
        held += refused is None
        assert refused is None or (refused.code, refused.reason, refused.retry_after_s) == (429, "TooManyRequests", 1)
    assert held == BODIES_BYTES // (3 * MIB)
    for call in calls:
        call.release()
    assert memory.taken == 0


@pytest.mark.slow
async def test_room_is_given_back_after_every_answer(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, client):
        for body in ({"metadata": {"name": "a"}}, {"metadata": {"name": "a"}}, {"metadata": 5}):
            await client.ask("POST", MAPS, body)
        api = server._api
        assert api is not None
        assert api._memory.taken == 0


# ---- a server in a process of its own


async def storm(process: ServerProcess, writes: int) -> None:
    """Patches of the same objects, with watchers looking on."""
    import aiohttp
    import yaml

    url = yaml.safe_load(process.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    connector = aiohttp.TCPConnector(ssl=admin_context(process.kubeconfig), limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def patch(worker: int) -> None:
            for number in range(writes // 20):
                name = f"m{(worker * 10 + number) % OBJECTS}"
                body: dict[str, Any] = {"metadata": {"name": name}, "data": {"n": f"{worker}-{number}", "x": "x" * 600}}
                headers = {"Content-Type": "application/merge-patch+json"}
                async with session.patch(f"{url}{MAPS}/{name}", json=body, headers=headers) as answer:
                    if answer.status == 404:
                        async with session.post(f"{url}{MAPS}", json=body) as made:
                            assert made.status in {201, 409}

        async def look() -> None:
            async with session.get(f"{url}{MAPS}?watch=1") as answer:
                async for _ in answer.content.iter_any():
                    pass

        watching = [asyncio.create_task(look()) for _ in range(3)]
        await asyncio.gather(*(patch(worker) for worker in range(20)))
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_thousand_writes_leave_the_memory_flat(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with server_process(data) as process:
        asyncio.run(storm(process, 50_000))
        early = process.resident_mib()
        asyncio.run(storm(process, 150_000))
        late = process.resident_mib()
        assert late < early * 1.1 + 5, f"{early:.0f} MiB after 50,000 writes, {late:.0f} after 200,000"
        assert on_disk(data) < 256 * MIB
