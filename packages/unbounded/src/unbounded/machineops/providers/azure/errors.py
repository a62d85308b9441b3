"""Meaning of Azure's errors for an operation: the next actor, the time of a retry, and the scope of a 429 response.

Resource Manager limits a subscription's reads, writes and deletes. Compute has policies for kinds of requests, each for
one resource and for the subscription. Of the policies in a response, those with nothing left have refused the request:
learn.microsoft.com/troubleshoot/azure/virtual-machines/troubleshooting-throttling-errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from unbounded.api.failures import Failure
from unbounded.machineops import reasons
from unbounded.machineops.provider import Cause, Instance, NotDone, Refusal, Throttled, Transient, Uncertain, said

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
POLICY_REMAINDERS: Final = "x-ms-ratelimit-remaining-resource"
DETAIL: Final = "TooManyRequests"
_OF_ONE: Final = "Resource"  # suffix of the names of policies for one resource
_USED_UP: Final = re.compile(r"[^/,;]+/(?P<policy>[^/,;]+);0\s*(?:,|$)")
_KIND: Final = re.compile(r"Number of '(?P<kind>read|write|delete)' requests for subscription")


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
        about = {reasons.POLICY: found["name"], reasons.POLICY_ID: found["id"]}
    return reasons.cloud_cause(answer.code, about)


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


@dataclass(frozen=True)
class ArmRequest:
    """A request, with a description: "look at VM" and "vm-1".

    Args:
        instance: target of the request.
    """

    verb: str
    name: str
    instance: Instance
    changes: bool = False

    def __str__(self) -> str:
        return f"{self.verb} {self.name}"

    @property
    def kind(self) -> str:
        """Category by which Resource Manager counts the request."""
        return "read" if not self.changes else "delete" if self.verb.startswith("delete ") else "write"


@dataclass
class Throttles:
    """Blocked scopes of the budget that are narrower than a subscription.

    Args:
        policies: policies of Compute, by the verb of the requests that they refused.
        until: times of the loop, by scope.
    """

    policies: dict[str, set[str]] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)

    def scopes(self, request: ArmRequest, now: float) -> list[str]:
        """Return the scopes that a request has to wait for."""
        self.until = {scope: until for scope, until in self.until.items() if until > now}
        mine = [
            _kind_scope(request),
            *(_scope(request, policy) for policy in sorted(self.policies.get(request.verb, ()))),
        ]
        return [scope for scope in mine if scope in self.until]

    def refused(self, request: ArmRequest, used_up: tuple[str, ...], message: str, until: float) -> str | None:
        """Record a refusal; return its scope, None for the whole subscription."""
        found = _KIND.search(message)
        if found is not None and found["kind"] == request.kind:
            scope = _kind_scope(request)
        elif used_up:
            policy = next((one for one in used_up if not one.endswith(_OF_ONE)), used_up[0])
            self.policies.setdefault(request.verb, set()).add(policy)
            scope = _scope(request, policy)
        else:
            return None
        self.until[scope] = until
        return scope


def used_up(headers: Mapping[str, str], details: list[dict[str, str]]) -> tuple[str, ...]:
    """Return the names of exhausted policies, from the headers, else from the error."""
    every = getattr(headers, "getall", None)  # there may be a header for each policy
    lines: list[str] = every(POLICY_REMAINDERS, []) if every is not None else [headers.get(POLICY_REMAINDERS, "")]
    shown = [found["policy"].strip() for line in lines for found in _USED_UP.finditer(line)]
    return tuple(shown or filter(None, (one.get("target") for one in details if one.get("code") == DETAIL)))


def _kind_scope(request: ArmRequest) -> str:
    return f"{request.instance.scope}: {request.kind} requests"


def _scope(request: ArmRequest, policy: str) -> str:
    whose = f"{request.name} of {request.instance.id}" if policy.endswith(_OF_ONE) else request.instance.scope
    return f"{whose}: {policy}"
