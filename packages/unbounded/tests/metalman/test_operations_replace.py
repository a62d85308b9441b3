"""HostReplace on a lab BMC, whose host boots from the network according to its boot override: the complete cases."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

from tests.metalman.support.netboot_host import DIGEST, Story, netboot_host, replaced, result, stages_of
from tests.metalman.support.site import Cluster, Written, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded.api.conditions import ConditionType
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import ANNOTATION_REQUESTED_BY
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.api.profile import MACHINE_PROFILES
from unbounded.kube.api import WatchEvent
from unbounded.metalman.redfish.bmc_interface import BmcLimits
from unbounded.metalman.replace_table import EVIDENCE_CLOUD_INIT, EVIDENCE_LOADER, EVIDENCE_NODE, EVIDENCE_WRITTEN
from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostPower, OverrideEnabled

MOST_REQUESTS: Final = 30  # of a BMC without faults, two log-ins and log-outs included
KUBERNETES: Final = {"spec": {"kubernetes": {"version": "v1.34.0"}}}


@pytest.mark.slow
def test_a_host_is_reimaged_and_every_step_has_its_evidence() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            await cluster.api.patch(MACHINES, machine, KUBERNETES)
            async with netboot_host(cluster, machine) as host:
                await host.node(ready=True, boot_id="before")
                operation = await cluster.done("HostReplace", machine)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            evidence = {one.what: one.where for one in operation.status.evidence}
            assert DIGEST in evidence[EVIDENCE_WRITTEN]
            assert evidence[EVIDENCE_NODE] == f"Node {machine}"
            assert {EVIDENCE_LOADER, EVIDENCE_CLOUD_INIT} <= evidence.keys()
            assert host.sources == ["network", "disk"]
            assert bmc.host().boot.enabled is OverrideEnabled.DISABLED
            assert stages_of(cluster, operation.name) == [
                "ShuttingDown", "SettingBoot", "WaitingOn", "WaitingLoader", "WaitingInstaller", "WaitingRepave",
                "ClearingBoot", "WaitingReturn", "WaitingCloudInit", "WaitingNode",
            ]  # fmt: skip

    run_swiftly(scene())


ERASURE: Final = {"serialNumber": "S1", "contents": "ext4 LABEL=data"}


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["", "the disk cannot be written"])
def test_an_erased_disk_and_its_requester_are_evidence_however_the_operation_ends(fails: str) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            async with netboot_host(cluster, machine, Story(fails=fails)):
                metadata = {"name": "erasing", "annotations": {ANNOTATION_REQUESTED_BY: "alice"}}
                spec = {"operationKind": "HostReplace", "machineRef": machine, "parameters": {"eraseDisks": "S1"}}
                await cluster.api.create(MACHINE_OPERATIONS, {"metadata": metadata, "spec": spec})
                await cluster.in_stage("erasing", "WaitingInstaller")
                patch = {"status": {"netboot": {"erasure": ERASURE}}}
                await cluster.api.patch(MACHINES, machine, patch, subresource="status")
                operation = await cluster.ended("erasing", within_s=7200.0)
        assert operation.status.phase == ("Failed" if fails else "Complete"), operation.status.message
        held = "it held ext4 LABEL=data; requested by alice"
        expected = [f"the erasure of disk S1 was permitted: {held}"] + [f"disk S1 was erased: {held}"] * (not fails)
        erased = [one for one in operation.status.evidence if "S1" in one.what]
        assert [one.what for one in erased] == expected
        assert {one.where for one in erased} == {f"status.netboot of Machine {machine}, image {DIGEST}"}

    run_swiftly(scene())


@pytest.mark.slow
def test_replacement_without_a_node_completes_with_cloud_init() -> None:
    async def scene() -> None:
        async with LabBmc(power=HostPower.OFF) as bmc:
            _, _, operation = await replaced(bmc)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert operation.status.evidence[-1].what == EVIDENCE_CLOUD_INIT

    run_swiftly(scene())


@pytest.mark.slow
def test_replacement_resets_the_conditions_of_the_last_boot() -> None:
    async def scene() -> None:
        async with LabBmc() as bmc:
            cluster = Cluster()
            for name in ("first", "second"):
                if name == "first":
                    await replaced(bmc, cluster=cluster)
                else:
                    machine = "lab-01"
                    async with metalman(cluster), netboot_host(cluster, machine):
                        await cluster.done("HostReplace", machine, name=name)
            repaved = cluster.conditions_over_time("lab-01", ConditionType.REPAVED)
            once = [("False", "Pending"), ("True", "Succeeded")]
            assert repaved == [None, *once, *once]
            cloud_init = cluster.conditions_over_time("lab-01", ConditionType.CLOUD_INIT_DONE)
            assert cloud_init == [None, *[("False", "Running"), ("True", "Succeeded"), None] * 2][:-1]

    run_swiftly(scene())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pxe", "target"),
    [
        ({"bootProtocol": "PXE"}, "Pxe"),
        ({"bootProtocol": "HTTP"}, "UefiHttp"),
        ({"bootMode": "UEFIHTTP"}, "UefiHttp"),
    ],
    ids=["PXE", "HTTP", "mode UEFIHTTP"],
)
def test_the_boot_override_follows_mode_and_protocol(pxe: dict[str, str], target: str) -> None:
    async def scene() -> None:
        async with LabBmc() as bmc:
            _, _, operation = await replaced(bmc, spec={"pxe": pxe})
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert [event.detail for event in bmc.history() if event.what == "boot"] == [target, "Hdd"]

    run_swiftly(scene())


@pytest.mark.slow
def test_mode_uefi_http_does_not_fall_back_to_pxe() -> None:
    async def scene() -> None:
        async with LabBmc(profile="no-uefi-http") as bmc:
            _, _, operation = await replaced(bmc, spec={"pxe": {"bootMode": "UEFIHTTP"}})
            assert result(operation) == ("Failed", "DidNotNetboot"), operation.status.message
            assert "UefiHttp" in (operation.status.message or "")
            assert "Pxe" not in [event.detail for event in bmc.history() if event.what == "boot"]
            assert bmc.power() is HostPower.ON

    run_swiftly(scene())


@pytest.mark.slow
def test_bmc_without_uefi_http_falls_back_to_pxe_with_a_message() -> None:
    async def scene() -> None:
        async with LabBmc(profile="no-uefi-http") as bmc:
            cluster, _, operation = await replaced(bmc, Story(step_s=20.0), spec={"pxe": {"bootProtocol": "HTTP"}})
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert [event.detail for event in bmc.history() if event.what == "boot"] == ["Pxe", "Hdd"]
            told = [write.new["status"].get("message", "") for write in cluster.written if write.name == operation.name
                    and "status" in write.new]  # fmt: skip
            assert any("the BMC does not support UefiHttp; using Pxe" in text for text in told)

    run_swiftly(scene())


@pytest.mark.slow
def test_nothing_is_switched_off_before_the_image_is_there() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            async with netboot_host(cluster, machine, Story(image_s=900.0)):
                name = await cluster.ask("HostReplace", machine)
                await cluster.in_stage(name, "WaitingImage")
                await asyncio.sleep(800)
                assert bmc.power() is HostPower.ON
                operation = await cluster.ended(name)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message

    run_swiftly(scene())


@pytest.mark.slow
def test_the_message_tells_how_much_is_written_and_seldom() -> None:
    async def scene() -> None:
        async with LabBmc() as bmc:
            cluster, _, operation = await replaced(bmc, Story(writes_s=300.0))
            told = [
                (write.at, write.new["status"]["message"])
                for write in cluster.written
                if write.name == operation.name and "% written" in write.new.get("status", {}).get("message", "")
            ]
            assert len(told) > 10
            assert "waiting for the image to be written: " in told[0][1]
            gaps = [after - before for (before, _), (after, _) in itertools.pairwise(told)]
            assert min(gaps) >= 2

    run_swiftly(scene())


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [
        BmcFaults(override="continuous"),
        BmcFaults(override="fails-when-off"),
        BmcFaults(slow_s=(0.5, 2.0)),
        BmcFaults(lost_before=2),
        BmcFaults(lost_after=3),
        BmcFaults(reset_task="succeeds"),
    ],
    ids=["once-stays", "fails-when-off", "slow", "lost-before", "lost-after", "tasks"],
)
def test_host_is_reimaged_despite_bmc_quirks(faults: BmcFaults) -> None:
    async def scene() -> None:
        async with LabBmc(faults=faults) as bmc:
            _, _, operation = await replaced(bmc)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert bmc.host().boot.enabled is OverrideEnabled.DISABLED

    run_swiftly(scene())


@pytest.mark.slow
@pytest.mark.parametrize("override", ["refused", "dropped"])
def test_bmc_without_boot_order_is_noted_and_host_reimaged(
    override: Any,
) -> None:
    async def scene() -> None:
        async with LabBmc(faults=BmcFaults(override=override)) as bmc:
            cluster, machine, operation = await replaced(bmc, Story(own_order=True))
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            kind = ConditionType.BOOT_ORDER_CONFIG_SUPPORTED
            assert await cluster.condition(machine, kind) == ("False", "NotSupported")
            await bmc.set_faults(override="kept")
            async with metalman(cluster), netboot_host(cluster, machine):
                operation = await cluster.done("HostReplace", machine, name="again")
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert await cluster.condition(machine, kind) == ("True", "Supported")

    run_swiftly(scene())


@pytest.mark.slow
def test_a_host_that_its_installer_switched_off_is_switched_on() -> None:
    async def scene() -> None:
        async with LabBmc() as bmc:
            _, _, operation = await replaced(bmc, Story(powers_off=True))
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message

    run_swiftly(scene())


@pytest.mark.slow
def test_bmc_outage_during_the_image_write_delays_nothing() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            async with netboot_host(cluster, machine, Story(writes_s=600.0)):
                name = await cluster.ask("HostReplace", machine)
                await cluster.in_stage(name, "WaitingRepave")
                await bmc.set_faults(refused_s=4000.0)
                operation = await cluster.ended(name)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message

    run_swiftly(scene())


@pytest.mark.slow
def test_a_bmc_is_left_alone_while_the_image_is_written() -> None:
    async def scene() -> None:
        async with LabBmc() as bmc:
            cluster = Cluster()
            (machine,) = await cluster.add(bmc)
            async with metalman(cluster), netboot_host(cluster, machine, Story(writes_s=1300.0)):
                name = await cluster.ask("HostReplace", machine)
                await cluster.in_stage(name, "WaitingRepave")
                await asyncio.sleep(1.5 * BmcLimits().idle_s)  # the session is given back
                before = bmc.bmc.requests
                await asyncio.sleep(1000)
                assert bmc.bmc.requests == before
                operation = await cluster.ended(name)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert bmc.bmc.requests <= MOST_REQUESTS, [(each.method, each.path) for each in bmc.bmc.journal]

    run_swiftly(scene())


@pytest.mark.slow
def test_missing_image_blocks_no_other_operation_and_hosts_take_turns() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with AsyncExitStack() as stack:
            bmcs = [await stack.enter_async_context(LabBmc(name)) for name in ("one", "two", "three", "other")]
            machines = [(await cluster.add(bmc))[0] for bmc in bmcs]
            other = machines.pop()
            await stack.enter_async_context(metalman(cluster, concurrent=1))
            for machine in machines:
                await stack.enter_async_context(netboot_host(cluster, machine, Story(image_s=300.0)))
            names = [await cluster.ask("HostReplace", machine) for machine in machines]
            for name in names:
                await cluster.in_stage(name, "WaitingImage", within_s=10.0)
            reboot = await cluster.ended(await cluster.ask("HostReboot", other), within_s=60.0)
            assert result(reboot) == ("Complete", "Succeeded")
            for name in names:
                assert result(await cluster.ended(name)) == ("Complete", "Succeeded")
        spans = []
        for name in names:
            began = min(write.at for write in cluster.written if write.name == name and _stage(write) == "ShuttingDown")
            spans.append((began, cluster.ended_at(name)))
        spans.sort()
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans)), spans
        said = [write.new["status"].get("waiting") or {} for write in cluster.written if write.name in names
                and "status" in write.new]  # fmt: skip
        assert "WaitingForTurn" in {each.get("reason") for each in said}

    run_swiftly(scene())


def _stage(write: Written) -> str | None:
    targets = write.new.get("status", {}).get("targets") or [{}]
    stage: str | None = targets[0].get("stage")
    return stage


KERNEL_WORDS: Final = {
    "devices": [{"device": {}, "partitions": [{"name": "root", "size": 0}]}],
    "fileSystems": [{"fileSystem": "ext4", "partition": "root", "mountPoint": "/"}],
    "grubConfig": {"defaultGrubOptions": ["GRUB_TIMEOUT=1", 'GRUB_CMDLINE_LINUX="quiet"']},
}


@pytest.mark.slow
@pytest.mark.parametrize(("reason", "phase"), [("PulledSigned", "Failed"), ("Pulled", "Complete")])
def test_a_profile_that_a_signed_image_cannot_have_leaves_the_host_alone(reason: str, phase: str) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            await cluster.api.create(MACHINE_PROFILES, {"metadata": {"name": "one"}, "spec": KERNEL_WORDS})
            await cluster.api.patch(MACHINES, machine, {"spec": {"pxe": {"profileRef": {"name": "one"}}}})
            async with netboot_host(cluster, machine, Story(image_reason=reason)):
                operation = await cluster.done("HostReplace", machine)
            assert operation.status.phase == phase, operation.status.message
            if phase == "Failed":
                assert result(operation) == ("Failed", "ProfileInvalid")
                words = "MachineProfile one: spec.grubConfig.defaultGrubOptions[1]: a signed image starts with"
                assert words in (operation.status.message or "")
                assert [event for event in bmc.history() if event.what in ("boot", "power")] == []

    run_swiftly(scene())


@pytest.mark.slow
def test_a_host_in_stock_is_not_replaced() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            await cluster.api.patch(MACHINES, machine, {"spec": {"pxe": {"image": None}}})
            operation = await cluster.done("HostReplace", machine)
            assert result(operation) == ("Failed", "NoImage"), operation.status.message
            assert "spec.pxe.image is absent" in (operation.status.message or "")
            assert [event for event in bmc.history() if event.what in ("boot", "power")] == []

    run_swiftly(scene())


@pytest.mark.slow
def test_an_image_that_metalman_sees_after_the_operation_is_installed() -> None:
    async def scene() -> None:
        cluster, is_late = Cluster(), asyncio.Event()
        watch = cluster.api.watch

        async def behind(kind: Kind[Any], **options: Any) -> AsyncIterator[WatchEvent[Any]]:
            async for event in watch(kind, **options):
                if kind is MACHINES and is_late.is_set():
                    is_late.clear()
                    await asyncio.sleep(20.0)
                yield event

        cluster.api.watch = behind  # type: ignore[method-assign]
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            image = (await cluster.machine(machine)).spec.pxe.image  # type: ignore[union-attr]
            await cluster.api.patch(MACHINES, machine, {"spec": {"pxe": {"image": None}}})
            async with netboot_host(cluster, machine):
                await asyncio.sleep(5.0)
                is_late.set()
                await cluster.api.patch(MACHINES, machine, {"spec": {"pxe": {"image": image}}})
                operation = await cluster.done("HostReplace", machine)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message

    run_swiftly(scene())


@pytest.mark.slow
def test_a_host_with_a_faulty_network_is_not_touched() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            twice = {"name": "one", "mac": "52:54:00:00:00:0a", "addresses": ["192.0.2.9/24"] * 2}
            await cluster.api.patch(MACHINES, machine, {"spec": {"network": {"ethernets": [twice]}}})
            async with netboot_host(cluster, machine):
                operation = await cluster.done("HostReplace", machine)
            assert result(operation) == ("Failed", "NetworkInvalid"), operation.status.message
            assert "spec.network.ethernets[one].addresses: 192.0.2.9/24 occurs" in (operation.status.message or "")
            assert [event for event in bmc.history() if event.what in ("boot", "power")] == []

    run_swiftly(scene())
