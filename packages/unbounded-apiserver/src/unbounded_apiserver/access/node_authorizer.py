"""Rights of nodes (an Authorizer), and the objects that their pods reference, updated with the stored pods.

`node_restriction` limits the content of their writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from unbounded_apiserver.access.rbac_authorizer import PolicyRule
from unbounded_apiserver.auth import AuthAttributes, AuthDecision, User
from unbounded_apiserver.certificates.signers import NODE_PREFIX, NODES
from unbounded_apiserver.collection import ObjectChange, StoredObject
from unbounded_apiserver.selectors import BadSelector, parse_fields
from unbounded_apiserver.store import Store

MIRROR: Final = "kubernetes.io/config.mirror"
CONFIG_MAPS: Final = "configmaps"
PODS: Final = "pods"
SECRETS: Final = "secrets"
SERVICE_ACCOUNTS: Final = "serviceaccounts"

Reference = tuple[str, str]  # a resource, and a name in the namespace of the pod
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")
# Fields in which a source of variables, or a volume, names an object.
_ENV: Final = ((CONFIG_MAPS, "configMapKeyRef", "name"), (SECRETS, "secretKeyRef", "name"))
_ENV_FROM: Final = ((CONFIG_MAPS, "configMapRef", "name"), (SECRETS, "secretRef", "name"))
_VOLUME: Final = (
    (CONFIG_MAPS, "configMap", "name"),
    (SECRETS, "azureFile", "secretName"),
    (SECRETS, "secret", "secretName"),
)
_PROJECTED: Final = ((CONFIG_MAPS, "configMap", "name"), (SECRETS, "secret", "name"))
_DRIVERS: Final = {
    "csi": "nodePublishSecretRef",
    **dict.fromkeys(("cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"), "secretRef"),
}
ObjectId = tuple[str, str, str]  # resource, namespace, name
_Edge = tuple[ObjectId, str]
LEASES: Final = "kube-node-lease"
STORAGE: Final = "storage.k8s.io"
RESOURCES: Final = "resource.k8s.io"
_READ: Final = ("get", "list", "watch")
_CHANGE: Final = ("update", "patch")
NODE_RULES: Final = (
    PolicyRule(("create",), ("authentication.k8s.io",), ("tokenreviews",)),
    PolicyRule(("create",), ("authorization.k8s.io",), ("localsubjectaccessreviews", "subjectaccessreviews")),
    PolicyRule(_READ, ("",), ("services",)),
    PolicyRule(("create", *_READ, *_CHANGE), ("",), ("nodes",)),
    PolicyRule(_CHANGE, ("",), ("nodes/status",)),
    PolicyRule(("create", *_CHANGE), ("", "events.k8s.io"), ("events",)),
    PolicyRule(("create", "delete", *_READ), ("",), ("pods",)),
    PolicyRule(_CHANGE, ("",), ("pods/status",)),
    PolicyRule(("create",), ("",), ("pods/eviction",)),
    PolicyRule(_READ, ("",), ("configmaps", "secrets")),
    PolicyRule(("create",), ("",), ("serviceaccounts/token",)),
    PolicyRule(("create", *_READ), ("certificates.k8s.io",), ("certificatesigningrequests",)),
    PolicyRule(("create", "delete", "get", *_CHANGE), ("coordination.k8s.io",), ("leases",)),
    PolicyRule(("get",), (STORAGE,), ("volumeattachments",)),
    PolicyRule(_READ, (STORAGE,), ("csidrivers",)),
    PolicyRule(("create", "delete", "get", *_CHANGE), (STORAGE,), ("csinodes",)),
    PolicyRule(_READ, ("node.k8s.io",), ("runtimeclasses",)),
    PolicyRule(("deletecollection",), (RESOURCES,), ("resourceslices",)),
    PolicyRule(("get",), ("",), ("serviceaccounts",)),  # for credential providers that get a token of the Pod's account
)
_ALLOWED: Final = AuthDecision(True)
_NOT: Final = AuthDecision(False)


def node_of(user: User) -> str | None:
    """Return the name of a user's node, None for other users; a node needs both the name and the group."""
    if not user.name.startswith(NODE_PREFIX) or NODES not in user.groups:
        return None
    return user.name.removeprefix(NODE_PREFIX)


