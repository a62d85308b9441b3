from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.metalman.fake_bmc import FakeBmc
from unbounded.metalman.redfish.bmc_interface import BmcLimits
from unbounded.metalman.redfish.pool import BmcPool

# Short enough that a test of a limit takes a moment, long enough for a loaded machine.
SHORT = BmcLimits(
    call_s=1.0, connect_s=2.0, start_s=1.0, queue_s=5.0, task_s=1.0, task_poll_s=0.02, task_poll_max_s=0.05, idle_s=60.0
)


@pytest.fixture
async def bmc() -> AsyncIterator[FakeBmc]:
    async with FakeBmc() as made:
        yield made


@pytest.fixture
async def pool() -> AsyncIterator[BmcPool]:
    async with BmcPool() as made:
        yield made


@pytest.fixture
async def hasty_pool() -> AsyncIterator[BmcPool]:
    async with BmcPool(SHORT) as made:
        yield made
