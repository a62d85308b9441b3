"""Two Machines that name one BMC and device: a condition on both, and host operations that exclude each other."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from tests.operations.building import claim, machine_of, operation_of, slot_of
from tests.support.waiting import eventually
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.cache import Cache
from unbounded.metalman.shared_bmcs import SharedBmcs
from unbounded.operations.caches import INDEX_BMC, by_bmc
from unbounded.operations.executor_protocol import NotDone
from unbounded.operations.executor_selection import bmc_of
from unbounded_lab.bmc.local import LabBmc

SLOWLY_S = 20.0


def run(scene: Coroutine[Any, Any, None]) -> None:
    run_swiftly(scene)


async def twin(cluster: Cluster, of: str, name: str = "twin", *, site: str = "lab", **redfish: Any) -> str:
    """Make a Machine that names the same BMC as another one."""
    machine = await cluster.api.get(MACHINES.raw(), of)
    spec = machine["spec"]
    spec["pxe"]["redfish"] |= redfish
    labels = {"unbounded-cloud.io/site": site}
    body = {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {}}
    return (await cluster.api.create(MACHINES, body)).name


async def shows(cluster: Cluster, machine: str, expected: tuple[str, str] | None) -> str:
    """Wait for the condition; gives its message."""

    async def shown() -> bool:
        return await cluster.condition(machine, "BMCExclusive") == expected

    await eventually(shown, every_s=0.05)
    conditions = (await cluster.machine(machine)).status.conditions
    return next((one.message for one in conditions if one.type == "BMCExclusive"), "")


def test_both_machines_name_the_other_until_one_names_another_bmc() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            await shows(cluster, machine, None)
            await twin(cluster, machine, url=bmc.url.upper().replace("HTTPS", "https") + "/")
            for one, other in ((machine, "twin"), ("twin", machine)):
                words = await shows(cluster, one, ("False", "DuplicateBMC"))
                assert words.startswith(f"Machine {other} names the same BMC and device, 127.0.0.1:")
            redfish = {"spec": {"pxe": {"redfish": {"deviceID": "2"}}}}
            await cluster.api.patch(MACHINES, "twin", redfish)
            for one in (machine, "twin"):
                await shows(cluster, one, ("True", "Resolved"))
            await cluster.api.patch(MACHINES, "twin", {"spec": {"pxe": {"redfish": {"deviceID": "1"}}}})
            await shows(cluster, machine, ("False", "DuplicateBMC"))
            await cluster.api.delete(MACHINES, "twin")
            await shows(cluster, machine, ("True", "Resolved"))

    run(scene())


@pytest.mark.slow
def test_two_reboots_of_one_host_come_one_after_the_other() -> None:
    """Seen: both claimed in the same second, and at work on one host from then on."""

    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(shutdown_s=SLOWLY_S, boot_s=SLOWLY_S) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            await twin(cluster, machine)
            await shows(cluster, "twin", ("False", "DuplicateBMC"))
            first, second = await cluster.ask("HostReboot", machine), await cluster.ask("HostReboot", "twin")
            waits = await cluster.waiting_for(second, "TargetInUse")
            assert f"HostReboot {first} (metalman/lab) holds the lock of Machine {machine} since" in (
                waits.status.message or ""
            )
            ends = [await cluster.ended(name) for name in (first, second)]
            assert [one.status.phase for one in ends] == ["Complete", "Complete"]
            assert cluster.ended_at(first) + SLOWLY_S < cluster.ended_at(second)
            assert bmc.bmc.requests > 0

    run(scene())


def test_another_sites_operation_on_the_same_host_is_waited_for() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(shutdown_s=SLOWLY_S) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            await twin(cluster, machine, site="elsewhere")
            name = await cluster.ask("HostPowerOff", "twin", name="off")
            claimed = {"status": claim("twin", "metalman/elsewhere")}
            other = await cluster.api.patch(MACHINE_OPERATIONS, name, claimed, subresource="status")
            slot = slot_of("off", kind="HostPowerOff", executor="metalman/elsewhere") | {"uid": other.metadata.uid}
            await cluster.api.patch(MACHINES, "twin", {"status": {"activeOperation": slot}}, subresource="status")
            name = await cluster.ask("HostReboot", machine)
            await cluster.waiting_for(name, "TargetInUse")
            sent = bmc.bmc.requests
            await asyncio.sleep(10)
            assert bmc.bmc.requests == sent
            await cluster.api.patch(MACHINES, "twin", {"status": {"activeOperation": None}}, subresource="status")
            assert (await cluster.ended(name)).status.phase == "Complete"

    run(scene())


@pytest.mark.parametrize(
    ("holder", "refused"),
    [
        (slot_of("off", kind="HostPowerOff", executor="metalman/elsewhere"), True),
        (slot_of("off", kind="HostPowerOff", executor="metalman/elsewhere", lost=True), False),
        (slot_of("node", kind="NodeReboot", executor="unbounded-agent/twin"), False),
        (None, False),
    ],
    ids=["at work", "lost", "its agent", "nobody"],
)
def test_an_action_is_not_sent_while_another_site_has_the_host(holder: dict[str, Any] | None, refused: bool) -> None:
    """Two metalmans that claimed at the same moment have not seen each other's slot in their caches."""

    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc:
            (name,) = await cluster.add(bmc)
            await twin(cluster, name, site="elsewhere")
            cache = Cache(cluster.api, MACHINES, indexes={INDEX_BMC: by_bmc})
            following = asyncio.create_task(cache.run())
            await cache.synced.wait()
            sharing = SharedBmcs(cluster.api, cache)
            machine = await cluster.machine(name)
            following.cancel()  # what comes now is not seen
            await cluster.api.patch(MACHINES, "twin", {"status": {"activeOperation": holder}}, subresource="status")
            if not refused:
                await sharing.check(machine)
                return
            with pytest.raises(NotDone, match="HostPowerOff off holds the lock of Machine twin") as caught:
                await sharing.check(machine)
            assert caught.value.reason == "TargetInUse"

    run(scene())


