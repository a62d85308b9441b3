"""First checks of Resource Manager: rate limits, the version of the API, the subscription and the resource group.

The limits are the published ones of Resource Manager and of its Compute provider.
Resource Manager: learn.microsoft.com/azure/azure-resource-manager/management/request-limits-and-throttling, each
principal in each subscription. Compute: learn.microsoft.com/azure/virtual-machines/compute-throttling-limits, each VM
and each subscription, a minute at a time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from unbounded_lab.cloud.azure.catalog import API_VERSIONS, KNOWN, OLDER, ZONES
from unbounded_lab.cloud.azure.errors import AzureProblem
from unbounded_lab.cloud.azure.model import AVAILABILITY_SETS, COMPUTE, DISKS, EXTENSIONS, MACHINES, NICS, SCALE_SETS
from unbounded_lab.cloud.azure.resources import AzureResources
from unbounded_lab.cloud.frontend import CloudRateLimit, TokenBuckets

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
SUBSCRIPTION_LIMITS: Final[Mapping[str, CloudRateLimit]] = {
    "reads": CloudRateLimit(burst=250, per_s=25),
    "writes": CloudRateLimit(burst=200, per_s=10),
    "deletes": CloudRateLimit(burst=200, per_s=10),
}


def _each_minute(refill: float, capacity: float) -> CloudRateLimit:
    return CloudRateLimit(burst=capacity, per_s=refill / 60)


@dataclass(frozen=True, slots=True)
class ThrottlingPolicy:
    """The two limits of a kind of Compute call; for those on many VMs only the second."""

    resource: CloudRateLimit | None
    subscription: CloudRateLimit


POLICIES: Final[Mapping[str, ThrottlingPolicy]] = {
    "PutVM": ThrottlingPolicy(_each_minute(4, 12), _each_minute(500, 1500)),
    "UpdateVM": ThrottlingPolicy(_each_minute(4, 12), _each_minute(500, 1500)),
    "DeleteVM": ThrottlingPolicy(_each_minute(4, 12), _each_minute(500, 1500)),
    "LowCostGetVM": ThrottlingPolicy(_each_minute(12, 36), _each_minute(8000, 24000)),
    "HighCostGetVM": ThrottlingPolicy(None, _each_minute(300, 900)),
    "GetOperation": ThrottlingPolicy(_each_minute(15, 45), _each_minute(5000, 15000)),
}


@dataclass(frozen=True, slots=True)
class CountedRequest:
    """A request for the limits: its client, its kind, and its resource.

    Args:
        policy: a key of POLICIES; None where Compute has no limit for it.
        resource: the VM's key, "" for a request about no single VM.
    """

    subscription: str
    client: str
    kind: str
    policy: str | None = None
    resource: str = ""


class Throttling:
    def __init__(self) -> None:
        self._buckets = TokenBuckets()

    def admit(self, request: CountedRequest, now: float) -> None:
        """Count a request.

        Raises:
            Problem: it exceeds a limit; with the time of the next attempt.
        """
        refused = self._buckets.take(_limits(request), now)
        if refused is None:
            return
        name, wait_s = refused
        seconds = math.ceil(wait_s)
        if name.startswith("arm/"):
            raise AzureProblem(
                "SubscriptionRequestsThrottled",
                retry_after_s=seconds,
                detail=request.kind.removesuffix("s"),
                subscription=request.subscription,
                client=request.client,
                seconds=str(seconds),
            )
        problem = AzureProblem("ComputeThrottled", retry_after_s=seconds)
        problem.details = [
            {
                "code": "TooManyRequests",
                "target": str(request.policy),
                "message": f'{{"operationGroup":"{request.policy}","recommendedRetryAfterSeconds":{seconds}}}',
            }
        ]
        raise problem

    def headers(self, request: CountedRequest, now: float) -> dict[str, str]:
        """Return the headers with the remaining numbers of requests."""
        shown, compute = {}, []
        for name, limit in _limits(request).items():
            left = self._buckets.left(name, limit, now)
            scope, _, what = name.partition("/")
            if scope == "arm":
                shown[f"x-ms-ratelimit-remaining-subscription-{request.kind}"] = str(left)
            else:
                compute.append(f"Microsoft.Compute/{what.partition('/')[0]};{left}")
        if compute:
            shown["x-ms-ratelimit-remaining-resource"] = ",".join(compute)
        return shown


def _limits(request: CountedRequest) -> dict[str, CloudRateLimit]:
    where = f"{request.subscription.lower()}/{request.client}"
    limits = {f"arm/{request.kind}/{where}": SUBSCRIPTION_LIMITS[request.kind]}
    if request.policy is not None:
        policy = POLICIES[request.policy]
        limits[f"compute/{request.policy}SubscriptionMaximum/{where}"] = policy.subscription
        if policy.resource is not None and request.resource:
            limits[f"compute/{request.policy}Resource/{request.resource}"] = policy.resource
    return limits


def check_scope(estate: AzureResources, call: str, names: Sequence[str], query: Mapping[str, str]) -> None:
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
    is_behind = estate.faults.older_apis and kind.startswith(f"{COMPUTE}/")
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


def required_action(call: str, method: str, path: str) -> tuple[str, str]:
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
