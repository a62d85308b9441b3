"""Each call that host operations and replacement need, by the official SDK."""

from __future__ import annotations

import asyncio
import base64

import pytest
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceModifiedError, ResourceNotFoundError
from azure.mgmt.compute import models

from tests.lab.cloud.azure_support import Scene, scene, swift
from unbounded_lab.cloud.azure import VmShape
from unbounded_lab.cloud.azure.catalog import size_of
from unbounded_lab.cloud.azure.local import GROUP

pytestmark = pytest.mark.slow

RICH = VmShape(
    data_disks=2,
    nics=2,
    zones=("2",),
    system_identity=True,
    identities=("kubelet", "registry"),
    extensions=("Microsoft.Azure.Monitor.AzureMonitorLinuxAgent",),
    plan=("server", "almalinux", "almalinux-x86_64"),
    tags={"role": "worker"},
    license_type="RHEL_BYOS",
)


@swift
async def test_a_machine_is_shown_with_all_that_belongs_to_it() -> None:
    async with scene(shape=RICH) as s:
        vm = await s.get()
        assert vm.zones == ["2"]
        assert vm.tags == {"role": "worker"}
        assert vm.plan is not None
        assert vm.plan.publisher == "almalinux"
        assert vm.identity is not None
        assert vm.identity.principal_id
        assert [each.client_id is not None for each in (vm.identity.user_assigned_identities or {}).values()] == [
            True
        ] * 2
        assert [each.name for each in vm.resources or []] == ["AzureMonitorLinuxAgent"]
        properties = vm.properties
        assert properties is not None
        assert properties.license_type == "RHEL_BYOS"
        assert properties.provisioning_state == "Succeeded"
        assert [(disk.lun, disk.caching) for disk in properties.storage_profile.data_disks] == [
            (0, "ReadOnly"),
            (10, "None"),
        ]
        assert [nic.properties.primary for nic in properties.network_profile.network_interfaces] == [True, False]
        assert properties.security_profile.security_type == "TrustedLaunch"
        assert properties.instance_view is None


@swift
async def test_power_actions_are_carried_out_and_shown() -> None:
    async with scene() as s:
        assert await s.power() == "PowerState/running"
        poller = await s.vms.begin_power_off(GROUP, "vm-1")
        assert await s.power() == "PowerState/stopping"
        assert (await s.get()).properties.provisioning_state == "Updating"
        await poller.result()
        assert await s.power() == "PowerState/stopped"
        await (await s.vms.begin_start(GROUP, "vm-1")).result()
        assert await s.power() == "PowerState/running"
        await (await s.vms.begin_restart(GROUP, "vm-1")).result()
        await (await s.vms.begin_deallocate(GROUP, "vm-1")).result()
        assert await s.power() == "PowerState/deallocated"
        told = [event.what for event in s.cloud.history.of("VirtualMachine")]
        assert told == ["created", "on", "off", "on", "off", "on", "off"]
        assert s.cloud.alive() == []


@swift
async def test_skip_shutdown_takes_the_power_away_at_once() -> None:
    async with scene() as s:
        clock = s.cloud.clock
        took = []
        for skip in (False, True):
            began = clock.now()
            await (await s.vms.begin_power_off(GROUP, "vm-1", skip_shutdown=skip)).result()
            took.append(s.cloud.history.events[-1].at - began)
            await (await s.vms.begin_start(GROUP, "vm-1")).result()
        assert took[1] < 0.5 < took[0]


@swift
async def test_actions_on_what_is_so_already_succeed_and_change_nothing() -> None:
    async with scene() as s:
        before, began = len(s.cloud.history.events), s.cloud.clock.now()
        await (await s.vms.begin_start(GROUP, "vm-1")).result()
        assert s.cloud.clock.now() - began < 0.5
        assert len(s.cloud.history.events) == before
        etag = (await s.get()).etag
        await (await s.vms.begin_start(GROUP, "vm-1")).result()
        assert (await s.get()).etag == etag


