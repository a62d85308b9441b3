"""Objects that a migration copies: their kinds, reasons for leaving others out, and translation of their content. Pure.

UIDs and other names that a server assigns are replaced by those of the other server.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, MACHINE_CONFIGURATIONS
from unbounded.api.core import CONFIG_MAPS, NAMESPACES, NODES, SECRETS, SERVICES
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import CONFIGMAP_MIGRATION, CONFIGMAP_OPERATIONS, GROUP, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.api.profile import MACHINE_PROFILES
from unbounded.cli.deploy.server_side_apply import DISRUPTION_BUDGETS, PRIORITY_CLASSES
from unbounded.cli.manifests import CRDS, manifests
from unbounded.cli.manifests import KINDS as RIGHTS_AND_POLICIES
from unbounded.join.cluster_facts import CLUSTER_INFO, ROOT_CA
from unbounded.machineops.replacement_state import UID as REPLACEMENT_UID
from unbounded.operations.component_record import COMPONENTS

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
    MACHINE_PROFILES.raw(),
    MACHINE_DISRUPTION_BUDGETS.raw(),
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
        *((NAMESPACE, name) for name in (COMPONENTS, CONFIGMAP_OPERATIONS)),
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


_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Keys of Secrets that name objects by their UID. Other keys are not changed: a provider's state of a replacement names
# cloud resources by the UID that the operation had then.
_SECRET_KEYS: Final = ("auth-extra-groups", REPLACEMENT_UID)


def translated(value: Any, uids: Mapping[str, str]) -> Any:
    """Return a JSON value with each UID in its texts replaced, and others as they are."""
    match value:
        case str():
            return _UUID.sub(lambda found: uids.get(found[0], found[0]), value)
        case dict():
            return {translated(key, uids): translated(one, uids) for key, one in value.items()}
        case list():
            return [translated(one, uids) for one in value]
    return value


def translated_data(data: Mapping[str, str], uids: Mapping[str, str]) -> dict[str, str]:
    """Return the data of a Secret, base64, with the UIDs in the keys that name objects replaced."""
    return {key: _recoded(text, uids) if key in _SECRET_KEYS else text for key, text in data.items()}


def _recoded(text: str, uids: Mapping[str, str]) -> str:
    changed = translated(_decoded(text), uids)
    return base64.b64encode(changed.encode("latin-1")).decode()


def _decoded(text: str) -> str:
    """Return the bytes of a value, each as one character, whatever its encoding is."""
    return base64.b64decode(text).decode("latin-1")


def uids_in(value: Any) -> Iterator[str]:
    """Yield the UIDs in a JSON value."""
    match value:
        case str():
            yield from _UUID.findall(value)
        case dict():
            for key, one in value.items():
                yield from uids_in(key)
                yield from uids_in(one)
        case list():
            for one in value:
                yield from uids_in(one)


def uids_in_data(data: Mapping[str, str]) -> Iterator[str]:
    """Yield the UIDs in the keys of a Secret that name objects."""
    for key in _SECRET_KEYS:
        yield from uids_in(_decoded(data.get(key, "")))


def machine_status(status: Raw, versions: Mapping[str, str], generations: Mapping[int, int]) -> Raw:
    """Return the status of a Machine for another server.

    Args:
        versions: resourceVersion of each Secret on the source, and on the target.
        generations: of the Machine on the source, and on the target. An older generation becomes 0, below all later
            ones.
    """
    changed: Raw = regenerated(status, generations)
    for field in ("disruption", "disruptionBudgets"):  # of a Node, and by budgets, of the source
        changed.pop(field, None)
    if "nodeUpdate" in changed:  # its generation is one of a MachineConfigurationVersion
        changed["nodeUpdate"] = changed["nodeUpdate"] | {"generation": 0}
    ssh, redfish = dict(changed.get("ssh", {})), dict(changed.get("redfish", {}))
    if "refused" in ssh:
        ssh["refused"] = [one for old in ssh["refused"] if (one := _refused(old, versions))]
        changed["ssh"] = ssh
    if (offered := redfish.pop("refusedSecretVersion", None)) is not None:
        changed["redfish"] = redfish | ({"refusedSecretVersion": versions[offered]} if offered in versions else {})
    return changed


def _refused(refused: Raw, versions: Mapping[str, str]) -> Raw:
    """Return a key that a host refused; empty where its Secret has changed since."""
    name, _, version = str(refused["secretVersion"]).rpartition("@")
    return refused | {"secretVersion": f"{name}@{versions[version]}"} if version in versions else {}


def regenerated(value: Any, generations: Mapping[int, int]) -> Any:
    """Return a status with the generations of its object as another server counts them."""
    match value:
        case dict():
            return {
                key: generations.get(one, 0)
                if key in {"generation", "observedGeneration"} and isinstance(one, int)
                else regenerated(one, generations)
                for key, one in value.items()
            }
        case list():
            return [regenerated(one, generations) for one in value]
    return value
