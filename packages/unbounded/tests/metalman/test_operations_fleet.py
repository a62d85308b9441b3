"""Many BMCs at once: a dead one delays no other, and systems of one BMC take turns."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import pytest

from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded.kube.clock import utc_now
from unbounded_lab.bmc.faults import IDEAL, BmcFaults
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.faults import FOR_EVER

AT_ONCE: Final = 8
HEALTHY: Final = 16
SILENT: Final = BmcFaults(stalls=FOR_EVER, stall_s=3600.0)  # accepts the connection, and sends nothing
GONE: Final = BmcFaults(refused_s=FOR_EVER)
SLOWER: Final = 1.2  # what the healthy may lose to the dead
WAITS_S: Final = 4.0  # how long an operation with a silent BMC keeps its capacity, once


@asynccontextmanager
async def fleet(cluster: Cluster, faults: Sequence[BmcFaults], *, host_s: float) -> AsyncIterator[list[str]]:
    """Machines with such BMCs, in this order; their hosts take that long to shut down, and to boot."""
    async with AsyncExitStack() as stack:
        names: list[str] = []
        for number, each in enumerate(faults):
            bmc = await stack.enter_async_context(
                LabBmc(f"m{number:02}", faults=each, shutdown_s=host_s, boot_s=host_s)
            )
            names += await cluster.add(bmc)
        yield names


async def reboot_times(cluster: Cluster, dead: Sequence[BmcFaults], *, host_s: float) -> list[float]:
    """Return the seconds from the request to the end for each healthy BMC; the dead ones were requested first."""
    faults = [*dead, *[IDEAL] * HEALTHY]
    async with fleet(cluster, faults, host_s=host_s) as machines, metalman(cluster, concurrent=AT_ONCE):
        began_at = asyncio.get_running_loop().time()
        names = [await cluster.ask("HostReboot", machine) for machine in machines]
        for name in names[len(dead) :]:
            ended = await cluster.ended(name, within_s=300)
            assert ended.status.phase == "Complete", ended.status.message
        for name in names[: len(dead)]:
            assert not (await cluster.operation(name)).terminal
    return [cluster.ended_at(name) - began_at for name in names[len(dead) :]]


@pytest.mark.slow
@pytest.mark.parametrize("dead", [SILENT, GONE], ids=["silent", "gone"])
def test_dead_bmcs_delay_nobody_else_by_more_than_the_first_wait(dead: BmcFaults) -> None:
    """Although there are as many of them as operations may run at once."""

    async def scene() -> None:
        alone = await reboot_times(Cluster(), [], host_s=1.5)
        beside = await reboot_times(Cluster(), [dead] * AT_ONCE, host_s=1.5)
        assert max(beside) <= max(alone) * SLOWER + WAITS_S
        assert statistics.median(beside) <= statistics.median(alone) * SLOWER + WAITS_S

    run_swiftly(scene())


@pytest.mark.slow
async def test_twenty_bmcs_of_which_four_are_dead_in_real_time() -> None:
    alone = await reboot_times(Cluster(now=utc_now), [], host_s=0.3)
    beside = await reboot_times(Cluster(now=utc_now), [SILENT, GONE] * 2, host_s=0.3)
    assert statistics.median(beside) <= statistics.median(alone) * 2 + WAITS_S


@pytest.mark.slow
def test_operations_on_systems_of_one_bmc_call_it_one_at_a_time() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(profile="several-systems+slow") as bmc, metalman(cluster):
            names = [await cluster.ask("HostReboot", machine) for machine in await cluster.add(bmc)]
            for name in names:
                assert (await cluster.ended(name)).status.phase == "Complete"
            assert bmc.most_concurrent == 1
            assert bmc.bmc.access.logins <= 2  # the first to end may give the session back that both had

    run_swiftly(scene())
