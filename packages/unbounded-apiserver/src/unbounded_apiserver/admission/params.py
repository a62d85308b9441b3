"""The parameters that a binding gives to its policy, and the right to name them.

Only users that can read parameters may name them, as a policy's messages could reveal their content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unbounded_apiserver import field_errors, selectors, status
from unbounded_apiserver.admission.expressions import Decide
from unbounded_apiserver.admission.policy_types import BINDINGS, GROUP, POLICIES
from unbounded_apiserver.auth import AuthAttributes, User
from unbounded_apiserver.collection import StoredObject
from unbounded_apiserver.pki import MASTERS
from unbounded_apiserver.resource_model import Object, Resource, decode_stored
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.selectors import labels_match
from unbounded_apiserver.served_resources import Catalog
from unbounded_apiserver.store import Store


class ParamsUnavailable(Exception):
    """The parameters are not available; the message is kube-apiserver's."""


def resource_of(catalog: Catalog, kind: Mapping[str, str]) -> Resource | None:
    """Return the resource of a paramKind; None if it is not served."""
    group, _, version = kind["apiVersion"].rpartition("/")
    served = catalog.version(group, version) or {}
    return next((resource for resource in served.values() if resource.kind == kind["kind"]), None)


def kind_text(kind: Mapping[str, str]) -> str:
    """Format a paramKind as Go prints a GroupVersionKind."""
    group, _, version = kind["apiVersion"].rpartition("/")
    return f"{group}/{version}, Kind={kind['kind']}"


def collect(store: Store, resource: Resource, reference: Mapping[str, Any], namespace: str) -> list[Object]:
    """Return the objects of a paramRef, for a request in `namespace`; none where missing parameters are allowed.

    Raises:
        ParamsUnavailable: there are none although they are required, or the reference does not fit the resource.
    """
    place = ""
    if resource.namespaced:
        place = reference.get("namespace") or namespace
        if not place:
            raise ParamsUnavailable(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
            )
    elif reference.get("namespace"):
        raise ParamsUnavailable("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
    found = [decode_stored(resource, record) for record in _records(store, resource, reference, place)]
    if not found and reference["parameterNotFoundAction"] == "Deny":
        raise ParamsUnavailable("no params found for policy binding with `Deny` parameterNotFoundAction")
    return found


def _records(store: Store, resource: Resource, reference: Mapping[str, Any], place: str) -> list[StoredObject]:
    name = reference.get("name")
    if name:
        record = store.get(resource.name, resource.key(place, name))
        return [] if record is None else [record]
    selector = selectors.from_object(reference.get("selector"))
    prefix = f"{place}/" if place else ""
    return [r for r in store.snapshot(resource.name).with_prefix(prefix) if labels_match(selector, r.labels)]


class ParamRights:
    """Reject policies and bindings with parameters that their writer cannot read."""

    def __init__(self, store: Store, catalog: Catalog, decide: Decide) -> None:
        self._store = store
        self._catalog = catalog
        self._decide = decide

    def check(self, user: User, resource: Resource, obj: Object, old: Object | None) -> None:
        """Check the write of a policy or a binding; `old` is the replaced one, None for a new one. Raises StatusError
        (422).
        """
        if resource.group != GROUP or MASTERS in user.groups:
            return
        wrong = None
        if resource.name == POLICIES.name:
            wrong = self._policy(user, obj["spec"], (old or {}).get("spec", {}))
        elif resource.name == BINDINGS.name:
            wrong = self._binding(user, obj["spec"], (old or {}).get("spec", {}))
        if wrong is not None:
            raise status.invalid(GROUP, resource.kind, obj["metadata"]["name"], [wrong])

    def _policy(self, user: User, spec: Object, before: Object) -> FieldError | None:
        kind = spec.get("paramKind")
        if kind is None or kind == before.get("paramKind"):
            return None
        group, plural = self._named(kind)
        if self._decide(user, AuthAttributes("get", group, plural, "", "*", "*")).allowed:
            return None
        what = f"(kind={kind['kind']}, apiVersion={kind['apiVersion']})"
        why = f'must have "get" permission on all objects of the referenced paramKind {what}'
        return field_errors.forbidden("spec.paramKind", f"user {_shown(user)} {why}")

    def _binding(self, user: User, spec: Object, before: Object) -> FieldError | None:
        reference = spec.get("paramRef")
        same = all(spec.get(part) == before.get(part) for part in ("paramRef", "policyName"))
        if reference is None or same:
            return None
        record = self._store.get(POLICIES.name, spec["policyName"])
        kind = None if record is None else record.decode()["spec"].get("paramKind")
        group, plural = ("*", "*") if kind is None else self._named(kind)
        name, verb = reference.get("name", ""), "get" if reference.get("name") else "list"
        if self._decide(user, AuthAttributes(verb, group, plural, "", reference.get("namespace", ""), name)).allowed:
            return None
        if record is None:
            needed = f'user {_shown(user)} does not have "{verb}" permission for all groups, versions and resources'
            why = f"unable to get policy {spec['policyName']} to determine minimum required permissions and {needed}"
        else:
            why = f'user {_shown(user)} does not have "{verb}" permission on the object referenced by paramRef'
        return field_errors.forbidden("spec.paramRef", why)

    def _named(self, kind: Object) -> tuple[str, str]:
        """Return the group and resource of a paramKind; for an unknown one, all resources of its group."""
        found = resource_of(self._catalog, kind)
        return (kind["apiVersion"].rpartition("/")[0], "*" if found is None else found.plural)


def _shown(user: User) -> str:
    """Format a user as Go prints one."""
    extra = {key: list(values) for key, values in user.extra.items()}
    return f"&{{{user.name} {user.uid} {field_errors.go_text(list(user.groups))} {field_errors.go_text(extra)}}}"
