"""Rules of a request for a virtual machine, checked before anything is changed."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, Final

from unbounded_lab.cloud.azure import model_rules
from unbounded_lab.cloud.azure.catalog import VIRTUAL_MACHINE, checked, plain, size_of
from unbounded_lab.cloud.azure.errors import AzureProblem
from unbounded_lab.cloud.azure.model import DISKS, IDENTITIES, NICS, Disk, Document, Nic, ResourceId, VirtualMachine
from unbounded_lab.cloud.azure.model_rules import IMAGE_IDS, IMAGE_PARTS
from unbounded_lab.cloud.azure.resources import AzureResources

MOST_DATA_BYTES: Final = 65535
PUBLIC_KEYS: Final = ("ssh-rsa", "ssh-ed25519")
MARKETPLACE: Final = frozenset({"cognosys", "kinvolk", "almalinux"})
"""Publishers whose images are bought with a plan."""
PLAN_PARTS: Final = (("publisher", "publisher"), ("product", "offer"), ("name", "sku"))
"""Properties of a plan, and the equal ones of its image."""
MANAGED_IMAGE: Final = re.compile(r"/providers/Microsoft\.Compute/images/", re.IGNORECASE)
REFERENCE: Final = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/[^/]+(?:/[^/]+/[^/]+)+", re.IGNORECASE
)
REFERENCES: Final = (
    ("availabilitySet",),
    ("proximityPlacementGroup",),
    ("host",),
    ("hostGroup",),
    ("virtualMachineScaleSet",),
    ("capacityReservation", "capacityReservationGroup"),
    ("storageProfile", "osDisk", "managedDisk", "diskEncryptionSet"),
)
"""Paths in a machine's properties to references of other resources."""
PARTS: Final = (
    ("dataDisk", ("storageProfile", "dataDisks"), ("lun", "createOption")),
    ("networkInterface", ("networkProfile", "networkInterfaces"), ("id",)),
)
"""Lists of parts, each with its required properties."""


class ImageOffer(Enum):
    YES = "offered"
    DEPRECATED = "deprecated"
    NOT = "not offered"


WITHOUT: Final = {
    ImageOffer.YES: None,
    ImageOffer.DEPRECATED: "ImageVersionDeprecated",
    ImageOffer.NOT: "PlatformImageNotFound",
}
"""Error of a creation, by the state of its image."""


def cores(name: str) -> int:
    size = size_of(name)
    return size.cores if size is not None else 0


def model_of(body: Document) -> dict[str, Any]:
    """Return a request without the properties that only the cloud can set."""
    model: dict[str, Any] = {"properties": {}, **checked(body, VIRTUAL_MACHINE)}
    if "location" in model:
        model["location"] = plain(model["location"])
    for name, place, needed in PARTS:
        for part in _at(model["properties"], place) or []:
            for each in needed:
                if each not in part:
                    raise missing(f"{name}.{each}")
    return model


def _at(properties: Mapping[str, Any], place: Sequence[str]) -> Any:
    found: Any = properties
    for name in place:
        found = (found or {}).get(name)
    return found


def check_new(
    estate: AzureResources, resource: ResourceId, model: Mapping[str, Any], now: float
) -> tuple[str | None, str | None]:
    """Check a new machine against all rules that are checked at once; returns its custom data and user data."""
    if not model.get("location"):
        raise AzureProblem("LocationRequired")
    if estate.faults.policy_refuses:
        raise AzureProblem("RequestDisallowedByPolicy", name=resource.name)
    properties = model["properties"]
    size = _choose_size(properties)
    model_rules.check(model, resource.name)
    _check_capacity(estate, resource, size)
    _check_placement(model)
    check_references(estate, resource, model)
    custom_data = _check_os(properties)
    user_data = _data(properties.pop("userData", None), "userData", "User data")
    _check_image(estate, resource, model)
    _check_nics(estate, resource, model, now)
    check_disks(estate, resource, model, None)
    check_identity(estate, resource, model)
    return custom_data, user_data


def _choose_size(properties: dict[str, Any]) -> str:
    """Return the size of a new machine, which Azure chooses where a flexProfile is given."""
    hardware, flex = properties.get("hardwareProfile") or {}, properties.get("flexProfile")
    if flex is not None and hardware.get("vmSize"):
        raise AzureProblem("BadRequest", detail="hardwareProfile.vmSize must be omitted where flexProfile is added.")
    size = hardware.get("vmSize") or (flex or {}).get("preferredVMSize")
    if not size:
        raise missing("vmSize")
    properties["hardwareProfile"] = {**hardware, "vmSize": size}
    return str(size)


