"""First checks of Resource Manager: the version of the API, the subscription and the resource group."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from unbounded_lab.cloud.azure.catalog import API_VERSIONS, OLDER, ZONES
from unbounded_lab.cloud.azure.errors import AzureProblem
from unbounded_lab.cloud.azure.names import AVAILABILITY_SETS, COMPUTE, DISKS, EXTENSIONS, MACHINES, NICS, SCALE_SETS
from unbounded_lab.cloud.azure.request_shapes import KNOWN
from unbounded_lab.cloud.azure.resources import AzureResources

GROUPS: Final = "Microsoft.Resources/resourceGroups"
TYPES: Final[Mapping[str, str]] = {
    "VirtualMachines": MACHINES,
    "VirtualMachineScaleSets": SCALE_SETS,
    "VirtualMachineScaleSetVMs": f"{SCALE_SETS}/virtualMachines",
    "VirtualMachineExtensions": EXTENSIONS,
    "VirtualMachineImages": f"{COMPUTE}/locations/publishers",
    "Images": f"{COMPUTE}/images",
    "GalleryImageVersions": f"{COMPUTE}/galleries/images/versions",
    "SharedGalleryImageVersions": f"{COMPUTE}/locations/sharedGalleries",
    "CommunityGalleryImageVersions": f"{COMPUTE}/locations/communityGalleries",
    "Disks": DISKS,
    "AvailabilitySets": AVAILABILITY_SETS,
    "Operations": f"{COMPUTE}/locations/operations",
    "NetworkInterfaces": NICS,
    "ResourceGroups": GROUPS,
}
"""Types of resources, by the prefix of the names of their calls."""
IN_ROLES: Final[Mapping[str, str]] = {
    "VirtualMachineImages": f"{COMPUTE}/locations/publishers/artifacttypes/offers/skus/versions",
    "SharedGalleryImageVersions": f"{COMPUTE}/locations/sharedGalleries/images/versions",
    "CommunityGalleryImageVersions": f"{COMPUTE}/locations/communityGalleries/images/versions",
    "ResourceGroups": "Microsoft.Resources/subscriptions/resourceGroups",
}
"""The same in roles, where these have another name."""
RIGHTS: Final = {"GET": "read", "PUT": "write", "PATCH": "write", "DELETE": "delete", "POST": "action"}
DATED: Final = re.compile(r"\d{4}-\d{2}-\d{2}(?:-preview)?")


def check(estate: AzureResources, call: str, names: Sequence[str], query: Mapping[str, str]) -> None:
    """Check a request's API version, subscription and resource group.

    Args:
        call: its name; not that of a login.
        names: the subscription, and the following names in the path.

    Raises:
        Problem: one of them is invalid or does not exist.
    """
    kind = TYPES[call.partition(".")[0]]
    group = names[1] if len(names) > 1 and "/locations" not in kind else None
    if "api-version" not in query:
        raise AzureProblem("MissingApiVersionParameter")
    is_behind = estate.dials.older_apis and kind.startswith(f"{COMPUTE}/")
    known = OLDER if is_behind else API_VERSIONS[kind]
    if query["api-version"] not in known:
        raise _unknown_version(estate, kind, query["api-version"], known, (names[0].lower(), (group or "").lower()))
    can_be = [each.lower() for each in KNOWN.expand.get(call, ())]
    if can_be and "$expand" in query and any(each not in can_be for each in query["$expand"].lower().split(",")):
        raise AzureProblem("InvalidParameter", detail="The request URL is not valid.", target="$expand")
    if names[0].lower() not in estate.subscriptions:
        raise AzureProblem("SubscriptionNotFound", detail=names[0])
    if group is not None and (names[0].lower(), group.lower()) not in estate.groups:
        raise AzureProblem("ResourceGroupNotFound", group=group)


def needed(call: str, method: str, path: str) -> tuple[str, str]:
    """Return the action that a request requires, as roles name it, and the resource of that right."""
    family, last = call.partition(".")[0], path.rpartition("/")[2]
    kind = IN_ROLES.get(family, TYPES[family])
    if method == "POST" or last.lower() == "instanceview":  # the action or the view follows the resource
        return f"{kind}/{last}/{RIGHTS[method]}", path.rpartition("/")[0]
    of_many = last.lower() == kind.rpartition("/")[2].lower()
    return f"{kind}/{RIGHTS[method]}", path.partition("/providers/")[0] if of_many else path


def _unknown_version(
    estate: AzureResources, kind: str, given: str, known: Sequence[str], group: tuple[str, str]
) -> AzureProblem:
    of_a_provider = kind != GROUPS and DATED.fullmatch(given)
    return AzureProblem(
        "NoRegisteredProviderFound" if of_a_provider else "InvalidApiVersionParameter",
        detail=given,
        known=", ".join(known),
        location=estate.groups.get(group, ""),
        locations=", ".join(ZONES),
        type=kind.partition("/")[2],
    )
