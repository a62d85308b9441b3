"""Kinds that an install writes, with their API paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, MACHINE_CONFIGURATIONS
from unbounded.api.core import CONFIG_MAPS, NAMESPACES, SECRETS, SERVICES
from unbounded.api.kinds import Kind
from unbounded.api.machine import MACHINES
from unbounded.api.names import GROUP
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.definitions import CRDS
from unbounded.cli.manifests import KINDS as RIGHTS_AND_POLICIES

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
    MACHINES,
    MACHINE_OPERATIONS,
    MACHINE_CONFIGURATIONS,
    MACHINE_CONFIGURATION_VERSIONS,
    *RIGHTS_AND_POLICIES.values(),
)
_KNOWN: Final[Mapping[tuple[str, str], Kind[Raw]]] = {(kind.api_version, kind.kind): kind.raw() for kind in _ALL}


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