@swift
async def test_a_deallocated_machine_hides_sizes_and_types_of_its_disks() -> None:
    async with scene(shape=VmShape(data_disks=1)) as s:
        await (await s.vms.begin_deallocate(GROUP, "vm-1")).result()
        storage = (await s.get()).properties.storage_profile
        assert [disk.managed_disk.storage_account_type for disk in (storage.os_disk, *storage.data_disks)] == [None] * 2
        assert storage.os_disk.disk_size_gb is None
        disk = await s.client.disks.get(GROUP, "vm-1-data-0")
        assert disk.properties.disk_state == "Reserved"


@swift
async def test_a_machine_is_replaced_under_its_name() -> None:
    """The whole replacement as the API reference has it: get, detach, delete, create with fresh custom data."""
    async with scene(shape=RICH) as s:
        before = await s.get()
        body = await s.body()
        storage = body["properties"]["storageProfile"]
        detach = {
            "properties": {
                "storageProfile": {
                    "osDisk": {"createOption": "FromImage", "deleteOption": "Delete"},
                    "dataDisks": [{**disk, "deleteOption": "Detach"} for disk in storage["dataDisks"]],
                },
                "networkProfile": {
                    "networkInterfaces": [
                        {**nic, "properties": {**nic["properties"], "deleteOption": "Detach"}}
                        for nic in body["properties"]["networkProfile"]["networkInterfaces"]
                    ]
                },
            }
        }
        await (await s.vms.begin_update(GROUP, "vm-1", detach)).result()
        await (await s.vms.begin_delete(GROUP, "vm-1")).result()
        with pytest.raises(ResourceNotFoundError):
            await s.get()
        assert sorted(s.cloud.stray_disks()) == ["vm-1-data-0", "vm-1-data-1"]
        assert sorted(s.cloud.stray_nics()) == ["vm-1-nic-0", "vm-1-nic-1"]

        storage["osDisk"] = {"createOption": "FromImage", "name": "vm-1-osdisk-2", "deleteOption": "Delete"}
        body["properties"]["osProfile"]["customData"] = "I2Nsb3VkLWNvbmZpZwo="
        await (await s.vms.begin_create_or_update(GROUP, "vm-1", body)).result()
        after = await s.get()
        assert after.properties.vm_id != before.properties.vm_id
        assert after.identity.principal_id != before.identity.principal_id
        assert after.identity.user_assigned_identities == before.identity.user_assigned_identities
        assert (after.zones, after.plan, after.tags) == (before.zones, before.plan, before.tags)
        assert after.properties.security_profile == before.properties.security_profile
        assert after.properties.os_profile.custom_data is None
        assert s.cloud.custom_data("vm-1") == "I2Nsb3VkLWNvbmZpZwo="
        assert (s.cloud.stray_disks(), s.cloud.stray_nics()) == ([], [])
        assert [event.what for event in s.cloud.history.of("Disk", "vm-1_OsDisk_1")][-1] == "deleted"
        assert s.cloud.history.max_concurrent("on", "off", kind="VirtualMachine", name="vm-1") == 1
        assert len(s.cloud.alive("vm-1")) == 1


@swift
async def test_extensions_go_with_their_machine_and_can_be_put_again() -> None:
    async with scene(shape=VmShape(extensions=("Acme.Agent",))) as s:
        (listed,) = (await s.client.virtual_machine_extensions.list(GROUP, "vm-1")).value
        assert listed.properties.publisher == "Acme"
        body = {
            "location": "westeurope",
            "properties": {
                "publisher": "Acme",
                "type": "Other",
                "typeHandlerVersion": "2.0",
                "settings": {"level": 3},
                "protectedSettings": {"key": "secret"},
            },
        }
        extensions = s.client.virtual_machine_extensions
        made = await (await extensions.begin_create_or_update(GROUP, "vm-1", "other", body)).result()
        assert (made.properties.provisioning_state, made.properties.protected_settings) == ("Succeeded", None)
        assert (await extensions.get(GROUP, "vm-1", "OTHER")).properties.settings == {"level": 3}
        view = await s.vms.instance_view(GROUP, "vm-1")
        assert sorted(each.name for each in view.extensions or []) == ["Agent", "other"]
        await (await extensions.begin_delete(GROUP, "vm-1", "other")).result()
        assert len((await extensions.list(GROUP, "vm-1")).value) == 1


