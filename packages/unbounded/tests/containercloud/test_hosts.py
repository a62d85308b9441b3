"""The life of BareMetalHosts: from registration to stock, through use and back, as stories in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.containercloud.stock import PASSWORD, Stock, exists, secret_data, story
from tests.support.virtual_time import virtual_now
from unbounded.api.container_cloud.host import BARE_METAL_HOST_CREDENTIALS, BARE_METAL_HOSTS
from unbounded.api.core import NAMESPACES, NODES, SECRETS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.containercloud.hosts.credentials import LAST_APPLIED
from unbounded.kube.api import Forbidden
from unbounded.kube.clock import rfc3339

CONSUMER = {"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine", "namespace": "example-ns", "name": "m1"}


async def used(stock: Stock) -> None:
    """Claim the host a, and install it."""
    await stock.secret()
    await stock.host("a")
    await stock.state("available")
    await stock.edit(consumerRef=CONSUMER)
    await stock.state("provisioning")
    await stock.installed("a.default")
    await stock.state("provisioned")


@story
async def test_a_host_is_registered_inspected_and_available(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a", labels={"unbounded-cloud.io/site": "rack1"}, bootMACAddress="02:00:00:00:00:01")
    host = await stock.state("available")
    machine = await stock.machine("a.default")
    assert machine.site == "rack1"
    redfish = machine.spec.pxe.redfish if machine.spec.pxe else None
    assert redfish is not None
    assert (redfish.url, redfish.device_id, redfish.username) == ("https://192.0.2.1", "a", "admin")
    copy = await stock.api.get(SECRETS, redfish.password_ref.name, namespace=redfish.password_ref.namespace)
    assert copy.value(redfish.password_ref.key) == PASSWORD.encode()
    status = host.status
    assert (status.operational_status, status.error_type, status.powered_on) == ("OK", None, False)
    assert status.provisioning.id == "a.default"
    assert status.good_credentials
    assert status.good_credentials.credentials
    assert status.good_credentials.credentials.name == "bmc"
    hardware = status.hardware
    assert hardware
    assert hardware.cpu
    assert (hardware.cpu.count, hardware.ram_mebibytes) == (11, 16384)
    assert [(one.name, one.mac, one.speed_gbps) for one in hardware.nics] == [("eno1", "02:00:00:00:00:01", 10)]
    assert [(one.name, one.type, one.by_id) for one in hardware.storage] == [
        ("sda", "SSD", "/dev/disk/by-id/wwn-0x5000")
    ]
    assert not await stock.operations()  # nothing was switched


@story
async def test_an_idle_stock_costs_no_write(stock: Stock) -> None:
    await stock.secret()
    for number in range(5):
        await stock.host(f"h{number}")
        await stock.state("available", f"h{number}")
    await stock.settle()
    before = stock.api.writes
    await asyncio.sleep(3600)
    assert stock.api.writes == before


@story
async def test_the_site_comes_from_host_then_namespace_then_setting(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a")
    await stock.state("available")
    assert (await stock.machine("a.default")).site == "lab"
    await stock.api.patch(NAMESPACES, "default", {"metadata": {"labels": {"unbounded-cloud.io/site": "hall2"}}})
    await stock.settle()
    assert (await stock.machine("a.default")).site == "hall2"


@pytest.mark.parametrize(
    ("spec", "reason", "text"),
    [
        ({"bmc": {"address": "ipmi://192.0.2.1", "credentialsName": "bmc"}}, "AddressInvalid", "ipmi:// is not served"),
        ({"bmc": {"address": "192.0.2.1:623", "credentialsName": "bmc"}}, "AddressInvalid", "ipmi:// is not served"),
        ({"bmc": {"address": "redfish://192.0.2.1", "credentialsName": "bmc"}}, "AddressInvalid", "names no system"),
        (
            {"bmc": {"address": "redfish://192.0.2.1/redfish/v1/Systems/1"}},
            "CredentialsMissing",
            "bmc.credentialsName is absent",
        ),
        (
            {"bmc": {"address": "redfish://192.0.2.1/redfish/v1/Systems/1", "credentialsName": "no"}},
            "CredentialsMissing",
            "Secret default/no does not exist",
        ),
        (
            {"bmc": {"address": "redfish://192.0.2.1/redfish/v1/Systems/1", "credentialsName": "half"}},
            "CredentialsMissing",
            "Secret default/half has no key password",
        ),
        ({"bootMode": "legacy"}, "BootModeNotServed", "legacy is not served"),
        (
            {"annotations": {"unbounded-cloud.io/machine": "rack1-01"}, "bmc": None},
            "MachineMissing",
            "no Machine rack1",
        ),
    ],
)
def test_a_wrong_host_says_what_would_be_right(spec: dict[str, Any], reason: str, text: str) -> None:
    @story
    async def tells(stock: Stock) -> None:
        await stock.secret()
        await stock.secret("half", username=secret_data()["username"])
        await stock.host("a", **spec)
        assert text in await stock.reason(reason)
        host = await stock.read("a")
        assert (host.status.operational_status, host.status.error_type) == ("error", "registration error")
        assert text in (host.status.error_message or "")
        assert not (await stock.api.list(MACHINES)).items

    tells()


@story
async def test_all_faults_of_a_host_are_named_at_once(stock: Stock) -> None:
    await stock.secret()
    await stock.host("other", bootMACAddress="02:00:00:00:00:0a")
    wrong: dict[str, Any] = {"bmc": {"address": "ipmi://192.0.2.1", "credentialsName": "no"}, "bootMode": "legacy"}
    await stock.host("a", bootMACAddress="02:00:00:00:00:0a", **wrong)
    message = await stock.reason("AddressInvalid")
    for words in ("ipmi:// is not served", "legacy is not served", "default/other has the same bootMACAddress",
                  "Secret default/no does not exist"):  # fmt: skip
        assert words in message
    assert (await stock.read("a")).status.error_message == message
    await stock.edit(
        bmc={"address": "redfish://192.0.2.1/redfish/v1/Systems/7", "credentialsName": "bmc"}, bootMode="UEFI"
    )
    assert (
        await stock.reason("DuplicateHost")
        == "BareMetalHost default/other has the same bootMACAddress, 02:00:00:00:00:0a"
    )


@story
async def test_a_corrected_host_goes_on_by_itself(stock: Stock) -> None:
    await stock.host("a", bmc={"address": "ipmi://192.0.2.1", "credentialsName": "bmc"})
    await stock.reason("AddressInvalid")
    await stock.edit(bmc={"address": "redfish+http://192.0.2.1:8000/redfish/v1/Systems/1"})
    await stock.reason("CredentialsMissing")
    await stock.secret()
    host = await stock.state("available")
    assert (host.status.error_type, host.status.error_message) == (None, None)
    machine = await stock.machine("a.default")
    assert machine.spec.pxe
    assert machine.spec.pxe.redfish
    assert machine.spec.pxe.redfish.url == "http://192.0.2.1:8000"


@story
async def test_two_hosts_with_one_bmc_name_each_other(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a", bmc={"address": "redfish://192.0.2.1/redfish/v1/Systems/1", "credentialsName": "bmc"})
    await stock.state("available")
    other = {"address": "idrac-redfish+https://192.0.2.1:443/redfish/v1/Systems/1", "credentialsName": "bmc"}
    await stock.host("b", "other-ns", bmc=other)
    assert "BareMetalHost other-ns/b names the same BMC" in await stock.reason("DuplicateHost")
    assert "BareMetalHost default/a names the same BMC" in await stock.reason("DuplicateHost", "b", "other-ns")
    assert not await exists(stock.machine("b.other-ns"))
    await stock.api.delete(BARE_METAL_HOSTS, "b", namespace="other-ns")
    await stock.reason("Available")


@story
async def test_two_hosts_with_one_mac_name_each_other(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a", bootMACAddress="02:00:00:00:00:0a")
    await stock.host("b", bootMACAddress="02:00:00:00:00:0A")
    for one, other in (("a", "b"), ("b", "a")):
        assert f"default/{other} has the same bootMACAddress" in await stock.reason("DuplicateHost", one)
    await stock.api.delete(BARE_METAL_HOSTS, "b", namespace="default")
    await stock.reason("Available", "a")


@story
async def test_a_plain_machine_with_the_bmc_is_a_rival(stock: Stock) -> None:
    await stock.secret()
    reference = {"name": "pw", "namespace": "unbounded-kube"}
    redfish = {"url": "https://192.0.2.1:443", "deviceID": "a", "username": "u", "passwordRef": reference}
    await stock.api.create(MACHINES, {"metadata": {"name": "rack1-01"}, "spec": {"pxe": {"redfish": redfish}}})
    await stock.host("a")
    assert "Machine rack1-01 names the same BMC" in await stock.reason("DuplicateHost")
    await stock.api.delete(MACHINES, "rack1-01")
    await stock.reason("Available")


@story
async def test_a_changed_secret_reaches_metalman(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a")
    await stock.state("available")
    await stock.api.patch(SECRETS, "bmc", {"data": secret_data("another")}, namespace="default")
    await stock.settle()
    copy = await stock.api.get(SECRETS, "bmc-a.default", namespace="unbounded-kube")
    assert copy.value("password") == b"another"


@story
async def test_a_corrected_user_is_offered_to_the_bmc_with_the_same_password(stock: Stock) -> None:
    await stock.secret(**secret_data(user="amdin"))
    await stock.host("a")
    await stock.state("available")
    before = await stock.api.get(SECRETS, "bmc-a.default", namespace="unbounded-kube")
    refused = {"status": {"redfish": {"refusedSecretVersion": before.metadata.resource_version}}}
    await stock.api.patch(MACHINES, "a.default", refused, subresource="status")
    assert "rejected user amdin" in await stock.reason("CredentialsRefused")
    await stock.api.patch(SECRETS, "bmc", {"data": secret_data(user="admin")}, namespace="default")
    await stock.reason("Available")
    after = await stock.api.get(SECRETS, "bmc-a.default", namespace="unbounded-kube")
    assert after.metadata.resource_version != before.metadata.resource_version
    assert after.value("password") == before.value("password")
    machine = await stock.machine("a.default")
    assert machine.spec.pxe is not None
    assert machine.spec.pxe.redfish is not None
    assert machine.spec.pxe.redfish.username == "admin"


@story
async def test_a_rotated_password_is_not_overwritten(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a")
    await stock.state("available")
    rotated = {"data": {"password": secret_data("rotated")["password"]}}
    await stock.api.patch(SECRETS, "bmc-a.default", rotated, namespace="unbounded-kube")
    await stock.annotate(note="an event")
    await stock.settle()
    copy = await stock.api.get(SECRETS, "bmc-a.default", namespace="unbounded-kube")
    assert copy.value("password") == b"rotated"


@story
async def test_a_credential_moves_into_a_secret_and_is_erased(stock: Stock) -> None:
    applied = '{"spec":{"username":"admin","password":{"value":"s3cret"}}}'
    body = {
        "metadata": {"name": "cred", "annotations": {LAST_APPLIED: applied, "note": "kept"}},
        "spec": {"username": "admin", "password": {"value": "s3cret"}},
    }
    await stock.api.create(BARE_METAL_HOST_CREDENTIALS, body, namespace="default")
    named = {"kaas.mirantis.com/baremetalhost-credentials-name": "cred"}
    await stock.host("a", annotations=named, bmc={"address": "redfish://192.0.2.1/redfish/v1/Systems/1"})
    host = await stock.state("available")
    assert host.spec.bmc
    assert host.spec.bmc.credentials_name == "cred"
    raw = await stock.credential()
    assert "s3cret" not in str(raw)
    assert raw["metadata"]["annotations"] == {"note": "kept"}
    assert raw["spec"]["password"] == {"name": "cred"}
    assert (await stock.api.get(SECRETS, "cred", namespace="default")).value("password") == b"s3cret"
    patch = {"spec": {"password": {"value": "n3w"}}}
    await stock.api.patch(BARE_METAL_HOST_CREDENTIALS, "cred", patch, namespace="default")
    await stock.settle()
    copy = await stock.api.get(SECRETS, "bmc-a.default", namespace="unbounded-kube")
    assert copy.value("password") == b"n3w"
    assert "n3w" not in str(await stock.credential())


@story
async def test_a_credential_takes_no_secret_of_others(stock: Stock) -> None:
    await stock.secret("cred")
    body = {"metadata": {"name": "cred"}, "spec": {"username": "admin", "password": {"value": "s3cret"}}}
    await stock.api.create(BARE_METAL_HOST_CREDENTIALS, body, namespace="default")
    await stock.settle()
    credential = await stock.api.get(BARE_METAL_HOST_CREDENTIALS, "cred", namespace="default")
    assert [(one.type, one.status, one.reason) for one in credential.status.conditions] == [
        ("Stored", "False", "NameTaken")
    ]
    assert (await stock.api.get(SECRETS, "cred", namespace="default")).value("password") == PASSWORD.encode()


@story
async def test_online_is_carried_out_once_per_change(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a")
    await stock.state("available")
    await stock.edit(online=False)
    await stock.settle()
    assert not stock.operated  # it is off
    await stock.edit(online=True)
    await stock.until(lambda host: host.status.powered_on is True)
    assert stock.operated == ["HostPowerOn"]
    stock.power["a.default"] = "Off"  # as an operation of a person does
    await stock.until(lambda host: host.status.powered_on is False)
    await stock.settle()
    assert stock.operated == ["HostPowerOn"]


@story
async def test_power_that_an_operation_switches_is_written_with_what_follows(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a", online=False)
    await stock.state("available")
    await stock.edit(consumerRef=CONSUMER)
    await stock.state("provisioning")
    since = rfc3339(virtual_now())
    active = {"uid": "b1", "name": "r", "kind": "HostReplace", "executor": "metalman/lab", "since": since}
    await stock.api.patch(MACHINES, "a.default", {"status": {"activeOperation": active}}, subresource="status")
    await stock.settle()
    before = (await stock.read("a")).metadata.resource_version
    stock.power["a.default"] = "On"
    await stock.settle()
    assert (await stock.read("a")).metadata.resource_version == before
    await stock.api.patch(MACHINES, "a.default", {"status": {"activeOperation": None}}, subresource="status")
    await stock.settle()
    assert (await stock.read("a")).status.powered_on is True  # the operation has ended without an image


@story
async def test_a_host_is_on_whose_image_was_written_after_the_last_reading(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a", online=False)
    await stock.state("available")
    await stock.edit(consumerRef=CONSUMER)
    await stock.state("provisioning")
    written = rfc3339(virtual_now())
    image = {"image": "registry.example/jammy:1", "digest": f"sha256:{'0' * 64}", "boot": "b1", "at": written}
    off = {"type": "PoweredOff", "status": "True", "reason": "PoweringOn", "message": "", "lastTransitionTime": written}
    active = {"uid": "b1", "name": "r", "kind": "HostReplace", "executor": "metalman/lab", "since": written}

    async def observe(**status: Any) -> None:
        await stock.api.patch(MACHINES, "a.default", {"status": status}, subresource="status")
        await stock.settle()

    stock.unread.add("a.default")
    await observe(image=image, activeOperation=active, conditions=[off])
    assert (await stock.state("provisioned")).status.powered_on is True
    await observe(activeOperation=None, conditions=[])  # the operation has ended, and its reading is not written yet
    assert (await stock.state("provisioned")).status.powered_on is True
    stock.failing.add("a.default")
    await stock.edit(consumerRef=None)  # no reading after the image says that the host is off
    host = await stock.until(lambda one: any(condition.type == "Dirty" for condition in one.status.conditions))
    assert (host.state, host.status.powered_on) == ("deprovisioning", True)
    await observe(conditions=[off | {"reason": "PoweredOff"}])  # a reading says Off
    assert (await stock.state("available")).status.powered_on is False


@story
async def test_a_network_that_a_frozen_process_wrote_after_the_release_is_removed(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a", online=False)
    await stock.state("available")
    reference = {"name": "container-cloud-network-0", "namespace": "unbounded-kube", "key": "network-config"}
    lease = {"mac": "02:00:00:00:00:01", "ipv4": "10.0.0.10", "subnetMask": "255.255.255.0", "gateway": "10.0.0.1"}
    late = {"cloudInit": {"networkConfigConfigMapRef": reference}, "dhcpLeases": [lease]}
    await stock.api.patch(MACHINES, "a.default", {"spec": {"pxe": late}})
    await stock.settle()
    pxe = (await stock.machine("a.default")).spec.pxe
    assert pxe is not None
    assert (pxe.cloud_init, pxe.dhcp_leases) == (None, ())
    assert (await stock.read("a")).state == "available"
    await stock.api.patch(MACHINES, "a.default", {"spec": {"pxe": {"dhcpLeases": [lease]}}})
    await stock.settle()
    assert (await stock.machine("a.default")).spec.pxe != pxe, "what a person has written stays"


@story
async def test_failing_power_is_tried_again_with_backoff(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a")
    await stock.state("available")
    stock.failing.add("a.default")
    await stock.edit(online=False)
    await stock.until(lambda one: one.status.power is not None and not one.status.power.online)
    await stock.edit(online=True)
    host = await stock.until(lambda one: one.status.error_count == 3)
    assert host.status.error_type == "power management error"
    assert "HostPowerOn" in (host.status.error_message or "")
    names = sorted(one.name for one in await stock.operations())
    assert [name.rpartition("-")[2] for name in names] == ["1", "2", "3"]
    stock.failing.clear()
    await stock.until(lambda one: one.status.powered_on is True and one.status.error_type is None)


@story
async def test_a_silent_bmc_is_an_error_and_no_stock(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a")
    await stock.state("available")
    stock.silent.add("a.default")
    assert "has reported no power" in await stock.reason("BMCSilent")
    stock.silent.clear()
    await stock.reason("Available")


@story
async def test_a_host_is_not_in_stock_before_its_drain_has_ended(stock: Stock) -> None:
    """The drain would wait for a Node that only the next Machine can create, whose install would wait for the drain."""
    await stock.secret()
    await stock.host("a")
    await stock.state("available")
    await stock.edit(consumerRef=CONSUMER)
    await stock.state("provisioning")
    holder = {"kind": "Maintenance", "name": "a.default", "uid": "u"}
    record = {"holder": holder, "stage": "Returning", "since": "2030-01-01T00:00:00Z"}
    await stock.api.patch(MACHINES, "a.default", {"status": {"disruption": record}}, subresource="status")
    await stock.edit(consumerRef=None)
    await stock.state("deprovisioning")
    await stock.settle()
    assert (await stock.read("a")).state == "deprovisioning"
    await stock.api.patch(MACHINES, "a.default", {"status": {"disruption": None}}, subresource="status")
    await stock.state("available")


@story
async def test_a_used_host_returns_to_stock_once_seen_off(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a")
    await stock.state("available")
    await stock.edit(consumerRef=CONSUMER)
    await stock.state("provisioning")
    claim = {"metadata": {"labels": {"unbounded-cloud.io/cluster": "c1.example-ns"}}}
    spec = {"kubernetes": {"version": "v1.34.0"}, "pxe": {"image": "registry.example/jammy:1"}}
    await stock.api.patch(MACHINES, "a.default", claim | {"spec": spec})
    await stock.installed("a.default")
    host = await stock.state("provisioned")
    uid = (await stock.machine("a.default")).metadata.uid
    assert host.status.provisioning.image
    assert host.status.provisioning.image.url == "registry.example/jammy:1"
    stock.failing.add("a.default")
    await stock.edit(consumerRef=None)
    host = await stock.until(lambda one: any(condition.type == "Dirty" for condition in one.status.conditions))
    assert host.state == "deprovisioning"
    await stock.settle()
    assert (await stock.read("a")).state == "deprovisioning"
    stock.failing.clear()
    host = await stock.state("available")
    assert host.status.powered_on is False
    machine = await stock.machine("a.default")
    assert machine.metadata.uid == uid
    assert machine.spec.kubernetes is None
    assert machine.spec.pxe
    assert machine.spec.pxe.image is None
    assert machine.spec.pxe.redfish is not None
    assert "unbounded-cloud.io/cluster" not in machine.metadata.labels


@story
async def test_events_of_a_host_are_of_its_stock_and_not_of_installs(stock: Stock) -> None:
    await used(stock)
    await stock.edit(consumerRef=None)
    await stock.state("deprovisioning")
    await stock.state("available")
    await stock.settle()
    told = {one.message for one in await stock.events() if one.reason == "StateChanged"}
    assert told == {f"the host is {one}" for one in ("registering", "inspecting", "available", "deprovisioning")}


@story
async def test_a_node_that_a_released_host_registers_again_is_deleted(stock: Stock) -> None:
    await used(stock)
    stock.failing.add("a.default")
    await stock.edit(consumerRef=None)
    await stock.state("deprovisioning")
    await stock.api.create(NODES, {"metadata": {"name": "a.default"}})
    await stock.api.create(NODES, {"metadata": {"name": "other"}})
    await stock.settle()
    assert {one.name for one in (await stock.api.list(NODES)).items} == {"a.default", "other"}
    stock.failing.clear()
    await stock.state("available")
    assert [one.name for one in (await stock.api.list(NODES)).items] == ["other"]


@story
async def test_an_operation_of_the_last_claim_that_may_start_is_cancelled_first(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a forced deletion leaves one that it may not cancel, and a rollout the install that waited for its turn."""
    await used(stock)
    operate, patch, refused = stock._operate, stock.api.patch, list[str]()
    is_refusing = True

    async def starts(operation: MachineOperation) -> None:
        if operation.name not in ("late", "update") or operation.spec.cancel:
            await operate(operation)

    async def refuses(kind: Kind[Any], name: str, body: dict[str, Any], **more: Any) -> Any:
        if is_refusing and "cancel" in body.get("spec", {}):
            refused.append(name)
            raise Forbidden("not now", code=403)
        return await patch(kind, name, body, **more)

    monkeypatch.setattr(stock, "_operate", starts)
    monkeypatch.setattr(stock.api, "patch", refuses)
    of_claim = {"unbounded-cloud.io/for-uid": "u"}
    for name, kind, marks in (
        ("late", "HostReboot", of_claim),
        ("update", "HostReplace", {}),
        ("user", "HostReboot", {}),
    ):
        spec = {"machineRef": "a.default", "operationKind": kind}
        await stock.api.create(MACHINE_OPERATIONS, {"metadata": {"name": name, "annotations": marks}, "spec": spec})
    await stock.settle()
    assert refused == []  # the host is in use
    await stock.edit(consumerRef=None)
    await stock.settle()
    assert ((await stock.read("a")).state, stock.power["a.default"]) == ("deprovisioning", "Off")
    assert {"late"} <= set(refused) <= {"late", "update"}
    is_refusing = False
    await stock.state("available")
    cancelled = {one.name for one in (await stock.api.list(MACHINE_OPERATIONS)).items if one.spec.cancel}
    assert cancelled == {"late", "update"}


