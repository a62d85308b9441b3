"""Virtual machines with their resources that exist at the start of a simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unbounded_lab.cloud.azure import changes
from unbounded_lab.cloud.azure.catalog import VERSIONS
from unbounded_lab.cloud.azure.model import (
    AVAILABILITY_SETS,
    DISKS,
    IDENTITIES,
    NICS,
    AzureTimes,
    Disk,
    Extension,
    Nic,
    Provisioning,
    ResourceId,
    VirtualMachine,
)
from unbounded_lab.cloud.azure.model_rules import IMAGE_PARTS
from unbounded_lab.cloud.azure.resources import AzureResources
from unbounded_lab.keys import derived

LOCATION: Final = "westeurope"
UBUNTU: Final = {
    "publisher": "Canonical",
    "offer": "ubuntu-24_04-lts",
    "sku": "server",
    "version": "latest",
}
ADMIN: Final = "azureuser"
SSH_KEY: Final = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMvmmmrQOwVNMdBbWVvoyFzt8bPTBqcK4eC1XtDtlgzn lab"


@dataclass(frozen=True, slots=True, kw_only=True)
class VmShape:
    """Properties of a seeded virtual machine. Its deletion detaches data disks and NICs, and deletes its OS disk.

    Args:
        identities: names of user-assigned identities, which are created.
        extensions: publisher and type, with a dot between.
        plan: name, publisher and product of a marketplace image, which is the image then.
    """

    size: str = "Standard_D2s_v5"
    location: str = LOCATION
    data_disks: int = 0
    data_disks_made_with_it: bool = False  # Empty disks, created with the machine, in place of attached ones
    ephemeral: bool = False  # the OS disk is on the host
    nics: int = 1
    zones: Sequence[str] = ()
    availability_set: str | None = None
    system_identity: bool = False
    identities: Sequence[str] = ()
    extensions: Sequence[str] = ()
    plan: tuple[str, str, str] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    trusted_launch: bool = True
    license_type: str | None = None
    boot_diagnostics: bool = True
    os_disk_delete_option: str = "Delete"
    data_disk_delete_option: str = "Detach"
    nic_delete_option: str = "Detach"


def add_machine(estate: AzureResources, resource: ResourceId, shape: VmShape, now: float) -> VirtualMachine:
    """Add a running machine, with its disks, NICs, identities and extensions.

    Raises:
        ValueError: there is one of that name.
    """
    if estate.machines.get(resource.key) is not None:
        raise ValueError(f"virtual machine {resource.name} exists already")
    _add_surroundings(estate, resource, shape, now)
    faults, times = estate.faults, estate.times
    estate.faults, estate.times = (
        replace(faults, hanging=(), cores_quota=None, terms_accepted=True),
        AzureTimes(create_s=0.0),
    )
    try:
        operation = changes.create(estate, resource, model(resource, shape), now)
        estate.agenda.run(now)
    finally:
        estate.faults, estate.times = faults, times
    del estate.operations[operation.id]
    for name in shape.extensions:
        _add_extension(estate, resource, name, shape.location, now)
    return estate.machine(resource)


def model(resource: ResourceId, shape: VmShape) -> dict[str, Any]:
    """Return a client's request for a machine of a shape."""
    body: dict[str, Any] = {
        "location": shape.location,
        "tags": dict(shape.tags),
        "properties": _properties(resource, shape),
    }
    if shape.zones:
        body["zones"] = list(shape.zones)
    if shape.plan is not None:
        name, publisher, product = shape.plan
        body["plan"] = {"name": name, "publisher": publisher, "product": product}
    kinds = [*(["SystemAssigned"] if shape.system_identity else []), *(["UserAssigned"] if shape.identities else [])]
    if kinds:
        body["identity"] = {"type": ", ".join(kinds)}
    if shape.identities:
        ids = [str(resource.sibling(IDENTITIES, name)) for name in shape.identities]
        body["identity"]["userAssignedIdentities"] = {each: {} for each in ids}
    return body


def _properties(resource: ResourceId, shape: VmShape) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "hardwareProfile": {"vmSize": shape.size},
        "storageProfile": _storage(resource, shape),
        "osProfile": {
            "computerName": resource.name,
            "adminUsername": ADMIN,
            "linuxConfiguration": {
                "disablePasswordAuthentication": True,
                "ssh": {"publicKeys": [{"path": f"/home/{ADMIN}/.ssh/authorized_keys", "keyData": SSH_KEY}]},
                "provisionVMAgent": True,
            },
        },
        "networkProfile": {
            "networkInterfaces": [
                {
                    "id": str(resource.sibling(NICS, nic_name(resource.name, index))),
                    "properties": {"primary": index == 0, "deleteOption": shape.nic_delete_option},
                }
                for index in range(shape.nics)
            ]
        },
    }
    if shape.boot_diagnostics:
        properties["diagnosticsProfile"] = {"bootDiagnostics": {"enabled": True}}
    if shape.trusted_launch:
        uefi = {"secureBootEnabled": True, "vTpmEnabled": True}
        properties["securityProfile"] = {"securityType": "TrustedLaunch", "uefiSettings": uefi}
    if shape.availability_set is not None:
        properties["availabilitySet"] = {"id": str(resource.sibling(AVAILABILITY_SETS, shape.availability_set))}
    if shape.license_type is not None:
        properties["licenseType"] = shape.license_type
    return properties


