"""Creation and changes of virtual machines: updates, merged into the model after validation, and reimages.

A creation that fails leaves what the fault `failed_create_leaves` names of its disks and network interfaces. A reimage
gives the virtual machine a new OS disk from its image, and new custom data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from unbounded_lab.cloud.azure import model_rules, rules
from unbounded_lab.cloud.azure.catalog import REIMAGE, checked
from unbounded_lab.cloud.azure.errors import AzureProblem
from unbounded_lab.cloud.azure.lifecycle import claim
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
from unbounded_lab.cloud.azure.resources import ALIVE, AzureResources

_OF_THE_OLD: frozenset[str] = frozenset({"name", "managedDisk", "vhd"})
FIXED: Final = ("computerName", "adminUsername", "linuxConfiguration", "windowsConfiguration")
"""Properties of osProfile that cannot be changed."""


def create(estate: AzureResources, resource: ResourceId, body: Document, now: float) -> LongRunningOperation:
    """Accept the creation of a machine that does not exist.

    Raises:
        AzureProblem: it is not possible; nothing was changed.
    """
    model = rules.model_of(body)
    custom_data, user_data = rules.check_new(estate, resource, model, now)
    problem = rules.later_problem(estate, resource, model)
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
    """Leave the remains of a failed creation, as the fault `failed_create_leaves` requires."""
    estate.reserve_nics(machine, at)
    if estate.faults.failed_create_leaves == "machine-and-disk":
        estate.failed(machine, at, problem)
        return
    os_disk = estate.disks.get(rules.id_of_disk(machine.id, machine.os_disk).key)
    if os_disk is not None and os_disk.owner == machine.id and machine.os_disk["createOption"] == "FromImage":
        estate.put_disk(replace(os_disk, owner=None), at)
        estate.drop_disk(os_disk, at)
    estate.failed(machine, at, problem)
    if estate.faults.failed_create_leaves == "nothing":
        estate.delete_machine(estate.machine(machine.id), at)


def attach_all(estate: AzureResources, machine: VirtualMachine, now: float) -> None:
    """Attach the disks and NICs of a machine's model, and create missing disks."""
    for given in (machine.os_disk, *machine.data_disks):
        disk = estate.disks.get(rules.id_of_disk(machine.id, given).key)
        if disk is None:
            estate.put_disk(_made(estate, machine, given, now), now)
        elif disk.owner is None:
            estate.put_disk(replace(disk, owner=machine.id), now)
    for each in machine.nics:
        nic = rules.nic_of(estate, machine.id, each["id"], machine.location)
        is_primary = bool((each.get("properties") or {}).get("primary", len(machine.nics) == 1))
        if nic.owner != machine.id or nic.primary != is_primary:
            estate.put_nic(replace(nic, owner=machine.id, primary=is_primary, reserved_for=None), now)


