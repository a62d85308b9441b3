"""Reboots over lab BMCs with events and without: requests, and the lag from a change of the power to its reading.

The hosts need 40 to 60 seconds to shut down and 5 to 15 to start. That is simulated time, in which metalman's own
limits hold; requests and TLS are real. What metalman computes takes no simulated time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Final

from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded_lab.bmc import LabBmc

EVENTS: Final = "sends-events"
NO_EVENTS: Final = "ideal"
SYSTEM: Final = "/redfish/v1/Systems/1"
SETTLED_S: Final = 700.0  # streams are open, and inventories read
RELEASED_S: Final = 5.0  # from an operation's end until its session is given back
IDLE_S: Final = 3600.0
KNOWN_AFTER: Final = 3  # reboots
LIMIT_S: Final = 100_000.0


@dataclass(frozen=True)
class RebootFigures:
    """Requests of each reboot, the lags of all readings in seconds, and the requests of an idle BMC in an hour."""

    requests: Sequence[int]
    lags_s: Sequence[float]
    idle_per_h: float


async def _reboot(cluster: Cluster, bmc: LabBmc, machine: str, number: int) -> tuple[int, list[float]]:
    """Reboot a host; return its requests, and the lags from Off and On to the readings that found them."""
    requests, began = bmc.bmc.requests, bmc.clock.now()
    name, parameters = f"{machine}-{number}", {"graceSeconds": "300"}
    operation = await cluster.ended(await cluster.ask("HostReboot", machine, name=name, parameters=parameters))
    if operation.status.phase != "Complete":
        raise RuntimeError(f"{name}: {operation.status.message}")
    await asyncio.sleep(RELEASED_S)
    changes = {one.detail: one.at for one in bmc.history() if one.what == "power" and one.at > began}
    reads = [one.at for one in bmc.bmc.journal if one.path == SYSTEM and one.at > began]
    lags = [min(at for at in reads if at >= (change := changes[state])) - change for state in ("Off", "On")]
    return bmc.bmc.requests - requests, lags


async def _figures(profile: str, bmcs: int, reboots: int) -> RebootFigures:
    cluster, chance = Cluster(), random.Random(19)
    requests: list[int] = []
    lags: list[float] = []
    async with AsyncExitStack() as stack:
        lab = [await stack.enter_async_context(LabBmc(f"lab-{one}", profile=profile)) for one in range(bmcs)]
        await stack.enter_async_context(metalman(cluster, concurrent=bmcs, reads_per_s=30.0, events=True))
        machines = [(await cluster.add(bmc))[0] for bmc in lab]
        await asyncio.sleep(SETTLED_S)
        for number in range(KNOWN_AFTER + reboots):
            for bmc in lab:
                shutdown_s, boot_s = chance.uniform(40.0, 60.0), chance.uniform(5.0, 15.0)
                bmc.host().traits = replace(bmc.host().traits, shutdown_s=shutdown_s, boot_s=boot_s)
            pairs = zip(lab, machines, strict=True)
            found = await asyncio.gather(*(_reboot(cluster, bmc, machine, number) for bmc, machine in pairs))
            if number >= KNOWN_AFTER:
                requests += [count for count, _lags in found]
                lags += [lag for _count, each in found for lag in each]
            await asyncio.sleep(chance.uniform(60.0, 120.0))
        before = sum(bmc.bmc.requests for bmc in lab)
        await asyncio.sleep(IDLE_S)
        idle = sum(bmc.bmc.requests for bmc in lab) - before
    return RebootFigures(requests, lags, idle / bmcs / (IDLE_S / 3600.0))


def reboot_figures(profile: str, *, bmcs: int, reboots: int) -> RebootFigures:
    """Measure reboots of hosts whose times metalman knows, on BMCs with a profile of the lab."""
    return run_swiftly(_figures(profile, bmcs, reboots), limit_s=LIMIT_S)