def _storage(resource: ResourceId, shape: VmShape) -> dict[str, Any]:
    return {
        "imageReference": _image(shape),
        "osDisk": {
            "name": f"{resource.name}_OsDisk_1",
            "createOption": "FromImage",
            "caching": "ReadOnly" if shape.ephemeral else "ReadWrite",
            "managedDisk": {"storageAccountType": "Premium_LRS"},
            "deleteOption": shape.os_disk_delete_option,
            **({"diffDiskSettings": {"option": "Local"}} if shape.ephemeral else {}),
        },
        "dataDisks": [_data_disk(resource, shape, index) for index in range(shape.data_disks)],
    }


def _image(shape: VmShape) -> dict[str, str]:
    if shape.plan is None:
        return dict(UBUNTU)
    name, publisher, product = shape.plan
    return {"publisher": publisher, "offer": product, "sku": name, "version": "latest"}


def _data_disk(resource: ResourceId, shape: VmShape, index: int) -> dict[str, Any]:
    name = data_disk_name(resource.name, index)
    disk: dict[str, Any] = {
        "lun": 10 * index,
        "caching": "ReadOnly" if index == 0 else "None",
        "deleteOption": shape.data_disk_delete_option,
    }
    if shape.data_disks_made_with_it:
        return {**disk, "createOption": "Empty", "name": name, "diskSizeGB": 128}
    return {**disk, "createOption": "Attach", "managedDisk": {"id": str(resource.sibling(DISKS, name))}}


def nic_name(machine: str, index: int) -> str:
    return f"{machine}-nic-{index}"


def data_disk_name(machine: str, index: int) -> str:
    return f"{machine}-data-{index}"


def _add_surroundings(estate: AzureResources, resource: ResourceId, shape: VmShape, now: float) -> None:
    estate.subscriptions.add(resource.subscription.lower())
    estate.groups.setdefault((resource.subscription.lower(), resource.group.lower()), shape.location)
    for name in shape.identities:
        identity = resource.sibling(IDENTITIES, name)
        estate.identities[identity.key] = identity
    if shape.availability_set is not None:
        group = resource.sibling(AVAILABILITY_SETS, shape.availability_set)
        estate.availability_sets[group.key] = group
    image = _image(shape)
    estate.images.setdefault(":".join(image[name] for name in IMAGE_PARTS[:3]).lower(), VERSIONS)
    for index in range(shape.nics):
        add_nic(estate, resource.sibling(NICS, nic_name(resource.name, index)), shape.location, now)
    for index in range(0 if shape.data_disks_made_with_it else shape.data_disks):
        disk = resource.sibling(DISKS, data_disk_name(resource.name, index))
        add_disk(estate, disk, shape.location, now, zones=tuple(shape.zones))


def add_nic(estate: AzureResources, nic: ResourceId, location: str, now: float) -> None:
    """Add a network interface without an owner; an existing one stays."""
    if estate.nics.get(nic.key) is None:
        digest = derived(nic.key)
        mac = "-".join(f"{byte:02X}" for byte in (0x60, 0x45, 0xBD, *digest[:3]))
        address = f"10.{digest[3]}.{digest[4]}.{digest[5] % 250 + 4}"
        estate.put_nic(Nic(nic, location, mac, address, estate.new_uuid()), now)


def add_disk(
    estate: AzureResources,
    disk: ResourceId,
    location: str,
    now: float,
    *,
    zones: tuple[str, ...] = (),
    size_gb: int = 128,
) -> None:
    """Add an empty data disk without an owner; an existing one stays."""
    if estate.disks.get(disk.key) is None:
        estate.put_disk(
            Disk(disk, location, "Premium_LRS", size_gb, now, estate.new_uuid(), zones=zones, since=now), now
        )


def _add_extension(estate: AzureResources, resource: ResourceId, name: str, location: str, now: float) -> None:
    publisher, _, kind = name.rpartition(".")
    body = {
        "location": location,
        "properties": {
            "publisher": publisher,
            "type": kind,
            "typeHandlerVersion": "1.0",
            "autoUpgradeMinorVersion": True,
            "settings": {},
        },
    }
    extension = Extension(resource, kind, body, Provisioning.SUCCEEDED)
    estate.extensions.put(extension.key, extension, now)