def _check_capacity(estate: AzureResources, resource: ResourceId, size: str) -> None:
    if size in estate.faults.sizes_not_available:
        raise AzureProblem("SkuNotAvailable", detail=size, target="vmSize")
    quota = estate.faults.cores_quota
    if quota is not None:
        used = sum(
            cores(machine.properties["hardwareProfile"]["vmSize"])
            for _, machine in estate.machines
            if machine.id.subscription.lower() == resource.subscription.lower()
        )
        if used + cores(size) > quota:
            detail = f"Current Limit: {quota}, Current Usage: {used}, Additional Required: {cores(size)}"
            raise AzureProblem("QuotaExceeded", detail=detail)


def _check_placement(model: Mapping[str, Any]) -> None:
    if model["properties"].get("availabilitySet") is not None and model.get("zones"):
        raise AzureProblem("BadRequest", detail="Virtual Machine cannot be both in an availability set and in a zone.")


def check_references(estate: AzureResources, resource: ResourceId, model: Mapping[str, Any]) -> None:
    """Check that the resources that a machine names exist."""
    for place in REFERENCES:
        named = _at(model["properties"], place)
        if named is None:
            continue
        given = str(named.get("id", ""))
        if not REFERENCE.fullmatch(given):
            raise AzureProblem("BadRequest", detail=f"Id {given} is not a valid resource reference.")
        if given.lower() not in estate.availability_sets and given.lower() not in estate.others:
            raise AzureProblem("InvalidResourceReference", detail=given, subject=str(resource))


def _check_os(properties: dict[str, Any]) -> str | None:
    """Check the operating system's part and remove its secrets; returns the custom data."""
    storage = properties.get("storageProfile") or {}
    os_disk = storage.get("osDisk")
    if not os_disk:
        raise missing("osDisk")
    profile = properties.get("osProfile")
    if os_disk.get("createOption") == "Attach":
        for name, value in (("osProfile", profile), ("imageReference", storage.get("imageReference"))):
            if value is not None:
                raise _not_allowed(name)
        return None
    if os_disk.get("createOption") != "FromImage":
        detail = f"The value '{os_disk.get('createOption')}' of parameter 'osDisk.createOption' is out of range."
        raise AzureProblem("InvalidParameter", detail=detail, target="osDisk.createOption")
    if not storage.get("imageReference"):
        raise missing("imageReference")
    if not profile:
        raise missing("osProfile")
    for name in ("computerName", "adminUsername"):
        if not profile.get(name):
            raise missing(f"osProfile.{name}")
    if profile.get("requireGuestProvisionSignal") is not None:  # shown in replies, and rejected in requests
        detail = (
            "The property 'requireGuestProvisionSignal' is not valid because the 'Microsoft.Compute/Agentless' feature"
            " is not enabled for this subscription."
        )
        raise AzureProblem("InvalidParameter", detail=detail, target="osProfile.requireGuestProvisionSignal")
    if "diffDiskSettings" in os_disk:
        _check_ephemeral(os_disk)
    _check_login(profile)
    custom_data = custom_data_of(profile)
    properties["osProfile"] = {
        name: value for name, value in profile.items() if name not in ("customData", "adminPassword")
    }
    return custom_data


def custom_data_of(profile: Mapping[str, Any]) -> str | None:
    """Return the custom data for a host's first boot; None without any.

    Raises:
        AzureProblem: it is too large, or not in base64.
    """
    return _data(profile.get("customData"), "customData", "Custom data")


def _check_ephemeral(os_disk: Mapping[str, Any]) -> None:
    if os_disk.get("caching") != "ReadOnly":
        detail = "Ephemeral OS disks need the caching type ReadOnly."
        raise AzureProblem("InvalidParameter", detail=detail, target="osDisk.caching")
    if os_disk.get("deleteOption", "Delete") != "Delete":
        detail = "Ephemeral OS disks are deleted with their VM: deleteOption has to be Delete."
        raise AzureProblem("InvalidParameter", detail=detail, target="osDisk.deleteOption")


def _check_login(profile: Mapping[str, Any]) -> None:
    linux = profile.get("linuxConfiguration") or {}
    keys = (linux.get("ssh") or {}).get("publicKeys") or []
    by_keys = bool(linux.get("disablePasswordAuthentication")) and "windowsConfiguration" not in profile
    if not by_keys and not profile.get("adminPassword"):
        raise missing("adminPassword")
    if by_keys and not keys:
        detail = "Authentication using either SSH or by user name and password must be enabled in Linux profile."
        raise AzureProblem("InvalidParameter", detail=detail, target="linuxConfiguration")
    home = f"/home/{profile['adminUsername']}/.ssh/authorized_keys"
    for key in keys:
        if key.get("path") != home:
            detail = (
                "Destination path for SSH public keys is currently limited to its default value"
                f" {home} due to a known issue in Linux provisioning agent."
            )
            raise AzureProblem("InvalidParameter", detail=detail, target="linuxConfiguration.ssh.publicKeys.path")
        if not _is_public_key(key.get("keyData") or ""):
            detail = "The value of parameter linuxConfiguration.ssh.publicKeys.keyData is invalid."
            raise AzureProblem("InvalidParameter", detail=detail, target="linuxConfiguration.ssh.publicKeys.keyData")


