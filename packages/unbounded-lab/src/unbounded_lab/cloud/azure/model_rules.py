"""Rules about a virtual machine's model alone, without other resources: one row for each.

Messages, codes and targets are Azure's (learn.microsoft.com/azure/virtual-machines: error messages of virtual machines,
and of Spot; the SDK's descriptions of OSProfile).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from unbounded_lab.cloud.azure.catalog import SIZES, ZONES, plain, size_of
from unbounded_lab.cloud.azure.errors import AzureProblem
from unbounded_lab.cloud.azure.model import Document

Offends = Callable[[Document], Iterable[Any]]
"""Returns the values in a model that break a rule, for its message; a tuple for a message with several."""

_NOT_ADMINS: Final = """
administrator admin user user1 test user2 test1 user3 admin1 1 123 a actuser adm admin2 aspnet backup console david
guest john owner root server sql support support_388945a0 sys test2 test3 user4 user5
"""
_NOT_PASSWORDS: Final = """
abc@123 P@$$w0rd P@ssw0rd P@ssword123 Pa$$word pass@word1 Password! Password1 Password22 iloveyou!
"""
_LICENSES: Final = """
Windows_Client Windows_Server None RHEL_BYOS RHEL_BASE RHEL_EUS RHEL_SAPAPPS RHEL_SAPHA RHEL_BASESAPAPPS RHEL_BASESAPHA
SLES_BYOS SLES SLES_STANDARD SLES_SAP SLES_HPC UBUNTU UBUNTU_PRO
"""
NOT_ADMINS, NOT_PASSWORDS, LICENSES = (frozenset(each.split()) for each in (_NOT_ADMINS, _NOT_PASSWORDS, _LICENSES))
NOT_IN_HOST_NAMES: Final = "` ~ ! @ # $ % ^ & * ( ) = + _ [ ] { } \\ | ; : ' \" , < > / ?"
IMAGE_SIZE_GB: Final = 30
IMAGE_PARTS: Final = ("publisher", "offer", "sku", "version")
IMAGE_IDS: Final = ("id", "sharedGalleryImageId", "communityGalleryImageId")


@dataclass(frozen=True, slots=True)
class ModelRule:
    """One rule.

    Args:
        says: the message, with the offending value at `{0}` and the name of the machine at `{name}`.
        error: a name in the table of errors.
    """

    offends: Offends
    says: str
    target: str | None = None
    error: str = "InvalidParameter"


def check(model: Document, name: str) -> None:
    """Check the model of a machine of that name.

    Raises:
        AzureProblem: for the first rule that it breaks.
    """
    for rule in RULES:
        for found in rule.offends(model):
            words = rule.says.format(*(found if isinstance(found, tuple) else (found,)), name=name)
            raise AzureProblem(rule.error, detail=words, target=rule.target and rule.target.format(found))


def data_disks(model: Document) -> list[Document]:
    """Return the data disks that a model keeps attached."""
    disks = model["properties"].get("storageProfile", {}).get("dataDisks") or []
    return [disk for disk in disks if not disk.get("toBeDetached")]


def _profile(model: Document) -> Document:
    profile: Document = model["properties"].get("osProfile") or {}
    return profile


def _is_windows(model: Document) -> bool:
    return "windowsConfiguration" in _profile(model)


def _location(model: Document) -> Iterator[str]:
    if plain(model["location"]) not in ZONES:
        yield model["location"]


def _zones(model: Document) -> Iterator[tuple[str, ...]]:
    offered = ZONES[plain(model["location"])]
    if any(zone not in offered for zone in model.get("zones") or ()):
        yield ",".join(model["zones"]), plain(model["location"]), ",".join(offered)


def _size(model: Document) -> Iterator[str]:
    size = model["properties"]["hardwareProfile"]["vmSize"]
    if size_of(size) is None:
        yield size


def _too_many_data_disks(model: Document) -> Iterator[int]:
    size = size_of(model["properties"]["hardwareProfile"]["vmSize"])
    if size is not None and len(data_disks(model)) > size.data_disks:
        yield size.data_disks


def _luns_taken(model: Document) -> Iterator[int]:
    seen = set[int]()
    for disk in data_disks(model):
        if disk["lun"] in seen:
            yield disk["lun"]
        seen.add(disk["lun"])


def _small_os_disk(model: Document) -> Iterator[int]:
    disk = model["properties"].get("storageProfile", {}).get("osDisk") or {}
    size = disk.get("diskSizeGB")
    if disk.get("createOption") == "FromImage" and size is not None and size < IMAGE_SIZE_GB:
        yield size


def _image_parts(model: Document) -> Iterator[str]:
    image = model["properties"].get("storageProfile", {}).get("imageReference") or {}
    if image and not any(image.get(name) for name in IMAGE_IDS):
        yield from (name for name in IMAGE_PARTS if not image.get(name))


def _host_name(model: Document) -> Iterator[str]:
    name = _profile(model).get("computerName", "")
    if not _is_windows(model) and (len(name) > 64 or set(name) & set(NOT_IN_HOST_NAMES)):
        yield name


def _windows_name(model: Document) -> Iterator[str]:
    name = _profile(model).get("computerName", "")
    if _is_windows(model) and (len(name) > 15 or name.isdecimal() or set(name) & set(NOT_IN_HOST_NAMES + ".")):
        yield name


def _password(model: Document) -> Iterator[str]:
    password = _profile(model).get("adminPassword")
    if password is None:
        return
    least, most = (8, 123) if _is_windows(model) else (6, 72)
    kinds = sum(re.search(kind, password) is not None for kind in ("[A-Z]", "[a-z]", "[0-9]", r"[\W_]"))
    if not least <= len(password) <= most or kinds < 3 or re.search(r"[\x00-\x1f\x7f]", password):
        yield f"{least}-{most}"


def _tags(model: Document) -> Document:
    tags: Document = model.get("tags") or {}
    return tags


def _of_no_size(model: Document) -> Iterator[int]:
    return (disk["lun"] for disk in data_disks(model) if disk["createOption"] == "Empty" and not disk.get("diskSizeGB"))


def _without_identities(model: Document) -> Iterator[str]:
    identity = model.get("identity") or {}
    if "UserAssigned" in identity.get("type", "") and not identity.get("userAssignedIdentities"):
        yield identity["type"]


def _identities_for_nothing(model: Document) -> Iterator[str]:
    identity = model.get("identity") or {}
    if "UserAssigned" not in identity.get("type", "UserAssigned") and identity.get("userAssignedIdentities"):
        yield identity["type"]


def _is_spot(model: Document) -> bool:
    return bool(model["properties"].get("priority", "Regular") != "Regular")


RULES: Final = (
    # Rules of Resource Manager, which checks first
    ModelRule(
        lambda model: (len(_tags(model)),) if len(_tags(model)) > 50 else (),
        "Too many tags specified. Requested tag count - '{0}'. Maximum number of tags allowed - '50'.",
        error="InvalidTags",
    ),
    ModelRule(
        lambda model: (name for name in _tags(model) if len(name) > 512),
        "Tag name too large. Following tag name '{0}' exceeded the maximum length. Maximum allowed length for tag"
        " name - '512' characters.",
        error="InvalidTagName",
    ),
    ModelRule(
        lambda model: (name for name in _tags(model) if set(name) & set("<>%&\\?/")),
        "The tag names '{0}' have reserved characters '<,>,%,&,\\,?,/' or control characters.",
        error="InvalidTagNameCharacters",
    ),
    ModelRule(
        lambda model: (value for value in _tags(model).values() if len(value) > 256),
        "Tag value too large. Following tag value '{0}' exceeded the maximum length. Maximum allowed length for tag"
        " value - '256' characters.",
        error="InvalidTagValueLength",
    ),
    ModelRule(
        _location,
        "The provided location '{0}' is not available for resource type 'Microsoft.Compute/virtualMachines'. List of"
        f" available regions for the resource type is '{','.join(ZONES)}'.",
        error="LocationNotAvailableForResourceType",
    ),
    ModelRule(
        _zones,
        "The zone(s) '{0}' for resource 'Microsoft.Compute/virtualMachines/{name}' is not supported. The supported"
        " zones for location '{1}' are '{2}'",
        error="InvalidAvailabilityZone",
    ),
    ModelRule(
        _without_identities,
        "The identity ids must not be null or empty for '{0}' identity type.",
        error="MissingIdentityIds",
    ),
    ModelRule(
        _identities_for_nothing,
        "Failed to perform resource identity operation. Status: 'BadRequest'. Response: 'The request format was"
        " unexpected, a non-UserAssigned identity type should not contain: userAssignedIdentities'",
        error="IdentityNotExpected",
    ),
    # Rules of Compute
    ModelRule(
        _size,
        "The value {0} provided for the VM size is not valid. The valid sizes in the current region are:"
        f" {','.join(size.name for size in SIZES.values())}. Find out more on the available VM sizes in each region at"
        " https://aka.ms/azure-regions.",
        "vmSize",
    ),
    ModelRule(
        lambda model: (disk["lun"] for disk in data_disks(model) if not 0 <= disk["lun"] <= 63),
        "The value '{0}' of parameter 'dataDisk.lun' is out of range. Value '{0}' must be between '0' and '63'"
        " inclusive.",
        "dataDisk.lun",
    ),
    ModelRule(_luns_taken, "A disk at LUN {0} already exists.", "dataDisk.lun"),
    ModelRule(
        _too_many_data_disks,
        "The maximum number of data disks allowed to be attached to a VM of this size is {0}.",
        "dataDisks",
        "OperationNotAllowed",
    ),
    ModelRule(
        _of_no_size,
        "Required parameter 'dataDisk.diskSizeGB' is missing (null).",
        "dataDisk.diskSizeGB",
    ),
    ModelRule(
        _small_os_disk,
        "The specified disk size {0} GB is smaller than the size of the corresponding disk in the VM image:"
        f" {IMAGE_SIZE_GB} GB. This is not allowed. Please choose equal or greater size or do not specify an explicit"
        " size.",
        "osDisk.diskSizeGB",
        "OperationNotAllowed",
    ),
    ModelRule(_image_parts, "The value of parameter imageReference.{0} is invalid.", "imageReference.{0}"),
    ModelRule(
        _host_name,
        "Linux host name cannot exceed 64 characters in length or contain the following characters:"
        f" {NOT_IN_HOST_NAMES.replace('{', '{{').replace('}', '}}')}.",
        "computerName",
    ),
    ModelRule(
        _windows_name,
        "Windows computer name cannot be more than 15 characters long, be entirely numeric, or contain the following"
        f" characters: {NOT_IN_HOST_NAMES.replace('{', '{{').replace('}', '}}')} ..",
        "computerName",
    ),
    ModelRule(
        lambda model: (name for name in [_profile(model).get("adminUsername", "")] if name.lower() in NOT_ADMINS),
        "The Admin Username specified is not allowed.",
        "adminUsername",
    ),
    ModelRule(
        lambda model: (word for word in [_profile(model).get("adminPassword")] if word in NOT_PASSWORDS),
        "The Admin password specified is not allowed.",
        "adminPassword",
    ),
    ModelRule(
        _password,
        "The supplied password must be between {0} characters long and must satisfy at least 3 of password complexity"
        " requirements from the following:\r\n1) Contains an uppercase character\r\n2) Contains a lowercase"
        " character\r\n3) Contains a numeric digit\r\n4) Contains a special character\r\n5) Control characters are not"
        " allowed",
        "adminPassword",
    ),
    ModelRule(
        lambda model: (name for name in [model["properties"].get("licenseType")] if name and name not in LICENSES),
        f"The license type {{0}} is invalid. Valid license types are: {', '.join(sorted(LICENSES))}, case sensitive.",
        "licenseType",
    ),
    ModelRule(
        lambda model: [] if _is_spot(model) else filter(None, [model["properties"].get("evictionPolicy")]),
        "Eviction policy can be set only on Azure Spot Virtual Machines.",
        "evictionPolicy",
        "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines",
    ),
    ModelRule(
        lambda model: [True] if _is_spot(model) and model["properties"].get("availabilitySet") else [],
        "Azure Spot Virtual Machine is not supported in Availability Set.",
        "priority",
        "AzureSpotVMNotSupportedInAvailabilitySet",
    ),
)
"""In the order of their checks; later ones may rely on earlier ones."""
