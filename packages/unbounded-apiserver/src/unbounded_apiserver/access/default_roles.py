"""The default roles and their bindings. Each start of the server restores them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from unbounded_apiserver.access.node_authorizer import NODE_RULES
from unbounded_apiserver.access.rbac_authorizer import PolicyRule, uncovered_rules
from unbounded_apiserver.access.resource_types import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, GROUP
from unbounded_apiserver.auth import AUTHENTICATED, UNAUTHENTICATED
from unbounded_apiserver.certificates.signers import SIGNERS
from unbounded_apiserver.decoding import normalize
from unbounded_apiserver.options import WriteOptions
from unbounded_apiserver.pki import KUBELET_CLIENT, MASTERS
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.store import Store
from unbounded_apiserver.writes import Writes, WriteTarget

AUTOUPDATE: Final = "rbac.authorization.kubernetes.io/autoupdate"
MONITORING: Final = "system:monitoring"
LABEL: Final = {"kubernetes.io/bootstrapping": "rbac-defaults"}

_READ: Final = ("get", "list", "watch")
_WRITE: Final = ("create", "delete", "deletecollection", "patch", "update")
_AUTHORIZATION: Final = ("authorization.k8s.io",)
_CERTIFICATES: Final = ("certificates.k8s.io",)
_REQUESTS: Final = "certificatesigningrequests"
_PUBLIC: Final = ("/healthz", "/livez", "/readyz", "/version", "/version/")
_MONITORING: Final = ("/healthz", "/healthz/*", "/livez", "/livez/*", "/metrics", "/readyz", "/readyz/*")
_DISCOVERY: Final = (
    *("/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*"),
    *("/readyz", "/version", "/version/"),
)

_STREAMS: Final = ("pods/attach", "pods/exec", "pods/portforward")

_VIEW: Final = (
    PolicyRule(_READ, ("",), ("pods", "pods/log", "pods/status", "services", "services/status")),
    PolicyRule(_READ, ("",), ("configmaps", "events", "namespaces", "namespaces/status", "serviceaccounts")),
    PolicyRule(_READ, ("events.k8s.io",), ("events",)),
    PolicyRule(_READ, ("policy",), ("poddisruptionbudgets", "poddisruptionbudgets/status")),
)
_EDIT: Final = (
    PolicyRule(_READ, ("",), _STREAMS),
    PolicyRule(_WRITE, ("",), ("pods", "services", *_STREAMS)),
    PolicyRule(_WRITE, ("events.k8s.io",), ("events",)),
    PolicyRule(_WRITE, ("policy",), ("poddisruptionbudgets",)),
    PolicyRule(("create",), ("",), ("pods/eviction",)),
    PolicyRule(_READ, ("",), ("secrets",)),
    PolicyRule(_WRITE, ("",), ("configmaps", "events", "secrets", "serviceaccounts")),
    PolicyRule(("impersonate",), ("",), ("serviceaccounts",)),
    PolicyRule(("create",), ("",), ("serviceaccounts/token",)),
    PolicyRule((*_READ, *_WRITE), ("coordination.k8s.io",), ("leases",)),
)
_ADMIN: Final = (
    PolicyRule(("create",), _AUTHORIZATION, ("localsubjectaccessreviews",)),
    PolicyRule((*_READ, *_WRITE), (GROUP,), ("rolebindings", "roles")),
)

_APPROVERS: Final = {
    f"system:certificates.k8s.io:{signer.rpartition('/')[2]}-approver": (
        PolicyRule(("approve",), _CERTIFICATES, ("signers",), (signer,)),
    )
    for signer in SIGNERS
}
_NODE_CLIENTS: Final = {  # certificates that the server then approves by itself
    f"system:certificates.k8s.io:{_REQUESTS}:{kind}": (
        PolicyRule(("create",), _CERTIFICATES, (f"{_REQUESTS}/{kind}",)),
    )
    for kind in ("nodeclient", "selfnodeclient")
}

# aggregated roles, and the roles that aggregate them in turn
AGGREGATED: Final = {"admin": "", "edit": "admin", "view": "edit"}
OWN_PART: Final = "system:aggregate-to-"
AGGREGATION_LABEL: Final = "rbac.authorization.k8s.io/aggregate-to-"

_FIXED_ROLES: Final[dict[str, tuple[PolicyRule, ...]]] = {
    "cluster-admin": (PolicyRule(("*",), ("*",), ("*",)), PolicyRule(("*",), urls=("*",))),
    "system:auth-delegator": (
        PolicyRule(("create",), ("authentication.k8s.io",), ("tokenreviews",)),
        PolicyRule(("create",), _AUTHORIZATION, ("subjectaccessreviews",)),
    ),
    "system:basic-user": (
        PolicyRule(("create",), _AUTHORIZATION, ("selfsubjectaccessreviews", "selfsubjectrulesreviews")),
        PolicyRule(("create",), ("authentication.k8s.io",), ("selfsubjectreviews",)),
    ),
    **_APPROVERS,
    **_NODE_CLIENTS,
    "system:discovery": (PolicyRule(("get",), urls=_DISCOVERY),),
    "system:kubelet-api-admin": (
        PolicyRule(_READ, ("",), ("nodes",)),
        PolicyRule(("proxy",), ("",), ("nodes",)),
        PolicyRule(("*",), ("",), tuple(f"nodes/{part}" for part in ("log", "metrics", "proxy", "stats"))),
        PolicyRule(("*",), ("",), tuple(f"nodes/{part}" for part in ("configz", "healthz", "pods"))),
    ),
    "system:monitoring": (PolicyRule(("get",), urls=_MONITORING),),
    # bound to no subject: `NodeRules` grants nodes these rights as far as they concern themselves
    "system:node": NODE_RULES,
    "system:node-bootstrapper": (PolicyRule(("create", *_READ), _CERTIFICATES, (_REQUESTS,)),),
    "system:public-info-viewer": (PolicyRule(("get",), urls=_PUBLIC),),
}
DEFAULT_BINDINGS: Final[dict[str, tuple[tuple[str, str], ...]]] = {  # by role: kind and name of the subjects
    "cluster-admin": (("Group", MASTERS),),
    "system:basic-user": (("Group", AUTHENTICATED),),
    "system:discovery": (("Group", AUTHENTICATED),),
    "system:kubelet-api-admin": (("User", KUBELET_CLIENT),),
    "system:monitoring": (("Group", MONITORING),),
    "system:public-info-viewer": (("Group", AUTHENTICATED), ("Group", UNAUTHENTICATED)),
}


@dataclass(frozen=True)
class GrantedResources:
    """Custom resources that `view` may read, and `edit` and `admin` may write."""

    group: str
    plurals: tuple[str, ...]


Roles = Mapping[str, tuple[PolicyRule, ...]]


def default_roles(granted: Iterable[GrantedResources] = ()) -> Roles:
    """Return the rules of each default role."""
    granted = tuple(granted)
    statuses = {one: tuple(f"{plural}/status" for plural in one.plurals) for one in granted}
    view = (*_VIEW, *(PolicyRule(_READ, (one.group,), (*one.plurals, *statuses[one])) for one in granted))
    edit = (*_EDIT, *(PolicyRule(_WRITE, (one.group,), one.plurals) for one in granted))
    return {
        **_FIXED_ROLES,
        "admin": (*edit, *view, *_ADMIN),
        "edit": (*edit, *view),
        "view": view,
        f"{OWN_PART}admin": _ADMIN,
        f"{OWN_PART}edit": edit,
        f"{OWN_PART}view": view,
    }


async def ensure_defaults(store: Store, writes: Writes, defaults: Roles) -> None:
    """Create missing roles and bindings; restore missing rules of a default role unless its `autoupdate` is "false"."""
    before = {record.name: record.decode() for record in store.snapshot(CLUSTER_ROLES.name).with_prefix("")}
    roles = (_ensure_role(writes, before, defaults, name) for name in defaults)
    bindings = (_ensure_binding(store, writes, name, subjects) for name, subjects in DEFAULT_BINDINGS.items())
    await asyncio.gather(*roles, *bindings)  # in one commit on the first start


async def _ensure_role(writes: Writes, before: Mapping[str, Object], defaults: Roles, name: str) -> None:
    role = before.get(name)
    if role is None:
        obj = _head("ClusterRole", name)
        obj["rules"] = [rule.write() for rule in (*defaults[name], *_rules_to_keep(before, defaults, name))]
        _aggregate(obj, name)
        normalize(CLUSTER_ROLES, obj)
        await writes.create_object(CLUSTER_ROLES, "", obj, WriteOptions())
    elif role["metadata"].get("annotations", {}).get(AUTOUPDATE) == "true":
        await writes.edit(WriteTarget(CLUSTER_ROLES, "", name), partial(_restore, defaults[name], name))


def _rules_to_keep(before: Mapping[str, Object], defaults: Roles, name: str) -> list[PolicyRule]:
    """Return the rules that were added to a role before it became aggregated, which would lose them."""
    gathering = before.get(name.removeprefix(OWN_PART))
    if not name.startswith(OWN_PART) or gathering is None or gathering.get("aggregationRule"):
        return []
    rules = [PolicyRule.read(rule) for rule in gathering.get("rules") or ()]
    return uncovered_rules(defaults[name.removeprefix(OWN_PART)], rules)


def _aggregate(obj: Object, name: str) -> None:
    """Set the role's selectors and labels for aggregation, as Kubernetes does."""
    gathers_it = AGGREGATED.get(name, name.removeprefix(OWN_PART) if name.startswith(OWN_PART) else "")
    if gathers_it:
        obj["metadata"].setdefault("labels", {})[f"{AGGREGATION_LABEL}{gathers_it}"] = "true"
    if name in AGGREGATED:
        selectors = (obj.get("aggregationRule") or {}).get("clusterRoleSelectors") or []
        own = {"matchLabels": {f"{AGGREGATION_LABEL}{name}": "true"}}
        obj["aggregationRule"] = {"clusterRoleSelectors": [*selectors, *([] if own in selectors else [own])]}


async def _ensure_binding(store: Store, writes: Writes, name: str, to: tuple[tuple[str, str], ...]) -> None:
    if store.get(CLUSTER_ROLE_BINDINGS.name, name) is None:
        reference = {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}
        subjects = [{"kind": kind, "apiGroup": GROUP, "name": subject} for kind, subject in to]
        obj = {**_head("ClusterRoleBinding", name), "subjects": subjects, "roleRef": reference}
        normalize(CLUSTER_ROLE_BINDINGS, obj)
        await writes.create_object(CLUSTER_ROLE_BINDINGS, "", obj, WriteOptions())


def _head(kind: str, name: str) -> Object:
    metadata: dict[str, Any] = {"name": name, "labels": dict(LABEL), "annotations": {AUTOUPDATE: "true"}}
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": metadata}


def _restore(default: Sequence[PolicyRule], name: str, obj: Object) -> None:
    _aggregate(obj, name)
    if name not in AGGREGATED:
        rules = obj.get("rules") or []
        lacking = uncovered_rules([PolicyRule.read(rule) for rule in rules], default)
        obj["rules"] = [*rules, *(rule.write() for rule in lacking)]
