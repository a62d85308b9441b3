"""A metalman that stops in the middle of an operation: its successor resumes, and nothing is done twice."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import pytest

from tests.metalman.support.netboot_host import Story, netboot_host, result, stages_of
from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.metalman import power
from unbounded.metalman.replace_table import EVIDENCE_LOADER, EVIDENCE_NODE, EVIDENCE_WRITTEN
from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import OverrideEnabled

STRAIGHT: Final = (
    "WaitingImage",
    "ShuttingDown",
    "SettingBoot",
    "WaitingOn",
    "WaitingLoader",
    "WaitingInstaller",
    "WaitingRepave",
    "ClearingBoot",
    "WaitingReturn",
    "WaitingCloudInit",
    "WaitingNode",
)
SLOWLY_S: Final = 30.0


@pytest.mark.slow
@pytest.mark.parametrize("stage", STRAIGHT)
@pytest.mark.parametrize("after_s", [0.0, 2.0, 90.0])  # with the request under way, after its answer, and for long
def test_a_successor_finishes_the_replacement(stage: str, after_s: float) -> None:
    async def scene() -> None:
        cluster = Cluster()
        faults = BmcFaults(slow_s=(0.3, 0.3), override="continuous")
        async with LabBmc(faults=faults, shutdown_s=SLOWLY_S, boot_s=SLOWLY_S) as bmc:
            (machine,) = await cluster.add(bmc)
            await cluster.api.patch(MACHINES, machine, {"spec": {"kubernetes": {}}})
            async with netboot_host(cluster, machine, Story(image_s=5.0, step_s=SLOWLY_S + 10)) as host:
                await host.node(ready=True, boot_id="before")
                async with metalman(cluster):
                    name = await cluster.ask("HostReplace", machine)
                    await cluster.in_stage(name, stage)
                    if after_s < SLOWLY_S:
                        await asyncio.sleep(after_s)
                if after_s >= SLOWLY_S:
                    await asyncio.sleep(after_s)
                async with metalman(cluster):
                    operation = await cluster.ended(name, within_s=7200.0)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert {EVIDENCE_LOADER, EVIDENCE_WRITTEN, EVIDENCE_NODE} <= {one.what for one in operation.status.evidence}
            assert host.sources == ["network", "disk"]
            pressed = [event.detail for event in bmc.history() if event.what == "pressed"]
            assert pressed.count("GracefulShutdown") <= 1
            assert stages_of(cluster, name)[-1] == "WaitingNode"

    run_swiftly(scene(), limit_s=4 * 3600.0)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["SettingBootToStay", "SettingBootAgain", "WaitingOffAgain", "WaitingLoaderAgain"])
def test_a_successor_goes_on_with_the_second_round(stage: str) -> None:
    async def scene() -> None:
        cluster = Cluster()
        faults = BmcFaults(override="fails-when-off", slow_s=(0.3, 0.3), ignores_shutdown=True)
        async with LabBmc(faults=faults, boot_s=SLOWLY_S) as bmc:
            (machine,) = await cluster.add(bmc)
            async with netboot_host(cluster, machine, Story(step_s=SLOWLY_S + 10)) as host:
                async with metalman(cluster):
                    name = await cluster.ask("HostReplace", machine)
                    await cluster.in_stage(name, stage)
                async with metalman(cluster):
                    operation = await cluster.ended(name, within_s=7200.0)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert host.sources == ["disk", "network", "disk"]

    run_swiftly(scene(), limit_s=4 * 3600.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "story", "reason"),
    [
        ("CleaningUp", Story(loads=20, until="LoaderFetched"), "BootLoop"),
        ("CleaningUp", Story(fails="two disks"), "InstallFailed"),
        ("CleaningUp", Story(contested="LoaderFetched"), "BootContested"),
    ],
)
def test_a_successor_ends_for_the_same_reason(stage: str, story: Story, reason: str) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=BmcFaults(override="continuous", slow_s=(1.0, 1.0))) as bmc:
            (machine,) = await cluster.add(bmc)
            async with netboot_host(cluster, machine, story):
                async with metalman(cluster):
                    name = await cluster.ask("HostReplace", machine)
                    await cluster.in_stage(name, stage)
                async with metalman(cluster):
                    operation = await cluster.ended(name)
            assert result(operation) == ("Failed", reason), operation.status.message

    run_swiftly(scene(), limit_s=4 * 3600.0)


@pytest.mark.slow
def test_a_stage_of_an_earlier_version_leaves_no_boot_override() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=BmcFaults(override="continuous", slow_s=(1.0, 1.0))) as bmc:
            (machine,) = await cluster.add(bmc)
            async with netboot_host(cluster, machine, Story(fails="two disks")):
                async with metalman(cluster):
                    name = await cluster.ask("HostReplace", machine)
                    await cluster.in_stage(name, "WaitingInstaller")
                written = await cluster.api.get(MACHINE_OPERATIONS, name)
                (target,) = msgspec.to_builtins(written.status.targets)
                status = {"targets": [{**target, "stage": "EndingInstallFailed"}]}
                await cluster.api.patch(MACHINE_OPERATIONS, name, {"status": status}, subresource="status")
                async with metalman(cluster):
                    operation = await cluster.ended(name)
            assert result(operation) == ("Failed", "OutcomeUnknown"), operation.status.message
            assert bmc.host().boot.enabled is OverrideEnabled.DISABLED

    run_swiftly(scene(), limit_s=4 * 3600.0)


REBOOTS_S: Final = 40.0


@pytest.mark.slow
@pytest.mark.parametrize("stage", [power.SHUTTING_DOWN, power.WAITING_ON])
@pytest.mark.parametrize("after_s", [0.0, 2.0])  # with the request under way, and after its answer
@pytest.mark.parametrize("faults", [BmcFaults(), BmcFaults(slow_s=(0.5, 0.5))], ids=["ideal", "slow"])
def test_a_successor_finishes_the_reboot_and_asks_for_nothing_twice(
    stage: str, after_s: float, faults: BmcFaults
) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=faults, shutdown_s=REBOOTS_S, boot_s=REBOOTS_S) as bmc:
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
