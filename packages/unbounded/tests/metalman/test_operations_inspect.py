"""HostInspect on a lab BMC: the host reports its hardware, and is On or Off afterwards as it was before."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tests.metalman.support.netboot_host import Story, netboot_host, replaced, result, stages_of
from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.metalman.inspect_stages import EVIDENCE_REPORT, EVIDENCE_RESTORED, WAS_OFF, WAS_ON
from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostPower, OverrideEnabled

pytestmark = pytest.mark.slow
BEFORE: Final = {HostPower.ON: WAS_ON, HostPower.OFF: WAS_OFF}


@pytest.mark.parametrize("power", BEFORE)
def test_host_is_powered_afterwards_as_it_was_before(power: HostPower) -> None:
    async def scene() -> None:
        async with LabBmc(power=power) as bmc:
            cluster, _, operation = await replaced(bmc, kind="HostInspect")
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert {BEFORE[power], EVIDENCE_REPORT, EVIDENCE_RESTORED} <= {
                one.what for one in operation.status.evidence
            }
            assert bmc.power() is power
            assert bmc.host().boot.enabled is OverrideEnabled.DISABLED
            boots = [event.detail for event in bmc.history() if event.what == "boot"]
            assert boots == ["Pxe", "Hdd"] if power is HostPower.ON else ["Pxe"]
            assert stages_of(cluster, operation.name)[-3:] == ["WaitingReport", "WaitingInstallerOff", "Restoring"]

    run_swiftly(scene())


@pytest.mark.parametrize("power", BEFORE)
@pytest.mark.parametrize(
    ("story", "reason"),
    [
        (Story(fails="no network"), "InstallFailed"),
        (Story(until="KernelFetched"), "InspectionTimedOut"),
        (Story(contested="LoaderFetched"), "BootContested"),
        (Story(loads=9), "BootLoop"),
    ],
)
def test_failed_inspection_restores_the_power(power: HostPower, story: Story, reason: str) -> None:
    async def scene() -> None:
        async with LabBmc(power=power) as bmc:
            _, _, operation = await replaced(bmc, story, kind="HostInspect")
            assert result(operation) == ("Failed", reason), operation.status.message
            assert bmc.power() is power
            assert bmc.host().boot.enabled is OverrideEnabled.DISABLED

    run_swiftly(scene())


@pytest.mark.parametrize("power", BEFORE)
@pytest.mark.parametrize("stage", ["WaitingImage", "ShuttingDown", "WaitingLoader", "WaitingReport"])
def test_cancelled_inspection_restores_the_power(power: HostPower, stage: str) -> None:
    if power is HostPower.OFF and stage == "ShuttingDown":
        stage = "SettingBoot"  # such a host is not shut down

    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(power=power) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            story = Story(image_s=60.0, until="KernelFetched", step_s=20.0)
            async with netboot_host(cluster, machine, story):
                name = await cluster.ask("HostInspect", machine)
                await cluster.in_stage(name, stage)
                await cluster.api.patch(MACHINE_OPERATIONS, name, {"spec": {"cancel": True}})
                operation = await cluster.ended(name)
            assert result(operation) == ("Failed", "Cancelled"), operation.status.message
            await asyncio.sleep(60)
            assert bmc.power() is power
            assert bmc.host().boot.enabled is OverrideEnabled.DISABLED
            assert (await cluster.api.get(MACHINES, machine)).status.active_operation is None

    run_swiftly(scene())


@pytest.mark.parametrize(("after_s", "presses"), [(None, ["GracefulShutdown"]), (60.0, ["GracefulShutdown", "On"])])
def test_cancel_during_the_shutdown_switches_no_running_system_off(after_s: float | None, presses: list[str]) -> None:
    async def scene() -> None:
        cluster = Cluster()
        faults = BmcFaults(ignores_shutdown=after_s is None)
        async with LabBmc(faults=faults, shutdown_s=after_s or 1.0) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            async with netboot_host(cluster, machine):
                name = await cluster.ask("HostInspect", machine)
                await cluster.in_stage(name, "ShuttingDown")
                await asyncio.sleep(30)
                await cluster.api.patch(MACHINE_OPERATIONS, name, {"spec": {"cancel": True}})
                operation = await cluster.ended(name)
            assert result(operation) == ("Failed", "Cancelled"), operation.status.message
            assert [event.detail for event in bmc.history() if event.what == "pressed"] == presses
            await asyncio.sleep(60)
            assert bmc.power() is HostPower.ON

    run_swiftly(scene())
