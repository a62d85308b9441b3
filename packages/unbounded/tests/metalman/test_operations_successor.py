"""A metalman that stops in the middle of an operation: its successor carries on, and nothing is done twice."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded.metalman import power
from unbounded_lab.bmc.fault_settings import BmcFaults
from unbounded_lab.bmc.local import LabBmc

SLOWLY_S: Final = 40.0


@pytest.mark.slow
@pytest.mark.parametrize("stage", [power.SHUTTING_DOWN, power.WAITING_ON])
@pytest.mark.parametrize("after_s", [0.0, 2.0])  # with the request under way, and after its answer
@pytest.mark.parametrize("faults", [BmcFaults(), BmcFaults(slow_s=(0.5, 0.5))], ids=["ideal", "slow"])
def test_a_successor_finishes_the_reboot_and_asks_for_nothing_twice(
    stage: str, after_s: float, faults: BmcFaults
) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=faults, shutdown_s=SLOWLY_S, boot_s=SLOWLY_S) as bmc:
            (machine,) = await cluster.add(bmc)
            async with metalman(cluster):
                name = await cluster.ask("HostReboot", machine, parameters={"graceSeconds": "600"})
                await cluster.in_stage(name, stage)
                await asyncio.sleep(after_s)
            async with metalman(cluster):
                operation = await cluster.ended(name)
            assert (operation.status.phase, operation.status.reason) == ("Complete", "Succeeded")
            effects = [event.detail for event in bmc.history() if event.what == "power"]
            assert effects[-3:] == ["Off", "PoweringOn", "On"]
            assert effects[:-3] in ([], ["PoweringOff"])  # none: the shutdown was cut off before it was sent
            pressed = [event.detail for event in bmc.history() if event.what == "pressed"]
            assert pressed.count("GracefulShutdown") <= 1
            assert not bmc.bmc.access.sessions(bmc.clock.now(), bmc.bmc.faults)

    run_swiftly(scene())