@swift
async def test_disks_are_listed_and_only_unattached_ones_deleted() -> None:
    async with scene(shape=VmShape(data_disks=1)) as s:
        s.cloud.add_disk("loose")
        there = {disk.name: disk.managed_by async for disk in s.client.disks.list_by_resource_group(GROUP)}
        assert there.keys() == {"vm-1_OsDisk_1", "vm-1-data-0", "loose"}
        assert [name for name, owner in there.items() if owner is None] == ["loose"]
        await (await s.client.disks.begin_delete(GROUP, "loose")).result()
        assert len([disk async for disk in s.client.disks.list()]) == 2
        with pytest.raises(ResourceNotFoundError):
            await s.client.disks.get(GROUP, "loose")
        await (await s.client.disks.begin_delete(GROUP, "loose")).result()


@swift
async def test_machines_are_listed_in_their_group_and_subscription() -> None:
    async with scene(subscriptions=2) as s:
        s.cloud.add_machine("vm-2", group="rg-other")
        s.cloud.add_machine("vm-3", subscription=s.cloud.subscriptions[1])
        assert [vm.name async for vm in s.vms.list(GROUP)] == ["vm-1"]
        assert [vm.name async for vm in s.vms.list_all()] == ["vm-1", "vm-2"]


@swift
async def test_network_interfaces_are_seen_and_deleted_by_plain_requests() -> None:
    async with scene() as s:
        s.cloud.add_nic("loose")
        status, body, _ = await s.ask("GET", "networkInterfaces")
        assert (status, [nic["name"] for nic in body["value"]]) == (200, ["vm-1-nic-0", "loose"])
        _, nic, _ = await s.ask("GET", "networkInterfaces/vm-1-nic-0")
        assert nic["properties"]["virtualMachine"]["id"] == str(s.cloud.id_of("vm-1"))
        status, body, _ = await s.ask("DELETE", "networkInterfaces/vm-1-nic-0")
        assert (status, body["error"]["code"]) == (400, "NicInUse")
        assert [(await s.ask("DELETE", "networkInterfaces/loose"))[0] for _ in range(2)] == [200, 204]


@swift
async def test_an_availability_set_knows_its_members() -> None:
    async with scene(shape=VmShape(availability_set="workers")) as s:
        found = await s.client.availability_sets.get(GROUP, "workers")
        assert [each.id for each in found.properties.virtual_machines or []] == [str(s.cloud.id_of("vm-1"))]


@swift
async def test_names_compare_without_regard_to_case() -> None:
    async with scene() as s:
        assert (await s.vms.get("RG-Workers", "VM-1")).name == "vm-1"


@swift
async def test_an_etag_that_is_out_of_date_refuses_a_change() -> None:
    async with scene() as s:
        vm = await s.get()
        await (await s.vms.begin_update(GROUP, "vm-1", {"tags": {"a": "b"}})).result()
        condition = {"etag": vm.etag, "match_condition": MatchConditions.IfNotModified}
        with pytest.raises(ResourceModifiedError):
            await s.vms.begin_update(GROUP, "vm-1", {"tags": {"a": "c"}}, **condition)
        assert (await s.get()).tags == {"a": "b"}
        await (await s.vms.begin_update(GROUP, "vm-1", {"tags": {"c": "d"}})).result()
        assert (await s.get()).tags == {"c": "d"}


