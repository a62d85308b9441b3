"""Ids, states and errors of Azure: values in, values out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pytest

from unbounded.api.failures import Failure
from unbounded.machineops import installed_providers, reasons
from unbounded.machineops.provider import (
    AuthMode,
    Job,
    Login,
    NotDone,
    OperationKind,
    Power,
    Progress,
    Refusal,
    SecretStr,
    State,
    Throttled,
    Transient,
    Uncertain,
)
from unbounded.machineops.providers.azure import AzureVM, errors, images, model, replacement_plan, vm_properties
from unbounded.machineops.providers.azure.errors import ArmRequest, AzureErrorResponse, Closed, Throttles, used_up
from unbounded.machineops.providers.azure.images import VmImage
from unbounded.machineops.providers.azure.model import VmReplacementState
from unbounded.machineops.providers.azure.replacement_plan import AzureAction, AzureObservation
from unbounded_lab.cloud.azure.errors import ERRORS, AzureProblem

ARM = "/subscriptions/0-1/resourceGroups/RG_a.(b)/providers/Microsoft.Compute/virtualMachines/vm-1"


@pytest.mark.parametrize("text", [f"azure://{ARM}", f"azure:{ARM}", ARM, f"AZURE://{ARM.upper()}"])
def test_an_id_is_one_however_it_is_written(text: str) -> None:
    found = vm_properties.instance(text)
    assert (found.id, found.scope, found.name.lower()) == (ARM.lower(), "0-1", "vm-1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "azure://",
        "azure:/" + ARM,
        ARM + "/",
        ARM + "/extensions/x",
        ARM + "?a=b",
        ARM.replace("virtualMachines", "disks"),
        ARM.replace("vm-1", ""),
        ARM.replace("vm-1", "a b"),
        ARM.replace("0-1", "../x"),
        "oci://ocid1.instance",
    ],
)
def test_what_is_no_id_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match="expected azure:///subscriptions/"):
        vm_properties.instance(text)


def _statuses(provisioning: str, power: str = "") -> list[dict[str, Any]]:
    return [{"code": f"ProvisioningState/{provisioning}"}, *([{"code": f"PowerState/{power}"}] if power else [])]


@pytest.mark.parametrize(
    ("provisioning", "power", "seen"),
    [
        ("succeeded", "running", Power.RUNNING),
        ("updating", "running", Power.CHANGING),
        ("failed/AllocationFailed", "deallocated", Power.RELEASED),
        ("failed/VMExtensionProvisioningError", "running", Power.RUNNING),
        ("failed/AllocationFailed", "", Power.RELEASED),
        ("succeeded", "stopped", Power.STOPPED),
        ("succeeded", "stopping", Power.CHANGING),
        ("creating", "", Power.CHANGING),
        ("deleting", "running", Power.CHANGING),
    ],
)
def test_power_is_read_from_the_statuses(provisioning: str, power: str, seen: Power) -> None:
    assert vm_properties.power(_statuses(provisioning, power)) is seen


MEANS: dict[str, type[Failure]] = {
    "InvalidAuthenticationToken": Refusal,
    "AuthorizationFailed": Refusal,
    "ResourceNotFound": Refusal,
    "Conflict": Transient,
    "MarkedForDeletion": Transient,
    "AttachDiskWhileBeingDetached": Transient,
    "NicReservedForAnotherVm": Transient,
    "PreconditionFailed": Transient,
    "ReadOnlyDisabledSubscription": Closed,
    "MissingSubscriptionRegistration": Closed,
    "NoRegisteredProviderFound": Refusal,
    "QuotaExceeded": NotDone,
    "OverconstrainedZonalAllocationRequest": NotDone,
    "BadGatewayConnection": Uncertain,
    "GatewayTimeout": Uncertain,
    "SkuNotAvailable": NotDone,
    "ZonalAllocationFailed": NotDone,
    "TooManyRequests": Throttled,
    "ComputeThrottled": Throttled,
    "InternalServerError": Uncertain,
    "ServiceUnavailable": Uncertain,
    "InvalidParameter": Refusal,
    "MarketplacePurchaseEligibilityFailed": Refusal,
}


@pytest.mark.parametrize("name", ERRORS)
def test_each_error_is_told_apart(name: str) -> None:
    problem = AzureProblem(name)
    answer = AzureErrorResponse(problem.status, problem.code, problem.message, 7.0)
    found = errors.failure(answer, "start VM vm-1", "azure-auth", changes=True)
    assert type(found) is MEANS.get(name, type(found))
    assert "start VM vm-1" in str(found)
    assert problem.code in str(found)
    read = errors.failure(answer, "look at VM vm-1", "azure-auth", changes=False)
    assert not isinstance(read, Uncertain)
    if problem.status in (401, 403):
        assert isinstance(found, Refusal)
        by_policy = name == "RequestDisallowedByPolicy"  # it is the request that is refused, not who sends it
        assert found.reason == (reasons.PROVIDER_REFUSED if by_policy else reasons.AUTH_REFUSED)
        assert by_policy or "MachineOperationCredential azure-auth" in str(found)
    if isinstance(found, Refusal) and found.reason == reasons.PROVIDER_REFUSED:
        assert found.cause is not None
        assert found.cause.code == problem.code
    if isinstance(found, Throttled):
        assert found.after_s == 7.0


COMPUTE = "x-ms-ratelimit-remaining-resource"
WRITES = "Number of 'write' requests for subscription '0-1' actor 'me' exceeded."
REFUSED: dict[str, tuple[dict[str, str], list[dict[str, str]], str, set[str]]] = {
    "a VM": (
        {COMPUTE: "Microsoft.Compute/UpdateVMSubscriptionMaximum;1499,Microsoft.Compute/UpdateVMResource;0"},
        [],
        "",
        {"vm-1 restart"},
    ),
    "what is asked of VMs": (
        {COMPUTE: "Microsoft.Compute/UpdateVMResource;0, Microsoft.Compute/UpdateVMSubscriptionMaximum;0"},
        [],
        "",
        {"vm-1 restart", "vm-2 restart"},
    ),
    "a policy that the error names": (
        {},
        [{"code": "TooManyRequests", "target": "UpdateVM30Min"}],
        "",
        {"vm-1 restart", "vm-2 restart"},
    ),
    "writes": (
        {COMPUTE: "Microsoft.Compute/UpdateVMResource;10"},
        [],
        WRITES,
        {"vm-1 restart", "vm-2 restart", "vm-1 start"},
    ),
    "the subscription": ({COMPUTE: "Microsoft.Compute/UpdateVMResource;10"}, [], "", set()),
}


@pytest.mark.parametrize("about", REFUSED)
def test_a_limit_holds_back_what_azure_names_and_nothing_else(about: str) -> None:
    headers, details, message, held = REFUSED[about]
    first, second = (
        ArmRequest("restart VM", f"vm-{n}", vm_properties.instance(f"{ARM[:-1]}{n}"), changes=True) for n in (1, 2)
    )
    others = [
        ArmRequest("start VM", "vm-1", first.instance, changes=True),
        ArmRequest("look at VM", "vm-1", first.instance),
        ArmRequest("delete VM", "vm-1", first.instance, changes=True),
    ]
    throttles = Throttles()
    scope = throttles.refused(first, used_up(headers, details), message, until=10.0)
    found = {one: throttles.scopes(one, now=9.0) for one in (first, second, *others)}
    assert {f"{one.name} {one.verb.split()[0]}" for one, scopes in found.items() if scopes} == held
    assert all(scopes == [scope] for scopes in found.values() if scopes)
    assert not any(throttles.scopes(one, now=10.0) for one in found)
    assert scope is not None or not held


GOLD = "/galleries/g/images/gold"
VERSIONS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "there": ("/versions/1.0.0", {"provisioningState": "Succeeded"}, True),
    "being deleted": ("/versions/1.0.0", {"provisioningState": "Deleting"}, False),
    "in the location": ("", {"publishingProfile": {"targetRegions": [{"name": "West Europe"}]}}, True),
    "elsewhere": ("", {"publishingProfile": {"targetRegions": [{"name": "North Europe"}]}}, False),
    "not the latest": ("", {"publishingProfile": {"excludeFromLatest": True}}, False),
    "not the latest there": ("/versions/latest", {"publishingProfile": {"targetRegions": [
        {"name": "westeurope", "excludeFromLatest": True}]}}, False),
    "named, and not the latest": ("/versions/1.0.0", {"publishingProfile": {"excludeFromLatest": True}}, True),
}  # fmt: skip


def _made_of(**reference: str) -> dict[str, Any]:
    return {"location": "westeurope", "properties": {"storageProfile": {"imageReference": reference}}}


@pytest.mark.parametrize("version", VERSIONS)
def test_image_version_is_available_only_if_a_vm_can_use_it(version: str) -> None:
    path, properties, does = VERSIONS[version]
    place = "/subscriptions/0-2/resourceGroups/gold/providers/Microsoft.Compute"
    image = images.image_of(_made_of(id=f"{place}{GOLD}{path}"))
    assert isinstance(image, VmImage)
    assert (image.place, image.subscription) == (("gold", "g", "gold"), "0-2")
    words = f"no version of image {place}{GOLD}{path} is available in westeurope"
    assert image.missing([{"properties": properties}]) == ("" if does else words)
    assert image.missing([]) == words


def test_an_image_in_a_form_that_is_not_known_is_named() -> None:
    assert images.image_of(_made_of(id="/clouds/1", exactVersion="1")) == "id /clouds/1"


def test_a_secret_that_cannot_be_meant_is_named_by_its_key() -> None:
    guid = "11182f6a-bd81-5275-91be-6ca939581e28"
    values = {"tenantID": guid, "clientID": guid, "clientSecret": "x~y"}
    for key in values:
        held = {name: SecretStr("gar\x00bage" if name == key else value) for name, value in values.items()}
        with pytest.raises(ValueError, match=f"^{key} of the Secret") as caught:
            AzureVM().connect(Login("azure-auth", AuthMode.EXTERNAL_PLUGIN, held), _NoBudget())
        assert "bage" not in str(caught.value)


class _NoBudget:
    async def read(self, scope: str) -> None:
        raise AssertionError(scope)

    async def write(self, scope: str, *, before: float) -> None:
        raise AssertionError(scope, before)

    def left(self, scope: str, *, reads: float | None = None, writes: float | None = None) -> None:
        raise AssertionError(scope, reads, writes)


def test_it_is_registered_and_sound() -> None:
    provider = installed_providers.load("AzureVM")
    assert installed_providers.faults(provider) == []


def test_os_disk_settings_of_a_deallocated_vm_are_kept_or_reported() -> None:
    data = {"lun": 3, "caching": "None", "storageFaultDomainAlignment": "Aligned", "deleteOption": "Detach"}
    storage = {
        "osDisk": {"name": "d", "managedDisk": {"id": ARM}, "encryptionSettings": {"enabled": True}},
        "imageReference": {"sku": "s"},
        "dataDisks": [{**data, "name": "e", "managedDisk": {"id": ARM}}],
    }
    network: dict[str, Any] = {"networkInterfaces": []}
    properties = {"vmId": "1", "osProfile": {}, "storageProfile": storage, "networkProfile": network}
    shown = {"encryption": {"diskEncryptionSetId": "key"}, "networkAccessPolicy": "DenyAll", "burstingEnabled": True}
    closed = {"publicNetworkAccess": "Disabled", "dataAccessAuthMode": "AzureActiveDirectory"}
    disk = {"sku": {"name": "Premium_LRS"}, "properties": {**shown, **closed, "diskSizeGB": 64}}
    vm = {"name": "vm-1", "placement": {"zonePlacementPolicy": "Any"}, "properties": properties}
    kept = model.build_state(vm, disk, "group", "uid")
    attached = {**data, "createOption": "Attach", "managedDisk": {"id": ARM}}
    assert kept.body["properties"]["storageProfile"]["dataDisks"] == [attached]
    made = kept.body["properties"]["storageProfile"]["osDisk"]
    assert made["managedDisk"] == {"storageAccountType": "Premium_LRS", "diskEncryptionSet": {"id": "key"}}
    assert made["diskSizeGB"] == 64
    assert kept.lost[-6:] == [
        "the policy that selected its zone; the new VM stays in that zone",
        "the encryption settings of its OS disk; the new disk has none",
        "burstingEnabled true of its OS disk",
        "dataAccessAuthMode AzureActiveDirectory of its OS disk",
        "networkAccessPolicy DenyAll of its OS disk",
        "publicNetworkAccess Disabled of its OS disk",
    ]


def test_a_machine_of_somebody_else_under_the_name_is_left_alone() -> None:
    nothing: dict[str, Any] = {"storageProfile": {"dataDisks": []}, "networkProfile": {"networkInterfaces": []}}
    disk = ARM.replace("virtualMachines/vm-1", "disks/old")
    kept = VmReplacementState("0" * 8, "vm-1", "RG_a.(b)", "vm-id-1", disk, {"properties": nothing}, {}, [])
    job = Job("op", "0" * 8, OperationKind.HOST_REPLACE, "m1", "1", vm_properties.instance(ARM))
    properties = {"vmId": "vm-id-2", "provisioningState": "Succeeded", "storageProfile": {"osDisk": {"name": "theirs"}}}
    with pytest.raises(Transient, match="neither the old one nor created by this operation"):
        replacement_plan.decide(AzureObservation({"id": ARM, "name": "vm-1", "properties": properties}, kept=kept), job)
    left = AzureObservation(
        {"id": ARM, "name": "vm-1", "properties": properties}, former=kept, place="Secret replacement-1"
    )
    with pytest.raises(
        Refusal, match=r"is not the one whose .* Secret replacement-1, .* OS disk, .* is old$"
    ) as refused:
        replacement_plan.decide(left, job)
    assert refused.value.reason == reasons.WOULD_BE_LOST


def _parts(option: str) -> dict[str, Any]:
    storage = {"dataDisks": [], "osDisk": {"name": "old", "managedDisk": {"id": "old"}, "deleteOption": option}}
    return {"storageProfile": storage, "networkProfile": {"networkInterfaces": []}}


CREATIONS: Final = {
    "it goes on": (
        Progress(State.RUNNING, "the asynchronous operation: InProgress", "w", 7.0),
        AzureAction.NOTHING,
        None,
    ),
    "no host": (
        Progress(State.FAILED, "the asynchronous operation: Failed, AllocationFailed: x", "w"),
        AzureAction.CREATE,
        "NoCapacity",
    ),
    "a quota": (
        Progress(State.FAILED, "the asynchronous operation: Failed, Other: over the Quota", "w"),
        AzureAction.CREATE,
        "QuotaExceeded",
    ),
    "another": (Progress(State.FAILED, "Conflict: x", "w"), AzureAction.CREATE, reasons.PROVIDER_OPERATION_FAILED),
    "it is done": (Progress(State.DONE, "the asynchronous operation: Succeeded", "w"), AzureAction.CREATE, None),
    "it is not known any more": (Progress(State.FORGOTTEN, "no status", "w"), AzureAction.CREATE, None),
    "it was never known": (None, AzureAction.CREATE, None),
}


@pytest.mark.parametrize("case", CREATIONS)
def test_without_a_vm_its_creation_call_decides_the_next_step(case: str) -> None:
    creation, do, reason = CREATIONS[case]
    disk = ARM.replace("virtualMachines/vm-1", "disks/old")
    kept = VmReplacementState("0" * 8, "vm-1", "RG_a.(b)", "vm-id-1", disk, {"properties": _parts("Detach")}, {}, [])
    job = Job("op", "0" * 8, OperationKind.HOST_REPLACE, "m1", "1", vm_properties.instance(ARM))
    found = replacement_plan.decide(AzureObservation(None, kept=kept, creation=creation), job)
    failed = None if found.next.failed is None else found.next.failed.reason
    assert (found.do, failed, found.next.under_way) == (do, reason, do is AzureAction.NOTHING)
    assert found.next.again_s == (7.0 if do is AzureAction.NOTHING else None)


STAYS: Final[Mapping[str, tuple[Mapping[str, Any], str | None, bool]]] = {
    "all of it is on the VM": ({}, "Succeeded", False),
    "an earlier one has left a disk": ({"former_disks": ["d"]}, "Succeeded", True),
    "an earlier one has left extensions to add": ({"lacking": ["Agent"]}, "Succeeded", True),
    "an earlier one has changed what is deleted with it": ({"body": {"properties": _parts("Detach")}}, "Failed", True),
    "the VM is being deleted": ({}, "Deleting", True),
    "the VM is gone": ({}, None, True),
}


@pytest.mark.parametrize("case", STAYS)
def test_what_is_kept_in_vain_stays_where_the_next_replacement_needs_it(case: str) -> None:
    changes, state, stays = STAYS[case]
    disk, parts = ARM.replace("virtualMachines/vm-1", "disks/old"), _parts("Delete")
    kept = msgspec.structs.replace(
        VmReplacementState("0" * 8, "vm-1", "RG_a.(b)", "vm-id-1", disk, {"properties": parts}, {}, []), **changes
    )
    properties = {**parts, "vmId": "vm-id-1", "provisioningState": state}
    vm = None if state is None else {"id": ARM, "name": "vm-1", "properties": properties}
    job = Job("op", "0" * 8, OperationKind.HOST_REPLACE, "m1", "1", vm_properties.instance(ARM))
    assert replacement_plan.decide(AzureObservation(vm, kept=kept), job).next.still_needed is stays


@pytest.mark.parametrize(
    ("option", "step", "do"),
    [
        ("Detach", replacement_plan.CREATING, AzureAction.NOTHING),
        ("Delete", replacement_plan.RESTORING, AzureAction.RESTORE),
    ],
)
def test_a_new_machine_that_failed_and_runs_is_not_done(option: str, step: str, do: AzureAction) -> None:
    disk = {"lun": 0, "managedDisk": {"id": ARM.replace("virtualMachines/vm-1", "disks/data")}, "deleteOption": option}
    os_disk = {"managedDisk": {"id": "os"}, "deleteOption": "Delete"}
    storage: dict[str, Any] = {"osDisk": os_disk, "dataDisks": [disk]}
    nothing: dict[str, Any] = {"networkProfile": {"networkInterfaces": []}}
    kept = VmReplacementState(
        "0" * 8, "vm-1", "RG_a.(b)", "1", "old", {"properties": {**nothing, "storageProfile": storage}}, {}, []
    )
    made = {**storage, "osDisk": {**os_disk, "name": kept.new_disk_name}}
    view = {"statuses": _statuses("failed/InternalOperationError", "running")}
    properties = {**nothing, "storageProfile": made, "provisioningState": "Failed", "instanceView": view}
    job = Job("op", "0" * 8, OperationKind.HOST_REPLACE, "m1", "1", vm_properties.instance(ARM))
    found = replacement_plan.decide(
        AzureObservation({"id": ARM, "name": "vm-1", "properties": properties}, kept=kept), job
    )
    assert (found.next.step, found.next.under_way, found.do) == (step, do is AzureAction.NOTHING, do)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"osProfile": {"windowsConfiguration": {}}}, "Windows"),
        ({"storageProfile": {"osDisk": {"name": "d", "managedDisk": {"id": "d"}}}}, "created from a disk"),
        ({"storageProfile": {"osDisk": {"name": "d", "vhd": {}}, "imageReference": {"sku": "s"}}}, "disk d is not a m"),
    ],
)
def test_what_cannot_be_made_anew_is_refused_before_anything_is_touched(changes: dict[str, Any], words: str) -> None:
    storage = {"osDisk": {"name": "d", "managedDisk": {"id": "d"}}, "imageReference": {"sku": "s"}}
    vm = {"name": "vm-1", "properties": {"storageProfile": storage, "osProfile": {"adminUsername": "a"}, **changes}}
    job = Job("op", "0" * 8, OperationKind.HOST_REPLACE, "m1", "1", vm_properties.instance(ARM))
    with pytest.raises(Refusal, match=words):
        replacement_plan.decide(AzureObservation(vm), job)
