"""Every field of the SDK's models for a virtual machine and its OS disk is kept, derived, or reported as lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any, Final

import pytest
from azure.mgmt.compute import models
from scripts import azure_requests

from unbounded.machineops.providers.azure import model, vm_properties
from unbounded_lab.cloud.azure.catalog import EXTENSION, KNOWN, READ_ONLY, VIRTUAL_MACHINE, Shape

GROUP: Final = "/subscriptions/0-1/resourceGroups/group/providers/Microsoft.Compute"
DISK: Final = f"{GROUP}/disks"
STORAGE: Final = "properties.storageProfile"

OTHERWISE: Final[Mapping[str, str]] = {
    "placement": "told",
    f"{STORAGE}.osDisk.encryptionSettings": "told",
    f"{STORAGE}.osDisk.name": "the new one's",
    f"{STORAGE}.osDisk.createOption": "FromImage, always",
    f"{STORAGE}.osDisk.vhd": "refused: not a managed disk",
    f"{STORAGE}.osDisk.image": "refused: an image that is a blob is of unmanaged disks",
    f"{STORAGE}.osDisk.managedDisk.id": "the new one's",
    f"{STORAGE}.osDisk.deleteOption": "restored once the new one is there",
    f"{STORAGE}.dataDisks.name": "the disk's own",
    f"{STORAGE}.dataDisks.vhd": "refused: not a managed disk",
    f"{STORAGE}.dataDisks.image": "refused: an image that is a blob is of unmanaged disks",
    f"{STORAGE}.dataDisks.createOption": "Attach, always",
    f"{STORAGE}.dataDisks.diskSizeGB": "the disk's own",
    f"{STORAGE}.dataDisks.diskIOPSReadWrite": "the disk's own",
    f"{STORAGE}.dataDisks.diskMBpsReadWrite": "the disk's own",
    f"{STORAGE}.dataDisks.managedDisk": "the disk's own, but for its id",
    f"{STORAGE}.dataDisks.sourceResource": "what it was once made of",
    f"{STORAGE}.dataDisks.toBeDetached": "of a change that is under way",
    f"{STORAGE}.dataDisks.detachOption": "of a change that is under way",
    f"{STORAGE}.dataDisks.deleteOption": "restored once the new one is there",
    "properties.networkProfile.networkInterfaces.properties.deleteOption": "restored once the new one is there",
    "properties.networkProfile.networkInterfaceConfigurations": "the network interfaces made of them are attached",
    "properties.networkProfile.networkApiVersion": "as above",
    "properties.hardwareProfile.vmSize": "Azure's choice, with a flexProfile",
    "properties.osProfile.adminPassword": "never shown; told by what logs in with it",
    "properties.osProfile.customData": "never shown; what the new host is to run",
    "properties.osProfile.requireGuestProvisionSignal": "Azure's own: true, and refused where it is said",
}
"""The paths, with all below them, that the creation of the new virtual machine does not say as the old one has them."""
OF_AN_EXTENSION: Final[Mapping[str, str]] = {
    "properties.protectedSettings": "never shown; told for each extension",
    "properties.instanceView": "a view",
}
OF_THE_DISK: Final[Mapping[str, str]] = {
    "id": "read",
    "name": "read",
    "type": "read",
    "systemData": "read",
    "managedBy": "read",
    "managedByExtended": "read",
    "tags": "told",
    "location": "the virtual machine's",
    "zones": "the virtual machine's",
    "extendedLocation": "the virtual machine's",
    "sku.name": "kept",
    "sku.tier": "read",
    "properties.timeCreated": "read",
    "properties.diskSizeBytes": "read",
    "properties.uniqueId": "read",
    "properties.provisioningState": "read",
    "properties.diskState": "read",
    "properties.shareInfo": "read",
    "properties.burstingEnabledTime": "read",
    "properties.propertyUpdatesInProgress": "read",
    "properties.completionPercent": "read",
    "properties.LastOwnershipUpdateTime": "read",
    "properties.osType": "the image's",
    "properties.hyperVGeneration": "the image's",
    "properties.purchasePlan": "the image's",
    "properties.supportedCapabilities": "the image's",
    "properties.supportsHibernation": "the virtual machine's additionalCapabilities",
    "properties.securityProfile": "the virtual machine's securityProfile, and its managedDisk's",
    "properties.diskSizeGB": "kept",
    "properties.encryption.diskEncryptionSetId": "kept",
    "properties.encryption.type": "of the disk encryption set",
    "properties.encryptionSettingsCollection": "told",
    "properties.creationData.performancePlus": "told",
    **dict.fromkeys(
        (f"properties.{name}" for name in (*vm_properties.DEFAULTS, *vm_properties.PROVISIONED, "tier")), "told"
    ),
}
CREATION_DATA: Final = "properties.creationData."  # all other fields name the image that it was made of


def _leaves(shape: Shape, path: str, seen: tuple[Shape, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The paths of all that can be written, each with a value that it can have."""
    if shape == READ_ONLY or shape in seen:
        return
    if isinstance(shape, list):
        yield from _leaves(shape[0], path, seen)
        return
    known = KNOWN.models.get(shape.removeprefix("#")) if isinstance(shape, str) else shape
    if isinstance(known, list):
        yield path, known[-1]
    elif known is None:
        yield path, {"str": f"of {path}", "int": 7, "float": 0.5, "bool": True, "any": {"a": 1}}[str(shape)]
    else:
        for name, each in known.items():
            yield from _leaves(each, f"{path}.{'x' if name == '*' else name}".removeprefix("."), (*seen, shape))


