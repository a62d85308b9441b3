"""A request before its execution, as policies see it, and its match: resources, operations, names, and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from unbounded_apiserver import selectors
from unbounded_apiserver.auth import User
from unbounded_apiserver.builtin_resources import NAMESPACES
from unbounded_apiserver.resource_model import Object, Resource
from unbounded_apiserver.selectors import LabelSelector, labels_match

Operation = Literal["CONNECT", "CREATE", "DELETE", "UPDATE"]
Part = Mapping[str, Any]


@dataclass(frozen=True)
class AdmissionRequest:
    """A request before its execution.

    Args:
        kind: group, version and kind of the object, which may differ from the resource's (for a token request).
        name: '' if the server generates it.
        obj: the new object, None for a deletion; for a connection its options.
        old: the present object, None for a creation.
        options: the CreateOptions, UpdateOptions or DeleteOptions; empty for a connection.
    """

    operation: Operation
    user: User
    resource: Resource
    kind: tuple[str, str, str]
    subresource: str
    namespace: str
    name: str
    obj: Object | None
    old: Object | None
    dry_run: bool
    options: Mapping[str, Any]

    @property
    def shown_name(self) -> str:
        """The name of the object in a denial."""
        meta: Mapping[str, Any] = (self.obj or {}).get("metadata", {})
        return self.name or meta.get("name") or meta.get("generateName") or "Unknown"

    def request(self, version: str) -> dict[str, Any]:
        """Return the AdmissionRequest, with the resource in the policy's version; empty fields are absent."""
        resource, (group, _, kind) = self.resource, self.kind
        own = self.kind[:2] != (resource.group, resource.version)
        fields = self._request_fields
        return {
            "kind": {"group": group, "version": self.kind[1] if own else version, "kind": kind},
            "resource": {"group": resource.group, "version": version, "resource": resource.plural},
            **fields,
        }

    @cached_property
    def _request_fields(self) -> dict[str, Any]:
        resource, (group, version, kind) = self.resource, self.kind
        optional = {
            "subResource": self.subresource,
            "requestSubResource": self.subresource,
            "name": self.name,
            "namespace": self.namespace,
        }
        return {
            "requestKind": {"group": group, "version": version, "kind": kind},
            "requestResource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
            "operation": self.operation,
            "userInfo": self.user.info(),
            "dryRun": self.dry_run,
            "options": dict(self.options),
            **{key: value for key, value in optional.items() if value},
        }


@dataclass(frozen=True)
class MatchRule:
    """Operations and resources, and names of objects; each `*` is anything."""

    operations: frozenset[str]
    groups: frozenset[str]
    versions: frozenset[str]
    resources: tuple[tuple[str, str], ...]  # each with its subresource, '' for none
    names: frozenset[str]
    scope: str

    @classmethod
    def read(cls, rule: Part) -> MatchRule:
        split = (resource.partition("/") for resource in rule.get("resources") or ())
        return cls(
            frozenset(rule.get("operations") or ()),
            frozenset(rule.get("apiGroups") or ()),
            frozenset(rule.get("apiVersions") or ()),
            tuple((name, subresource) for name, _, subresource in split),
            frozenset(rule.get("resourceNames") or ()),
            rule.get("scope") or "*",
        )

    def may_match(self, group: str, plural: str) -> bool:
        """Return whether any request for the resource may match."""
        return _either(self.groups, group) and any(name in {"*", plural} for name, _ in self.resources)

    def matches(self, admission: AdmissionRequest, version: str) -> bool:
        resource = admission.resource
        return (
            _either(self.operations, admission.operation)
            and _either(self.versions, version)
            and _either(self.groups, resource.group)
            and any(
                name in {"*", resource.plural} and subresource in {"*", admission.subresource}
                for name, subresource in self.resources
            )
            and self._in_scope(admission)
            and (not self.names or admission.name in self.names)
        )

    def _in_scope(self, admission: AdmissionRequest) -> bool:
        if self.scope == "*":
            return True
        inside = admission.resource is not NAMESPACES and bool(admission.namespace)
        return inside == (self.scope == "Namespaced")


@dataclass(frozen=True)
class RequestMatch:
    """The matchConstraints of a policy, or the matchResources of a binding."""

    rules: tuple[MatchRule, ...]
    excluded: tuple[MatchRule, ...]
    namespaces: LabelSelector
    objects: LabelSelector
    equivalent: bool

    @classmethod
    def read(cls, match: Part) -> RequestMatch:
        return cls(
            tuple(map(MatchRule.read, match.get("resourceRules") or ())),
            tuple(map(MatchRule.read, match.get("excludeResourceRules") or ())),
            selectors.from_object(match.get("namespaceSelector")),
            selectors.from_object(match.get("objectSelector")),
            match.get("matchPolicy") != "Exact",
        )

    def may_match(self, group: str, plural: str) -> bool:
        return any(rule.may_match(group, plural) for rule in self.rules)

    def version(
        self, admission: AdmissionRequest, versions: Sequence[str], namespace: Callable[[], Object | None]
    ) -> str | None:
        """Return the version in which a request matches; None if it does not.

        Args:
            versions: all in which the resource is served.
            namespace: returns the Namespace of the request or of its object.
        """
        if not self._selects(admission, namespace) or self._among(self.excluded, admission, versions) is not None:
            return None
        return self._among(self.rules, admission, versions) if self.rules else admission.resource.version

    def _among(self, rules: tuple[MatchRule, ...], admission: AdmissionRequest, versions: Sequence[str]) -> str | None:
        own = admission.resource.version
        tried: Iterable[str] = (own, *(v for v in versions if v != own)) if self.equivalent else (own,)
        return next((version for version in tried if any(rule.matches(admission, version) for rule in rules)), None)

    def _selects(self, admission: AdmissionRequest, namespace: Callable[[], Object | None]) -> bool:
        if self.objects and not any(
            labels_match(self.objects, _labels(obj)) for obj in (admission.obj, admission.old) if obj is not None
        ):
            return False
        if not self.namespaces or not admission.namespace:  # cluster-scoped objects are not exempt
            return True
        return labels_match(self.namespaces, _labels(_namespace_of(admission, namespace)))


def _namespace_of(admission: AdmissionRequest, namespace: Callable[[], Object | None]) -> Object | None:
    """Return the Namespace of a request; one that is being written counts with its new content."""
    if admission.resource is NAMESPACES and not admission.subresource and admission.obj is not None:
        return admission.obj
    return namespace()


def _labels(obj: Object | None) -> Mapping[str, str]:
    return (obj or {}).get("metadata", {}).get("labels") or {}


def _either(allowed: frozenset[str], value: str) -> bool:
    return value in allowed or "*" in allowed
