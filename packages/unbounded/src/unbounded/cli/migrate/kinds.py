"""Kinds that a migration copies, and reasons for leaving others out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, MACHINE_CONFIGURATIONS
from unbounded.api.core import CONFIG_MAPS, NAMESPACES, NODES, SECRETS, SERVICES
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import CONFIGMAP_MIGRATION, CONFIGMAP_OPERATIONS, GROUP, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.definitions import CRDS
from unbounded.cli.deploy import components
from unbounded.cli.deploy.server_side_apply import DISRUPTION_BUDGETS, PRIORITY_CLASSES
from unbounded.cli.manifests import KINDS as RIGHTS_AND_POLICIES
from unbounded.cli.manifests import manifests
from unbounded.join.facts import CLUSTER_INFO, ROOT_CA

Raw = dict[str, Any]
RawKind = Kind[Raw]

_STORAGE: Final = "storage.k8s.io"

COPIED: Final[tuple[RawKind, ...]] = (
    NAMESPACES.raw(),
    CRDS,
    *RIGHTS_AND_POLICIES.values(),
    PRIORITY_CLASSES,
    Kind("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", dict),
    Kind(_STORAGE, "v1", "StorageClass", "storageclasses", dict),
    Kind(_STORAGE, "v1", "CSIDriver", "csidrivers", dict),
    CONFIG_MAPS.raw(),
    SECRETS.raw(),
    SERVICES.raw(),
    DISRUPTION_BUDGETS,
    MACHINE_OPERATION_CREDENTIALS.raw(),
    MACHINE_CONFIGURATIONS.raw(),
    MACHINE_CONFIGURATION_VERSIONS.raw(),
    MACHINES.raw(),
    MACHINE_OPERATIONS.raw(),
    NODES.raw(),
)

LEFT: Final[Mapping[str, str]] = {
    "pods": "a Pod ends with its Node's move; apply its manifest there",
    "events": "the history of this server",
    "leases.coordination.k8s.io": "each holder renews its own there",
    "certificatesigningrequests.certificates.k8s.io": "agents and kubelets get new certificates",
    "resourceslices.resource.k8s.io": "kubelet publishes them again",
    "csinodes.storage.k8s.io": "kubelet publishes them again",
    "volumeattachments.storage.k8s.io": "no attacher runs here",
}

WITH_STATUS: Final = frozenset(
    {
        *(kind.raw() for kind in (MACHINES, MACHINE_OPERATIONS, NODES, MACHINE_OPERATION_CREDENTIALS)),
        *(kind.raw() for kind in (MACHINE_CONFIGURATIONS, MACHINE_CONFIGURATION_VERSIONS)),
    }
)
"""Kinds whose status is a record; that of the others is what a controller there observes."""

_SYSTEM_NAMESPACES: Final = frozenset({"default", "kube-system", "kube-public", "kube-node-lease", NAMESPACE})
_OWN: Final = frozenset(
    (body["kind"], str(body["metadata"].get("namespace", "")), str(body["metadata"]["name"])) for body in manifests()
)
_OF_THIS_SERVER: Final = frozenset(
    {
        ("kube-public", CLUSTER_INFO),
        ("kube-system", "extension-apiserver-authentication"),
        *((NAMESPACE, name) for name in (components.NAME, CONFIGMAP_OPERATIONS)),
    }
)
_DEFAULTS: Final = "kubernetes.io/bootstrapping"  # label of roles that each server creates


def of_definition(definition: Raw) -> RawKind:
    """Return the kind that a CustomResourceDefinition defines, in its stored version."""
    spec = definition["spec"]
    version = next(one["name"] for one in spec["versions"] if one["storage"])
    names = spec["names"]
    return Kind(spec["group"], version, names["kind"], names["plural"], dict, spec["scope"] == "Namespaced")


def is_foreign(definition: Raw) -> bool:
    """Return whether a CustomResourceDefinition is a user's own."""
    return bool(definition["spec"]["group"] != GROUP)


def is_of_the_server(kind: RawKind, body: Raw) -> bool:
    """Return whether each server has the object by itself, or by the project's install."""
    meta = body["metadata"]
    name, namespace = str(meta["name"]), str(meta.get("namespace", ""))
    if name.startswith(CONFIGMAP_MIGRATION):
        return True
    match kind.kind:
        case "Namespace":
            return name in _SYSTEM_NAMESPACES
        case "CustomResourceDefinition":
            return not is_foreign(body)
        case "ConfigMap":
            return name == ROOT_CA or (namespace, name) in _OF_THIS_SERVER
        case "Secret":
            return body.get("type") == "kubernetes.io/service-account-token"
        case "Service":
            return (namespace, name) == ("default", "kubernetes")
        case "PriorityClass":
            return name.startswith("system-")
        case "ServiceAccount" if name == "default":
            return True
    made = _DEFAULTS in meta.get("labels", {})
    return made or (kind.kind, namespace, name) in _OWN