def _is_public_key(text: str) -> bool:
    """Return whether Azure accepts a key, on one line as OpenSSH writes it: its data must contain its kind, too."""
    kind, _, rest = text.strip().partition(" ")
    data = rest.partition(" ")[0]
    try:
        decoded = base64.b64decode(data, validate=True)
    except ValueError:
        return False
    return kind in PUBLIC_KEYS and decoded.startswith(len(kind).to_bytes(4, "big") + kind.encode())


def _data(given: str | None, name: str, title: str) -> str | None:
    if given is None:
        return None
    try:
        size = len(base64.b64decode(given, validate=True))
    except (binascii.Error, ValueError):
        size = MOST_DATA_BYTES + 1
    if size > MOST_DATA_BYTES:
        detail = f"{title} in OSProfile must be in Base64 encoding and with a maximum length of 87380 characters."
        raise AzureProblem("InvalidParameter", detail=detail, target=name)
    return given


def _check_image(estate: AzureResources, resource: ResourceId, model: Mapping[str, Any]) -> None:
    image = model["properties"]["storageProfile"].get("imageReference") or {}
    for name in IMAGE_IDS:
        if image.get(name):
            check_own_image(estate, image[name], model["location"])
            return
    if not image:
        return
    urn = [image[name] for name in IMAGE_PARTS]
    if (error := WITHOUT[offered(estate, *urn)]) is not None:
        raise AzureProblem(error, detail=":".join(urn), target="imageReference")
    _check_plan(estate, resource, image, model.get("plan") or {})


def _check_plan(
    estate: AzureResources, resource: ResourceId, image: Mapping[str, str], plan: Mapping[str, str]
) -> None:
    is_bought = image["publisher"].lower() in MARKETPLACE
    if not is_bought and not plan:
        return
    if is_bought is not bool(plan):
        kind = "Marketplace" if is_bought else "non Marketplace"
        needs = "requires Plan information in the request" if is_bought else "does not need Plan information"
        detail = f"Creating a virtual machine from {kind} image {needs}. VM: '{resource}'."
        raise AzureProblem("VMMarketplaceInvalidInput", detail=detail)
    if any(plan.get(name, "").lower() != image[part].lower() for name, part in PLAN_PARTS):
        detail = (
            f"The purchase information does not match. Unable to deploy from the Marketplace image. VM: '{resource}'."
        )
        raise AzureProblem("VMMarketplaceInvalidInput", detail=detail)
    if not estate.faults.terms_accepted:
        raise AzureProblem("MarketplacePurchaseEligibilityFailed", detail=plan["name"])


def check_own_image(estate: AzureResources, image: str, location: str) -> None:
    """Check that an image exists that is named by its id."""
    versions = f"{image.lower().removesuffix('/versions/latest')}/versions/"
    if image.lower() in estate.others or any(each.startswith(versions) for each in estate.others):
        return
    if MANAGED_IMAGE.search(image):
        raise AzureProblem("NotFound", detail=f"The Image {image} cannot be found.", target="imageReference")
    raise AzureProblem("GalleryImageNotFound", detail=image, location=location, target="imageReference")


def offered(estate: AzureResources, *image: str) -> ImageOffer:
    """Return whether an image is offered, by its publisher, offer, SKU and version."""
    urn, series, version = ":".join(image), ":".join(image[:-1]).lower(), image[-1].lower()
    if any(fnmatchcase(urn, pattern) for pattern in estate.faults.images_deprecated):
        return ImageOffer.DEPRECATED
    known = series in estate.images and version in ("latest", *estate.images[series])
    return ImageOffer.YES if known and urn not in estate.faults.images_withdrawn else ImageOffer.NOT


def _check_nics(estate: AzureResources, resource: ResourceId, model: Mapping[str, Any], now: float) -> None:
    properties, location = model["properties"], model["location"]
    nics = (properties.get("networkProfile") or {}).get("networkInterfaces") or []
    if nics and properties["networkProfile"].get("networkInterfaceConfigurations"):
        detail = "networkInterfaces and networkInterfaceConfigurations cannot be given together."
        raise AzureProblem("BadRequest", detail=detail)
    if not nics:
        raise missing("networkProfile")
    primary = [nic for nic in nics if (nic.get("properties") or {}).get("primary")]
    if len(nics) > 1 and len(primary) != 1:
        raise AzureProblem("VirtualMachineMustHaveOneNetworkInterfaceAsPrimary", subject=str(resource))
    for each in nics:
        nic = nic_of(estate, resource, str(each.get("id")), location)
        if nic.owner is not None and nic.owner != resource:
            raise AzureProblem("NicInUse", subject=str(nic.id), detail=str(nic.owner))
        if nic.reserved_for not in (None, resource) and now < nic.reserved_until:
            raise AzureProblem("NicReservedForAnotherVm", detail=str(nic.reserved_for))