class NodeGraph:
    """Relations between nodes and objects. The graph reads all pods on first use, and then follows their changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._edges: Counter[_Edge] | None = None
        self._by_pod: dict[str, tuple[_Edge, ...]] = {}
        store.listen(self._on_change, PODS)

    def related(self, node: str, resource: str, namespace: str, name: str) -> bool:
        return self._current()[(resource, namespace, name), node] > 0

    def _current(self) -> Counter[_Edge]:
        if self._edges is None:
            self._edges = Counter()
            for record in self._store.snapshot(PODS).with_prefix(""):
                self._put(self._edges, record)
        return self._edges

    def _on_change(self, change: ObjectChange) -> None:
        if self._edges is None:
            return
        for edge in self._by_pod.pop(change.record.key, ()):
            self._edges[edge] -= 1
            if not self._edges[edge]:
                del self._edges[edge]
        if not change.deleted:
            self._put(self._edges, change.record)

    def _put(self, edges: Counter[_Edge], record: StoredObject) -> None:
        if found := tuple(dict.fromkeys(_edges(record))):
            self._by_pod[record.key] = found
            edges.update(found)


def _edges(record: StoredObject) -> Iterator[_Edge]:
    """Yield the edges of a pod. A mirror pod, which a node creates itself, gives it no right to other objects."""
    pod = record.decode()
    node: Final = (pod.get("spec") or {}).get("nodeName")
    if not node:
        return
    yield (PODS, record.namespace, record.name), node
    if MIRROR not in (pod["metadata"].get("annotations") or {}):
        for resource, name in references(pod):
            yield (resource, record.namespace, name), node


class NodeRules:
    """Authorizer that allows nodes the rules of the table for their own objects; has no opinion of other users."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._graph = NodeGraph(store)
        self._special: Mapping[tuple[str, str], Callable[[str, AuthAttributes], AuthDecision]] = {
            ("", "configmaps"): self._read,
            ("", "secrets"): self._read,
            ("", "serviceaccounts"): self._account,
            ("", "nodes"): _node,
            ("", "pods"): self._pod,
            ("coordination.k8s.io", "leases"): _lease,
            (STORAGE, "csinodes"): _csi_node,
            (STORAGE, "volumeattachments"): self._attachment,
            (RESOURCES, "resourceslices"): self._slice,
        }

    def decide(self, user: User, attributes: AuthAttributes) -> AuthDecision:
        node = node_of(user)
        if node is None:
            return _NOT
        if not node:
            return AuthDecision(False, f'unknown node for user "{user.name}"')
        special = None if attributes.path else self._special.get((attributes.group, attributes.resource))
        if special is not None:
            return special(node, attributes)
        return _ALLOWED if any(rule.allows(attributes) for rule in NODE_RULES) else _NOT

    def _read(self, node: str, attributes: AuthAttributes) -> AuthDecision:
        if attributes.verb not in _READ:
            return AuthDecision(False, "can only read resources of this type")
        if attributes.subresource:
            return AuthDecision(False, "cannot read subresource")
        if not attributes.namespace:
            return AuthDecision(False, "can only read namespaced object of this type")
        return self._related(node, attributes)

    def _account(self, node: str, attributes: AuthAttributes) -> AuthDecision:
        if (attributes.verb, attributes.subresource) == ("get", ""):
            return self._related(node, attributes)
        if attributes.verb != "create" or not attributes.name:
            return AuthDecision(False, "can only create tokens for individual service accounts")
        if attributes.subresource != "token":
            return AuthDecision(False, "can only create token subresource of serviceaccount")
        return self._related(node, attributes)

    def _pod(self, node: str, attributes: AuthAttributes) -> AuthDecision:
        match attributes.subresource, attributes.verb:
            case "", "get":
                return self._related(node, attributes)
            case "", "list" | "watch":
                if _selects(attributes.selector, node):
                    return _ALLOWED
                if attributes.name:
                    return self._related(node, attributes)
                return AuthDecision(False, "can only list/watch pods with spec.nodeName field selector")
            case ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create"):
                return _ALLOWED
        return _NOT

    def _attachment(self, node: str, attributes: AuthAttributes) -> AuthDecision:
        if attributes.verb != "get":
            return AuthDecision(False, "can only get individual resources of this type")
        if attributes.subresource:
            return AuthDecision(False, "cannot get subresource")
        return self._of_node(node, attributes)

    def _slice(self, node: str, attributes: AuthAttributes) -> AuthDecision:
        if attributes.subresource:
            return AuthDecision(False, "cannot authorize ResourceSlice subresources")
        match attributes.verb:
            case "create":
                return _ALLOWED
            case "get" | "update" | "patch" | "delete":
                return self._of_node(node, attributes)
            case "list" | "watch" | "deletecollection":
                why = "can only list/watch/deletecollection resourceslices with nodeName field selector"
                return _ALLOWED if _selects(attributes.selector, node) else AuthDecision(False, why)
        return AuthDecision(
            False,
            "only the following verbs are allowed for a ResourceSlice: "
            "get, watch, list, create, update, patch, delete, deletecollection",
        )

    def _of_node(self, node: str, attributes: AuthAttributes) -> AuthDecision:
        """Allow an object that names the node as its own."""
        if not attributes.name:
            return AuthDecision(False, "No Object name found")
        record = self._store.get(f"{attributes.resource}.{attributes.group}", attributes.name)
        if record is not None and record.decode()["spec"].get("nodeName") == node:
            return _ALLOWED
        return AuthDecision(False, f"no relationship found between node '{node}' and this object")

    def _related(self, node: str, attributes: AuthAttributes) -> AuthDecision:
        if not attributes.name:
            return AuthDecision(False, "No Object name found")
        if self._graph.related(node, attributes.resource, attributes.namespace, attributes.name):
            return _ALLOWED
        return AuthDecision(False, f"no relationship found between node '{node}' and this object")