def _made(estate: AzureResources, machine: VirtualMachine, given: Document, now: float) -> Disk:
    is_os_disk = "lun" not in given
    image = machine.properties["storageProfile"].get("imageReference") if is_os_disk else None
    return Disk(
        rules.id_of_disk(machine.id, given),
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
        name = rules.id_of_disk(machine.id, given).name
    disk = {"caching": "None", "deleteOption": "Detach", "toBeDetached": False, **given, "name": name}
    return _with_managed_disk(estate, machine, disk, "Premium_LRS")


def _with_managed_disk(
    estate: AzureResources, machine: VirtualMachine, disk: dict[str, Any], sku: str
) -> dict[str, Any]:
    disk_id = rules.id_of_disk(machine.id, disk)
    existing = estate.disks.get(disk_id.key)
    size = existing.size_gb if existing is not None else disk.get("diskSizeGB", 32)
    managed = {"storageAccountType": existing.sku if existing is not None else sku, **disk.get("managedDisk", {})}
    return {**disk, "diskSizeGB": size, "managedDisk": {**managed, "id": str(disk_id)}}


def update(
    estate: AzureResources, machine: VirtualMachine, body: Document, now: float, call: str
) -> LongRunningOperation:
    """Accept a change of an existing machine; properties that the request does not name stay.

    Raises:
        AzureProblem: it is not possible; nothing was changed.
    """
    change = rules.model_of(body)
    _check_change(estate, machine, change)
    model = _merged(machine, change)
    changed = replace(machine, model=model, provisioning=Provisioning.UPDATING)
    model_rules.check(model, machine.id.name)
    rules.check_references(estate, machine.id, change)
    rules.check_disks(estate, machine.id, model, machine)
    completed_model = completed(estate, changed)  # new disks are shown without an id until the change ends
    disks = {rules.id_of_disk(machine.id, disk).key for disk in (changed.os_disk, *changed.data_disks)}
    leaving = [disk for disk in estate.disks_of(machine.id) if disk.id.key not in disks]
    gone_nics = [nic for nic in estate.nics_of(machine.id) if nic.id.key not in {n["id"].lower() for n in changed.nics}]

    def done(at: float) -> None:
        for disk in leaving:
            estate.put_disk(replace(disk, owner=None, leaving=False), at)
        for nic in gone_nics:
            estate.put_nic(replace(nic, owner=None), at)
        ended = replace(estate.machine(machine.id), model=completed_model, provisioning=Provisioning.SUCCEEDED)
        estate.put_machine(ended, at)

    def undone(at: float, problem: AzureProblem) -> None:
        estate.failed(machine, at, problem)

    operation = estate.begin(
        call, machine.id, machine.location, now, takes_s=estate.times.update_s, done=done, undone=undone
    )
    changed = estate.put_machine(replace(changed, operation=operation.id), now)
    for disk in leaving:
        estate.put_disk(replace(disk, leaving=True), now)
    attach_all(estate, replace(changed, model=completed_model), now)
    return operation


def _check_change(estate: AzureResources, machine: VirtualMachine, change: Mapping[str, Any]) -> None:
    if change.get("location", machine.location).lower() != machine.location.lower():
        raise AzureProblem(
            "InvalidResourceLocation", name=machine.id.name, detail=machine.location, group=machine.id.group
        )
    if "zones" in change and list(change["zones"] or []) != list(machine.model.get("zones") or []):
        raise AzureProblem("PropertyChangeNotAllowed", detail="zones", target="zones")
    properties = change["properties"]
    _check_fixed(machine, properties)
    rules.check_identity(estate, machine.id, change)
    nics = (properties.get("networkProfile") or {}).get("networkInterfaces")
    if nics is not None:
        requested = {str(nic.get("id")).lower() for nic in nics}
        if requested != {nic["id"].lower() for nic in machine.nics} and machine.power is not VmPower.DEALLOCATED:
            detail = "Adding or deleting network interfaces is only allowed on a virtual machine that is deallocated."
            raise AzureProblem("OperationNotAllowed", detail=detail, target="networkProfile")
        for nic in nics:
            rules.nic_of(estate, machine.id, str(nic.get("id")), machine.location)


def _check_fixed(machine: VirtualMachine, properties: Mapping[str, Any]) -> None:
    """Reject changes of properties that are fixed at creation."""
    profile = properties.get("osProfile") or {}
    if "customData" in profile and profile["customData"] != machine.custom_data:
        raise AzureProblem("PropertyChangeNotAllowed", detail="osProfile.customData", target="osProfile.customData")
    before = machine.properties.get("osProfile") or {}
    for name in FIXED:
        if name in profile and profile[name] != before.get(name):
            raise AzureProblem("PropertyChangeNotAllowed", detail=f"osProfile.{name}", target=f"osProfile.{name}")
    group, was = properties.get("availabilitySet"), machine.properties.get("availabilitySet")
    if group is not None and str(group.get("id")).lower() != str((was or {}).get("id")).lower():
        raise AzureProblem("PropertyChangeNotAllowed", detail="availabilitySet.id", target="availabilitySet.id")
    storage = properties.get("storageProfile") or {}
    image = storage.get("imageReference")
    known = machine.properties["storageProfile"].get("imageReference") or {}
    if image is not None and any(known.get(name) != image[name] for name in image):
        raise AzureProblem("PropertyChangeNotAllowed", detail="imageReference", target="imageReference")
    disk = (storage.get("osDisk") or {}).get("name")
    if disk is not None and disk.lower() != machine.os_disk["name"].lower():
        raise AzureProblem("PropertyChangeNotAllowed", detail="osDisk.name", target="osDisk.name")


def _merged(machine: VirtualMachine, change: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model with a change: objects are merged, lists are replaced."""
    properties = dict(change["properties"])
    if properties.get("osProfile"):
        properties["osProfile"] = {
            name: value
            for name, value in properties["osProfile"].items()
            if name not in ("customData", "adminPassword")
        }
    model = _merge(machine.model, {**change, "properties": properties})
    for whole in ("tags", "identity"):
        if whole in change:
            model[whole] = change[whole]
    model["location"] = machine.location
    storage = model["properties"]["storageProfile"]
    before = {disk["lun"]: disk for disk in machine.data_disks}
    storage["dataDisks"] = [
        {**before.get(disk["lun"], {}), **disk} for disk in storage.get("dataDisks", []) if not disk.get("toBeDetached")
    ]
    return model


def _merge(before: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(before)
    for name, value in change.items():
        was = before.get(name)
        merged[name] = _merge(was, value) if isinstance(was, Mapping) and isinstance(value, Mapping) else value
    return merged


def reimage(estate: AzureResources, machine: VirtualMachine, body: Document, now: float) -> LongRunningOperation:
    """Begin a reimage.

    Raises:
        AzureProblem: the machine cannot be reimaged, or not with these parameters.
    """
    given = checked(body, REIMAGE)
    is_ephemeral = "diffDiskSettings" in machine.os_disk
    if given.get("tempDisk") and not is_ephemeral:
        detail = "tempDisk is only supported for a VM with an ephemeral OS disk."
        raise AzureProblem("InvalidParameter", detail=detail, target="tempDisk")
    if not machine.properties["storageProfile"].get("imageReference"):
        detail = f"VM '{machine.id.name}' has no image from which its OS disk could be made anew."
        raise AzureProblem("OperationNotAllowed", detail=detail)
    custom_data = rules.custom_data_of(given.get("osProfile") or {})
    claim(estate, machine, "reimage", now)
    machine = estate.machine(machine.id)

    def done(at: float) -> None:
        _renew_os_disk(estate, estate.machine(machine.id), at)
        current = estate.machine(machine.id)
        user_data = current.custom_data if custom_data is None else custom_data
        if current.power in ALIVE:
            estate.blink(current, at)
        estate.put_machine(replace(current, custom_data=user_data, provisioning=Provisioning.SUCCEEDED), at)

    def undone(at: float, problem: AzureProblem) -> None:
        estate.failed(machine, at, problem)

    return estate.begin_update(
        "VirtualMachines.Reimage", machine, now, takes_s=estate.times.create_s, done=done, undone=undone
    )


def _renew_os_disk(estate: AzureResources, machine: VirtualMachine, at: float) -> None:
    """Replace the OS disk by a new one; deleteOption decides whether the old one is kept."""
    disk = estate.disks.get(rules.id_of_disk(machine.id, machine.os_disk).key)
    storage = dict(machine.properties["storageProfile"])
    storage["osDisk"] = {name: value for name, value in machine.os_disk.items() if name not in _OF_THE_OLD}
    model = {**machine.model, "properties": {**machine.properties, "storageProfile": storage}}
    machine = replace(machine, model=model)
    machine = estate.put_machine(replace(machine, model=completed(estate, machine)), at)
    if disk is not None:
        estate.put_disk(replace(disk, owner=None, leaving=False), at)
        if machine.os_disk.get("deleteOption") == "Delete":
            estate.drop_disk(disk, at)
    attach_all(estate, machine, at)