@swift
async def test_an_operation_says_where_and_when_to_ask_for_it() -> None:
    async with scene() as s:
        path = f"{s.cloud.id_of('vm-1')}/restart?api-version=2026-04-01"
        status, _, headers = await s.ask("POST", path)
        assert (status, headers["retry-after"]) == (202, "1")
        where = headers["azure-asyncoperation"].removeprefix(s.cloud.url)
        monitor = headers["location"].removeprefix(s.cloud.url)
        status, body, headers = await s.ask("GET", where)
        assert (status, body["status"], headers["retry-after"]) == (200, "InProgress", "1")
        assert (await s.ask("GET", monitor))[0] == 202
        await asyncio.sleep(2.0)
        _, body, headers = await s.ask("GET", where)
        assert (body["status"], body.keys()) == ("Succeeded", {"startTime", "endTime", "status", "name"})
        assert "retry-after" not in headers
        assert (await s.ask("GET", monitor))[0] == 200


@swift
async def test_a_poller_goes_on_from_its_token() -> None:
    async with scene() as s:
        poller = await s.vms.begin_restart(GROUP, "vm-1")
        again = await s.vms.begin_restart(GROUP, "vm-1", continuation_token=poller.continuation_token())
        await again.result()
        assert again.status() == "Succeeded"
        assert [each.call for each in s.cloud.journal].count("VirtualMachines.Restart") == 1


@swift
async def test_quota_is_shown_and_kept() -> None:
    async with scene() as s:
        _, _, headers = await s.ask("GET", f"{s.cloud.id_of('vm-1')}?api-version=2026-04-01")
        assert headers["x-ms-ratelimit-remaining-subscription-reads"] == "249"
        remaining = headers["x-ms-ratelimit-remaining-resource"].split(",")
        assert sorted(remaining) == [
            "Microsoft.Compute/LowCostGetVMResource;35",
            "Microsoft.Compute/LowCostGetVMSubscriptionMaximum;23999",
        ]


async def _codes(s: Scene, method: str, path: str, times: int) -> list[tuple[int, str, str]]:
    """Status, error code and Retry-After of the answers that are no success."""
    answers = [await s.ask(method, path) for _ in range(times)]
    return [
        (status, body["error"]["code"], headers.get("retry-after", ""))
        for status, body, headers in answers
        if status > 300
    ]


@swift
async def test_a_subscription_has_200_writes_at_once_and_10_a_second() -> None:
    async with scene(subscriptions=2) as s:
        s.cloud.add_machine("vm-2", subscription=s.cloud.subscriptions[1])
        path = f"{s.cloud.id_of('none')}/start?api-version=2026-04-01"
        codes = await _codes(s, "POST", path.replace("none", "n-{}").format(0), 12)
        assert {status for status, _, _ in codes} == {404}
        refused = []
        for number in range(1, 200):
            refused += await _codes(s, "POST", path.replace("none", f"n-{number}"), 1)
        assert refused[-1] == (429, "SubscriptionRequestsThrottled", "1")
        assert sum(status == 429 for status, _, _ in refused) == 11
        other = f"{s.cloud.id_of('vm-2', subscription=s.cloud.subscriptions[1])}/start?api-version=2026-04-01"
        assert (await s.ask("POST", other))[0] == 202
        await asyncio.sleep(0.5)
        again = [await _codes(s, "POST", path.replace("none", f"m-{number}"), 1) for number in range(6)]
        assert [code for [(code, _, _)] in again] == [404] * 5 + [429]


@swift
async def test_a_machine_has_12_changes_at_once_and_4_a_minute() -> None:
    async with scene() as s:
        path = f"{s.cloud.id_of('vm-1')}/start?api-version=2026-04-01"
        assert await _codes(s, "POST", path, 13) == [(429, "OperationNotAllowed", "15")]
        s.cloud.set_faults(rate_limits=False)
        assert await _codes(s, "POST", path, 1) == []