@story
async def test_a_paused_host_stays_dirty(stock: Stock) -> None:
    """Its addresses stay, as it may still run."""
    await used(stock)
    stock.failing.add("a.default")
    await stock.edit(consumerRef=None)
    await stock.until(lambda one: any(condition.type == "Dirty" for condition in one.status.conditions))
    paused: dict[str, Any] = {"baremetalhost.metal3.io/paused": ""}
    await stock.annotate(**paused)
    await stock.reason("Paused")
    host = await stock.read("a")
    assert [one.reason for one in host.status.conditions if one.type == "Dirty"] == ["NotSeenOff"]


@story
async def test_an_old_image_is_no_installation_of_the_next_claim(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a")
    await stock.state("available")
    await stock.installed("a.default", boot="b1")
    await stock.until(lambda host: host.status.provisioning.boot == "b1")
    await stock.edit(consumerRef=CONSUMER)
    await stock.state("provisioning")
    await stock.settle()
    assert (await stock.read("a")).state == "provisioning"
    await stock.installed("a.default", boot="b2")
    await stock.state("provisioned")


@story
async def test_direct_edits_of_the_machine_are_put_back(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a")
    await stock.state("available")
    await stock.settle()
    patch = {"spec": {"pxe": {"redfish": {"url": "https://198.51.100.9"}}}}
    await stock.api.patch(MACHINES, "a.default", patch)
    await stock.settle()
    machine = await stock.machine("a.default")
    assert machine.spec.pxe
    assert machine.spec.pxe.redfish
    assert machine.spec.pxe.redfish.url == "https://192.0.2.1"
    texts = [one.message for one in await stock.events() if one.reason == "PutBack"]
    assert texts == ["spec.pxe.redfish.url put back: BareMetalHost default/a has them"]


@story
async def test_a_deleted_host_takes_its_machine_and_password_along(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a")
    await stock.state("available")
    await stock.api.delete(BARE_METAL_HOSTS, "a", namespace="default")
    await stock.settle()
    assert not await exists(stock.read("a"))
    assert not await exists(stock.machine("a.default"))
    assert not await exists(stock.api.get(SECRETS, "bmc-a.default", namespace="unbounded-kube"))
    assert await exists(stock.api.get(SECRETS, "bmc", namespace="default"))


@story
async def test_a_used_host_is_deleted_only_after_its_release(stock: Stock) -> None:
    await used(stock)
    await stock.api.delete(BARE_METAL_HOSTS, "a", namespace="default")
    assert "waits for Machine example-ns/m1" in await stock.reason("Deleting")
    await stock.settle()
    assert await exists(stock.machine("a.default"))
    stock.failing.add("a.default")  # more than three failures do not hold it up
    await stock.edit(consumerRef=None)
    await asyncio.sleep(3600)
    assert not await exists(stock.read("a"))


@story
async def test_an_adopted_machine_keeps_its_access_and_outlasts_the_host(stock: Stock) -> None:
    reference = {"name": "pw", "namespace": "unbounded-kube"}
    redfish = {"url": "https://192.0.2.9", "username": "u", "passwordRef": reference}
    pxe = {"redfish": redfish, "image": "registry.example/own:1"}
    await stock.api.create(MACHINES, {"metadata": {"name": "rack1-01"}, "spec": {"pxe": pxe}})
    before = await stock.machine("rack1-01")
    await stock.host("a", bmc=None, annotations={"unbounded-cloud.io/machine": "rack1-01"})
    host = await stock.state("available")
    assert host.status.provisioning.id == "rack1-01"
    machine = await stock.machine("rack1-01")
    assert machine.spec == before.spec
    await stock.api.delete(BARE_METAL_HOSTS, "a", namespace="default")
    await stock.settle()
    machine = await stock.machine("rack1-01")
    assert "unbounded-cloud.io/bare-metal-host" not in machine.metadata.annotations


@story
async def test_a_machine_over_ssh_is_adopted_as_it_is_only(stock: Stock) -> None:
    ssh = {"host": "192.0.2.7", "privateKeyRef": {"name": "k", "namespace": "unbounded-kube"}}
    await stock.api.create(MACHINES, {"metadata": {"name": "rack1-01"}, "spec": {"ssh": ssh}})
    await stock.host("a", bmc=None, annotations={"unbounded-cloud.io/machine": "rack1-01"})
    assert "set externallyProvisioned" in await stock.reason("MachineUnsuitable")
    await stock.edit(externallyProvisioned=True)
    await stock.state("externally provisioned")


@story
async def test_two_hosts_cannot_adopt_one_machine(stock: Stock) -> None:
    reference = {"name": "pw", "namespace": "unbounded-kube"}
    redfish = {"url": "https://192.0.2.9", "username": "u", "passwordRef": reference}
    await stock.api.create(MACHINES, {"metadata": {"name": "rack1-01"}, "spec": {"pxe": {"redfish": redfish}}})
    for name in ("a", "b"):
        await stock.host(name, bmc=None, annotations={"unbounded-cloud.io/machine": "rack1-01"})
    await stock.settle()
    assert "default/b adopts the same Machine" in await stock.reason("DuplicateHost")
    assert "default/a adopts the same Machine" in await stock.reason("DuplicateHost", "b")


@story
async def test_a_paused_host_is_left_alone(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a", annotations={"baremetalhost.metal3.io/paused": ""})
    await stock.reason("Paused")
    await stock.settle()
    assert not (await stock.api.list(MACHINES)).items
    unpaused: dict[str, Any] = {"baremetalhost.metal3.io/paused": None}
    await stock.annotate(**unpaused)
    await stock.state("available")


@story
async def test_a_consumer_that_is_gone_is_named(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a")
    await stock.state("available")
    await stock.edit(consumerRef=CONSUMER)
    assert "Machine example-ns/m1 does not exist" in await stock.reason("ConsumerMissing")


@story
async def test_a_foreign_consumer_keeps_its_host(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a")
    await stock.state("available")
    foreign = CONSUMER | {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "Metal3Machine"}
    await stock.edit(consumerRef=foreign)
    assert "used by Metal3Machine example-ns/m1" in await stock.reason("InUse")
    await stock.settle()
    assert (await stock.read("a")).state == "available"


@story
async def test_a_host_whose_machine_was_deleted_gets_another(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a")
    await stock.state("available")
    uid = (await stock.machine("a.default")).metadata.uid
    await stock.api.delete(MACHINES, "a.default")
    await stock.settle()
    assert (await stock.machine("a.default")).metadata.uid != uid
    await stock.reason("Available")


@story
async def test_a_host_boots_from_virtual_media_while_it_has_an_address(stock: Stock) -> None:
    async def mode() -> str:
        machine = await stock.machine("a.default")
        return machine.spec.pxe.boot_mode if machine.spec.pxe else ""

    await stock.secret()
    address = "redfish-virtualmedia://192.0.2.1/redfish/v1/Systems/a"
    await stock.host("a", bmc={"address": address, "credentialsName": "bmc"})
    await stock.state("available")
    assert await mode() == "Network"
    await stock.edit(consumerRef=CONSUMER)
    await stock.state("provisioning")
    lease = {"ipv4": "192.0.2.9", "mac": "02:00:00:00:00:01", "subnetMask": "255.255.255.0", "gateway": "192.0.2.1"}
    await stock.api.patch(MACHINES, "a.default", {"spec": {"pxe": {"dhcpLeases": [lease]}}})
    await stock.settle()
    assert await mode() == "VirtualMedia"
    await stock.installed("a.default")
    await stock.edit(consumerRef=None)
    await stock.state("available")
    assert await mode() == "Network"
