"""HostErase on a lab BMC: the host stays Off, and the report and the message say which disks are erased."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
import pytest

from tests.metalman.support.netboot_host import Story, netboot_host, replaced, result, stages_of
from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded.api.core import NODES, PODS
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.metalman.erase_stages import EVIDENCE_ERASED, EVIDENCE_STAYS_OFF
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostPower, OverrideEnabled

pytestmark = pytest.mark.slow
POWERS: Final = (HostPower.ON, HostPower.OFF)


def states(operation: MachineOperation) -> dict[str, str]:
    return {one.serial_number: one.state for one in operation.status.erasures}


@pytest.mark.parametrize("power", POWERS)
def test_an_erased_host_stays_off_and_its_report_is_in_the_operation(power: HostPower) -> None:
    async def scene() -> None:
        async with LabBmc(power=power) as bmc:
            cluster, machine, operation = await replaced(bmc, kind="HostErase", status={"agent": {"version": "v1"}})
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert (await cluster.machine(machine)).status.agent is None
            words = {one.what for one in operation.status.evidence}
            assert {EVIDENCE_ERASED, EVIDENCE_STAYS_OFF, "the erasure of the disks was requested by alice"} <= words
            assert states(operation) == {"S1": "Erased", "S2": "Erased"}
            assert "erased: S1, S2" in (operation.status.message or "")
            assert bmc.power() is HostPower.OFF
            assert bmc.host().boot.enabled is OverrideEnabled.DISABLED
            order = ["WaitingReport", "WaitingErase", "WaitingInstallerOff", "Restoring"]
            assert stages_of(cluster, operation.name)[-4:] == order

    run_swiftly(scene())


@pytest.mark.parametrize(
    ("story", "reason", "left"),
    [
        (Story(unerasable="S2"), "EraseFailed", {"S1": "Erased", "S2": "Failed"}),
        (Story(writes_s=10_000.0), "EraseTimedOut", {"S1": "Erasing", "S2": "Untouched"}),
        (Story(fails="no such disk"), "EraseFailed", {}),
        (Story(contested="LoaderFetched"), "BootContested", {}),
    ],
)
def test_a_failed_erasure_says_what_is_left(story: Story, reason: str, left: dict[str, str]) -> None:
    async def scene() -> None:
        async with LabBmc() as bmc:
            _, _, operation = await replaced(bmc, story, kind="HostErase")
            assert result(operation) == ("Failed", reason), operation.status.message
            assert states(operation) == left
            assert bmc.power() is (HostPower.OFF if left else HostPower.ON)  # it has lost nothing
            assert bmc.host().boot.enabled is OverrideEnabled.DISABLED
            message = operation.status.message or ""
            assert ("untouched: S2" in message) == ("Untouched" in left.values())
            assert ("begun: S1" in message) == ("Erasing" in left.values())

    run_swiftly(scene())


@pytest.mark.parametrize(
    ("stage", "wait_s", "left", "power"),
    [
        ("ShuttingDown", 0.0, {}, HostPower.ON),
        ("WaitingLoader", 0.0, {}, HostPower.ON),
        ("WaitingErase", 30.0, {"S1": "Erasing", "S2": "Untouched"}, HostPower.OFF),
        ("WaitingErase", 90.0, {"S1": "Erased", "S2": "Erasing"}, HostPower.OFF),
    ],
)
def test_a_cancel_begins_no_other_disk_and_says_what_is_left(
    stage: str, wait_s: float, left: dict[str, str], power: HostPower
) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            async with netboot_host(cluster, machine, Story(step_s=10.0)) as host:
                name = await cluster.ask("HostErase", machine)
                await cluster.in_stage(name, stage)
                await asyncio.sleep(wait_s)
                await cluster.api.patch(MACHINE_OPERATIONS, name, {"spec": {"cancel": True}})
                operation = await cluster.ended(name)
                await asyncio.sleep(200)
            assert result(operation) == ("Failed", "Cancelled"), operation.status.message
            assert states(operation) == left
            assert len(host.begun) == sum(state != "Untouched" for state in left.values())
            assert bmc.power() is power
            undone = "its changes have been undone" in (operation.status.message or "")
            assert undone == (stage == "ShuttingDown")
            assert (await cluster.api.get(MACHINES, machine)).status.active_operation is None

    run_swiftly(scene())


def test_a_permission_that_another_replica_recorded_stays_in_the_operation() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            async with netboot_host(cluster, machine, Story(step_s=10.0)):
                name = await cluster.ask("HostErase", machine)
                await cluster.in_stage(name, "WaitingErase")
                await asyncio.sleep(30)
                known = (await cluster.api.get(MACHINE_OPERATIONS, name)).status.erasures
                begun = [msgspec.to_builtins(one) | {"state": "Erasing"} for one in known]
                await cluster.api.patch(MACHINE_OPERATIONS, name, {"status": {"erasures": begun}}, subresource="status")
                await cluster.api.patch(MACHINE_OPERATIONS, name, {"spec": {"cancel": True}})
                operation = await cluster.ended(name)
            assert states(operation) == {"S1": "Erasing", "S2": "Erasing"}

    run_swiftly(scene())


async def ended_with_node(cluster: Cluster, machine: str, spec: dict[str, Any], *pods: dict[str, Any]) -> str:
    """Return the message of a HostErase of a Machine with a Node and Pods."""
    await cluster.api.create(NODES, {"metadata": {"name": machine}, "spec": spec})
    for number, pod in enumerate(pods):
        metadata = {"name": f"p{number}", "namespace": "default", **pod}
        await cluster.api.create(PODS, {"metadata": metadata, "spec": {"nodeName": machine}}, namespace="default")
    operation = await cluster.ended(await cluster.ask("HostErase", machine))
    assert result(operation) == ("Failed", "NodeNotDrained"), operation.status.message
    return operation.status.message or ""


@pytest.mark.parametrize(
    ("spec", "words"), [({}, "is not cordoned"), ({"unschedulable": True}, "has Pods: default/p0")]
)
def test_a_host_whose_node_is_not_drained_is_not_touched(spec: dict[str, Any], words: str) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            async with netboot_host(cluster, machine):
                message = await ended_with_node(cluster, machine, spec, {})
            assert message == f"Node {machine} {words}; drain it\nkubectl drain {machine} --ignore-daemonsets"
            assert bmc.power() is HostPower.ON
            assert [event for event in bmc.history() if event.what == "pressed"] == []

    run_swiftly(scene())
