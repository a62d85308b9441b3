"""The RBAC authorizer: roles and bindings of a store, indexed by their subjects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from unbounded_apiserver.access.rbac_types import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLE_RESOURCES,
    ROLES,
)
from unbounded_apiserver.access.rules import PolicyRule
from unbounded_apiserver.auth import AuthAttributes, AuthDecision, User
from unbounded_apiserver.collection import ObjectChange
from unbounded_apiserver.records import StoredObject
from unbounded_apiserver.store import Store

ACCOUNT_PREFIX: Final = "system:serviceaccount:"
RbacSubject = tuple[str, str]  # User or Group, and its name; a ServiceAccount is a User here


@dataclass(frozen=True)
class Grant:
    """A role that a binding grants to a user."""

    rules: tuple[PolicyRule, ...]
    why: str = ""
    missing: str = ""  # the reason in a denial if the role does not exist


@dataclass
class _Binding:
    """An indexed binding; of several, the one with the lowest `order`, by name, comes first."""

    order: int
    namespace: str
    described: str
    reference: Mapping[str, str]


@dataclass
class _Index:
    bound: dict[tuple[str, RbacSubject], list[tuple[_Binding, str]]] = field(
        default_factory=dict
    )  # by namespace, holder
    rules: dict[tuple[str, str], tuple[PolicyRule, ...]] = field(default_factory=dict)  # by namespace, name


class RbacAuthorizer:
    """Authorizer with an index of all roles, which is rebuilt after any of them has changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._index: _Index | None = None
        for resource in ROLE_RESOURCES:
            store.listen(self._invalidate, resource.name)

    def decide(self, user: User, attributes: AuthAttributes) -> AuthDecision:
        """Return whether one of the user's roles allows a request (an Authorizer)."""
        missing: list[str] = []
        for grant in self.grants(user, attributes.namespace):
            if any(rule.allows(attributes) for rule in grant.rules):
                return AuthDecision(True, f"RBAC: allowed by {grant.why}")
            if grant.missing and grant.missing not in missing:
                missing.append(grant.missing)
        if not missing:
            return AuthDecision(False)
        return AuthDecision(False, f"RBAC: {missing[0] if len(missing) == 1 else '[' + ', '.join(missing) + ']'}")

    def grants(self, user: User, namespace: str) -> Iterator[Grant]:
        """Yield a user's roles, cluster-wide ones and, if a namespace is given, those in it."""
        index = self._current()
        holders = [("User", user.name), *(("Group", group) for group in user.groups)]
        for place in ("", namespace) if namespace else ("",):
            found: dict[int, tuple[_Binding, str]] = {}
            for holder in holders:
                for binding, subject in index.bound.get((place, holder), ()):
                    found.setdefault(binding.order, (binding, subject))
            for _, (binding, subject) in sorted(found.items()):
                yield _grant(index, binding, subject)

    def user_rules(self, user: User, namespace: str) -> list[PolicyRule]:
        return [rule for grant in self.grants(user, namespace) for rule in grant.rules]

    def rules_of(self, reference: Mapping[str, str], namespace: str) -> tuple[PolicyRule, ...] | None:
        """Return the rules of the role that a binding in `namespace` references; None if it does not exist."""
        return self._current().rules.get(_role_key(reference, namespace))

    def _invalidate(self, _change: ObjectChange) -> None:
        self._index = None

    def _current(self) -> _Index:
        if self._index is None:
            self._index = self._read()
        return self._index

    def _read(self) -> _Index:
        index = _Index()
        for roles in (CLUSTER_ROLES, ROLES):
            for record in self._store.snapshot(roles.name).with_prefix(""):
                rules = record.decode().get("rules") or ()
                index.rules[record.namespace, record.name] = tuple(PolicyRule.read(rule) for rule in rules)
        order = 0
        for bindings in (CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS):
            for record in self._store.snapshot(bindings.name).with_prefix(""):
                obj = record.decode()
                binding = _Binding(order, record.namespace, _described(bindings.kind, record, obj), obj["roleRef"])
                order += 1
                for subject in obj.get("subjects") or ():
                    holder = _holder(subject, record.namespace)
                    entry = (binding, _subject_text(subject, record.namespace))
                    index.bound.setdefault((record.namespace, holder), []).append(entry)
        return index


def account_name(namespace: str, name: str) -> str:
    """Return the user name of a ServiceAccount."""
    return f"{ACCOUNT_PREFIX}{namespace}:{name}"


def account_groups(namespace: str) -> tuple[str, str]:
    return ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")


def _grant(index: _Index, binding: _Binding, subject: str) -> Grant:
    namespace, name = key = _role_key(binding.reference, binding.namespace)
    rules = index.rules.get(key)
    if rules is None:
        kind = "role" if namespace else "clusterrole"
        return Grant((), missing=f'{kind}.rbac.authorization.k8s.io "{name}" not found')
    return Grant(rules, f"{binding.described} to {subject}")


def _role_key(reference: Mapping[str, str], namespace: str) -> tuple[str, str]:
    return (namespace if reference["kind"] == "Role" else "", reference["name"])


def _described(kind: str, record: StoredObject, obj: Mapping[str, Any]) -> str:
    name = f"{record.name}/{record.namespace}" if record.namespace else record.name
    return f'{kind} "{name}" of {obj["roleRef"]["kind"]} "{obj["roleRef"]["name"]}"'


def _holder(subject: Mapping[str, str], namespace: str) -> RbacSubject:
    if subject["kind"] == "ServiceAccount":
        return ("User", account_name(subject.get("namespace") or namespace, subject["name"]))
    return (subject["kind"], subject["name"])


def _subject_text(subject: Mapping[str, str], namespace: str) -> str:
    if subject["kind"] == "ServiceAccount":
        return f'ServiceAccount "{subject["name"]}/{subject.get("namespace") or namespace}"'
    return f'{subject["kind"]} "{subject["name"]}"'
