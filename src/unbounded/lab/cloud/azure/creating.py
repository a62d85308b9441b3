"""Making and changing virtual machines: what a request may ask for, and what comes of it."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from unbounded.lab.cloud.azure.errors import Problem
from unbounded.lab.cloud.azure.estate import Estate
from unbounded.lab.cloud.azure.model import Disk, Document, Machine, Nic, Operation, Power, Provisioning
from unbounded.lab.cloud.azure.names import DISKS, IDENTITIES, NICS, ResourceId
from unbounded.lab.cloud.azure.shapes import check

MOST_DATA_BYTES: Final = 65535
SIZE: Final = re.compile(r"(?:Standard|Basic)_[A-Z]+(?P<cores>\d+)[A-Za-z0-9_-]*")
MARKETPLACE: Final = frozenset({"cognosys", "kinvolk", "almalinux"})
"""Publishers whose images are bought with a plan."""
READ_ONLY: Final = frozenset({"id", "name", "type", "systemData", "resources", "managedBy", "etag"})
READ_ONLY_PROPERTIES: Final = frozenset({"provisioningState", "instanceView", "vmId", "timeCreated"})
FIXED: Final = ("computerName", "adminUsername", "linuxConfiguration", "windowsConfiguration")
"""In osProfile, these cannot be changed."""


def cores(size: str) -> int:
    found = SIZE.fullmatch(size)
    return int(found["cores"]) if found else 0


def create(estate: Estate, resource: ResourceId, body: Document, now: float) -> Operation:
    """Accept the creation of a machine that is not there.

    Raises:
        Problem: it cannot be; nothing was done.
    """
    model = _given(body)
    custom_data, user_data = _checked(estate, resource, model, now)
    problem = _later_problem(estate, resource, model)
    machine = Machine(resource, model, estate.new_uuid(), now, Provisioning.CREATING, None, custom_data, user_data)
    machine = replace(machine, model=_completed(estate, machine))

    def done(at: float) -> None:
        if problem is not None:
            raise problem
        made = replace(estate.machine(resource), provisioning=Provisioning.SUCCEEDED, power=Power.RUNNING)
        estate.put_machine(made, at)

    def undone(at: float, problem: Problem) -> None:
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
    _attach_all(estate, machine, now)
    return operation


def update(estate: Estate, machine: Machine, body: Document, now: float, call: str) -> Operation:
    """Accept a change of a machine that is there; what a request does not name stays as it is.

    Raises:
        Problem: it cannot be; nothing was done.
    """
    change = _given(body)
    _check_change(estate, machine, change)
    model = _merged(machine, change)
    changed = replace(machine, model=model, provisioning=Provisioning.UPDATING)
    _check_disks(estate, machine.id, model, machine)
    kept = {_disk_id(machine.id, disk).key for disk in (changed.os_disk, *changed.data_disks)}
    leaving = [disk for disk in estate.disks_of(machine.id) if disk.id.key not in kept]
    gone_nics = [nic for nic in estate.nics_of(machine.id) if nic.id.key not in {n["id"].lower() for n in changed.nics}]

    def done(at: float) -> None:
        for disk in leaving:
            estate.put_disk(replace(disk, owner=None, leaving=False), at)
        for nic in gone_nics:
            estate.put_nic(replace(nic, owner=None), at)
        estate.put_machine(replace(estate.machine(machine.id), provisioning=Provisioning.SUCCEEDED), at)

    def undone(at: float, problem: Problem) -> None:
        estate.failed(machine, at, problem)

    operation = estate.begin(
        call, machine.id, machine.location, now, takes_s=estate.times.update_s, done=done, undone=undone
    )
    changed = estate.put_machine(replace(changed, operation=operation.id), now)
    for disk in leaving:
        estate.put_disk(replace(disk, leaving=True), now)
    _attach_all(estate, changed, now)
    return operation


def _given(body: Document) -> dict[str, Any]:
    """A request without what only the cloud can set."""
    check(body)
    model = {name: value for name, value in body.items() if name not in READ_ONLY and value is not None}
    properties = body.get("properties") or {}
    model["properties"] = {
        name: value for name, value in properties.items() if name not in READ_ONLY_PROPERTIES and value is not None
    }
    return model


# Creating


def _checked(
    estate: Estate, resource: ResourceId, model: Mapping[str, Any], now: float
) -> tuple[str | None, str | None]:
    """Hold a new machine against all rules that are checked at once; returns its custom data and user data."""
    if not model.get("location"):
        raise Problem("LocationRequired", target="location")
    properties = model["properties"]
    size = (properties.get("hardwareProfile") or {}).get("vmSize")
    if not size:
        raise _missing("vmSize")
    if not cores(size):
        raise Problem(
            "InvalidParameter", detail=f"The value {size} provided for the VM size is not valid.", target="vmSize"
        )
    _check_capacity(estate, resource, size)
    _check_placement(estate, resource, model)
    custom_data = _check_os(properties)
    user_data = _data(properties.pop("userData", None), "userData", "User data")
    _check_image(estate, resource, model)
    _check_nics(estate, resource, properties, now)
    _check_disks(estate, resource, model, None)
    _check_identity(estate, resource, model)
    return custom_data, user_data


def _check_capacity(estate: Estate, resource: ResourceId, size: str) -> None:
    if size in estate.dials.sizes_not_available:
        raise Problem("SkuNotAvailable", detail=size, target="vmSize")
    quota = estate.dials.cores_quota
    if quota is not None:
        used = sum(
            cores(machine.properties["hardwareProfile"]["vmSize"])
            for _, machine in estate.machines
            if machine.id.subscription.lower() == resource.subscription.lower()
        )
        if used + cores(size) > quota:
            detail = f"Current Limit: {quota}, Current Usage: {used}, Additional Required: {cores(size)}"
            raise Problem("QuotaExceeded", detail=detail)


def _check_placement(estate: Estate, resource: ResourceId, model: Mapping[str, Any]) -> None:
    group = model["properties"].get("availabilitySet")
    if group is not None and model.get("zones"):
        raise Problem("BadRequest", detail="Virtual Machine cannot be both in an availability set and in a zone.")
    if group is not None and str(group.get("id", "")).lower() not in estate.availability_sets:
        raise Problem("InvalidResourceReference", detail=str(group.get("id")), subject=str(resource))


def _check_os(properties: dict[str, Any]) -> str | None:
    """Hold the operating system's part against the rules and take its secrets out; returns the custom data."""
    storage = properties.get("storageProfile") or {}
    os_disk = storage.get("osDisk")
    if not os_disk:
        raise _missing("osDisk")
    profile = properties.get("osProfile")
    if os_disk.get("createOption") == "Attach":
        if profile is not None:
            raise Problem("InvalidParameter", detail="Parameter 'osProfile' is not allowed.", target="osProfile")
        return None
    if os_disk.get("createOption") != "FromImage":
        detail = f"The value '{os_disk.get('createOption')}' of parameter 'osDisk.createOption' is out of range."
        raise Problem("InvalidParameter", detail=detail, target="osDisk.createOption")
    if not storage.get("imageReference"):
        raise _missing("imageReference")
    if not profile:
        raise _missing("osProfile")
    for name in ("computerName", "adminUsername"):
        if not profile.get(name):
            raise _missing(f"osProfile.{name}")
    _check_login(profile)
    custom_data = _data(profile.get("customData"), "customData", "Custom data")
    properties["osProfile"] = {
        name: value for name, value in profile.items() if name not in ("customData", "adminPassword")
    }
    return custom_data


