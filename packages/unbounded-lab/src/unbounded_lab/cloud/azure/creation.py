"""Creation of virtual machines with their disks and network interfaces, and the remains of failed creations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unbounded_lab.cloud.azure.errors import AzureProblem
from unbounded_lab.cloud.azure.model import (
    Disk,
    Document,
    LongRunningOperation,
    Provisioning,
    ResourceId,
    VirtualMachine,
    VmPower,
)
from unbounded_lab.cloud.azure.model_rules import IMAGE_SIZE_GB
from unbounded_lab.cloud.azure.resources import AzureResources
from unbounded_lab.cloud.azure.rules import check_new, id_of_disk, later_problem, model_of, nic_of


def create(estate: AzureResources, resource: ResourceId, body: Document, now: float) -> LongRunningOperation:
    """Accept the creation of a machine that does not exist.

    Raises:
        Problem: it is not possible; nothing was changed.
    """
    model = model_of(body)
    custom_data, user_data = check_new(estate, resource, model, now)
    problem = later_problem(estate, resource, model)
    machine = VirtualMachine(
        resource, model, estate.new_uuid(), now, Provisioning.CREATING, None, custom_data, user_data
    )
    machine = replace(machine, model=completed(estate, machine))

    def done(at: float) -> None:
        if problem is not None:
            raise problem
        made = replace(estate.machine(resource), provisioning=Provisioning.SUCCEEDED, power=VmPower.RUNNING)
        estate.put_machine(made, at)

    def undone(at: float, problem: AzureProblem) -> None:
        _leave_failed(estate, estate.machine(resource), at, problem)

    operation = estate.begin(
        "VirtualMachines.CreateOrUpdate",
        resource,
        machine.location,
        now,
        takes_s=estate.times.create_s,
        done=done,
        undone=undone,
    )
    machine = estate.put_machine(replace(machine, operation=operation.id), now)
    attach_all(estate, machine, now)
    return operation


def _leave_failed(estate: AzureResources, machine: VirtualMachine, at: float, problem: AzureProblem) -> None:
    """Leave the remains of a failed creation, as the dial `failed_create_leaves` requires."""
    estate.reserve_nics(machine, at)
    if estate.dials.failed_create_leaves == "machine-and-disk":
        estate.failed(machine, at, problem)
        return
    os_disk = estate.disks.get(id_of_disk(machine.id, machine.os_disk).key)
    if os_disk is not None and os_disk.owner == machine.id and machine.os_disk["createOption"] == "FromImage":
        estate.put_disk(replace(os_disk, owner=None), at)
        estate.drop_disk(os_disk, at)
    estate.failed(machine, at, problem)
    if estate.dials.failed_create_leaves == "nothing":
        estate.delete_machine(estate.machine(machine.id), at)


def attach_all(estate: AzureResources, machine: VirtualMachine, now: float) -> None:
    """Attach the disks and NICs of a machine's model, and create missing disks."""
    for given in (machine.os_disk, *machine.data_disks):
        disk = estate.disks.get(id_of_disk(machine.id, given).key)
        if disk is None:
            estate.put_disk(_made(estate, machine, given, now), now)
        elif disk.owner is None:
            estate.put_disk(replace(disk, owner=machine.id), now)
    for each in machine.nics:
        nic = nic_of(estate, machine.id, each["id"], machine.location)
        is_primary = bool((each.get("properties") or {}).get("primary", len(machine.nics) == 1))
        if nic.owner != machine.id or nic.primary != is_primary:
            estate.put_nic(replace(nic, owner=machine.id, primary=is_primary, reserved_for=None), now)


def _made(estate: AzureResources, machine: VirtualMachine, given: Document, now: float) -> Disk:
    is_os_disk = "lun" not in given
    image = machine.properties["storageProfile"].get("imageReference") if is_os_disk else None
    return Disk(
        id_of_disk(machine.id, given),
        machine.location,
        given["managedDisk"]["storageAccountType"],
        given["diskSizeGB"],
        now,
        estate.new_uuid(),
        zones=tuple(machine.model.get("zones") or ()),
        os_type=given["osType"] if is_os_disk else None,
        image=_image_id(machine, image) if image else None,
        plan=machine.model.get("plan") if is_os_disk else None,
        owner=machine.id,
    )


def _image_id(machine: VirtualMachine, image: Document) -> str:
    if "id" in image:
        return str(image["id"])
    return (
        f"/Subscriptions/{machine.id.subscription}/Providers/Microsoft.Compute/Locations/{machine.location}"
        f"/Publishers/{image.get('publisher')}/ArtifactTypes/VMImage/Offers/{image.get('offer')}"
        f"/Skus/{image.get('sku')}/Versions/{image.get('version')}"
    )


def completed(estate: AzureResources, machine: VirtualMachine) -> dict[str, Any]:
    """Return the model completed by the cloud: names and sizes of disks, defaults."""
    properties = dict(machine.properties)
    storage = dict(properties["storageProfile"])
    storage["osDisk"] = _completed_os_disk(estate, machine, storage["osDisk"])
    storage["dataDisks"] = [_completed_data_disk(estate, machine, disk) for disk in storage.get("dataDisks") or []]
    properties["storageProfile"] = storage
    if "osProfile" in properties:
        defaults = {"secrets": [], "allowExtensionOperations": True, "requireGuestProvisionSignal": True}
        properties["osProfile"] = {**defaults, **properties["osProfile"]}
    return {**machine.model, "properties": properties}


def _completed_os_disk(estate: AzureResources, machine: VirtualMachine, given: Document) -> dict[str, Any]:
    is_windows = "windowsConfiguration" in (machine.properties.get("osProfile") or {})
    name = given.get("name") or f"{machine.id.name}_OsDisk_1_{estate.new_uuid().replace('-', '')}"
    option = "Delete" if "diffDiskSettings" in given else "Detach"
    disk = {"osType": "Windows" if is_windows else "Linux", "caching": "ReadWrite", "deleteOption": option, **given}
    disk.setdefault("diskSizeGB", IMAGE_SIZE_GB)
    return _with_managed_disk(estate, machine, disk | {"name": name}, "Premium_LRS")


def _completed_data_disk(estate: AzureResources, machine: VirtualMachine, given: Document) -> dict[str, Any]:
    name = given.get("name") or f"{machine.id.name}_disk{given['lun']}_{estate.new_uuid().replace('-', '')}"
    if given["createOption"] == "Attach":
        name = id_of_disk(machine.id, given).name
    disk = {"caching": "None", "deleteOption": "Detach", "toBeDetached": False, **given, "name": name}
    return _with_managed_disk(estate, machine, disk, "Premium_LRS")


def _with_managed_disk(
    estate: AzureResources, machine: VirtualMachine, disk: dict[str, Any], sku: str
) -> dict[str, Any]:
    disk_id = id_of_disk(machine.id, disk)
    existing = estate.disks.get(disk_id.key)
    size = existing.size_gb if existing is not None else disk.get("diskSizeGB", 32)
    managed = {"storageAccountType": existing.sku if existing is not None else sku, **disk.get("managedDisk", {})}
    return {**disk, "diskSizeGB": size, "managedDisk": {**managed, "id": str(disk_id)}}
