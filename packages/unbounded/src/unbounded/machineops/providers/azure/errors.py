"""Meaning of Azure's errors for an operation: the next actor, and the time of a retry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from unbounded.api.failures import Failure
from unbounded.machineops import causes, reasons
from unbounded.machineops.provider import Cause, NotDone, Refusal, Throttled, Transient, Uncertain, said

THROTTLED_S: Final = 10.0  # if Azure names no time
CAPACITY: Final = frozenset(
    {
        "AllocationFailed",
        "OverconstrainedAllocationRequest",
        "OverconstrainedZonalAllocationRequest",
        "SkuNotAvailable",
        "ZonalAllocationFailed",
    }
)
PERSISTENT: Final = frozenset({"MissingSubscriptionRegistration", "ReadOnlyDisabledSubscription", "ScopeLocked"})
"""Conflicts that persist until the user acts."""
PASSING: Final = frozenset({"NicReservedForAnotherVm", "RetryableError"})
_POLICY: Final = re.compile(r'"policyAssignment":\{"name":"(?P<name>[^"]*)","id":"(?P<id>[^"\']*)"')
_LOGIN_PASSES: Final = re.compile(
    r"AADSTS(?:90033|50196)|temporarily|timed? ?out|cannot connect|connection (?:reset|refused)|disconnected|"
    r"service unavailable",
    re.IGNORECASE,
)


class Closed(Refusal):
    """The scope allows no changes at all until the user acts."""


@dataclass(frozen=True)
class AzureErrorResponse:
    """An error response of Azure.

    Args:
        used_up: names of the throttling policies that refused the request.
        policy: assignment of a policy of the subscription that disallows the request.
    """

    status: int
    code: str
    message: str
    retry_after_s: float | None = None
    used_up: tuple[str, ...] = ()
    policy: Mapping[str, str] = field(default_factory=dict)


def failure(answer: AzureErrorResponse, what: str, login: str, *, changes: bool) -> Failure:
    """Return the failure for an error.

    Args:
        what: description of the request.
        login: name of the MachineOperationCredential.
        changes: the request would have changed something.
    """
    words = f"{what}: {said(f'{answer.code}: {answer.message}')}"
    match answer.status:
        case 401:
            return refused_login(words, login)
        case 403 if answer.code != "RequestDisallowedByPolicy":
            return refused_login(words, login)
        case 404:
            return Refusal(reasons.INSTANCE_NOT_FOUND, words)
        case 409:
            return _conflict(answer, words)
        case 412:
            return Transient(words)  # the resource has changed meanwhile: observe it again
        case 429:
            return Throttled(words, answer.retry_after_s or THROTTLED_S)
        case 408 | 500 | 502 | 503 | 504:
            return Uncertain(words) if changes else Transient(words)
        case _ if answer.code in PASSING:
            return Transient(words)
        case _:
            return Refusal(reasons.PROVIDER_REFUSED, words, _cause(answer))


def _cause(answer: AzureErrorResponse) -> Cause | None:
    """Return Azure's code, with the policy that it names."""
    about = dict(answer.policy)
    if not about and (found := _POLICY.search(answer.message)) is not None:
        about = {causes.POLICY: found["name"], causes.POLICY_ID: found["id"]}
    return causes.of_cloud(answer.code, about)


def _conflict(answer: AzureErrorResponse, words: str) -> Failure:
    if answer.code in CAPACITY:
        return NotDone(reasons.NO_CAPACITY, words)
    if "quota" in answer.message.lower():
        return NotDone(reasons.QUOTA_EXCEEDED, words)
    if answer.code in PERSISTENT:
        return Closed(reasons.PROVIDER_REFUSED, words, _cause(answer))
    return Transient(words)


def refused_login(words: str, login: str) -> Refusal:
    return Refusal(reasons.AUTH_REFUSED, f"Azure rejected MachineOperationCredential {login}: {words}")


def login_failure(message: str, login: str) -> Failure:
    """Return the failure of a login without token; Resource Manager has received nothing."""
    if _LOGIN_PASSES.search(message):
        return Transient(f"no token for MachineOperationCredential {login}: {said(message)}")
    return refused_login(said(message), login)