def _filled(shape: Shape, seen: tuple[Shape, ...] = ()) -> Any:
    """A document in which all is set that can be written."""
    if isinstance(shape, list):
        return [_filled(shape[0], seen)]
    known = KNOWN.models.get(shape.removeprefix("#")) if isinstance(shape, str) else shape
    if not isinstance(known, Mapping):
        return next(_leaves(shape, "it"))[1]
    return {
        "x" if name == "*" else name: _filled(each, (*seen, shape))
        for name, each in known.items()
        if each != READ_ONLY and each not in seen
    }


def _vm() -> dict[str, Any]:
    vm: dict[str, Any] = {**_filled(VIRTUAL_MACHINE), "name": "vm-1", "id": f"{GROUP}/virtualMachines/vm-1"}
    properties = vm["properties"]
    properties["vmId"] = "1"
    properties["storageProfile"]["osDisk"]["managedDisk"]["id"] = f"{DISK}/os"
    properties["osProfile"]["linuxConfiguration"]["disablePasswordAuthentication"] = False
    (data_disk,), (nic,) = properties["storageProfile"]["dataDisks"], properties["networkProfile"]["networkInterfaces"]
    for part in (data_disk, nic["properties"]):
        part["deleteOption"] = "Delete"
    return vm


def _at(document: Any, path: str) -> Any:
    """Return the value at a path, in which lists have one element."""

    def below(found: Any, name: str) -> Any:
        found = found[0] if isinstance(found, list) and found else found
        return found.get(name) if isinstance(found, Mapping) else None

    return reduce(below, path.split("."), document)


def _is_among(path: str, paths: Mapping[str, str]) -> bool:
    return any(path == each or path.startswith(f"{each}.") for each in paths)


def test_all_that_a_virtual_machine_can_have_is_kept_or_accounted_for() -> None:
    vm = _vm()
    kept = model.build_state(vm, {}, "group", "0" * 12)
    made, paths = model.created(kept, "#cloud-config", "password"), [path for path, _ in _leaves(VIRTUAL_MACHINE, "")]
    assert len(paths) > 150
    unlike = {path for path in paths if _at(made, path) != _at(vm, path)}
    assert [path for path in sorted(unlike) if not _is_among(path, OTHERWISE)] == []
    assert [each for each in OTHERWISE if not any(_is_among(path, {each: ""}) for path in unlike)] == []
    told = [path for path, how in OTHERWISE.items() if how == "told"]
    for path in told:
        less = _without(vm, path)
        assert len(list(model.losses(less, {}))) < len(kept.lost), path