def _check_login(profile: Mapping[str, Any]) -> None:
    linux = profile.get("linuxConfiguration") or {}
    keys = (linux.get("ssh") or {}).get("publicKeys") or []
    if "windowsConfiguration" in profile and not profile.get("adminPassword"):
        raise _missing("adminPassword")
    if "windowsConfiguration" not in profile and not keys and not profile.get("adminPassword"):
        detail = "Authentication using either SSH or by user name and password must be enabled in Linux profile."
        raise Problem("InvalidParameter", detail=detail, target="linuxConfiguration")
    home = f"/home/{profile['adminUsername']}/.ssh/authorized_keys"
    for key in keys:
        if key.get("path") != home:
            detail = (
                "Destination path for SSH public keys is currently limited to its default value"
                f" {home} due to a known issue in Linux provisioning agent."
            )
            raise Problem("InvalidParameter", detail=detail, target="linuxConfiguration.ssh.publicKeys.path")


def _data(given: str | None, name: str, title: str) -> str | None:
    if given is None:
        return None
    try:
        size = len(base64.b64decode(given, validate=True))
    except (binascii.Error, ValueError):
        size = MOST_DATA_BYTES + 1
    if size > MOST_DATA_BYTES:
        detail = f"{title} in OSProfile must be in Base64 encoding and with a maximum length of 87380 characters."
        raise Problem("InvalidParameter", detail=detail, target=name)
    return given


