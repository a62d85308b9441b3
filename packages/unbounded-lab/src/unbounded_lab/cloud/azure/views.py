"""Resources in the form of Azure Resource Manager."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid5

from unbounded_lab.cloud.azure import model
from unbounded_lab.cloud.azure.catalog import EXACT_VERSION
from unbounded_lab.cloud.azure.errors import AzureProblem
from unbounded_lab.cloud.azure.model_rules import IMAGE_SIZE_GB
from unbounded_lab.cloud.azure.resources import NAMESPACE, AzureResources
from unbounded_lab.cloud.azure.rules import ImageOffer, offered

DISPLAYED: Final[Mapping[model.VmPower, str]] = {
    model.VmPower.STARTING: "VM starting",
    model.VmPower.RUNNING: "VM running",
    model.VmPower.STOPPING: "VM stopping",
    model.VmPower.STOPPED: "VM stopped",
    model.VmPower.DEALLOCATING: "VM deallocating",
    model.VmPower.DEALLOCATED: "VM deallocated",
}


TIERS: Final[Mapping[int, int]] = {
    **{4: 1, 8: 2, 16: 3, 32: 4, 64: 6, 128: 10, 256: 15, 512: 20, 1024: 30, 2048: 40, 4096: 50, 8192: 60, 16384: 70},
    **{32767: 80},
}
"""Number of a performance tier by its maximum size in GiB."""
PUBLISHED: Final = 1_767_225_600.0


def timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def etag(machine: model.VirtualMachine) -> str:
    return f'"{machine.generation}"'


def machine_document(
    estate: AzureResources,
    machine: model.VirtualMachine,
    extensions: Iterable[model.Extension] = (),
    *,
    expand: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Return a machine, with its instance view or its user data where `expand` has `instanceview` or `userdata`."""
    properties = {
        **machine.properties,
        "provisioningState": machine.provisioning.value,
        "vmId": machine.vm_id,
        "timeCreated": timestamp(machine.created),
        "storageProfile": _storage(machine),
        "networkProfile": {"networkInterfaces": [dict(nic) for nic in machine.nics]},
    }
    if "instanceview" in expand:
        properties["instanceView"] = instance_view(machine, extensions)
    if "userdata" in expand and machine.user_data is not None:
        properties["userData"] = machine.user_data
    document = {
        "name": machine.id.name,
        "id": str(machine.id),
        "type": model.MACHINES,
        **machine.model,
        "etag": etag(machine),
        "properties": properties,
    }
    if "identity" in machine.model:
        document["identity"] = _identity(estate, machine)
    resources = [extension_document(extension) for extension in extensions]
    return {**document, "resources": resources} if resources else document


def _storage(machine: model.VirtualMachine) -> dict[str, Any]:
    storage = dict(machine.properties["storageProfile"])
    image = storage.get("imageReference")
    if image and "id" not in image:
        version = EXACT_VERSION if image.get("version") == "latest" else image.get("version")
        storage["imageReference"] = {**image, "exactVersion": version}
    storage["osDisk"] = _disk_part(machine, machine.os_disk)
    storage["dataDisks"] = [_disk_part(machine, disk) for disk in machine.data_disks]
    return storage


def _disk_part(machine: model.VirtualMachine, disk: Mapping[str, Any]) -> dict[str, Any]:
    """Return a disk in its machine's document; for a deallocated machine without size and type."""
    if machine.power is not model.VmPower.DEALLOCATED:
        return dict(disk)
    managed = {name: value for name, value in disk.get("managedDisk", {}).items() if name != "storageAccountType"}
    return {name: value for name, value in disk.items() if name != "diskSizeGB"} | {"managedDisk": managed}


def _identity(estate: AzureResources, machine: model.VirtualMachine) -> dict[str, Any]:
    identity = dict(machine.model["identity"])
    if "SystemAssigned" in str(identity.get("type", "")):
        identity["principalId"] = str(uuid5(NAMESPACE, f"{machine.vm_id}/principal"))
        identity["tenantId"] = estate.tenant
    users = identity.get("userAssignedIdentities")
    if users:
        identity["userAssignedIdentities"] = {
            name: {
                "principalId": str(uuid5(NAMESPACE, f"{name.lower()}/principal")),
                "clientId": str(uuid5(NAMESPACE, f"{name.lower()}/client")),
            }
            for name in users
        }
    return identity


def instance_view(machine: model.VirtualMachine, extensions: Iterable[model.Extension]) -> dict[str, Any]:
    since = timestamp(machine.since)
    view: dict[str, Any] = {
        "hyperVGeneration": "V2",
        "disks": [_disk_view(disk["name"], since) for disk in (machine.os_disk, *machine.data_disks)],
        "bootDiagnostics": {},
        "statuses": _statuses(machine, since),
    }
    if machine.power is model.VmPower.RUNNING:
        profile = machine.properties.get("osProfile", {})
        view |= {"computerName": profile.get("computerName", machine.id.name), "osName": "ubuntu", "osVersion": "24.04"}
        view["vmAgent"] = {
            "vmAgentVersion": "2.11.1.12",
            "statuses": [_status("ProvisioningState/succeeded", "Ready", since, message="Guest Agent is running")],
            "extensionHandlers": [],
        }
        view["extensions"] = [_extension_view(extension, since) for extension in extensions]
    return view


