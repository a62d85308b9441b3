"""Application of objects to a server, by kind: server-side apply writes the objects that differ, and no others."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

import yaml

from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, MACHINE_CONFIGURATIONS
from unbounded.api.core import CONFIG_MAPS, NAMESPACES, SECRETS, SERVICES
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import GROUP
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.manifests import CRDS
from unbounded.cli.manifests import KINDS as RIGHTS_AND_POLICIES
from unbounded.cli.plugin.command import MANAGER
from unbounded.kube.api import InvalidObject, NotFound
from unbounded.kube.tasks import gather

Raw = dict[str, Any]

DEPLOYMENTS: Final[Kind[Raw]] = Kind("apps", "v1", "Deployment", "deployments", dict, namespaced=True)
PODS: Final[Kind[Raw]] = Kind("", "v1", "Pod", "pods", dict, namespaced=True)
DISRUPTION_BUDGETS: Final[Kind[Raw]] = Kind(
    "policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", dict, namespaced=True
)
NETWORK_POLICIES: Final[Kind[Raw]] = Kind(
    "networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", dict, namespaced=True
)
PRIORITY_CLASSES: Final[Kind[Raw]] = Kind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", dict)
SERVICE_MONITORS: Final[Kind[Raw]] = Kind(
    "monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors", dict, namespaced=True
)
PROMETHEUS_RULES: Final[Kind[Raw]] = Kind(
    "monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules", dict, namespaced=True
)

_ALL: Final[tuple[Kind[Any], ...]] = (
    NAMESPACES,
    CONFIG_MAPS,
    SECRETS,
    SERVICES,
    CRDS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    PRIORITY_CLASSES,
    SERVICE_MONITORS,
    PROMETHEUS_RULES,
    MACHINES,
    MACHINE_OPERATIONS,
    MACHINE_CONFIGURATIONS,
    MACHINE_CONFIGURATION_VERSIONS,
    *RIGHTS_AND_POLICIES.values(),
)
_KNOWN: Final[Mapping[tuple[str, str], Kind[Raw]]] = {(kind.api_version, kind.kind): kind.raw() for kind in _ALL}
AT_ONCE: Final = 8  # more would cost more for connections than they save
# Fields that every write changes, or that the server maintains: no difference for a user.
NOISE: Final = frozenset({"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"})
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"  # a copy of the object


def kind_of(body: Mapping[str, Any]) -> Kind[Raw] | None:
    """Return the kind of an object; None for a kind that no install writes."""
    return _KNOWN.get((str(body.get("apiVersion")), str(body.get("kind"))))


def workload_kinds() -> list[Kind[Raw]]:
    """Return the namespaced kinds that an install writes, without rights and without kinds that hold data."""
    ours = frozenset({GROUP, *(kind.kind for kind in RIGHTS_AND_POLICIES.values()), "Secret"})
    return [kind for kind in _KNOWN.values() if kind.namespaced and not {kind.group, kind.kind} & ours]


def names_of_kinds() -> list[str]:
    """Return the names of all kinds that `kind_of` finds, for messages."""
    return sorted({kind for _, kind in _KNOWN})


class ApplyApi(Protocol):
    """The required part of an API client; `unbounded.kube.client.HttpApi` implements it."""

    async def get(self, kind: Kind[Raw], name: str, *, namespace: str = "") -> Raw: ...

    async def apply(
        self, kind: Kind[Raw], body: Mapping[str, Any], *, manager: str, force: bool = False, dry_run: bool = False
    ) -> Raw: ...


class ApplyOutcome(StrEnum):
    CREATED = "created"
    CONFIGURED = "configured"
    UNCHANGED = "unchanged"


@dataclass(frozen=True)
class AppliedChange:
    """Result of applying one object, or of a dry run.

    Args:
        difference: from the live object to the desired one, as `diff -u` writes it; empty where they are equal.
    """

    kind: Kind[Raw]
    name: str
    namespace: str
    outcome: ApplyOutcome
    difference: str = ""

    @property
    def what(self) -> str:
        """The object as kubectl writes it: deployment.apps/machina-controller."""
        return f"{kind_name(self.kind)}/{self.name}"


def kind_name(kind: Kind[Any]) -> str:
    """Return a kind as kubectl writes it before a name: configmap, deployment.apps."""
    return f"{kind.kind.lower()}.{kind.group}" if kind.group else kind.kind.lower()


class Applier:
    """Server-side apply to one server, with the command line as field manager."""

    def __init__(self, api: ApplyApi) -> None:
        self._api = api

    async def apply_all(self, bodies: Iterable[Raw], *, dry_run: bool = False) -> tuple[AppliedChange, ...]:
        """Apply objects concurrently; returns the changes in the order of the objects.

        Args:
            dry_run: write nothing, and return the changes that would be made.

        Raises:
            ApiError: one could not be applied; others may have been. A repetition does no harm.
        """
        desired = list(bodies)
        changes: dict[int, AppliedChange] = {}

        free = asyncio.Semaphore(AT_ONCE)

        async def one(place: int, body: Raw) -> None:
            async with free:
                changes[place] = await self._one(body, dry_run=dry_run)

        await gather(one(place, body) for place, body in enumerate(desired))
        return tuple(changes[place] for place in range(len(desired)))

    async def _one(self, body: Raw, *, dry_run: bool) -> AppliedChange:
        kind, meta = _kind(body), body["metadata"]
        name, namespace = str(meta["name"]), str(meta.get("namespace", ""))
        try:
            live = await self._api.get(kind, name, namespace=namespace)
        except NotFound:
            if not dry_run:
                await self._apply(kind, body)
            return AppliedChange(kind, name, namespace, ApplyOutcome.CREATED, differences({}, body, name))
        coming = await self._apply(kind, body, dry_run=True)
        difference = differences(live, coming, name)
        if not difference:
            return AppliedChange(kind, name, namespace, ApplyOutcome.UNCHANGED)
        if not dry_run:
            await self._apply(kind, body)
        return AppliedChange(kind, name, namespace, ApplyOutcome.CONFIGURED, difference)

    async def _apply(self, kind: Kind[Raw], body: Raw, *, dry_run: bool = False) -> Raw:
        return await self._api.apply(kind, body, manager=MANAGER, force=True, dry_run=dry_run)


def _kind(body: Mapping[str, Any]) -> Kind[Raw]:
    kind = kind_of(body)
    if kind is None:
        raise InvalidObject(f"{body.get('apiVersion')} {body.get('kind')} is not a kind that install applies")
    return kind


def differences(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> str:
    """Return the difference of two states of an object, without the server's own fields; empty if they are equal.

    Values of a Secret are replaced by their lengths.
    """
    old, new = _compared(before), _compared(after)
    if old == new:
        return ""
    shown = _lines(_shown(old, new, "before")), _lines(_shown(new, old, "after"))
    names = f"live/{name}", f"desired/{name}"
    return "\n".join(difflib.unified_diff(*shown, *names, lineterm="", n=2)) or f"--- {names[0]}\n+++ {names[1]}"


def _lines(body: Mapping[str, Any]) -> list[str]:
    # dumped by the C library
    text: str = yaml.dump(dict(body), Dumper=yaml.CSafeDumper, sort_keys=True, width=110) if body else ""
    return text.splitlines()


def _compared(body: Mapping[str, Any]) -> Raw:
    """Return the part of an object that a user decides on."""
    found = {key: value for key, value in body.items() if key != "status"}
    if meta := found.get("metadata"):
        found["metadata"] = {key: value for key, value in meta.items() if key not in NOISE}
    return found


def _shown(body: Raw, other: Raw, when: str) -> Raw:
    """Return an object as it may be printed: of a Secret no value, and no copy of one.

    Args:
        other: its other state, to mark the values that differ with `when`.
    """
    if "Secret" not in (body.get("kind"), other.get("kind")):
        return body
    shown = dict(body)
    for values in ("data", "stringData"):
        if values in body:
            known = other.get(values) or {}
            shown[values] = {
                key: f"({len(value)} characters{'' if known.get(key, value) == value else f', {when}'})"
                for key, value in (body[values] or {}).items()
            }
    if annotations := body.get("metadata", {}).get("annotations"):
        kept = {key: value for key, value in annotations.items() if key != LAST_APPLIED}
        shown["metadata"] = {**body["metadata"], "annotations": kept}
    return shown