def _check_image(estate: Estate, resource: ResourceId, model: Mapping[str, Any]) -> None:
    image = model["properties"]["storageProfile"].get("imageReference") or {}
    if image.get("publisher") not in MARKETPLACE:
        return
    plan = model.get("plan")
    if not plan:
        raise Problem("VMMarketplaceInvalidInput", subject=str(resource))
    if not estate.dials.terms_accepted:
        raise Problem("MarketplacePurchaseEligibilityFailed", detail=str(plan.get("name")))


def _check_nics(estate: Estate, resource: ResourceId, properties: Mapping[str, Any], now: float) -> None:
    nics = (properties.get("networkProfile") or {}).get("networkInterfaces") or []
    if not nics:
        raise _missing("networkProfile")
    primary = [nic for nic in nics if (nic.get("properties") or {}).get("primary")]
    if len(nics) > 1 and len(primary) != 1:
        raise Problem("VirtualMachineMustHaveOneNetworkInterfaceAsPrimary", subject=str(resource))
    for each in nics:
        nic = _nic(estate, resource, str(each.get("id")))
        if nic.owner is not None and nic.owner != resource:
            raise Problem("NicInUse", subject=str(nic.id), detail=str(nic.owner))
        if nic.reserved_for not in (None, resource) and now < nic.reserved_until:
            raise Problem("NicReservedForAnotherVm", detail=str(nic.reserved_for))


def _nic(estate: Estate, resource: ResourceId, given: str) -> Nic:
    parsed = ResourceId.parse(given)
    nic = estate.nics.get(parsed.key) if parsed is not None and parsed.type.lower() == NICS.lower() else None
    if nic is None:
        raise Problem("InvalidResourceReference", detail=given, subject=str(resource))
    return nic


def _check_disks(estate: Estate, resource: ResourceId, model: Mapping[str, Any], existing: Machine | None) -> None:
    """Hold the disks against what there is; those that a machine has already are not asked again."""
    storage = model["properties"]["storageProfile"]
    data_disks = [disk for disk in storage.get("dataDisks") or [] if not disk.get("toBeDetached")]
    luns = [disk.get("lun") for disk in data_disks]
    if None in luns or len(set(luns)) != len(luns):
        detail = "Cannot attach data disks: each needs a LUN of its own."
        raise Problem("InvalidParameter", detail=detail, target="dataDisk.lun")
    for given in (storage["osDisk"], *data_disks):
        disk_id = _disk_id(resource, given)
        disk = estate.disks.get(disk_id.key) if disk_id.name else None
        if disk is not None and existing is not None and disk.owner == existing.id and not disk.leaving:
            continue
        if given.get("createOption") == "Attach":
            _check_attachment(resource, disk, disk_id, model)
        elif disk is not None and not _fails_later(estate, given):
            raise Problem("DiskExists", detail=disk_id.name, group=disk_id.group, target=str(disk_id))


def _check_attachment(resource: ResourceId, disk: Disk | None, disk_id: ResourceId, model: Mapping[str, Any]) -> None:
    if disk is None or disk.deleting:
        raise Problem("ResourceNotFound", type=DISKS, name=disk_id.name, group=disk_id.group, target=str(disk_id))
    if disk.leaving:
        raise Problem("AttachDiskWhileBeingDetached", detail=disk_id.name, name=resource.name)
    if disk.owner is not None:
        raise Problem("DiskOwned", detail=disk_id.name, owner=str(disk.owner), target=str(disk_id))
    if disk.zones and list(disk.zones) != list(model.get("zones") or []):
        detail = f"Disk '{disk_id}' cannot be attached to the VM because it is not in the zone of the VM."
        raise Problem("BadRequest", detail=detail)


def _fails_later(estate: Estate, disk: Document) -> bool:
    return estate.dials.disk_conflicts == "fail-later" and "lun" not in disk


def _check_identity(estate: Estate, resource: ResourceId, model: Mapping[str, Any]) -> None:
    for name in (model.get("identity") or {}).get("userAssignedIdentities") or {}:
        parsed = ResourceId.parse(name)
        if parsed is None or parsed.type.lower() != IDENTITIES.lower() or parsed.key not in estate.identities:
            raise Problem("FailedIdentityOperation", subject=str(resource), detail=name)


