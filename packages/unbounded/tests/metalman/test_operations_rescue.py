"""HostRescue on a lab BMC: the rescue system runs for its time, and the host is On or Off afterwards as before."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tests.metalman.support.netboot_host import RESCUE, Story, netboot_host, replaced, result, stages_of
from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded.api.machine import MACHINES
from unbounded.api.machine_status import RescueSystem, rescue_text
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.metalman.inspect_stages import EVIDENCE_LEFT, EVIDENCE_RESCUE, EVIDENCE_RESTORED, WAS_OFF, WAS_ON
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostPower, OverrideEnabled

pytestmark = pytest.mark.slow
BEFORE: Final = {HostPower.ON: WAS_ON, HostPower.OFF: WAS_OFF}
PARAMETERS: Final = {"authorizedKeys": RESCUE["hostKey"], "minutes": "5"}
SHOWN: Final = rescue_text(RescueSystem(address=RESCUE["address"], host_key=RESCUE["hostKey"]))


@pytest.mark.parametrize("power", BEFORE)
@pytest.mark.parametrize("story", [Story(), Story(leaves_s=30.0), Story(hangs=True)], ids=["time", "left", "hangs"])
def test_host_is_powered_after_a_rescue_as_it_was_before(power: HostPower, story: Story) -> None:
    async def scene() -> None:
        async with LabBmc(power=power) as bmc:
            cluster, _, operation = await replaced(bmc, story, kind="HostRescue", parameters=PARAMETERS)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            evidence = {one.what for one in operation.status.evidence}
            assert {BEFORE[power], EVIDENCE_RESCUE, EVIDENCE_RESTORED, SHOWN} <= evidence
            assert (EVIDENCE_LEFT in evidence) == (story.leaves_s is not None)
            assert bmc.power() is power
            assert bmc.host().boot.enabled is OverrideEnabled.DISABLED
            boots = [event.detail for event in bmc.history() if event.what == "boot"]
            assert boots == ["Pxe", "Hdd"] if power is HostPower.ON else ["Pxe"]
            stages = stages_of(cluster, operation.name)
            after = ["ShuttingDownRescue"] if "ShuttingDownRescue" in stages else []
            assert bool(after) == story.hangs
            assert stages[stages.index("Rescuing") :][: 2 + len(after)] == ["Rescuing", "EndingRescue", *after]

    run_swiftly(scene())


@pytest.mark.parametrize("power", BEFORE)
@pytest.mark.parametrize(
    ("story", "reason"),
    [
        (Story(fails="no network"), "InstallFailed"),
        (Story(until="HardwareReported"), "RescueNotStarted"),
        (Story(contested="LoaderFetched"), "BootContested"),
    ],
)
def test_failed_rescue_restores_the_power(power: HostPower, story: Story, reason: str) -> None:
    async def scene() -> None:
        async with LabBmc(power=power) as bmc:
            _, _, operation = await replaced(bmc, story, kind="HostRescue", parameters=PARAMETERS)
            assert result(operation) == ("Failed", reason), operation.status.message
            assert bmc.power() is power
            assert bmc.host().boot.enabled is OverrideEnabled.DISABLED

    run_swiftly(scene())


@pytest.mark.parametrize("power", BEFORE)
@pytest.mark.parametrize(
    ("stage", "ends"),
    [("WaitingLoader", ("Failed", "Cancelled")), ("Rescuing", ("Complete", "Succeeded"))],
)
def test_cancel_ends_a_rescue_and_restores_the_power(power: HostPower, stage: str, ends: tuple[str, str]) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(power=power) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            async with netboot_host(cluster, machine):
                name = await cluster.ask("HostRescue", machine, parameters=PARAMETERS | {"minutes": "1440"})
                await cluster.in_stage(name, stage)
                if stage == "Rescuing":
                    await asyncio.sleep(100)
                    message = (await cluster.operation(name)).status.message or ""
                    assert message.startswith(f"waiting for the end of the rescue: {SHOWN}"), message
                await cluster.api.patch(MACHINE_OPERATIONS, name, {"spec": {"cancel": True}})
                operation = await cluster.ended(name)
            assert result(operation) == ends, operation.status.message
            await asyncio.sleep(60)
            assert bmc.power() is power
            assert bmc.host().boot.enabled is OverrideEnabled.DISABLED
            assert (await cluster.api.get(MACHINES, machine)).status.active_operation is None

    run_swiftly(scene())