def _node(node: str, attributes: AuthAttributes) -> AuthDecision:
    match attributes.subresource, attributes.verb:
        case ("", "create" | "update" | "patch") | ("status", "update" | "patch"):
            return _ALLOWED
        case "", "get" | "list" | "watch":
            if attributes.name == node:
                return _ALLOWED
            which = f"'{attributes.name}'" if attributes.name else "all nodes"
            return AuthDecision(False, f"node '{node}' cannot read {which}, only its own Node object")
    return _NOT


def _lease(node: str, attributes: AuthAttributes) -> AuthDecision:
    if attributes.verb not in {"get", "create", "update", "patch", "delete"}:
        return AuthDecision(False, "can only get, create, update, patch, or delete a node lease")
    if attributes.namespace != LEASES:
        return AuthDecision(False, f'can only access leases in the "{LEASES}" system namespace')
    if attributes.verb != "create" and attributes.name != node:
        return AuthDecision(False, "can only access node lease with the same name as the requesting node")
    return _ALLOWED


def _csi_node(node: str, attributes: AuthAttributes) -> AuthDecision:
    if attributes.verb not in {"get", "create", "update", "patch", "delete"}:
        return AuthDecision(False, "can only get, create, update, patch, or delete a CSINode")
    if attributes.subresource:
        return AuthDecision(False, "cannot authorize CSINode subresources")
    if attributes.verb != "create" and attributes.name != node:
        return AuthDecision(False, "can only access CSINode with the same name as the requesting node")
    return _ALLOWED


def _selects(selector: str, node: str) -> bool:
    """Return whether a field selector matches only objects of this node."""
    try:
        terms = parse_fields(selector)
    except BadSelector:
        return False
    return any(term.equal and (term.field, term.value) == ("spec.nodeName", node) for term in terms)


def references(pod: Mapping[str, Any]) -> Iterator[Reference]:
    """Yield the objects that a pod's node may read; some of them more than once."""
    spec = pod.get("spec") or {}
    if account := spec.get("serviceAccountName"):
        yield SERVICE_ACCOUNTS, account
    yield from of_content(spec)


def of_content(spec: Mapping[str, Any]) -> Iterator[Reference]:
    """Yield the Secrets and ConfigMaps of a pod's spec."""
    for pull in _list(spec, "imagePullSecrets"):
        yield from _named(SECRETS, pull, "name")
    for kind in _CONTAINERS:
        for container in _list(spec, kind):
            for variable in _list(container, "env"):
                yield from _of(variable.get("valueFrom"), _ENV)
            for source in _list(container, "envFrom"):
                yield from _of(source, _ENV_FROM)
    for volume in _list(spec, "volumes"):
        yield from _of(volume, _VOLUME)
        for source in _list(volume.get("projected") or {}, "sources"):
            yield from _of(source, _PROJECTED)
        for driver, field in _DRIVERS.items():
            yield from _named(SECRETS, (volume.get(driver) or {}).get(field), "name")


def _list(holder: Mapping[str, Any], name: str) -> Iterable[Mapping[str, Any]]:
    return holder.get(name) or ()


def _of(holder: Mapping[str, Any] | None, places: Iterable[tuple[str, str, str]]) -> Iterator[Reference]:
    for resource, place, field in places:
        yield from _named(resource, (holder or {}).get(place), field)


def _named(resource: str, holder: Mapping[str, Any] | None, field: str) -> Iterator[Reference]:
    if name := (holder or {}).get(field):
        yield resource, name