def _later_problem(estate: Estate, resource: ResourceId, model: Mapping[str, Any]) -> Problem | None:
    """What is found out only after the creation was accepted."""
    properties = model["properties"]
    size = properties["hardwareProfile"]["vmSize"]
    os_disk = properties["storageProfile"]["osDisk"]
    if os_disk["createOption"] == "FromImage" and os_disk.get("name"):
        disk = estate.disks.get(resource.beside(DISKS, os_disk["name"]).key)
        if disk is not None:
            return Problem("DiskExists", detail=disk.id.name, group=disk.id.group, target=str(disk.id))
    if size in estate.dials.sizes_out_of_capacity:
        return Problem("ZonalAllocationFailed" if model.get("zones") else "AllocationFailed")
    return None


def _completed(estate: Estate, machine: Machine) -> dict[str, Any]:
    """The model with what the cloud fills in: names and sizes of disks, defaults."""
    properties = dict(machine.properties)
    storage = dict(properties["storageProfile"])
    storage["osDisk"] = _completed_os_disk(estate, machine, storage["osDisk"])
    storage["dataDisks"] = [_completed_data_disk(estate, machine, disk) for disk in storage.get("dataDisks") or []]
    properties["storageProfile"] = storage
    if "osProfile" in properties:
        defaults = {"secrets": [], "allowExtensionOperations": True, "requireGuestProvisionSignal": True}
        properties["osProfile"] = {**defaults, **properties["osProfile"]}
    return {**machine.model, "properties": properties}


def _completed_os_disk(estate: Estate, machine: Machine, given: Document) -> dict[str, Any]:
    is_windows = "windowsConfiguration" in (machine.properties.get("osProfile") or {})
    name = given.get("name") or f"{machine.id.name}_OsDisk_1_{estate.new_uuid().replace('-', '')}"
    disk = {"osType": "Windows" if is_windows else "Linux", "caching": "ReadWrite", "deleteOption": "Detach", **given}
    disk.setdefault("diskSizeGB", 30)
    return _with_managed_disk(estate, machine, disk | {"name": name}, "Premium_LRS")


def _completed_data_disk(estate: Estate, machine: Machine, given: Document) -> dict[str, Any]:
    name = given.get("name") or f"{machine.id.name}_disk{given['lun']}_{estate.new_uuid().replace('-', '')}"
    if given["createOption"] == "Attach":
        name = _disk_id(machine.id, given).name
    disk = {"caching": "None", "deleteOption": "Detach", "toBeDetached": False, **given, "name": name}
    return _with_managed_disk(estate, machine, disk, "Premium_LRS")


def _with_managed_disk(estate: Estate, machine: Machine, disk: dict[str, Any], sku: str) -> dict[str, Any]:
    disk_id = _disk_id(machine.id, disk)
    there = estate.disks.get(disk_id.key)
    size = there.size_gb if there is not None else disk.get("diskSizeGB", 32)
    managed = {"storageAccountType": there.sku if there is not None else sku, **disk.get("managedDisk", {})}
    return {**disk, "diskSizeGB": size, "managedDisk": {**managed, "id": str(disk_id)}}


def _disk_id(machine: ResourceId, disk: Document) -> ResourceId:
    given = ResourceId.parse(str((disk.get("managedDisk") or {}).get("id")))
    return given or machine.beside(DISKS, str(disk.get("name") or ""))


def _attach_all(estate: Estate, machine: Machine, now: float) -> None:
    """Take the disks and NICs that a machine's model names, and make those disks that are not there."""
    for given in (machine.os_disk, *machine.data_disks):
        disk = estate.disks.get(_disk_id(machine.id, given).key)
        if disk is None:
            estate.put_disk(_made(estate, machine, given, now), now)
        elif disk.owner is None:
            estate.put_disk(replace(disk, owner=machine.id), now)
    for each in machine.nics:
        nic = _nic(estate, machine.id, each["id"])
        is_primary = bool((each.get("properties") or {}).get("primary", len(machine.nics) == 1))
        if nic.owner != machine.id or nic.primary != is_primary:
            estate.put_nic(replace(nic, owner=machine.id, primary=is_primary, reserved_for=None), now)