def _without(document: Any, path: str) -> Any:
    name, _, rest = path.partition(".")
    if not rest:
        return {key: value for key, value in document.items() if key != name}
    return {**document, name: _without(document[name], rest)}


def test_all_that_an_extension_can_have_is_kept_or_accounted_for() -> None:
    extension = {**_filled(EXTENSION), "name": "Agent"}
    kept = model.build_state({**_vm(), "resources": [extension]}, {}, "group", "0" * 12)
    (made,) = kept.extensions.values()
    paths = {path for path, _ in _leaves(EXTENSION, "")}
    unlike = {path for path in paths if _at(made, path) != _at(extension, path)}
    assert [path for path in sorted(unlike) if not _is_among(path, OF_AN_EXTENSION)] == []
    assert any("protected settings of extension Agent" in each for each in kept.lost)


SET: Final[Mapping[str, Any]] = {
    "properties.tier": "P60",
    "properties.networkAccessPolicy": "DenyAll",
    "properties.publicNetworkAccess": "Disabled",
    "properties.dataAccessAuthMode": "AzureActiveDirectory",
    "properties.encryptionSettingsCollection": {"enabled": True},
}


def _disk_paths() -> Iterator[str]:
    levels: dict[str, Callable[[], Any]] = {
        "": lambda: models.Disk,
        "properties": lambda: models.DiskProperties,
        "sku": lambda: models.DiskSku,
        "properties.encryption": lambda: models.Encryption,
        "properties.creationData": lambda: models.CreationData,
    }
    for level, kind in levels.items():
        for name in azure_requests.fields_of(kind()) or {}:
            path = f"{level}.{name}".removeprefix(".")
            if path not in levels:
                yield path


@pytest.mark.parametrize("path", list(_disk_paths()))
def test_every_os_disk_property_is_kept_reported_or_derived(path: str) -> None:
    how = OF_THE_DISK.get(path) or ("the image's" if path.startswith(CREATION_DATA) else None)
    assert how is not None, f"{path} is new in the SDK: keep it, or tell that it is lost"
    vm = _vm()
    for name in ("osDisk.encryptionSettings", "osDisk.diskSizeGB", "osDisk.managedDisk.storageAccountType"):
        vm = _without(vm, f"{STORAGE}.{name}")
    vm = _without(vm, f"{STORAGE}.osDisk.managedDisk.diskEncryptionSet")
    base: dict[str, Any] = {"sku": {"name": "PremiumV2_LRS"}, "properties": {"diskSizeGB": 64}}
    disk = _with(base, path, SET.get(path, 7))
    before, after = (model.build_state(vm, each, "group", "0" * 12) for each in (base, disk))
    more = [each for each in after.lost if each not in before.lost]
    assert (len(more), after.body != before.body) == (how == "told", how == "kept"), more
    if how == "told":
        assert path.rpartition(".")[2] in more[0] or path in ("tags", "properties.encryptionSettingsCollection")


def _with(document: Any, path: str, value: Any) -> Any:
    name, _, rest = path.partition(".")
    return {**document, name: _with(document.get(name) or {}, rest, value) if rest else value}


@pytest.mark.parametrize(
    ("size", "tier", "is_lost"),
    [(30, "P4", False), (128, "P10", False), (129, "P15", False), (128, "P30", True), (30, "E4", False)],
)
def test_non_default_performance_tier_is_reported_as_lost(size: int, tier: str, is_lost: bool) -> None:
    disk = {"sku": {"name": "Premium_LRS"}, "properties": {"diskSizeGB": size, "tier": tier}}
    assert [each.consequence for each in vm_properties.os_disk_losses(disk, encrypted=False)] == (
        [f"tier {tier} of its OS disk"] if is_lost else []
    )


def test_what_azure_does_where_nothing_is_said_is_no_loss() -> None:
    disk = {"sku": {"name": "Premium_LRS"}, "properties": {**vm_properties.DEFAULTS, "diskIOPSReadWrite": 500}}
    assert [each.consequence for each in vm_properties.os_disk_losses(disk, encrypted=False)] == []