def _statuses(machine: model.VirtualMachine, since: str) -> list[dict[str, Any]]:
    state = machine.provisioning.value
    if machine.provisioning is model.Provisioning.FAILED and machine.error is not None:
        code = f"ProvisioningState/failed/{machine.error.code}"
        first = {**_status(code, "Provisioning failed", since, message=machine.error.message), "level": "Error"}
    else:
        succeeded = machine.provisioning is model.Provisioning.SUCCEEDED
        shown = "Provisioning succeeded" if succeeded else state
        first = _status(f"ProvisioningState/{state.lower()}", shown, since)
    if machine.power is None:
        return [first]
    return [
        first,
        {"code": f"PowerState/{machine.power.value}", "level": "Info", "displayStatus": DISPLAYED[machine.power]},
    ]


def _status(code: str, shown: str, time: str, *, message: str | None = None) -> dict[str, Any]:
    status = {"code": code, "level": "Info", "displayStatus": shown, "time": time}
    return status if message is None else {**status, "message": message}


def _disk_view(name: str, since: str) -> dict[str, Any]:
    return {"name": name, "statuses": [_status("ProvisioningState/succeeded", "Provisioning succeeded", since)]}


def _extension_view(extension: model.Extension, since: str) -> dict[str, Any]:
    properties = extension.model["properties"]
    return {
        "name": extension.name,
        "type": f"{properties['publisher']}.{properties['type']}",
        "typeHandlerVersion": properties["typeHandlerVersion"],
        "statuses": [
            _status(f"ProvisioningState/{extension.provisioning.value.lower()}", extension.provisioning.value, since)
        ],
    }


def extension_document(extension: model.Extension) -> dict[str, Any]:
    return {
        "name": extension.name,
        "id": f"{extension.machine}/extensions/{extension.name}",
        "type": model.EXTENSIONS,
        **{name: value for name, value in extension.model.items() if name in ("location", "tags")},
        "properties": {**extension.model["properties"], "provisioningState": extension.provisioning.value},
    }


def disk_document(disk: model.Disk, owner: model.VirtualMachine | None) -> dict[str, Any]:
    """Return a disk; `owner` is its machine, as the same read shows it."""
    properties: dict[str, Any] = {
        "creationData": _creation(disk),
        "diskSizeGB": disk.size_gb,
        "diskSizeBytes": disk.size_gb << 30,
        "diskIOPSReadWrite": 500,
        "diskMBpsReadWrite": 100,
        "encryption": {"type": "EncryptionAtRestWithPlatformKey"},
        "networkAccessPolicy": "AllowAll",
        "publicNetworkAccess": "Enabled",
        "timeCreated": timestamp(disk.created),
        "provisioningState": "Deleting" if disk.deleting else "Succeeded",
        "diskState": _disk_state(disk, owner),
        "uniqueId": disk.unique_id,
        "tier": _tier(disk),
        "LastOwnershipUpdateTime": timestamp(disk.since),
    }
    if disk.os_type is not None:
        properties |= {"osType": disk.os_type, "hyperVGeneration": "V2"}
    if disk.plan is not None:
        properties["purchasePlan"] = dict(disk.plan)
    properties |= disk.settings or {}
    document: dict[str, Any] = {
        "name": disk.id.name,
        "id": str(disk.id),
        "type": model.DISKS,
        "location": disk.location,
        "sku": {"name": disk.sku, "tier": disk.sku.partition("_")[0]},
        "properties": properties,
    }
    if disk.owner is not None:
        document["managedBy"] = str(disk.owner)
    if disk.zones:
        document["zones"] = list(disk.zones)
    if disk.tags is not None:
        document["tags"] = dict(disk.tags)
    return document


def _tier(disk: model.Disk) -> str:
    """Return the performance tier for the size; standard disks begin at their fourth."""
    family = {"Premium": "P", "StandardSSD": "E"}.get(disk.sku.partition("_")[0], "S")
    number = next((each for size, each in TIERS.items() if disk.size_gb <= size), max(TIERS.values()))
    return f"{family}{max(number, 4) if family == 'S' else number}"


def _creation(disk: model.Disk) -> dict[str, Any]:
    if disk.image is None:
        return {"createOption": "Empty"}
    return {"createOption": "FromImage", "imageReference": {"id": disk.image}}


def _disk_state(disk: model.Disk, owner: model.VirtualMachine | None) -> str:
    if disk.owner is None:
        return "Unattached"
    return "Reserved" if owner is not None and owner.power is model.VmPower.DEALLOCATED else "Attached"


