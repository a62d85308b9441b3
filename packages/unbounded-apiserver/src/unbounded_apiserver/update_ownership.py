"""Field ownership after writes that are not server-side applies.

As in kube-apiserver, no write fails because of managedFields: an object that nests too deeply leaves them unchanged.
"""

from __future__ import annotations

from typing import Any

from unbounded_apiserver.managed_fields import ownership
from unbounded_apiserver.managed_fields.owners import NO_OWNERS, UPDATE, FieldManager, ManagedFields
from unbounded_apiserver.types import Object, Resource


def after_create(
    resource: Resource, obj: Object, manager: str | None, time: str, subresource: str = ""
) -> ManagedFields:
    """Return the owner of a new object as its client sent it, with defaults; none if the server itself creates it."""
    if manager is None or not resource.type.tracks_owners:
        return NO_OWNERS
    if "status" in resource.subresources and "status" in obj:
        obj = _without_status(obj)
    owner = FieldManager(manager, UPDATE, subresource, resource.api_version)
    try:
        return ownership.created(resource.type.merge_fields, resource.type.empty(), obj, owner, time)
    except RecursionError:
        return NO_OWNERS


def after_update(
    resource: Resource,
    obj: Object,
    old: Object,
    owners: ManagedFields,
    manager: str | None,
    subresource: str,
    given: Any,
    time: str,
) -> ManagedFields:
    """Return the owners of an object that replaces `old`, whose owners are `owners`.

    Args:
        given: managedFields that the client sent; it may edit them, except through a subresource.
    """
    if given and not subresource:
        owners = NO_OWNERS if ownership.is_reset(given) else ownership.client_entries(given) or owners
    if manager is None or not owners:
        return owners
    if "status" in resource.subresources and not subresource:  # the server itself changes the status here
        old, obj = _without_status(old), _without_status(obj)
    owner = FieldManager(manager, UPDATE, subresource, resource.api_version)
    try:
        return ownership.updated(resource.type.merge_fields, old, obj, owners, owner, time)
    except RecursionError:
        return owners


def after_edit(resource: Resource, obj: Object, old: Object, owners: ManagedFields) -> ManagedFields:
    """Return the owners of an object that the server itself has edited: the changed fields lose their owners."""
    if not owners:
        return owners
    try:
        change = ownership.difference(resource.type.merge_fields, old, obj)
    except RecursionError:
        return owners
    return ownership.encode_entries(ownership.without(ownership.decode_entries(owners), change).values())


def _without_status(obj: Object) -> Object:
    return {k: v for k, v in obj.items() if k != "status"}