def nic_of(estate: AzureResources, resource: ResourceId, given: str, location: str) -> Nic:
    """Return the network interface of an id in a machine's model.

    Raises:
        AzureProblem: there is none, or not in the location of the machine.
    """
    parsed = ResourceId.parse(given)
    nic = estate.nics.get(parsed.key) if parsed is not None and parsed.type.lower() == NICS.lower() else None
    if nic is None or plain(nic.location) != plain(location):
        raise AzureProblem("InvalidResourceReference", detail=given, subject=str(resource))
    return nic


def check_disks(
    estate: AzureResources, resource: ResourceId, model: Mapping[str, Any], existing: VirtualMachine | None
) -> None:
    """Check the disks of a model; those that the machine has already are not checked again."""
    storage = model["properties"]["storageProfile"]
    for given in (storage["osDisk"], *model_rules.data_disks(model)):
        disk_id = id_of_disk(resource, given)
        disk = estate.disks.get(disk_id.key) if disk_id.name else None
        if disk is not None and existing is not None and disk.owner == existing.id and not disk.leaving:
            continue
        if given.get("createOption") != "Attach" and (given.get("managedDisk") or {}).get("id"):
            raise _not_allowed("dataDisk.managedDisk.id" if "lun" in given else "osDisk.managedDisk.id")
        if given.get("createOption") == "Attach":
            _check_attachment(resource, disk, disk_id, model)
        elif disk is not None and not _fails_later(estate, given):
            raise AzureProblem("DiskExists", detail=disk_id.name, group=disk_id.group, target=str(disk_id))


def _check_attachment(resource: ResourceId, disk: Disk | None, disk_id: ResourceId, model: Mapping[str, Any]) -> None:
    if disk is None or disk.deleting:
        raise AzureProblem("ResourceNotFound", type=DISKS, name=disk_id.name, group=disk_id.group, target=str(disk_id))
    if disk.leaving:
        raise AzureProblem("AttachDiskWhileBeingDetached", detail=disk_id.name, name=resource.name)
    if disk.owner is not None:
        raise AzureProblem("DiskOwned", detail=disk_id.name, owner=str(disk.owner), target=str(disk_id))
    if disk.zones and list(disk.zones) != list(model.get("zones") or []):
        detail = f"Disk '{disk_id}' cannot be attached to the VM because it is not in the zone of the VM."
        raise AzureProblem("BadRequest", detail=detail)


def _fails_later(estate: AzureResources, disk: Document) -> bool:
    return estate.faults.disk_conflicts == "fail-later" and "lun" not in disk


def check_identity(estate: AzureResources, resource: ResourceId, model: Mapping[str, Any]) -> None:
    """Check that the user-assigned identities of a model exist."""
    for name in (model.get("identity") or {}).get("userAssignedIdentities") or {}:
        parsed = ResourceId.parse(name)
        if parsed is None or parsed.type.lower() != IDENTITIES.lower() or parsed.key not in estate.identities:
            raise AzureProblem("FailedIdentityOperation", subject=str(resource), detail=name)


def later_problem(estate: AzureResources, resource: ResourceId, model: Mapping[str, Any]) -> AzureProblem | None:
    """Return the problem that the cloud detects only after it has accepted the creation; None without one."""
    properties = model["properties"]
    size = properties["hardwareProfile"]["vmSize"]
    os_disk = properties["storageProfile"]["osDisk"]
    if os_disk["createOption"] == "FromImage" and os_disk.get("name"):
        disk = estate.disks.get(resource.sibling(DISKS, os_disk["name"]).key)
        if disk is not None:
            return AzureProblem("DiskExists", detail=disk.id.name, group=disk.id.group, target=str(disk.id))
    if size in estate.faults.sizes_out_of_capacity:
        return AzureProblem("ZonalAllocationFailed" if model.get("zones") else "AllocationFailed")
    return None


def id_of_disk(machine: ResourceId, disk: Document) -> ResourceId:
    """Return the id of a disk in a machine's model, which has its id or its name."""
    given = ResourceId.parse(str((disk.get("managedDisk") or {}).get("id")))
    return given or machine.sibling(DISKS, str(disk.get("name") or ""))


def _not_allowed(name: str) -> AzureProblem:
    return AzureProblem("InvalidParameter", detail=f"Parameter '{name}' is not allowed.", target=name)


def missing(name: str) -> AzureProblem:
    return AzureProblem("InvalidParameter", detail=f"Required parameter '{name}' is missing (null).", target=name)
