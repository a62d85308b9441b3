"""Between the version in which an object is stored and the one in which it is asked for."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from unbounded.apiserver.metadata import encode
from unbounded.apiserver.records import Record
from unbounded.apiserver.store import Store
from unbounded.apiserver.types import Object, Resource, Type


def present(resource: Resource, body: bytes) -> bytes:
    """Stored JSON as the resource's version shows it; most often the same bytes."""
    if body.startswith(resource.prefix):
        return body
    return msgspec.json.encode(_converted(resource, msgspec.json.decode(body)))


def stored_object(resource: Resource, record: Record) -> Object:
    """A fresh copy of a stored object, in the resource's version, without managedFields."""
    obj = record.decode()
    return obj if obj["apiVersion"] == resource.api_version else _converted(resource, obj)


def _converted(resource: Resource, obj: Object) -> Object:
    if resource.view is not None:
        obj = resource.view.shown(obj)
    obj["apiVersion"] = resource.api_version
    resource.type.decode(obj)
    resource.type.default(obj)
    return obj


def without_kind(resource: Resource, body: bytes) -> bytes:
    """An item of a list of built-in objects, which does not repeat apiVersion and kind."""
    return b"{" + body[len(resource.prefix) :] if body.startswith(resource.prefix) else body


def to_stored(resource: Resource, obj: Object) -> None:
    """Bring an object into the version in which it is stored, in place; what that does not know is left out."""
    if resource.view is not None:
        stored = resource.view.stored(obj)
        obj.clear()
        obj.update(stored)
    obj["apiVersion"] = resource.stored_as
    if resource.stored_type is not None:
        resource.stored_type.decode(obj)


def is_stored_version(resource: Resource, record: Record) -> bool:
    """Whether an object is stored in the version in which it would be stored now."""
    return record.bare.startswith(b'{"apiVersion":"%b"' % resource.stored_as.encode())


def refresh(store: Store, resource: str, types: Mapping[str, Type]) -> None:
    """Show objects that were stored under an older schema as the present one decodes them, without writing them.

    Args:
        types: by apiVersion; each object is shown as the version in which it is stored has it.
    """
    for record in list(store.snapshot(resource).within("")):
        obj, before = record.decode(), record.decode()
        if (known := types.get(obj["apiVersion"])) is None:
            continue
        known.decode(obj)
        known.default(obj)
        if obj != before:
            bare = encode(obj, record.revision)
            store.replace_in_place(resource, Record(record.key, record.revision, bare, record.owners))