# Further fields that the current SDK can send


@pytest.mark.parametrize("option", ["Delete", "Detach"])
@swift
async def test_a_reimage_makes_the_os_disk_anew_with_other_custom_data(option: str) -> None:
    async with scene() as s:
        change = {"properties": {"storageProfile": {"osDisk": {"createOption": "FromImage", "deleteOption": option}}}}
        await (await s.vms.begin_update(GROUP, "vm-1", change)).result()
        before = await s.get()
        told = base64.b64encode(b"#cloud-config anew").decode()
        parameters = models.VirtualMachineReimageParameters(
            os_profile=models.OSProfileProvisioningData(custom_data=told)
        )
        await (await s.vms.begin_reimage(GROUP, "vm-1", parameters)).result()
        after = await s.get()
        assert s.cloud.custom_data("vm-1") == told
        assert after.properties.vm_id == before.properties.vm_id
        old, new = (each.properties.storage_profile.os_disk.name for each in (before, after))
        assert old != new
        assert [each.name async for each in s.client.disks.list()] == ([new] if option == "Delete" else [old, new])
        assert await s.power() == "PowerState/running"
        await (await s.vms.begin_reimage(GROUP, "vm-1")).result()
        assert s.cloud.custom_data("vm-1") == told


@swift
async def test_reimage_accepts_only_fields_of_the_sdk_model() -> None:
    async with scene() as s:
        for wrong in (
            {"osProfile": {"hostName": "x"}},
            {"tempDisk": True},
            {"osProfile": {"customData": "no base 64"}},
        ):
            with pytest.raises(HttpResponseError) as raised:
                await s.vms.begin_reimage(GROUP, "vm-1", wrong)
            assert raised.value.status_code == 400


@swift
async def test_virtual_machines_of_scale_sets_are_not_there() -> None:
    async with scene() as s:
        with pytest.raises(ResourceNotFoundError) as raised:
            await s.client.virtual_machine_scale_sets.get(GROUP, "workers")
        assert "Code: ResourceNotFound" in str(raised.value)
        scale_set_vms = s.client.virtual_machine_scale_set_vms
        for call in (scale_set_vms.get, scale_set_vms.get_instance_view, scale_set_vms.begin_restart):
            with pytest.raises(ResourceNotFoundError) as raised:
                await call(GROUP, "workers", "0")
            assert "Code: ParentResourceNotFound" in str(raised.value)
            assert "Parent resource 'workers' not found." in str(raised.value)
        with pytest.raises(ResourceNotFoundError) as raised:
            await s.get("workers_0")
        assert "Code: ResourceNotFound" in str(raised.value)


@pytest.mark.parametrize(
    ("size", "is_one"),
    [
        ("Standard_D2s_v7", True),
        ("Standard_E64-16s_v5", True),
        ("Standard_ND96isr_H100_v5", True),
        ("Standard_NV36ads_A10_v5", True),
        ("Standard_DC4es_v6", True),
        ("Standard_HB176-48rs_v4", True),
        ("Basic_A1", True),
        ("Standard_Ds_v5", False),
        ("D2s_v5", False),
        ("Standard_D2s-v5", False),
    ],
)
@swift
async def test_sizes_are_taken_by_how_azure_names_them(size: str, is_one: bool) -> None:
    async with scene() as s:
        body = await s.body()
        body["properties"]["hardwareProfile"] = {"vmSize": size}
        resized = s.vms.begin_update(GROUP, "vm-1", {"properties": {"hardwareProfile": {"vmSize": size}}})
        if not is_one:
            with pytest.raises(HttpResponseError):
                await resized
            return
        await (await resized).result()
        assert (await s.get()).properties.hardware_profile.vm_size == size


def test_every_size_that_the_sdk_names_is_one() -> None:
    assert [each.value for each in models.VirtualMachineSizeTypes if size_of(each.value) is None] == []
