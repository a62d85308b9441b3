"""The published rate limits of Azure Resource Manager and of its Compute provider, and their headers.

Resource Manager: learn.microsoft.com/azure/azure-resource-manager/management/request-limits-and-throttling, each
principal in each subscription. Compute: learn.microsoft.com/azure/virtual-machines/compute-throttling-limits, each VM
and each subscription, a minute at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from unbounded_lab.cloud.azure.errors import AzureProblem
from unbounded_lab.cloud.limits import CloudRateLimit, TokenBuckets

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
