"""What the caches of container-cloud leave out is known to the types, and a read of it does not stay hidden."""

from __future__ import annotations

import asyncio

import pytest

from tests.containercloud import unread
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual
from unbounded.api.machine import MACHINES, Machine
from unbounded.containercloud.caches import container_cloud_caches
from unbounded.kube.compaction import Unread

STATUS = {
    "message": "Node a joined",
    "agent": {"image": "registry.example/node:1", "apiServer": "https://192.0.2.1:6443"},
    "hardware": {"source": "Redfish", "at": "2026-11-30T06:00:00Z", "digest": "0" * 64, "cpus": 4},
}


@pytest.mark.parametrize("fields", unread.ALL)
def test_the_fields_that_are_left_out_exist(fields: Unread) -> None:
    for kind, values in fields.items():
        assert values.keys() <= set(kind.__struct_fields__)


def test_a_cache_leaves_out_what_no_plan_reads_and_no_more() -> None:
    async def main() -> None:
        api = MemoryApi()
        machine = await _cached(api)
        stored = await api.get(MACHINES, "a")
        assert (stored.status.message, machine.status.message) == ("Node a joined", None)
        assert machine.metadata == stored.metadata
        assert machine.status.agent is not None
        assert (machine.status.agent.image, machine.status.agent.api_server) == ("registry.example/node:1", None)
        assert machine.status.hardware is not None
        assert (machine.status.hardware.cpus, machine.status.hardware.digest) == (4, "")

    run_virtual(main())


def test_sites_of_these_tests_record_reads_of_omitted_fields() -> None:
    async def main() -> None:
        api = MemoryApi()
        machine = await _cached(api, watched=True)
        assert machine.status.agent is not None
        assert machine.status.agent.image
        assert not unread.faults
        assert machine.status.agent.api_server is None
        assert unread.faults == {"AgentStatus.api_server"}
        unread.faults.clear()

    run_virtual(main())


async def _cached(api: MemoryApi, *, watched: bool = False) -> Machine:
    await api.create(MACHINES, {"metadata": {"name": "a"}})
    await api.patch(MACHINES, "a", {"status": STATUS}, subresource="status")
    cache = (unread.watched_caches(api) if watched else container_cloud_caches(api)).host_machines
    task = asyncio.create_task(cache.run())
    await cache.synced.wait()
    task.cancel()
    machine = cache.get("a")
    assert machine is not None
    return machine
