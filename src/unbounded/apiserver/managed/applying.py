"""Server-side apply: merges a configuration into an object, for the fields that its manager owns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unbounded.apiserver.managed import fieldsets, ownership
from unbounded.apiserver.managed.fieldsets import FieldSet
from unbounded.apiserver.managed.owners import UPDATE, Manager, Owners, moment
from unbounded.apiserver.managed.ownership import BEFORE_APPLY, Entries, Entry
from unbounded.apiserver.managed.typed import Fields, Mistyped, compare, merge, owned, remove, with_parents

KUBECTL: Final = "kubectl"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

Object = dict[str, Any]


class Conflicts(Exception):
    """Other managers own fields that the configuration would change."""

    def __init__(self, owners: dict[Manager, FieldSet]) -> None:
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
class Applied:
    """The object after an apply, and the owners of its fields."""

    obj: Object
    owners: Owners


def apply(
    kind: Fields,
    live: Object,
    owners: Owners,
    empty: Object,
    config: Object,
    manager: Manager,
    *,
    version: str,
    time: str,
    force: bool,
) -> Applied:
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
        earlier = Manager(BEFORE_APPLY, UPDATE, "", version)
        owners = ownership.created(kind, empty, live, earlier, time)
    entries = ownership.read(owners)
    before = entries.get(manager)
    wanted = owned(kind, config)
    mine = Entry(manager, version, moment(time), ownership.stripped(wanted))
    entries.pop(manager, None)
    merged = merge(kind, live, config)
    if before is not None:
        merged = remove(kind, merged, _dropped(kind, before, wanted, entries))
    change = ownership.difference(kind, live, merged)
    others = ownership.conflicts(entries, change.changed, manager)
    if others and not (force or _is_own(kind, live, manager, others)):
        raise Conflicts(others)
    entries = ownership.without(entries, change)
    if before is not None and before.fields == mine.fields and not change.changed and not change.removed:
        mine = before
    if mine.fields:
        entries[manager] = mine
    return Applied(merged, ownership.show(entries.values()))


def last_applied(obj: Object) -> Object | None:
    """Return the configuration of kubectl's last client-side apply."""
    text = obj.get("metadata", {}).get("annotations", {}).get(LAST_APPLIED)
    try:
        decoded = msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        return None
    return decoded if isinstance(decoded, dict) else None


def _is_own(kind: Fields, live: Object, manager: Manager, owners: dict[Manager, FieldSet]) -> bool:
    """Return whether kubectl set all these fields by client-side apply, and no other manager has changed them since."""
    before = last_applied(live) if manager.name == KUBECTL else None
    if before is None:
        return False
    try:
        own = owned(kind, before)
    except Mistyped:
        return False
    change = compare(kind, before, live)
    own = fieldsets.difference(own, fieldsets.union(change.changed, change.removed))
    return all(not fieldsets.difference(fields, own) for fields in owners.values())


def _dropped(kind: Fields, before: Entry, wanted: FieldSet, others: Entries) -> FieldSet:
    """Return the fields that the manager owned before, and that no manager owns now."""
    now = wanted
    for entry in others.values():
        now = fieldsets.union(now, entry.fields)
    return fieldsets.difference(with_parents(kind, before.fields), with_parents(kind, now))
