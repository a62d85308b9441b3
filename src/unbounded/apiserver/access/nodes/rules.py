"""Rights of nodes (an Authorizer); `restriction` limits the content of their writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from unbounded.apiserver.access.nodes.graph import NodeGraph
from unbounded.apiserver.access.nodes.identity import node_of
from unbounded.apiserver.access.rules import Rule
from unbounded.apiserver.auth import AuthAttributes, AuthDecision, User
from unbounded.apiserver.selectors import BadSelector, parse_fields
from unbounded.apiserver.store import Store

LEASES: Final = "kube-node-lease"
STORAGE: Final = "storage.k8s.io"
RESOURCES: Final = "resource.k8s.io"
_READ: Final = ("get", "list", "watch")
_CHANGE: Final = ("update", "patch")

NODE_RULES: Final = (
    Rule(("create",), ("authentication.k8s.io",), ("tokenreviews",)),
    Rule(("create",), ("authorization.k8s.io",), ("localsubjectaccessreviews", "subjectaccessreviews")),
    Rule(_READ, ("",), ("services",)),
    Rule(("create", *_READ, *_CHANGE), ("",), ("nodes",)),
    Rule(_CHANGE, ("",), ("nodes/status",)),
    Rule(("create", *_CHANGE), ("", "events.k8s.io"), ("events",)),
    Rule(("create", "delete", *_READ), ("",), ("pods",)),
    Rule(_CHANGE, ("",), ("pods/status",)),
    Rule(("create",), ("",), ("pods/eviction",)),
    Rule(_READ, ("",), ("configmaps", "secrets")),
    Rule(("create",), ("",), ("serviceaccounts/token",)),
    Rule(("create", *_READ), ("certificates.k8s.io",), ("certificatesigningrequests",)),
    Rule(("create", "delete", "get", *_CHANGE), ("coordination.k8s.io",), ("leases",)),
    Rule(("get",), (STORAGE,), ("volumeattachments",)),
    Rule(_READ, (STORAGE,), ("csidrivers",)),
    Rule(("create", "delete", "get", *_CHANGE), (STORAGE,), ("csinodes",)),
    Rule(_READ, ("node.k8s.io",), ("runtimeclasses",)),
    Rule(("deletecollection",), (RESOURCES,), ("resourceslices",)),
    Rule(("get",), ("",), ("serviceaccounts",)),  # for credential providers that get a token of the Pod's account
)

_ALLOWED: Final = AuthDecision(True)
_NOT: Final = AuthDecision(False)


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

    def decide(self, user: User, asked: AuthAttributes) -> AuthDecision:
        node = node_of(user)
        if node is None:
            return _NOT
        if not node:
            return AuthDecision(False, f'unknown node for user "{user.name}"')
        special = None if asked.path else self._special.get((asked.group, asked.resource))
        if special is not None:
            return special(node, asked)
        return _ALLOWED if any(rule.allows(asked) for rule in NODE_RULES) else _NOT

    def _read(self, node: str, asked: AuthAttributes) -> AuthDecision:
        if asked.verb not in _READ:
            return AuthDecision(False, "can only read resources of this type")
        if asked.subresource:
            return AuthDecision(False, "cannot read subresource")
        if not asked.namespace:
            return AuthDecision(False, "can only read namespaced object of this type")
        return self._related(node, asked)

    def _account(self, node: str, asked: AuthAttributes) -> AuthDecision:
        if (asked.verb, asked.subresource) == ("get", ""):
            return self._related(node, asked)
        if asked.verb != "create" or not asked.name:
            return AuthDecision(False, "can only create tokens for individual service accounts")
        if asked.subresource != "token":
            return AuthDecision(False, "can only create token subresource of serviceaccount")
        return self._related(node, asked)

    def _pod(self, node: str, asked: AuthAttributes) -> AuthDecision:
        match asked.subresource, asked.verb:
            case "", "get":
                return self._related(node, asked)
            case "", "list" | "watch":
                if _selects(asked.selector, node):
                    return _ALLOWED
                if asked.name:
                    return self._related(node, asked)
                return AuthDecision(False, "can only list/watch pods with spec.nodeName field selector")
            case ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create"):
                return _ALLOWED
        return _NOT

    def _attachment(self, node: str, asked: AuthAttributes) -> AuthDecision:
        if asked.verb != "get":
            return AuthDecision(False, "can only get individual resources of this type")
        if asked.subresource:
            return AuthDecision(False, "cannot get subresource")
        return self._of_node(node, asked)

    def _slice(self, node: str, asked: AuthAttributes) -> AuthDecision:
        if asked.subresource:
            return AuthDecision(False, "cannot authorize ResourceSlice subresources")
        match asked.verb:
            case "create":
                return _ALLOWED
            case "get" | "update" | "patch" | "delete":
                return self._of_node(node, asked)
            case "list" | "watch" | "deletecollection":
                why = "can only list/watch/deletecollection resourceslices with nodeName field selector"
                return _ALLOWED if _selects(asked.selector, node) else AuthDecision(False, why)
        return AuthDecision(
            False,
            "only the following verbs are allowed for a ResourceSlice: "
            "get, watch, list, create, update, patch, delete, deletecollection",
        )

    def _of_node(self, node: str, asked: AuthAttributes) -> AuthDecision:
        """Allow an object that names the node as its own."""
        if not asked.name:
            return AuthDecision(False, "No Object name found")
        record = self._store.get(f"{asked.resource}.{asked.group}", asked.name)
        if record is not None and record.decode()["spec"].get("nodeName") == node:
            return _ALLOWED
        return AuthDecision(False, f"no relationship found between node '{node}' and this object")

    def _related(self, node: str, asked: AuthAttributes) -> AuthDecision:
        if not asked.name:
            return AuthDecision(False, "No Object name found")
        if self._graph.related(node, asked.resource, asked.namespace, asked.name):
            return _ALLOWED
        return AuthDecision(False, f"no relationship found between node '{node}' and this object")


def _node(node: str, asked: AuthAttributes) -> AuthDecision:
    match asked.subresource, asked.verb:
        case ("", "create" | "update" | "patch") | ("status", "update" | "patch"):
            return _ALLOWED
        case "", "get" | "list" | "watch":
            if asked.name == node:
                return _ALLOWED
            which = f"'{asked.name}'" if asked.name else "all nodes"
            return AuthDecision(False, f"node '{node}' cannot read {which}, only its own Node object")
    return _NOT


def _lease(node: str, asked: AuthAttributes) -> AuthDecision:
    if asked.verb not in {"get", "create", "update", "patch", "delete"}:
        return AuthDecision(False, "can only get, create, update, patch, or delete a node lease")
    if asked.namespace != LEASES:
        return AuthDecision(False, f'can only access leases in the "{LEASES}" system namespace')
    if asked.verb != "create" and asked.name != node:
        return AuthDecision(False, "can only access node lease with the same name as the requesting node")
    return _ALLOWED


def _csi_node(node: str, asked: AuthAttributes) -> AuthDecision:
    if asked.verb not in {"get", "create", "update", "patch", "delete"}:
        return AuthDecision(False, "can only get, create, update, patch, or delete a CSINode")
    if asked.subresource:
        return AuthDecision(False, "cannot authorize CSINode subresources")
    if asked.verb != "create" and asked.name != node:
        return AuthDecision(False, "can only access CSINode with the same name as the requesting node")
    return _ALLOWED


def _selects(selector: str, node: str) -> bool:
    """Return whether a field selector matches only objects of this node."""
    try:
        terms = parse_fields(selector)
    except BadSelector:
        return False
    return any(term.equal and (term.field, term.value) == ("spec.nodeName", node) for term in terms)
