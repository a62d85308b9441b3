"""Features of the in-memory API beyond the contract: hooks, compaction, and speed."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import EPOCH, run_virtual, virtual_now
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.api import EventType, Expired, InvalidObject
from unbounded.kube.clock import rfc3339


def machine(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {}}


async def test_a_watch_from_before_a_compaction_is_expired() -> None:
    api = MemoryApi()
    made = await api.create(MACHINES, machine("a"))
    await api.create(MACHINES, machine("b"))
    api.compact()
    with pytest.raises(Expired) as caught:
        await anext(api.watch(MACHINES, resource_version=made.metadata.resource_version))
    assert caught.value.code == 410


async def test_a_watch_that_has_read_everything_outlives_a_compaction() -> None:
    api = MemoryApi()
    await api.create(MACHINES, machine("a"))
    stream = api.watch(MACHINES, resource_version=str(api.revision))
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    api.compact()
    await api.create(MACHINES, machine("b"))
    assert (await waiting).type is EventType.ADDED


async def test_a_watch_that_was_overtaken_by_a_compaction_is_expired() -> None:
    api = MemoryApi()
    await api.create(MACHINES, machine("a"))
    stream = api.watch(MACHINES, resource_version=str(api.revision))
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    await api.create(MACHINES, machine("b"))
    api.compact()
    with pytest.raises(Expired):
        await waiting


async def test_a_refused_write_changes_nothing() -> None:
    def admit(kind: Kind[Any], old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        if new["spec"].get("provider") == "refused":
            raise InvalidObject("provider: refused", code=422)

    api = MemoryApi(admit=admit)
    await api.create(MACHINES, machine("a"))
    before = api.revision
    with pytest.raises(InvalidObject, match="provider"):
        await api.patch(MACHINES, "a", {"spec": {"provider": "refused"}})
    with pytest.raises(InvalidObject, match="provider"):
        await api.create(MACHINES, {"metadata": {"name": "b"}, "spec": {"provider": "refused"}})
    assert api.revision == before
    assert [item.name for item in (await api.list(MACHINES)).items] == ["a"]


async def test_defaults_stand_in_what_is_stored() -> None:
    def defaults(kind: Kind[Any], new: dict[str, Any]) -> None:
        new["spec"].setdefault("maxFailures", 1)

    api = MemoryApi(defaults=defaults)
    await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "a"}, "spec": {"operationKind": "HostReboot"}})
    assert (await api.get(MACHINE_OPERATIONS.raw(), "a"))["spec"]["maxFailures"] == 1
    same = await api.patch(MACHINE_OPERATIONS.raw(), "a", {"spec": {"maxFailures": None}})
    assert same["metadata"]["generation"] == 1


async def test_an_orphan_from_the_start_is_collected() -> None:
    api = MemoryApi()
    owner = {"apiVersion": "v1", "kind": "X", "name": "gone", "uid": "gone"}
    await api.create(MACHINES, {"metadata": {"name": "a", "ownerReferences": [owner]}, "spec": {}})
    async with asyncio.timeout(30):
        stream = api.watch(MACHINES, resource_version=str(api.revision))
        assert (await anext(stream)).type is EventType.DELETED


def test_timestamps_follow_the_clock_that_is_given() -> None:
    async def main() -> str | None:
        await asyncio.sleep(60)
        return (await MemoryApi(now=virtual_now).create(MACHINES, machine("a"))).metadata.creation_timestamp

    assert run_virtual(main()) == rfc3339(EPOCH + timedelta(seconds=60))


@pytest.mark.slow
async def test_writes_and_reads_are_cheap() -> None:
    api = MemoryApi()
    await api.create(MACHINES, machine("a"))
    began = time.process_time()
    for number in range(2000):
        await api.patch(MACHINES, "a", {"status": {"message": str(number)}}, subresource="status")
        await api.get(MACHINES, "a")
    assert time.process_time() - began < 2  # 0.1 s where it was written