def _made(estate: Estate, machine: Machine, given: Document, now: float) -> Disk:
    is_os_disk = "lun" not in given
    image = machine.properties["storageProfile"].get("imageReference") if is_os_disk else None
    return Disk(
        _disk_id(machine.id, given),
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


def _image_id(machine: Machine, image: Document) -> str:
    if "id" in image:
        return str(image["id"])
    return (
        f"/Subscriptions/{machine.id.subscription}/Providers/Microsoft.Compute/Locations/{machine.location}"
        f"/Publishers/{image.get('publisher')}/ArtifactTypes/VMImage/Offers/{image.get('offer')}"
        f"/Skus/{image.get('sku')}/Versions/{image.get('version')}"
    )


def _leave_failed(estate: Estate, machine: Machine, at: float, problem: Problem) -> None:
    """What a creation that failed leaves behind."""
    estate.reserve_nics(machine, at)
    if estate.dials.failed_create_leaves == "machine-and-disk":
        estate.failed(machine, at, problem)
        return
    os_disk = estate.disks.get(_disk_id(machine.id, machine.os_disk).key)
    if os_disk is not None and os_disk.owner == machine.id and machine.os_disk["createOption"] == "FromImage":
        estate.put_disk(replace(os_disk, owner=None), at)
        estate.drop_disk(os_disk, at)
    estate.failed(machine, at, problem)
    if estate.dials.failed_create_leaves == "nothing":
        estate.delete_machine(estate.machine(machine.id), at)


# Changing


def _check_change(estate: Estate, machine: Machine, change: Mapping[str, Any]) -> None:
    if change.get("location", machine.location).lower() != machine.location.lower():
        raise Problem("InvalidResourceLocation", name=machine.id.name, detail=machine.location, group=machine.id.group)
    if "zones" in change and list(change["zones"] or []) != list(machine.model.get("zones") or []):
        raise Problem("PropertyChangeNotAllowed", detail="zones", target="zones")
    properties = change["properties"]
    _check_fixed(machine, properties)
    _check_identity(estate, machine.id, change)
    size = (properties.get("hardwareProfile") or {}).get("vmSize")
    if size and not cores(size):
        raise Problem(
            "InvalidParameter", detail=f"The value {size} provided for the VM size is not valid.", target="vmSize"
        )
    nics = (properties.get("networkProfile") or {}).get("networkInterfaces")
    if nics is not None:
        wanted = {str(nic.get("id")).lower() for nic in nics}
        if wanted != {nic["id"].lower() for nic in machine.nics} and machine.power is not Power.DEALLOCATED:
            detail = "Adding or deleting network interfaces is only allowed on a virtual machine that is deallocated."
            raise Problem("OperationNotAllowed", detail=detail, target="networkProfile")
        for nic in nics:
            _nic(estate, machine.id, str(nic.get("id")))


def _check_fixed(machine: Machine, properties: Mapping[str, Any]) -> None:
    """Refuse to change what is settled when a machine is made."""
    profile = properties.get("osProfile") or {}
    if "customData" in profile and profile["customData"] != machine.custom_data:
        raise Problem("PropertyChangeNotAllowed", detail="osProfile.customData", target="osProfile.customData")
    before = machine.properties.get("osProfile") or {}
    for name in FIXED:
        if name in profile and profile[name] != before.get(name):
            raise Problem("PropertyChangeNotAllowed", detail=f"osProfile.{name}", target=f"osProfile.{name}")
    group, was = properties.get("availabilitySet"), machine.properties.get("availabilitySet")
    if group is not None and str(group.get("id")).lower() != str((was or {}).get("id")).lower():
        raise Problem("PropertyChangeNotAllowed", detail="availabilitySet.id", target="availabilitySet.id")
    storage = properties.get("storageProfile") or {}
    image = storage.get("imageReference")
    known = machine.properties["storageProfile"].get("imageReference") or {}
    if image is not None and any(known.get(name) != image[name] for name in image if name != "exactVersion"):
        raise Problem("PropertyChangeNotAllowed", detail="imageReference", target="imageReference")
    disk = (storage.get("osDisk") or {}).get("name")
    if disk is not None and disk.lower() != machine.os_disk["name"].lower():
        raise Problem("PropertyChangeNotAllowed", detail="osDisk.name", target="osDisk.name")


def _merged(machine: Machine, change: Mapping[str, Any]) -> dict[str, Any]:
    """The model with a change: objects are merged, lists take the place of those before."""
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


def _missing(name: str) -> Problem:
    return Problem("InvalidParameter", detail=f"Required parameter '{name}' is missing (null).", target=name)
