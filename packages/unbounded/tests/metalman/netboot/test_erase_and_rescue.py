"""A HostErase at the servers: the disks to erase, the permission to begin each, and a true status afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from tests.metalman.support.netboot_objects import ADDRESS, REDFISH, machine_body
from tests.metalman.support.netboot_site import World, netboot_site
from unbounded.api.core import NODES
from unbounded.api.hardware import DiskFacts, DiskState, HardwareFacts
from unbounded.api.machine import MACHINES, MachineStatus, NetbootStatus
from unbounded.api.machine_status import DiskErasureRecord, ErasureAttempt
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import Conflict
from unbounded.metalman.http.boot_service import FileRejected, HardwareReport, ReportAnswer

AT: Final = "2026-01-01T00:00:00Z"
INSTALLED: Final[dict[str, Any]] = {
    "targetDisk": "/dev/disk/by-id/wwn-0xa1",
    "conditions": [
        {"type": "CloudInitDone", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": AT},
        {"type": "Repaved", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": AT},
    ],
}
SDA: Final = DiskFacts(name="sda", serial_number="S1", transport="ata", by_id=("wwn-0xa1",), state=DiskState.OWN)
SDB: Final = DiskFacts(name="sdb", serial_number="S2", transport="ata", state=DiskState.FOREIGN, contents="LVM")
POWER_OFF: Final = ReportAnswer(200, {"status": "ok", "action": "PowerOff"})
OK: Final = ReportAnswer(200, {"status": "ok"})


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with netboot_site(tmp_path) as made:
        await made.machine(machine_body(pxe={"redfish": REDFISH}) | {"status": INSTALLED})
        yield made


async def erasing(world: World, disks: str = "All", by: str = "alice") -> str:
    boot = await world.replace(kind="HostErase", stage="WaitingReport", erase=disks, by=by)
    active = {"name": "replace", "uid": boot, "kind": "HostErase", "executor": "metalman", "since": AT}
    await world.api.patch(MACHINES, "m1", {"status": {"activeOperation": active}}, subresource="status")
    await world.caught_up()
    return boot


async def reported(world: World, *disks: DiskFacts, final: bool = True) -> ReportAnswer:
    report = HardwareReport(hardware=HardwareFacts(cpus=4, disks=disks or (SDA, SDB)), final=final)
    return await world.site.hardware(ADDRESS, world.prefix(), report)


async def said(world: World, serial: str, state: str, **more: Any) -> ReportAnswer:
    record = DiskErasureRecord(serial_number=serial, name="sda", state=state, **more)
    return await world.site.erasure(ADDRESS, world.prefix(), record)


async def status(world: World) -> MachineStatus:
    return (await world.status()).status


async def netboot(world: World) -> NetbootStatus:
    found = (await status(world)).netboot
    assert found is not None
    return found


def kinds(found: MachineStatus) -> set[str]:
    return {one.type for one in found.conditions}


async def test_the_disks_are_in_the_status_before_the_answer(world: World) -> None:
    await erasing(world)
    assert await reported(world) == ReportAnswer(200, {"status": "ok", "action": "Erase", "disks": "sda sdb"})
    seen = await netboot(world)
    assert seen.milestone == "HardwareReported"
    assert [(one.serial_number, one.contents, one.state) for one in seen.erasures] == [
        ("S1", "this Machine's earlier install", "Untouched"),
        ("S2", "LVM", "Untouched"),
    ]
    found = await status(world)  # nothing is lost yet
    assert found.target_disk == INSTALLED["targetDisk"]
    assert {"CloudInitDone", "Repaved"} <= kinds(found)


async def test_nothing_names_the_installed_system_once_its_disk_is_begun(world: World) -> None:
    await erasing(world)
    await reported(world)
    assert await said(world, "S2", "Erasing") == OK
    assert (await status(world)).target_disk == INSTALLED["targetDisk"]
    assert await said(world, "S1", "Erasing") == OK
    found = await status(world)
    assert found.target_disk is None
    assert not {"CloudInitDone", "Repaved"} & kinds(found)
    assert {one.serial_number: one.state for one in (await netboot(world)).erasures} == {
        "S1": "Erasing",
        "S2": "Erasing",
    }


@pytest.mark.parametrize("serial", ["S1", "S2"])
async def test_no_layout_is_left_once_one_of_its_disks_is_begun(world: World, serial: str) -> None:
    disks = ["/dev/disk/by-id/wwn-0xa1", "/dev/disk/by-id/wwn-0xa2", ""]
    layout = {"boot": "earlier", "profile": "mirrored", "digest": "0" * 64, "disks": disks}
    await world.api.patch(MACHINES, "m1", {"status": {"layout": layout, "targetDisk": None}}, subresource="status")
    await erasing(world)
    foreign = {"state": DiskState.FOREIGN, "contents": "LVM"}  # as without a mark
    await reported(world, *(replace(one, **foreign, by_id=(f"wwn-0xa{at}",)) for at, one in enumerate((SDA, SDB), 1)))
    assert (await status(world)).layout is not None
    assert await said(world, serial, "Erasing") == OK
    found = await status(world)
    assert found.layout is None
    assert not {"CloudInitDone", "Repaved"} & kinds(found)


async def test_the_host_is_switched_off_once_its_disks_are_erased_and_blank(world: World) -> None:
    await erasing(world, "S2")
    assert (await reported(world)).body["disks"] == "sdb"
    await said(world, "S2", "Erasing")
    tried = (ErasureAttempt(method="Discard", seconds=3),)
    await said(world, "S2", "Erased", method="Discard", attempts=tried, verification="all zero")
    held = await reported(world)
    assert (held.code, held.body["error"]) == (409, "disk S2 was erased, and holds LVM")
    assert await reported(world, SDA, replace(SDB, state=DiskState.BLANK, contents=None)) == POWER_OFF
    seen = await netboot(world)
    assert seen.milestone == "DisksErased"
    (done,) = seen.erasures
    assert (done.state, done.contents, done.attempts, done.verification) == ("Erased", "LVM", tried, "all zero")
    assert done.started_at is not None
    assert done.completed_at is not None
    found = await status(world)
    assert found.hardware is not None
    assert [one.state for one in found.hardware.disks] == ["Own", "Blank"]
    assert found.target_disk == INSTALLED["targetDisk"]  # its disk was not named


async def test_a_disk_is_begun_only_if_it_is_named_and_once(world: World) -> None:
    await erasing(world, "S2")
    assert (await said(world, "S2", "Erasing")).code == 409  # before any report
    await reported(world)
    other = await said(world, "S1", "Erasing")
    assert (other.code, other.body["error"]) == (409, "disk sda has the serial number S1, which is not to be erased")
    assert await said(world, "S2", "Erasing") == OK
    await said(world, "S2", "Erased")
    assert (await said(world, "S2", "Erasing")).code == 409
    assert (await netboot(world)).erasures[0].state == "Erased"


@pytest.mark.parametrize("spec", [{"cancel": True}, {"abandon": True}, {}])
async def test_a_cancelled_or_ended_operation_begins_no_disk(world: World, spec: dict[str, Any]) -> None:
    await erasing(world)
    await reported(world)
    prefix = world.prefix()
    assert await said(world, "S2", "Erasing") == OK
    if spec:
        await world.api.patch(MACHINE_OPERATIONS, "replace", {"spec": spec})
    else:  # the cache of this server is behind
        done = {"status": {"phase": "Failed", "reason": "Cancelled"}}
        await world.api.patch(MACHINE_OPERATIONS, "replace", done, subresource="status")
    begun = DiskErasureRecord(serial_number="S1", name="sda", state="Erasing")
    assert (await world.site.erasure(ADDRESS, prefix, begun)).code in (404, 409)
    assert {one.serial_number: one.state for one in (await netboot(world)).erasures}["S1"] == "Untouched"


async def operation_of(world: World) -> MachineOperation:
    return await world.api.get(MACHINE_OPERATIONS, "replace")


async def test_the_operation_has_a_disk_before_it_may_be_begun(world: World) -> None:
    await erasing(world)
    await reported(world)
    before = await operation_of(world)
    assert await said(world, "S1", "Erasing") == OK
    after = await operation_of(world)
    assert {one.serial_number: one.state for one in after.status.erasures} == {"S1": "Erasing", "S2": "Untouched"}
    assert after.status.erasures[0].contents == "this Machine's earlier install"
    lost = {"metadata": {"resourceVersion": before.metadata.resource_version}, "status": {"phase": "Failed"}}
    with pytest.raises(Conflict):  # an end that does not know of the disk
        await world.api.patch(MACHINE_OPERATIONS, "replace", lost, subresource="status")


async def test_a_permission_whose_answer_was_lost_is_given_again(world: World) -> None:
    await erasing(world)
    await reported(world)
    assert await said(world, "S1", "Erasing") == OK
    version = (await operation_of(world)).metadata.resource_version
    assert await said(world, "S1", "Erasing") == OK
    assert (await operation_of(world)).metadata.resource_version == version
    await world.api.patch(MACHINE_OPERATIONS, "replace", {"spec": {"cancel": True}})
    assert (await said(world, "S1", "Erasing")).code in (404, 409)  # it may not have begun
    assert (await said(world, "S1", "Erased")).code in (200, 404)


async def test_only_a_permission_lets_a_failed_disk_be_in_progress_again(world: World) -> None:
    await erasing(world)
    await reported(world)
    assert await said(world, "S1", "Erasing") == OK
    await said(world, "S1", "Failed", failure="worn out")
    await said(world, "S1", "Erasing", method="Discard", percent=40)  # it was overtaken
    failed = (await netboot(world)).erasures[0]
    assert (failed.state, failed.failure, failed.percent) == ("Failed", "worn out", None)
    assert await said(world, "S1", "Erasing") == OK  # the installer was started again
    again = (await netboot(world)).erasures[0]
    assert (again.state, again.failure, again.completed_at) == ("Erasing", None, None)


@pytest.mark.parametrize("state", ["Erased", "Failed"])
async def test_a_disk_that_was_not_begun_has_no_result(world: World, state: str) -> None:
    await erasing(world)
    await reported(world)
    refused = await said(world, "S1", state, failure="x")
    assert (refused.code, refused.body["error"]) == (409, "the erasure of disk S1 was not begun")
    assert {one.state for one in (await netboot(world)).erasures} == {"Untouched"}
    assert (await status(world)).target_disk == INSTALLED["targetDisk"]


async def test_no_disk_is_begun_while_the_node_takes_pods_again(world: World) -> None:
    await erasing(world)
    await reported(world)
    assert await said(world, "S2", "Erasing") == OK
    await world.api.create(NODES, {"metadata": {"name": "m1"}, "spec": {}})
    refused = await said(world, "S1", "Erasing")
    assert (refused.code, refused.body["error"]) == (
        409,
        "Node m1 is not cordoned; drain it\nkubectl drain m1 --ignore-daemonsets\n",
    )
    assert {one.serial_number: one.state for one in (await netboot(world)).erasures}["S1"] == "Untouched"
    assert await said(world, "S2", "Erased") == OK  # what was begun goes on


async def test_a_disk_is_refused_with_its_reason_in_the_status(world: World) -> None:
    await erasing(world, "S9")
    assert (await reported(world, final=False)).body["action"] == "Wait"
    refused = await reported(world)
    assert refused.code == 409
    assert str(refused.body["error"]).startswith("spec.parameters.disks names S9, which is no disk here")
    assert (await netboot(world)).message == refused.body["error"]


async def test_nobody_erases_without_a_name(world: World) -> None:
    await erasing(world, by="")
    assert (await reported(world)).code == 409


async def test_a_disk_that_all_leaves_is_in_the_status(world: World) -> None:
    await erasing(world)
    await reported(world, SDA, replace(SDB, transport="fc"))
    assert (await netboot(world)).message == "not erased, as sdb: its transport is fc"


async def test_a_host_erase_gets_no_image_no_user_data_and_no_token(world: World) -> None:
    await erasing(world)
    prefix = world.prefix()
    for path in ("disk.img.gz", "cloud-init/user-data"):
        found = await world.site.file(ADDRESS, prefix, path)
        assert isinstance(found, FileRejected), path
        assert found.text == "this boot is for a HostErase, which installs nothing"
    assert (await world.site.attest(ADDRESS, prefix, b"{}")).code == 409
    assert (await world.site.disable(ADDRESS, prefix)).code == 409


@pytest.mark.parametrize("kind", ["HostReplace", "HostInspect"])
async def test_other_boots_erase_no_disk(world: World, kind: str) -> None:
    await world.replace(kind=kind, stage="WaitingReport" if kind == "HostInspect" else "WaitingLoader")
    await reported(world)
    assert (await said(world, "S2", "Erasing")).code == 409
    assert (await netboot(world)).erasures == ()
