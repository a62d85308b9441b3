"""The RBAC authorizer: rules of roles, roles and bindings of a store by subject, and checks against escalation."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unbounded_apiserver import status
from unbounded_apiserver.access import resource_types
from unbounded_apiserver.auth import AuthAttributes, AuthChain, AuthDecision, User
from unbounded_apiserver.collection import ObjectChange, StoredObject
from unbounded_apiserver.pki import MASTERS
from unbounded_apiserver.resource_model import Object, Resource
from unbounded_apiserver.store import Store

ALL: Final = "*"


@dataclass(frozen=True)
class PolicyRule:
    """One rule of a role: for resources, or for paths that are not resources (`urls`)."""

    verbs: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()

    @classmethod
    def read(cls, rule: Mapping[str, Any]) -> PolicyRule:
        """Parse a stored PolicyRule."""
        return cls(*(tuple(rule.get(field) or ()) for field in _FIELDS))

    def write(self) -> dict[str, list[str]]:
        """Return the rule as a PolicyRule."""
        values = (self.verbs, self.groups, self.resources, self.names, self.urls)
        return {field: list(value) for field, value in zip(_FIELDS, values, strict=True) if value}

    def allows(self, attributes: AuthAttributes) -> bool:
        if not _has(self.verbs, attributes.verb):
            return False
        if attributes.path:
            return any(_url_matches(url, attributes.path) for url in self.urls)
        return (
            _has(self.groups, attributes.group)
            and any(_resource_matches(known, attributes.resource, attributes.subresource) for known in self.resources)
            and (not self.names or attributes.name in self.names)
        )

    def expand(self) -> Iterator[PolicyRule]:
        """Yield the same rights as rules of one verb and one resource or path each."""
        for url, verb in itertools.product(self.urls, self.verbs):
            yield PolicyRule((verb,), urls=(url,))
        for group, resource, verb in itertools.product(self.groups, self.resources, self.verbs):
            for name in self.names or ("",):
                yield PolicyRule((verb,), (group,), (resource,), (name,) if name else ())

    def covers(self, other: PolicyRule) -> bool:
        """Return whether this rule alone includes all rights of `other`, a simple rule."""
        return (
            _has(self.verbs, other.verbs[0])
            and all(_has(self.groups, group) for group in other.groups)
            and all(any(_resource_matches(known, *_split(r)) for known in self.resources) for r in other.resources)
            and (not self.names or (bool(other.names) and set(other.names) <= set(self.names)))
            and all(any(_url_matches(known, url) for known in self.urls) for url in other.urls)
        )

    def __str__(self) -> str:
        named = (
            ("APIGroups", self.groups),
            ("Resources", self.resources),
            ("NonResourceURLs", self.urls),
            ("ResourceNames", self.names),
            ("Verbs", self.verbs),
        )
        return "{" + ", ".join(f"{name}:{go_list(value)}" for name, value in named if value) + "}"


EVERYTHING: Final = (PolicyRule((ALL,), (ALL,), (ALL,)), PolicyRule((ALL,), urls=(ALL,)))
_FIELDS: Final = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")


def uncovered_rules(granted: Sequence[PolicyRule], desired: Iterable[PolicyRule]) -> list[PolicyRule]:
    """Return the rights of `desired` that no rule of `held` covers; verbs of one resource are joined."""
    found: dict[PolicyRule, list[str]] = {}
    for simple in itertools.chain.from_iterable(rule.expand() for rule in desired):
        if not any(rule.covers(simple) for rule in granted):
            verbs = found.setdefault(replace(simple, verbs=()), [])
            if simple.verbs[0] not in verbs:
                verbs.append(simple.verbs[0])
    return [replace(thing, verbs=tuple(verbs)) for thing, verbs in found.items()]


def go_list(values: Iterable[str]) -> str:
    """Format a list of strings as Go prints it with %q."""
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "[" + " ".join(f'"{value}"' for value in quoted) + "]"


def _has(known: Sequence[str], value: str) -> bool:
    return ALL in known or value in known


def _split(resource: str) -> tuple[str, str]:
    plural, _, subresource = resource.partition("/")
    return plural, subresource


def _resource_matches(known: str, resource: str, subresource: str) -> bool:
    if known == ALL:
        return True
    if subresource and known == f"{ALL}/{subresource}":
        return True
    return known == (f"{resource}/{subresource}" if subresource else resource)


def _url_matches(known: str, path: str) -> bool:
    return known in {ALL, path} or (known.endswith(ALL) and path.startswith(known.rstrip(ALL)))


ACCOUNT_PREFIX: Final = "system:serviceaccount:"
RbacSubject = tuple[str, str]  # User or Group, and its name; a ServiceAccount is a User here
_OWNERSHIP: Final = frozenset({"finalizers", "managedFields", "ownerReferences", "resourceVersion"})
_ROLE_NAMES: Final = frozenset({resource_types.ROLES.name, resource_types.CLUSTER_ROLES.name})
_BINDING_NAMES: Final = frozenset({resource_types.ROLE_BINDINGS.name, resource_types.CLUSTER_ROLE_BINDINGS.name})


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
        for resource in resource_types.ROLE_RESOURCES:
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
        for roles in (resource_types.CLUSTER_ROLES, resource_types.ROLES):
            for record in self._store.snapshot(roles.name).with_prefix(""):
                rules = record.decode().get("rules") or ()
                index.rules[record.namespace, record.name] = tuple(PolicyRule.read(rule) for rule in rules)
        order = 0
        for bindings in (resource_types.CLUSTER_ROLE_BINDINGS, resource_types.ROLE_BINDINGS):
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
        escalate = AuthAttributes(
            "escalate", resource_types.GROUP, resource.plural, "", meta.get("namespace", ""), name
        )
        if self._guard.decide(user, escalate).allowed:
            return
        self._require(user, resource, obj, [PolicyRule.read(rule) for rule in obj.get("rules") or ()])
        if _aggregates(obj) or (old is not None and _aggregates(old)):
            self._require_all(user, resource, meta["name"])

    def _check_binding(self, user: User, resource: Resource, obj: Object, old: Object | None) -> None:
        if old is not None and all(obj.get(part) == old.get(part) for part in ("subjects", "roleRef")):
            return
        reference, namespace = obj["roleRef"], obj["metadata"].get("namespace", "")
        roles = resource_types.ROLES if reference["kind"] == "Role" else resource_types.CLUSTER_ROLES
        bind = AuthAttributes("bind", resource_types.GROUP, roles.plural, "", namespace, reference["name"])
        if self._guard.decide(user, bind).allowed:
            return
        rules = self._book.rules_of(reference, namespace)
        if rules is None:
            raise status.not_found(resource_types.GROUP, roles.plural, reference["name"])
        self._require(user, resource, obj, rules)

    def _require_all(self, user: User, resource: Resource, name: str) -> None:
        """Require all rights for an aggregated role, as its rules may be any and may grow."""
        if uncovered_rules(self._book.user_rules(user, ""), EVERYTHING):
            why = "must have cluster-admin privileges to use the aggregationRule"
            raise status.forbidden(resource_types.GROUP, resource.plural, name, why)

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
        raise status.forbidden(resource_types.GROUP, resource.plural, meta["name"], why)


def _without_owners(role: Object) -> Object:
    """Return a role without the fields that garbage collection writes; labels stay, as roles aggregate by them."""
    meta = {k: v for k, v in role["metadata"].items() if k not in _OWNERSHIP}
    return {**role, "metadata": meta}


def _aggregates(role: Object) -> bool:
    return bool((role.get("aggregationRule") or {}).get("clusterRoleSelectors"))