def test_pending_claim_blocks_a_shared_bmc_for_a_limited_time() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc:
            (name,) = await cluster.add(bmc)
            await twin(cluster, name)
            cache = Cache(cluster.api, MACHINES, indexes={INDEX_BMC: by_bmc})
            following = asyncio.create_task(cache.run())
            await cache.synced.wait()
            sharing, machine, other = SharedBmcs(cluster.api, cache), cache.get(name), cache.get("twin")
            assert machine is not None
            assert other is not None
            first, second = operation_of("first", machine=name), operation_of("second", machine="twin")
            assert sharing.claim_gate(first, machine) is None
            assert sharing.claim_gate(first, machine) is None
            gate = sharing.claim_gate(second, other)
            assert gate is not None
            assert (gate.reason, gate.held_by) == ("TargetInUse", "first")
            await asyncio.sleep(31)
            assert sharing.claim_gate(second, other) is None
            following.cancel()

    run(scene())


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://bmc-1", "https://bmc-1/", True),
        ("https://bmc-1", "https://BMC-1:443/redfish/v1/", True),
        ("https://bmc-1.example.com", "https://bmc-1.example.com.", True),
        ("https://[2001:db8::1]", "https://[2001:0db8:0:0::1]:443", True),
        ("http://bmc-1", "http://bmc-1:80", True),
        ("https://bmc-1", "https://bmc-2", False),
        ("https://bmc-1", "https://bmc-1:8443", False),
        ("https://chassis/blade-1", "https://chassis/blade-2", False),
        ("https://bmc-1:99999", "https://bmc-1:99999", True),
    ],
)
def test_the_same_bmc_is_known_however_its_url_is_spelled(one: str, other: str, same: bool) -> None:
    keys = [bmc_of(machine_of(pxe={"image": "i", "redfish": _redfish(url)})) for url in (one, other)]
    assert None not in keys
    assert (keys[0] == keys[1]) is same


def test_another_device_or_a_provider_is_another_target() -> None:
    machine = machine_of(pxe={"image": "i", "redfish": _redfish("https://bmc-1")})
    device = machine_of(pxe={"image": "i", "redfish": _redfish("https://bmc-1") | {"deviceID": "2"}})
    cloud = machine_of(provider="AzureVM", pxe={"image": "i", "redfish": _redfish("https://bmc-1")})
    assert bmc_of(machine) != bmc_of(device)
    assert bmc_of(cloud) is None


def _redfish(url: str) -> dict[str, Any]:
    return {"url": url, "username": "root", "passwordRef": {"name": "b", "namespace": "unbounded-kube"}}
