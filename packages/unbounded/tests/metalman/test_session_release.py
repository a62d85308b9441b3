"""A BMC gets its session back when the operation that needed it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.metalman.fake_bmc import FakeBmc
from tests.support.memory_api import MemoryApi
from tests.support.waiting import eventually
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.cache import Cache
from unbounded.metalman.controller import release_sessions
from unbounded.metalman.redfish.bmc_interface import BmcLimits
from unbounded.metalman.redfish.pool import BmcPool

RUNNING = {"phase": "InProgress", "targets": [{"machineRef": "m1"}]}


@asynccontextmanager
async def operation_on(bmc: FakeBmc, api: MemoryApi, pool: BmcPool) -> AsyncIterator[None]:
    """A running operation on a Machine with that BMC, whose session is open."""
    redfish = {"url": bmc.access().url, "username": "u", "passwordRef": {"name": "s", "namespace": "n"}}
    await api.create(MACHINES, {"metadata": {"name": "m1"}, "spec": {"pxe": {"image": "i", "redfish": redfish}}})
    spec = {"operationKind": "HostReboot", "machineRef": "m1"}
    await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "op"}, "spec": spec})
    await api.patch(MACHINE_OPERATIONS, "op", {"status": RUNNING}, subresource="status")
    operations, machines = Cache(api, MACHINE_OPERATIONS), Cache(api, MACHINES)
    following = [asyncio.create_task(cache.run()) for cache in (operations, machines)]
    try:
        await asyncio.wait_for(asyncio.gather(operations.synced.wait(), machines.synced.wait()), 30)
        with release_sessions(pool, operations, machines):
            await pool.bmc(bmc.access()).system()
            assert bmc.tokens
            yield
    finally:
        for task in following:
            task.cancel()
        await asyncio.wait(following)


@pytest.mark.parametrize("end", [{"status": {"phase": "Complete"}}, {"status": {"phase": "Failed"}}, None])
async def test_a_session_ends_with_the_operation(bmc: FakeBmc, end: dict[str, Any] | None) -> None:
    api = MemoryApi()
    async with BmcPool(BmcLimits(release_s=0.1)) as pool, operation_on(bmc, api, pool):
        if end is None:
            await api.delete(MACHINE_OPERATIONS, "op")
        else:
            await api.patch(MACHINE_OPERATIONS, "op", end, subresource="status")
        await eventually(lambda: not bmc.tokens)


async def test_a_session_stays_as_long_as_the_operation_goes_on(bmc: FakeBmc) -> None:
    api = MemoryApi()
    async with BmcPool(BmcLimits(release_s=0.0)) as pool, operation_on(bmc, api, pool):
        for text in ("a", "b", "c"):
            await api.patch(MACHINE_OPERATIONS, "op", {"status": {"message": text}}, subresource="status")
            await pool.bmc(bmc.access()).system()
        assert bmc.opened == 1
