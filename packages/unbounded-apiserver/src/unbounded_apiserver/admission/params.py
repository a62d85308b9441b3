"""The parameters that a binding gives to its policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unbounded_apiserver.admission import labels
from unbounded_apiserver.catalog import Catalog
from unbounded_apiserver.records import StoredObject
from unbounded_apiserver.selectors import labels_match
from unbounded_apiserver.store import Store
from unbounded_apiserver.types import Object, Resource
from unbounded_apiserver.versions import decode_stored


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
        Unusable: there are none although they are required, or the reference does not fit the resource.
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
    selector = labels.read(reference.get("selector"))
    prefix = f"{place}/" if place else ""
    return [r for r in store.snapshot(resource.name).with_prefix(prefix) if labels_match(selector, r.labels)]
