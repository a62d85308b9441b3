"""Prevention of privilege escalation: checks of writes to roles and bindings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from unbounded_apiserver import status
from unbounded_apiserver.access.rbac_authorizer import RbacAuthorizer
from unbounded_apiserver.access.rbac_types import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    GROUP,
    ROLE_BINDINGS,
    ROLES,
)
from unbounded_apiserver.access.rules import EVERYTHING, PolicyRule, go_list, uncovered_rules
from unbounded_apiserver.auth import AuthAttributes, AuthChain, User
from unbounded_apiserver.pki import MASTERS
from unbounded_apiserver.types import Object, Resource

_OWNERSHIP: Final = frozenset({"finalizers", "managedFields", "ownerReferences", "resourceVersion"})
_ROLE_NAMES: Final = frozenset({ROLES.name, CLUSTER_ROLES.name})
_BINDING_NAMES: Final = frozenset({ROLE_BINDINGS.name, CLUSTER_ROLE_BINDINGS.name})


def _without_owners(role: Object) -> Object:
    """Return a role without the fields that garbage collection writes; labels stay, as roles aggregate by them."""
    meta = {k: v for k, v in role["metadata"].items() if k not in _OWNERSHIP}
    return {**role, "metadata": meta}


def _aggregates(role: Object) -> bool:
    return bool((role.get("aggregationRule") or {}).get("clusterRoleSelectors"))


class EscalationCheck:
    """Reject a role or a binding with rights that its writer does not have."""

    def __init__(self, book: RbacAuthorizer, guard: AuthChain) -> None:
        self._book = book
        self._guard = guard

    def check(self, user: User, resource: Resource, obj: Object, old: Object | None) -> None:
        """Check the write of a role or a binding; `old` is the replaced one, None for a new one. Raises StatusError
        (403, 404).
        """
        if MASTERS in user.groups:
            return
        if resource.name in _ROLE_NAMES:
            self._check_role(user, resource, obj, old)
        elif resource.name in _BINDING_NAMES:
            self._check_binding(user, resource, obj, old)

    def _check_role(self, user: User, resource: Resource, obj: Object, old: Object | None) -> None:
        if old is not None and _without_owners(obj) == _without_owners(old):
            return
        meta = obj["metadata"]
        name = meta["name"] if old is not None else ""
        escalate = AuthAttributes("escalate", GROUP, resource.plural, "", meta.get("namespace", ""), name)
        if self._guard.decide(user, escalate).allowed:
            return
        self._require(user, resource, obj, [PolicyRule.read(rule) for rule in obj.get("rules") or ()])
        if _aggregates(obj) or (old is not None and _aggregates(old)):
            self._require_all(user, resource, meta["name"])

    def _check_binding(self, user: User, resource: Resource, obj: Object, old: Object | None) -> None:
        if old is not None and all(obj.get(part) == old.get(part) for part in ("subjects", "roleRef")):
            return
        reference, namespace = obj["roleRef"], obj["metadata"].get("namespace", "")
        roles = ROLES if reference["kind"] == "Role" else CLUSTER_ROLES
        bind = AuthAttributes("bind", GROUP, roles.plural, "", namespace, reference["name"])
        if self._guard.decide(user, bind).allowed:
            return
        rules = self._book.rules_of(reference, namespace)
        if rules is None:
            raise status.not_found(GROUP, roles.plural, reference["name"])
        self._require(user, resource, obj, rules)

    def _require_all(self, user: User, resource: Resource, name: str) -> None:
        """Require all rights for an aggregated role, as its rules may be any and may grow."""
        if uncovered_rules(self._book.user_rules(user, ""), EVERYTHING):
            why = "must have cluster-admin privileges to use the aggregationRule"
            raise status.forbidden(GROUP, resource.plural, name, why)

    def _require(self, user: User, resource: Resource, obj: Object, desired: Iterable[PolicyRule]) -> None:
        meta = obj["metadata"]
        lacking = uncovered_rules(self._book.user_rules(user, meta.get("namespace", "")), desired)
        if not lacking:
            return
        shown = "\n".join(sorted({str(rule) for rule in lacking}))
        why = (
            f'user "{user.name}" (groups={go_list(user.groups)}) is attempting to grant RBAC permissions '
            f"not currently held:\n{shown}"
        )
        raise status.forbidden(GROUP, resource.plural, meta["name"], why)
