"""Writes of container-cloud that the API server refuses for a while, with the answers of real servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from unbounded.api.configuration import MACHINE_CONFIGURATIONS
from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES, CLUSTERS, MACHINE_POOLS
from unbounded.api.container_cloud.host import (
    BARE_METAL_HOST_CREDENTIALS,
    BARE_METAL_HOST_PROFILES,
    BARE_METAL_HOSTS,
)
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.container_cloud.names import FINALIZER_MACHINE
from unbounded.api.container_cloud.network import IPAM_HOSTS, L2_TEMPLATES, SUBNETS
from unbounded.api.core import CONFIG_MAPS, NODES, SECRETS
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.api.profile import MACHINE_PROFILES
from unbounded.kube.api import Api
from unbounded.kube.object_codec import error_from

T = TypeVar("T")
Body = Mapping[str, Any]

WEBHOOK: Final = "guard.example.com"
ANSWERS: Final = {
    "403": (
        403,
        "Forbidden",
        'is forbidden: User "system:serviceaccount:unbounded-kube:container-cloud" cannot do that',
    ),
    "422": (
        422,
        "Invalid",
        "is invalid: ValidatingAdmissionPolicy 'guard.example.com' with binding 'guard' denied request: not now",
    ),
    "denied": (403, "Forbidden", f'admission webhook "{WEBHOOK}" denied the request: not now'),
    "unreachable": (
        500,
        "InternalError",
        f'Internal error occurred: failed calling webhook "{WEBHOOK}": failed to call webhook: Post '
        '"https://guard.example.svc:443/?timeout=10s": dial tcp 10.96.0.9:443: connect: connection refused',
    ),
}
"""Code, reason and message, by what refuses: rights, a policy, a webhook, and one that cannot be called."""
HOLDERS: Final = {
    "403": "the API server",
    "422": "ValidatingAdmissionPolicy guard.example.com",
    "denied": f"admission webhook {WEBHOOK}",
    "unreachable": f"admission webhook {WEBHOOK}",
}


def _maintenance(body: Body, *, enabled: bool) -> bool:
    change = body.get("spec", {}).get("maintenance")
    return isinstance(change, dict) and change.get("enabled") is enabled


def _clears(body: Body, name: str) -> bool:
    return body.get("spec", {}).get(name, "") is None


def _ends(body: Body) -> bool:
    finalizers = body.get("metadata", {}).get("finalizers")
    return finalizers is not None and FINALIZER_MACHINE not in finalizers


def _begins(body: Body) -> bool:
    return FINALIZER_MACHINE in body.get("metadata", {}).get("finalizers", ())


WRITES: Final[Mapping[str, tuple[str, Kind[Any], Callable[[Body], bool]]]] = {
    "drain": ("patch", MACHINES, lambda body: _maintenance(body, enabled=True)),
    "return": ("patch", MACHINES, lambda body: _maintenance(body, enabled=False)),
    "request": ("create", MACHINE_OPERATIONS, lambda _body: True),
    "cancel": ("patch", MACHINE_OPERATIONS, lambda body: bool(body.get("spec", {}).get("cancel"))),
    "leave": ("patch", MACHINES, lambda body: _clears(body, "kubernetes")),
    "node": ("delete", NODES, lambda _body: True),
    "release": ("patch", BARE_METAL_HOSTS, lambda body: _clears(body, "consumerRef")),
    "delete": ("delete", CONTAINER_CLOUD_MACHINES, lambda _body: True),
    "finalizer": ("patch", CONTAINER_CLOUD_MACHINES, _ends),
}
"""The writes of a deletion: the verb, the kind, and a test of the body."""
LIFE_WRITES: Final[Mapping[str, tuple[str, Kind[Any], Callable[[Body], bool]]]] = {
    "finalizer of the host": ("patch", BARE_METAL_HOSTS, lambda body: "finalizers" in body["metadata"]),
    "copy of the login": ("create", SECRETS, lambda _body: True),
    "machine of the host": ("create", MACHINES, lambda _body: True),
    "claim": ("patch", BARE_METAL_HOSTS, lambda body: bool(body.get("spec", {}).get("consumerRef"))),
    "finalizer of the machine": ("patch", CONTAINER_CLOUD_MACHINES, _begins),
    "ipam host": ("create", IPAM_HOSTS, lambda _body: True),
    "addresses": ("status", SUBNETS, lambda body: "allocatedIPs" in body["status"]),
    "target": ("patch", MACHINES, lambda body: bool(body.get("spec", {}).get("pxe", {}).get("image"))),
    "install": ("create", MACHINE_OPERATIONS, lambda body: body["spec"]["operationKind"] == "HostReplace"),
    "network": ("create", CONFIG_MAPS, lambda _body: True),
    "provider id": ("patch", NODES, lambda body: "providerID" in body.get("spec", {})),
    "status": ("status", CONTAINER_CLOUD_MACHINES, lambda _body: True),
    "status of the host": ("status", BARE_METAL_HOSTS, lambda _body: True),
    "layout": ("create", MACHINE_PROFILES, lambda _body: True),
    "budget": ("create", MACHINE_DISRUPTION_BUDGETS, lambda _body: True),
    "configuration": ("create", MACHINE_CONFIGURATIONS, lambda _body: True),
    "status of the cluster": ("status", CLUSTERS, lambda _body: True),
}
"""The writes until a Machine is Ready, of all controllers."""
OBJECT_WRITES: Final[Mapping[str, tuple[str, Kind[Any], Callable[[Body], bool]]]] = {
    **{
        f"status of {kind.kind}": ("status", kind, lambda _body: True)
        for kind in (
            BARE_METAL_HOST_CREDENTIALS,
            BARE_METAL_HOST_PROFILES,
            CLUSTER_RELEASES,
            L2_TEMPLATES,
            MACHINE_POOLS,
            SUBNETS,
        )
    },
    "Secret of BareMetalHostCredential": ("create", SECRETS, lambda body: body["metadata"]["name"] == "spare"),
    "erasure of BareMetalHostCredential": ("patch", BARE_METAL_HOST_CREDENTIALS, lambda _body: True),
    "layout of BareMetalHostProfile": ("create", MACHINE_PROFILES, lambda _body: True),
}
"""Writes for objects beside Machines, hosts and Clusters."""


@dataclass
class Refusals:
    """The write that is refused now, and the attempts at it.

    Attributes:
        also: another write that is refused with it.
    """

    write: str = ""
    also: str = ""
    answers: tuple[str, ...] = ()
    attempts: list[float] = field(default_factory=list)
    names: set[str] = field(default_factory=set)  # of the objects that were not written

    def begin(self, write: str, *answers: str, also: str = "") -> None:
        """Refuse a write from now on, with these answers in turn."""
        self.write, self.answers, self.also = write, answers, also
        self.attempts.clear()

    def end(self) -> None:
        self.write = self.also = ""

    def check(self, verb: str, kind: Kind[Any], name: str, body: Body) -> None:
        """Refuse a write.

        Raises:
            ApiError: it is refused now.
        """
        for write in filter(None, (self.write, self.also)):
            refused_verb, refused_kind, is_refused = {**WRITES, **LIFE_WRITES, **OBJECT_WRITES}[write]
            is_kind = (kind.plural, kind.group) == (refused_kind.plural, refused_kind.group)
            if verb == refused_verb and is_kind and is_refused(body):
                self._refuse(kind, name)

    def _refuse(self, kind: Kind[Any], name: str) -> None:
        answer = self.answers[len(self.attempts) % len(self.answers)]
        self.attempts.append(asyncio.get_running_loop().time())
        self.names.add(name)
        code, reason, message = ANSWERS[answer]
        text = message if code == 500 or answer == "denied" else f'{kind.plural} "{name}" {message}'
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
        raise error_from(json.dumps(status | {"reason": reason, "message": text}).encode(), code=code, writing=True)


class RefusingApi:
    """An API that refuses what `Refusals` says."""

    def __init__(self, api: Api, refusals: Refusals) -> None:
        self._api = api
        self._refusals = refusals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def create(self, kind: Kind[T], body: Body, *, namespace: str = "") -> T:
        self._refusals.check("create", kind, body["metadata"].get("name", ""), body)
        return await self._api.create(kind, body, namespace=namespace)

    async def patch(self, kind: Kind[T], name: str, patch: Body, *, namespace: str = "", subresource: str = "") -> T:
        self._refusals.check(subresource or "patch", kind, name, patch)
        return await self._api.patch(kind, name, patch, namespace=namespace, subresource=subresource)

    async def delete(self, kind: Kind[Any], name: str, **more: Any) -> None:
        self._refusals.check("delete", kind, name, {})
        await self._api.delete(kind, name, **more)
