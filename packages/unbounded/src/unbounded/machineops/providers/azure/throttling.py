"""Scope of Azure's 429 responses: requests of one kind on one VM, of one kind, or all reads or all changes.

Resource Manager limits a subscription's reads, writes and deletes. Compute has policies for kinds of requests, each for
one resource and for the subscription. Of the policies in a response, those with nothing left have refused the request:
learn.microsoft.com/troubleshoot/azure/virtual-machines/troubleshooting-throttling-errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from unbounded.machineops.provider import Instance

POLICY_REMAINDERS: Final = "x-ms-ratelimit-remaining-resource"
DETAIL: Final = "TooManyRequests"
_OF_ONE: Final = "Resource"  # suffix of the names of policies for one resource
_USED_UP: Final = re.compile(r"[^/,;]+/(?P<policy>[^/,;]+);0\s*(?:,|$)")
_KIND: Final = re.compile(r"Number of '(?P<kind>read|write|delete)' requests for subscription")


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
