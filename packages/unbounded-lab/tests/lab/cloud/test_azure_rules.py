"""The rules by which Azure accepts, refuses and changes, as far as replacing a machine depends on them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import pytest
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceModifiedError

from tests.lab.cloud.azure_support import Scene, scene, swift
from unbounded_lab.cloud.azure import VmShape
from unbounded_lab.cloud.azure.local import GROUP

Body = dict[str, Any]
Change = Callable[[Body], object]


async def refused(s: Scene, body: Body, name: str = "vm-2") -> tuple[int, str]:
    """Status and code with which a creation is refused; nothing was done."""
    before = len(s.cloud.history.events)
    with pytest.raises(HttpResponseError) as raised:
        await s.vms.begin_create_or_update(GROUP, name, body)
    assert len(s.cloud.history.events) == before
    error = raised.value
    assert error.error is not None
    return error.status_code or 0, str(error.error.code)


async def another(s: Scene, name: str = "vm-2") -> Body:
    """A body that creates a second machine, with a NIC of its own."""
    body = await s.body()
    nic = s.cloud.add_nic(f"{name}-nic")
    body["properties"]["networkProfile"]["networkInterfaces"] = [{"id": str(nic)}]
    body["properties"]["osProfile"]["computerName"] = name
    storage = body["properties"]["storageProfile"]
    storage["osDisk"] = {"createOption": "FromImage"}
    storage["dataDisks"] = []
    return body


@swift
async def test_custom_data_may_be_65535_bytes_and_is_never_shown() -> None:
    async with scene() as s:
        body = await another(s)
        data = base64.b64encode(bytes(65535)).decode()
        body["properties"]["osProfile"]["customData"] = data
        made = await (await s.vms.begin_create_or_update(GROUP, "vm-2", body)).result()
        assert made.properties.os_profile.custom_data is None
        assert (await s.get("vm-2", expand="userData")).properties.os_profile.custom_data is None
        assert s.cloud.custom_data("vm-2") == data


@swift
async def test_user_data_is_shown_to_who_asks_for_it() -> None:
    async with scene() as s:
        body = await another(s)
        body["properties"]["userData"] = "aGVsbG8="
        await (await s.vms.begin_create_or_update(GROUP, "vm-2", body)).result()
        assert (await s.get("vm-2")).properties.user_data is None
        assert (await s.get("vm-2", expand="userData")).properties.user_data == "aGVsbG8="


@swift
async def test_what_another_machine_has_cannot_be_taken() -> None:
    async with scene(shape=VmShape(data_disks=1)) as s:
        body = await another(s)
        disk = {"lun": 0, "createOption": "Attach", "managedDisk": {"id": str(s.cloud.disk_id("vm-1-data-0"))}}
        body["properties"]["storageProfile"]["dataDisks"] = [disk]
        assert await refused(s, body) == (409, "ConflictingUserInput")
        disk["managedDisk"] = {"id": str(s.cloud.disk_id("none"))}
        assert await refused(s, body) == (404, "ResourceNotFound")
        body = await another(s)
        nics = (await s.body())["properties"]["networkProfile"]["networkInterfaces"]
        body["properties"]["networkProfile"]["networkInterfaces"] = nics
        assert await refused(s, body) == (400, "NicInUse")


@swift
async def test_a_disk_of_another_zone_is_not_attached() -> None:
    async with scene() as s:
        body = await another(s)
        body["zones"] = ["1"]
        disk = {"lun": 0, "createOption": "Attach", "managedDisk": {"id": str(s.cloud.add_disk("far", zones=("3",)))}}
        body["properties"]["storageProfile"]["dataDisks"] = [disk]
        assert await refused(s, body) == (400, "BadRequest")


@pytest.mark.slow
@swift
async def test_of_several_nics_one_is_the_primary() -> None:
    async with scene() as s:
        body = await another(s)
        nics = body["properties"]["networkProfile"]["networkInterfaces"]
        nics.append({"id": str(s.cloud.add_nic("second"))})
        assert await refused(s, body) == (400, "VirtualMachineMustHaveOneNetworkInterfaceAsPrimary")
        nics[0]["properties"] = {"primary": True}
        await (await s.vms.begin_create_or_update(GROUP, "vm-2", body)).result()
        assert s.cloud.stray_nics() == []


@pytest.mark.parametrize(
    ("change", "target"),
    [
        ({"zones": ["3"]}, "zones"),
        ({"properties": {"osProfile": {"customData": "bmV3"}}}, "osProfile.customData"),
        ({"properties": {"osProfile": {"adminUsername": "other"}}}, "osProfile.adminUsername"),
        ({"properties": {"availabilitySet": {"id": "/other"}}}, "availabilitySet.id"),
        ({"properties": {"storageProfile": {"osDisk": {"createOption": "FromImage", "name": "x"}}}}, "osDisk.name"),
        ({"properties": {"storageProfile": {"imageReference": {"sku": "other"}}}}, "imageReference"),
    ],
)
@swift
async def test_what_is_settled_at_creation_cannot_be_changed(change: Body, target: str) -> None:
    async with scene() as s:
        with pytest.raises(ResourceExistsError) as raised:
            await s.vms.begin_update(GROUP, "vm-1", change)
        error = raised.value.error
        assert error is not None
        assert (error.code, error.target) == ("PropertyChangeNotAllowed", target)


@pytest.mark.slow
@swift
async def test_the_same_creation_again_changes_nothing_of_the_machine() -> None:
    async with scene() as s:
        body = await another(s)
        body["properties"]["osProfile"]["customData"] = "b25l"
        first = await (await s.vms.begin_create_or_update(GROUP, "vm-2", body)).result()
        again = await (await s.vms.begin_create_or_update(GROUP, "vm-2", body)).result()
        assert again.properties.vm_id == first.properties.vm_id
        assert [event.what for event in s.cloud.history.of("VirtualMachine", "vm-2")] == ["created", "on"]
        only_new = {"etag": "*", "match_condition": MatchConditions.IfMissing}
        with pytest.raises(ResourceExistsError):
            await s.vms.begin_create_or_update(GROUP, "vm-2", body, **only_new)
        with pytest.raises((ResourceModifiedError, HttpResponseError)):
            await s.vms.begin_update(
                GROUP, "vm-2", {"tags": {}}, etag='"0"', match_condition=MatchConditions.IfNotModified
            )


@pytest.mark.slow
@swift
async def test_a_name_is_free_only_when_the_deletion_has_ended() -> None:
    async with scene() as s:
        body = await s.body()
        body["properties"]["storageProfile"]["osDisk"] = {"createOption": "FromImage"}
        poller = await s.vms.begin_delete(GROUP, "vm-1")
        assert (await s.get()).properties.provisioning_state == "Deleting"
        assert await refused(s, body, "vm-1") == (409, "OperationNotAllowed")
        await poller.result()
        await (await s.vms.begin_create_or_update(GROUP, "vm-1", body)).result()
        assert [event.what for event in s.cloud.history.of("VirtualMachine", "vm-1")][-2:] == ["created", "on"]


@swift
async def test_a_change_during_another_is_refused_and_a_deletion_takes_its_place() -> None:
    async with scene() as s:
        poller = await s.vms.begin_power_off(GROUP, "vm-1")
        with pytest.raises(ResourceExistsError, match=r"\(Conflict\)"):
            await s.vms.begin_start(GROUP, "vm-1")
        await (await s.vms.begin_delete(GROUP, "vm-1", force_deletion=True)).result()
        with pytest.raises(HttpResponseError, match="OperationPreempted"):
            await poller.result()
        assert s.cloud.machines() == {}


@swift
async def test_disks_and_nics_go_with_their_machine_as_their_delete_option_says() -> None:
    shape = VmShape(
        data_disks=1, os_disk_delete_option="Detach", data_disk_delete_option="Delete", nic_delete_option="Delete"
    )
    async with scene(shape=shape) as s:
        await (await s.vms.begin_delete(GROUP, "vm-1")).result()
        assert (s.cloud.stray_disks(), s.cloud.stray_nics()) == (["vm-1_OsDisk_1"], [])


@pytest.mark.slow
@swift
async def test_data_disk_detached_by_an_update_can_be_attached_elsewhere() -> None:
    async with scene(shape=VmShape(data_disks=2)) as s:
        disks = (await s.body())["properties"]["storageProfile"]["dataDisks"]
        change = {"properties": {"storageProfile": {"dataDisks": disks[:1]}}}
        poller = await s.vms.begin_update(GROUP, "vm-1", change)
        body = await another(s)
        body["properties"]["storageProfile"]["dataDisks"] = [disks[1]]
        assert await refused(s, body) == (409, "AttachDiskWhileBeingDetached")
        await poller.result()
        assert s.cloud.stray_disks() == ["vm-1-data-1"]
        await (await s.vms.begin_create_or_update(GROUP, "vm-2", body)).result()
        told = [(event.what, event.detail) for event in s.cloud.history.of("Disk", "vm-1-data-1")]
        assert told == [("created", ""), ("attached", "vm-1"), ("detached", "vm-1"), ("attached", "vm-2")]


@swift
async def test_a_disk_that_is_attached_is_not_deleted() -> None:
    async with scene(shape=VmShape(data_disks=1)) as s:
        with pytest.raises(ResourceExistsError, match="is attached to VM"):
            await s.client.disks.begin_delete(GROUP, "vm-1-data-0")


@swift
async def test_extensions_need_a_machine_that_runs() -> None:
    async with scene() as s:
        await (await s.vms.begin_deallocate(GROUP, "vm-1")).result()
        body = {"location": "westeurope", "properties": {"publisher": "a", "type": "b", "typeHandlerVersion": "1.0"}}
        with pytest.raises(ResourceExistsError, match="when the VM is not running"):
            await s.client.virtual_machine_extensions.begin_create_or_update(GROUP, "vm-1", "b", body)
        with pytest.raises(ResourceExistsError, match="deallocated"):
            await s.vms.begin_restart(GROUP, "vm-1")


@pytest.mark.slow
@swift
async def test_nic_of_a_failed_creation_is_reserved_for_180_s() -> None:
    async with scene() as s:
        s.cloud.set_faults(sizes_out_of_capacity=("Standard_D2s_v5",))
        body = await another(s)
        with pytest.raises(HttpResponseError, match="AllocationFailed"):
            await (await s.vms.begin_create_or_update(GROUP, "vm-2", body)).result()
        s.cloud.set_faults(sizes_out_of_capacity=())
        await (await s.vms.begin_delete(GROUP, "vm-2")).result()
        assert await refused(s, body, "vm-3") == (400, "NicReservedForAnotherVm")
        assert (await s.ask("DELETE", "networkInterfaces/vm-2-nic"))[1]["error"]["code"] == "NicReservedForAnotherVm"
        body["properties"]["storageProfile"]["osDisk"]["name"] = "again"
        await (await s.vms.begin_create_or_update(GROUP, "vm-2", body)).result()
        await (await s.vms.begin_delete(GROUP, "vm-2")).result()
        await asyncio.sleep(180.0)
        assert (await s.ask("DELETE", "networkInterfaces/vm-2-nic"))[0] == 200


@swift
async def test_a_lock_keeps_what_it_is_on_from_being_deleted() -> None:
    async with scene() as s:
        s.cloud.add_disk("loose")
        s.cloud.set_faults(locked=("vm-1", "loose"))
        with pytest.raises(ResourceExistsError, match="ScopeLocked"):
            await s.vms.begin_delete(GROUP, "vm-1", force_deletion=True)
        with pytest.raises(ResourceExistsError, match="ScopeLocked"):
            await s.client.disks.begin_delete(GROUP, "loose")
        assert ((await s.get()).properties.provisioning_state, s.cloud.stray_disks()) == ("Succeeded", ["loose"])


@pytest.mark.slow
@swift
async def test_ephemeral_os_disk_is_deleted_with_its_vm_and_prevents_deallocation() -> None:
    async with scene(shape=VmShape(ephemeral=True)) as s:
        with pytest.raises(ResourceExistsError, match="ephemeral"):
            await s.vms.begin_deallocate(GROUP, "vm-1")
        body = await another(s)
        body["properties"]["storageProfile"]["osDisk"] |= {"diffDiskSettings": {"option": "Local"}}
        assert await refused(s, body) == (400, "InvalidParameter")
        body["properties"]["storageProfile"]["osDisk"] |= {"caching": "ReadOnly"}
        await (await s.vms.begin_create_or_update(GROUP, "vm-2", body)).result()
        await (await s.vms.begin_delete(GROUP, "vm-2")).result()
        assert s.cloud.stray_disks() == []


@swift
async def test_disks_that_were_made_with_a_machine_are_attached_to_the_next() -> None:
    async with scene(shape=VmShape(data_disks=1, data_disks_made_with_it=True)) as s:
        body = await s.body()
        storage = body["properties"]["storageProfile"]
        assert [disk["createOption"] for disk in storage["dataDisks"]] == ["Empty"]
        await (await s.vms.begin_delete(GROUP, "vm-1")).result()
        assert await refused(s, body, "vm-1") == (400, "InvalidParameter")
        storage["osDisk"] = {"createOption": "FromImage", "name": "fresh"}
        storage["dataDisks"][0]["createOption"] = "Attach"
        await (await s.vms.begin_create_or_update(GROUP, "vm-1", body)).result()
        assert s.cloud.stray_disks() == []


@swift
async def test_cores_are_counted_against_the_quota() -> None:
    async with scene() as s:
        body = await another(s)
        s.cloud.set_faults(cores_quota=3)
        assert await refused(s, body) == (409, "OperationNotAllowed")
        s.cloud.set_faults(cores_quota=4)
        await (await s.vms.begin_create_or_update(GROUP, "vm-2", body)).result()


@swift
async def test_a_start_needs_capacity_once_the_machine_was_deallocated() -> None:
    async with scene(shape=VmShape(zones=("1",))) as s:
        await (await s.vms.begin_deallocate(GROUP, "vm-1")).result()
        s.cloud.set_faults(sizes_out_of_capacity=("Standard_D2s_v5",))
        with pytest.raises(HttpResponseError, match="ZonalAllocationFailed"):
            await (await s.vms.begin_start(GROUP, "vm-1")).result()
        assert await s.power() == "PowerState/deallocated"
        assert (await s.get()).properties.provisioning_state == "Failed"
