"""HostReplace where it does not end well: every way has its own reason, and leaves the host to boot from its disk."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.metalman.support.netboot_host import FROM_NETWORK, Story, netboot_host, replaced, result, stages_of
from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded.api.conditions import ConditionType
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.metalman.replace_table import LOADS_MAX
from unbounded_lab.bmc.faults import IDEAL, BmcFaults
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostBootOverride, HostPower, OverrideEnabled, Press

KUBERNETES: Final = {"kubernetes": {"version": "v1.34.0"}}
LIMIT_S: Final = 4 * 3600.0

pytestmark = pytest.mark.slow  # hours of virtual time


@dataclass(frozen=True)
class Bad:
    """A host or a BMC, how the operation ends, and a word of its message."""

    reason: str
    word: str
    story: Story
    faults: BmcFaults = IDEAL
    spec: Any = None


STAYS: Final = BmcFaults(override="continuous")
BAD: Final = {
    "its firmware does not follow the override": Bad(
        "DidNotNetboot", "started twice for a network boot", Story(), BmcFaults(ignores_override=True)
    ),
    "its BMC forgets the override": Bad(
        "DidNotNetboot", "its boot order: the BMC accepted a change", Story(), BmcFaults(override="dropped")
    ),
    "its BMC has no override": Bad("DidNotNetboot", "its boot order: https://", Story(), BmcFaults(override="refused")),
    "it fetches its loader again and again": Bad(
        "BootLoop", f"fetched the loader more than {LOADS_MAX} times", Story(loads=20, until="LoaderFetched"), STAYS
    ),
    "its installer gives up": Bad("InstallFailed", "two disks", Story(fails="no targetDisk, and two disks"), STAYS),
    "its kernel does not start": Bad("InstallTimedOut", "boot KernelFetched", Story(until="KernelFetched"), STAYS),
    "its installer stands still": Bad("InstallTimedOut", "boot ImageWriting", Story(until="ImageWriting"), STAYS),
    "another client is on its boot": Bad("BootContested", "10.0.0.66", Story(contested="LoaderFetched"), STAYS),
    "another client is on its boot when it comes back": Bad(
        "BootContested", "10.0.0.66", Story(contested="ImageWritten", cloud_init="Running"), STAYS
    ),
    "it never comes back": Bad("DidNotComeBack", "boot ImageWritten", Story(comes_back=False), STAYS),
    "its cloud-init fails": Bad("CloudInitFailed", "modules-final", Story(cloud_init="Failed"), STAYS),
    "its cloud-init has no end": Bad("CloudInitTimedOut", "modules-config", Story(cloud_init="Running"), STAYS),
    "its boot deviates": Bad("NotAttested", "PCRMismatch", Story(attested="PCRMismatch"), STAYS, KUBERNETES),
    "its agent quotes no PCRs": Bad("NotAttested", "QuoteMissing", Story(attested="QuoteMissing"), STAYS),
    "its Node does not come": Bad("NodeNotReady", "ImageWritten", Story(node=False), STAYS, KUBERNETES),
    "its image does not come": Bad("ImageNotReady", "12 % of registry.lab/host:v1", Story(image_s=None), STAYS),
}


@pytest.mark.parametrize("what", BAD)
def test_a_host_is_not_reimaged_and_the_reason_is_said(what: str) -> None:
    bad = BAD[what]

    async def scene() -> None:
        async with LabBmc(faults=bad.faults) as bmc:
            cluster, machine, operation = await replaced(bmc, bad.story, spec=bad.spec)
            assert result(operation) == ("Failed", bad.reason), operation.status.message
            assert bad.word in (operation.status.message or "")
            assert bmc.host().boot.enabled is OverrideEnabled.DISABLED
            assert bmc.power() is HostPower.ON
            found = await cluster.machine(machine)
            assert found.status.active_operation is None
            written = bad.reason in (
                "DidNotComeBack",
                "CloudInitFailed",
                "CloudInitTimedOut",
                "NodeNotReady",
                "NotAttested",
            )
            written = written or bad.story.contested == "ImageWritten"
            repaved = await cluster.condition(machine, ConditionType.REPAVED)
            assert repaved == (("True", "Succeeded") if written else None)
            assert await cluster.condition(machine, ConditionType.POWERED_OFF) is None

    run_swiftly(scene(), limit_s=LIMIT_S)


CUT_OFF: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "it does not come on": ("WaitingOn", "NoEffect", {"deaf_resets": 100}),
    "its BMC is silent for long": ("WaitingLoader", "NoAnswer", {"refused_s": 620.0}),
    "its deadline passes": ("WaitingLoader", "DeadlineExceeded", {}),
}


@pytest.mark.parametrize("what", CUT_OFF)
def test_every_failure_ends_without_a_boot_override(what: str) -> None:
    stage, reason, faults = CUT_OFF[what]

    async def scene() -> None:
        cluster = Cluster()
        firmware = BmcFaults(override="continuous", ignores_override=True)
        async with LabBmc(power=HostPower.OFF, faults=firmware) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            async with netboot_host(cluster, machine):
                deadline_s = 200 if reason == "DeadlineExceeded" else 7200
                name = await cluster.ask("HostReplace", machine, deadlineSeconds=deadline_s)
                await cluster.in_stage(name, "SettingBoot" if stage == "WaitingOn" else stage)
                await bmc.set_faults(**faults)
                await cluster.in_stage(name, stage)
                assert bmc.host().boot.enabled is not OverrideEnabled.DISABLED
                operation = await cluster.ended(name)
            assert result(operation) == ("Failed", reason), operation.status.message
            assert stages_of(cluster, name)[-2:] == [stage, "CleaningUp"]
            assert bmc.host().boot.enabled is OverrideEnabled.DISABLED

    run_swiftly(scene(), limit_s=LIMIT_S)


def test_host_that_boots_its_disk_is_started_at_most_twice() -> None:
    async def scene() -> None:
        async with LabBmc(faults=BmcFaults(ignores_override=True)) as bmc:
            cluster, _, operation = await replaced(bmc)
            boots = [event.detail for event in bmc.history() if event.what == "boot"]
            assert boots == ["Hdd", "Hdd"]
            assert stages_of(cluster, operation.name)[-2:] == ["WaitingLoaderAgain", "CleaningUp"]

    run_swiftly(scene(), limit_s=LIMIT_S)


def test_a_host_that_misses_its_first_start_is_reimaged_with_the_second() -> None:
    async def scene() -> None:
        async with LabBmc(faults=BmcFaults(ignores_override=True)) as bmc:
            cluster = Cluster()
            (machine,) = await cluster.add(bmc)
            async with metalman(cluster), netboot_host(cluster, machine):
                name = await cluster.ask("HostReplace", machine)
                await cluster.in_stage(name, "WaitingLoader")
                await bmc.set_faults(ignores_override=False)
                operation = await cluster.ended(name)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            boots = [event.detail for event in bmc.history() if event.what == "boot"]
            assert boots == ["Hdd", "Pxe", "Hdd"]

    run_swiftly(scene(), limit_s=LIMIT_S)


def boots_of(bmc: LabBmc) -> list[str]:
    return [event.detail for event in bmc.history() if event.what == "boot"]


@pytest.mark.parametrize("stage", ["WaitingOn", "WaitingLoader", "WaitingLoaderAgain"])
def test_host_that_powers_off_early_network_boots_at_the_next_start(stage: str) -> None:
    """The override for one boot was spent by the first start, so that the second one went to the disk."""

    async def scene() -> None:
        second = stage == "WaitingLoaderAgain"
        async with LabBmc(faults=BmcFaults(ignores_override=second)) as bmc:
            cluster = Cluster()
            (machine,) = await cluster.add(bmc)
            async with metalman(cluster), netboot_host(cluster, machine, Story(step_s=60.0)):
                name = await cluster.ask("HostReplace", machine)
                await cluster.in_stage(name, "WaitingLoader" if second else stage)
                await bmc.set_faults(ignores_override=False)
                await cluster.in_stage(name, stage)
                while stage == "WaitingOn" and not boots_of(bmc):  # noqa: ASYNC110 - the board tells nobody
                    await asyncio.sleep(0.1)
                bmc.host().press(Press.FORCE_OFF, bmc.clock.now())
                operation = await cluster.ended(name)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert boots_of(bmc) == [*(["Hdd"] if second else []), "Pxe", "Pxe", "Hdd"]
            assert bmc.host().boot.enabled is OverrideEnabled.DISABLED

    run_swiftly(scene(), limit_s=LIMIT_S)


def test_an_image_that_is_written_slowly_is_no_image_that_stands_still() -> None:
    async def scene() -> None:
        async with LabBmc() as bmc:
            _, _, operation = await replaced(bmc, Story(writes_s=20 * 45.0))
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
        async with LabBmc() as bmc:
            cluster, _, operation = await replaced(bmc, Story(until="ImageWriting"))
            assert result(operation) == ("Failed", "InstallTimedOut")
            began = next(write.at for write in cluster.written if "WaitingRepave" in str(write.new.get("status")))
            assert 600 <= cluster.ended_at(operation.name) - began < 720

    run_swiftly(scene(), limit_s=LIMIT_S)


# Cancel

UNDOABLE: Final = ("ShuttingDown", "WaitingOff", "SettingBootToStay", "WaitingOn", "WaitingLoader", "SettingBootAgain")
SLOWLY: Final = BmcFaults(ignores_shutdown=True, override="fails-when-off", ignores_override=True)


async def cancelled(cluster: Cluster, machine: str, stage: str, *, within_s: float = 3600.0) -> Any:
    name = await cluster.ask("HostReplace", machine, parameters={})
    await cluster.in_stage(name, stage)
    await cluster.api.patch(MACHINE_OPERATIONS, name, {"spec": {"cancel": True}})
    return await cluster.ended(name, within_s=within_s)


def test_a_cancel_before_the_host_is_touched_ends_it_at_once() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            operation = await cancelled(cluster, machine, "WaitingImage", within_s=5.0)
            assert result(operation) == ("Failed", "Cancelled")
            assert [event for event in bmc.history() if event.what == "pressed"] == []
            assert await cluster.condition(machine, ConditionType.REPAVED) is None

    run_swiftly(scene())


@pytest.mark.parametrize("stage", UNDOABLE)
def test_a_cancel_before_the_loader_was_fetched_is_undone(stage: str) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=SLOWLY, boot_s=20.0) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            async with netboot_host(cluster, machine) as host:
                operation = await cancelled(cluster, machine, stage)
            assert result(operation) == ("Failed", "Cancelled"), operation.status.message
            assert bmc.power() in (HostPower.ON, HostPower.POWERING_ON)
            assert bmc.host().boot.enabled is OverrideEnabled.DISABLED
            assert "network" not in host.sources
            assert await cluster.condition(machine, ConditionType.REPAVED) is None

    run_swiftly(scene(), limit_s=LIMIT_S)


def test_loader_fetch_during_a_cancel_ends_in_a_disk_boot() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            async with netboot_host(cluster, machine, Story(step_s=6.0)) as host:
                operation = await cancelled(cluster, machine, "WaitingLoader")
            assert result(operation) == ("Failed", "Cancelled"), operation.status.message
            assert "UndoingLoader" in stages_of(cluster, operation.name)
            assert [event.detail for event in bmc.history() if event.what == "boot"] == ["Pxe", "Hdd"]
            assert bmc.power() in (HostPower.ON, HostPower.POWERING_ON)
            assert host.installs == []

    run_swiftly(scene())


@pytest.mark.parametrize("stage", ["WaitingInstaller", "WaitingRepave", "WaitingCloudInit"])
def test_cancel_after_the_loader_fetch_is_reported_as_too_late(stage: str) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            async with netboot_host(cluster, machine):
                operation = await cancelled(cluster, machine, stage)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            told = [
                write.new["status"]["message"]
                for write in cluster.written
                if write.name == operation.name and write.new["spec"].get("cancel")
            ]
            assert any("after the point of no return" in text for text in told[1:])

    run_swiftly(scene())


def test_an_override_that_somebody_left_is_used_or_set_anew() -> None:
    async def scene() -> None:
        for left, set_anew in (
            (HostBootOverride(OverrideEnabled.CONTINUOUS, "Pxe"), False),
            (HostBootOverride(OverrideEnabled.CONTINUOUS, "Usb"), True),
        ):
            async with LabBmc(power=HostPower.OFF) as bmc:
                bmc.host().boot = left
                cluster, _, operation = await replaced(bmc)
                assert result(operation) == ("Complete", "Succeeded"), operation.status.message
                assert ("SettingBoot" in stages_of(cluster, operation.name)) is set_anew
                boots = [event.detail for event in bmc.history() if event.what == "boot"]
                assert boots[0] in FROM_NETWORK
                assert boots[-1] == "Hdd"

    run_swiftly(scene())


# Counters


@pytest.mark.parametrize("fails", ["", "the disk is gone"])
def test_repave_counter_creates_one_replacement_and_updates_at_its_end(fails: str) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            async with netboot_host(cluster, machine, Story(fails=fails)):
                await cluster.api.patch(MACHINES, machine, {"spec": {"operations": {"repaveCounter": 2}}})
                name = await cluster.created(f"{machine}-repave-2")
                await cluster.in_stage(name, "WaitingRepave")
                before = (await cluster.machine(machine)).status.operations
                assert before is None or before.repave_counter == 0
                operation = await cluster.ended(name)
                await asyncio.sleep(600)
            expected = ("Failed", "InstallFailed") if fails else ("Complete", "Succeeded")
            assert result(operation) == expected, operation.status.message
            counters = (await cluster.machine(machine)).status.operations
            assert counters is not None
            assert (counters.repave_counter, counters.reboot_counter) == (2, 0)
            assert len((await cluster.api.list(MACHINE_OPERATIONS)).items) == 1
            target = operation.status.targets[0].target_operations
            assert target is not None
            assert target.repave_counter == 2

    run_swiftly(scene())


# Selectors


def test_a_selector_operation_tells_the_stage_and_the_progress_of_each_target() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc("one") as one, LabBmc("two") as two, metalman(cluster):
            names = [(await cluster.add(bmc))[0] for bmc in (one, two)]
            fast, slow = Story(), Story(writes_s=1200.0)
            async with netboot_host(cluster, names[0], fast), netboot_host(cluster, names[1], slow):
                selector = {"matchLabels": {"unbounded-cloud.io/site": "lab"}}
                spec = {"operationKind": "HostReplace", "machineSelector": selector}
                await cluster.api.create(MACHINE_OPERATIONS, {"metadata": {"name": "all"}, "spec": spec})
                operation = await cluster.ended("all", within_s=7200.0)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            seen: dict[str, set[str]] = {name: set() for name in names}
            percents: dict[str, set[str]] = {name: set() for name in names}
            for write in cluster.written:
                if write.name == "all":
                    for target in write.new.get("status", {}).get("targets", ()):
                        seen[target["machineRef"]].add(target.get("stage"))
                        if "% written" in (target.get("message") or ""):
                            percents[target["machineRef"]].add(target["message"])
            for name in names:
                assert {"WaitingLoader", "WaitingRepave", "WaitingCloudInit"} <= seen[name]
            assert len(percents[names[1]]) > 10

    run_swiftly(scene())