def nic_document(nic: model.Nic) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "provisioningState": "Succeeded",
        "resourceGuid": nic.guid,
        "ipConfigurations": [
            {
                "name": "ipconfig1",
                "id": f"{nic.id}/ipConfigurations/ipconfig1",
                "type": f"{model.NICS}/ipConfigurations",
                "properties": {
                    "provisioningState": "Succeeded",
                    "privateIPAddress": nic.address,
                    "privateIPAllocationMethod": "Dynamic",
                    "primary": True,
                    "privateIPAddressVersion": "IPv4",
                },
            }
        ],
        "enableAcceleratedNetworking": True,
        "enableIPForwarding": False,
        "nicType": "Standard",
        "auxiliaryMode": "None",
    }
    if nic.owner is not None:
        properties |= {"virtualMachine": {"id": str(nic.owner)}, "primary": nic.primary, "macAddress": nic.mac}
    return {
        "name": nic.id.name,
        "id": str(nic.id),
        "etag": f'W/"{nic.guid}"',
        "type": model.NICS,
        "location": nic.location,
        "properties": properties,
    }


def availability_set_document(
    resource: model.ResourceId, location: str, members: Iterable[model.ResourceId]
) -> dict[str, Any]:
    return {
        "name": resource.name,
        "id": str(resource),
        "type": resource.type,
        "location": location,
        "sku": {"name": "Aligned"},
        "properties": {
            "platformFaultDomainCount": 2,
            "platformUpdateDomainCount": 5,
            "virtualMachines": [{"id": str(member)} for member in members],
        },
    }


def operation_document(operation: model.LongRunningOperation) -> dict[str, Any]:
    document: dict[str, Any] = {"startTime": timestamp(operation.began)}
    if operation.ended is not None:
        document["endTime"] = timestamp(operation.ended)
    document |= {"status": operation.status.value, "name": operation.id}
    if operation.status is not model.OperationStatus.SUCCEEDED and operation.error is not None:
        document["error"] = operation.error.document()
    return document


def of_marketplace(estate: AzureResources, subscription: str, location: str, *image: str) -> dict[str, Any]:
    """Return a version of an image, by its publisher, offer, SKU and version.

    Raises:
        AzureProblem: it is not offered.
    """
    publisher, offer, sku, version = image
    match offered(estate, *image):
        case ImageOffer.DEPRECATED:
            raise AzureProblem("ImageDeprecated", publisher=publisher, offer=offer, sku=sku, version=version)
        case ImageOffer.NOT:
            raise AzureProblem("NotFound", detail="Artifact: VMImage was not found.")
    path = f"/Publishers/{publisher}/ArtifactTypes/VMImage/Offers/{offer}/Skus/{sku}/Versions/{version}"
    place = f"/Subscriptions/{subscription}/Providers/Microsoft.Compute/Locations/{location}"
    return {"id": f"{place}{path}", "name": version, "location": location}


def versions_of_marketplace(
    estate: AzureResources, subscription: str, location: str, *image: str
) -> list[dict[str, Any]]:
    """Return the offered versions of an image, by its publisher, offer and SKU."""
    known = estate.images.get(":".join(image).lower())
    if known is None:
        raise AzureProblem("NotFound", detail="Artifact: VMImage was not found.")
    existing = [version for version in known if offered(estate, *image, version) is ImageOffer.YES]
    return [of_marketplace(estate, subscription, location, *image, version) for version in existing]


def managed(estate: AzureResources, image: str, location: str) -> dict[str, Any]:
    """Return an image of the subscription itself.

    Raises:
        AzureProblem: there is none.
    """
    name = image.rpartition("/")[2]
    if image.lower() not in estate.others:
        raise AzureProblem("ResourceNotFound", type="Microsoft.Compute/images", name=name, group=image.split("/")[4])
    common = {"id": image, "name": name, "type": "Microsoft.Compute/images", "location": location}
    return {**common, "properties": {"provisioningState": "Succeeded", "hyperVGeneration": "V2"}}


def version_of_gallery(estate: AzureResources, version: str, location: str) -> dict[str, Any]:
    """Return a version of a gallery's image, by its path; shared and community galleries have a shorter form.

    Raises:
        AzureProblem: there is none.
    """
    if version.lower() not in estate.others:
        raise AzureProblem("NotFound", detail=f"The gallery image version {version} was not found.")
    name = version.rpartition("/")[2]
    if not version.lower().startswith("/subscriptions/"):
        published = {"publishedDate": timestamp(PUBLISHED), "excludeFromLatest": False}
        return {"name": name, "location": location, "identifier": {"uniqueId": version}, "properties": published}
    regions = [{"name": location, "regionalReplicaCount": 1, "excludeFromLatest": False}]
    publishing = {"targetRegions": regions, "excludeFromLatest": False, "publishedDate": timestamp(PUBLISHED)}
    kind = "Microsoft.Compute/galleries/images/versions"
    storage = {"osDiskImage": {"sizeInGB": IMAGE_SIZE_GB, "hostCaching": "ReadWrite"}}
    properties = {"provisioningState": "Succeeded", "publishingProfile": publishing, "storageProfile": storage}
    return {"id": version, "name": name, "type": kind, "location": location, "properties": properties}


def versions_of_gallery(estate: AzureResources, image: str, location: str) -> list[dict[str, Any]]:
    existing = sorted(each for each in estate.others if each.startswith(f"{image.lower()}/versions/"))
    return [version_of_gallery(estate, each, location) for each in existing]
