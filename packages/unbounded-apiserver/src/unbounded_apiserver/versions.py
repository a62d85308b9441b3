"""Conversion between the stored version of an object and the requested one."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from unbounded_apiserver.metadata import encode
from unbounded_apiserver.records import StoredObject
from unbounded_apiserver.store import Store
from unbounded_apiserver.types import Object, Resource, ResourceType


def served_body(resource: Resource, body: bytes) -> bytes:
    """Return stored JSON in the resource's version; usually the same bytes."""
    if body.startswith(resource.prefix):
        return body
    return msgspec.json.encode(_converted(resource, msgspec.json.decode(body)))


def decode_stored(resource: Resource, record: StoredObject) -> Object:
    """Return a fresh copy of a stored object, in the resource's version, without managedFields."""
    obj = record.decode()
    return obj if obj["apiVersion"] == resource.api_version else _converted(resource, obj)


def _converted(resource: Resource, obj: Object) -> Object:
    if resource.view is not None:
        obj = resource.view.from_stored(obj)
    obj["apiVersion"] = resource.api_version
    resource.type.decode(obj)
    resource.type.default(obj)
    return obj


def without_kind(resource: Resource, body: bytes) -> bytes:
    """Return an item of a list of built-in objects, which does not repeat apiVersion and kind."""
    return b"{" + body[len(resource.prefix) :] if body.startswith(resource.prefix) else body


def to_stored(resource: Resource, obj: Object) -> None:
    """Convert an object to its stored version, in place; fields unknown there are left out."""
    if resource.view is not None:
        stored = resource.view.to_stored(obj)
        obj.clear()
        obj.update(stored)
    obj["apiVersion"] = resource.stored_as
    if resource.stored_type is not None:
        resource.stored_type.decode(obj)


def is_stored_version(resource: Resource, record: StoredObject) -> bool:
    """Return whether the object's stored version is the one that a write would use now."""
    return record.bare.startswith(b'{"apiVersion":"%b"' % resource.stored_as.encode())


def decode_again(store: Store, resource: str, types: Mapping[str, ResourceType]) -> None:
    """Decode objects that were stored under an older schema with the present one, without writing them.

    Args:
        types: by apiVersion; each object is decoded by the version in which it is stored.
    """
    for record in list(store.snapshot(resource).with_prefix("")):
        obj, before = record.decode(), record.decode()
        if (known := types.get(obj["apiVersion"])) is None:
            continue
        known.decode(obj)
        known.default(obj)
        if obj != before:
            bare = encode(obj, record.revision)
            store.replace_in_place(resource, StoredObject(record.key, record.revision, bare, record.owners))
