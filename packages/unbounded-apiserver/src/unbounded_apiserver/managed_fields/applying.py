"""Server-side apply: merges a configuration into an object, for the fields that its manager owns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unbounded_apiserver.managed_fields import fieldsets, ownership
from unbounded_apiserver.managed_fields.fieldsets import FieldSet
from unbounded_apiserver.managed_fields.owners import UPDATE, FieldManager, ManagedFields, encode_time
from unbounded_apiserver.managed_fields.ownership import BEFORE_APPLY, ManagerEntries, ManagerEntry
from unbounded_apiserver.managed_fields.typed import (
    Mistyped,
    ObjectKind,
    compare,
    merge,
    owned_paths,
    remove,
    with_parents,
)

KUBECTL: Final = "kubectl"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

Object = dict[str, Any]


class Conflicts(Exception):
    """Other managers own fields that the configuration would change."""

    def __init__(self, owners: dict[FieldManager, FieldSet]) -> None:
        listed = [(m.described(), fieldsets.shown(p)) for m, f in owners.items() for p in fieldsets.paths(f)]
        super().__init__(_message(listed))
        self.causes = [
            {"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": path} for who, path in listed
        ]


def _message(listed: list[tuple[str, str]]) -> str:
    if len(listed) == 1:
        who, path = listed[0]
        return f"Apply failed with 1 conflict: conflict with {who}: {path}"
    lines = []
    for who in dict.fromkeys(who for who, _ in listed):
        mine = [path for other, path in listed if other == who]
        lines += [f"conflicts with {who}:", *(f"- {path}" for path in mine)]
    return f"Apply failed with {len(listed)} conflicts: " + "\n".join(lines)


@dataclass(frozen=True)
class ApplyResult:
    """The object after an apply, and the owners of its fields."""

    obj: Object
    owners: ManagedFields


def apply(
    kind: ObjectKind,
    live: Object,
    owners: ManagedFields,
    empty: Object,
    config: Object,
    manager: FieldManager,
    *,
    version: str,
    time: str,
    force: bool,
) -> ApplyResult:
    """Merge `config` into `live`, and remove fields that the manager does not name any more, unless others own them.

    Args:
        live: the present object, or `empty` if there is none.
        owners: those of its fields so far.
        empty: the object of this type to which a client has given nothing.
        version: the apiVersion of the configuration.
    Raises:
        Conflicts: others own fields with other values, and not `force`.
        typed.Mistyped: the configuration does not fit the type.
    """
    if not owners:  # not tracked so far: its fields belong to a manager for everything before the first apply
        earlier = FieldManager(BEFORE_APPLY, UPDATE, "", version)
        owners = ownership.created(kind, empty, live, earlier, time)
    entries = ownership.decode_entries(owners)
    before = entries.get(manager)
    desired = owned_paths(kind, config)
    mine = ManagerEntry(manager, version, encode_time(time), ownership.stripped(desired))
    entries.pop(manager, None)
    merged = merge(kind, live, config)
    if before is not None:
        merged = remove(kind, merged, _dropped(kind, before, desired, entries))
    change = ownership.difference(kind, live, merged)
    others = ownership.conflicts(entries, change.changed, manager)
    if others and not (force or _is_own(kind, live, manager, others)):
        raise Conflicts(others)
    entries = ownership.without(entries, change)
    if before is not None and before.fields == mine.fields and not change.changed and not change.removed:
        mine = before
    if mine.fields:
        entries[manager] = mine
    return ApplyResult(merged, ownership.encode_entries(entries.values()))


def last_applied(obj: Object) -> Object | None:
    """Return the configuration of kubectl's last client-side apply."""
    text = obj.get("metadata", {}).get("annotations", {}).get(LAST_APPLIED)
    try:
        decoded = msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        return None
    return decoded if isinstance(decoded, dict) else None


def _is_own(kind: ObjectKind, live: Object, manager: FieldManager, owners: dict[FieldManager, FieldSet]) -> bool:
    """Return whether kubectl set all these fields by client-side apply, and no other manager has changed them since."""
    before = last_applied(live) if manager.name == KUBECTL else None
    if before is None:
        return False
    try:
        own = owned_paths(kind, before)
    except Mistyped:
        return False
    change = compare(kind, before, live)
    own = fieldsets.difference(own, fieldsets.union(change.changed, change.removed))
    return all(not fieldsets.difference(fields, own) for fields in owners.values())


def _dropped(kind: ObjectKind, before: ManagerEntry, desired: FieldSet, others: ManagerEntries) -> FieldSet:
    """Return the fields that the manager owned before, and that no manager owns now."""
    now = desired
    for entry in others.values():
        now = fieldsets.union(now, entry.fields)
    return fieldsets.difference(with_parents(kind, before.fields), with_parents(kind, now))
