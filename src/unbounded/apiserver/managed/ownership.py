"""Field ownership by manager, and its changes by writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from unbounded.apiserver.managed import fieldsets
from unbounded.apiserver.managed.fieldsets import FieldSet
from unbounded.apiserver.managed.owners import (
    APPLY,
    COMMON_BYTES,
    FIELDS_V1,
    NOBODY,
    UPDATE,
    Manager,
    Owners,
    Share,
    moment,
    share,
    sole,
)
from unbounded.apiserver.managed.signatures import signer
from unbounded.apiserver.managed.typed import Difference, Fields, compare

BEFORE_APPLY: Final = "before-first-apply"
ANCIENT: Final = "ancient-changes"
MAX_UPDATERS: Final = 10
REMEMBERED_STEPS: Final = 2048
REMEMBERED_SETS: Final = 256
REMEMBERED_SHARES: Final = 1024

Object = dict[str, Any]
_SET_BY_SERVER: Final = frozenset(
    {"name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", "managedFields", "resourceVersion"}
)
_STRIPPED: Final = fieldsets.of(
    [
        ("f:apiVersion",),
        ("f:kind",),
        ("f:metadata",),
        *(("f:metadata", fieldsets.field(name)) for name in sorted(_SET_BY_SERVER)),
    ]
)
_known: Final[dict[tuple[Any, ...], Share | None]] = {}  # by kind, manager and signature
_encode: Final = msgspec.json.Encoder().encode
_in_order: Final = msgspec.json.Encoder(order="sorted").encode


@dataclass(frozen=True)
class Entry:
    """The fields of one manager. `version` is its last apiVersion, `time` the time at which it last took a field."""

    manager: Manager
    version: str
    time: bytes
    fields: FieldSet


Entries = dict[Manager, Entry]


def read(owners: Owners) -> Entries:
    """Return the entries by their managers; the sets in them may be shared and must not be changed."""
    found = zip(owners.shares, owners.times, strict=True)
    return {s.manager: Entry(s.manager, s.version, time, _decoded(s)) for s, time in found}


@lru_cache(maxsize=REMEMBERED_SETS)
def _remembered(mine: Share) -> FieldSet:
    decoded: FieldSet = msgspec.json.decode(mine.fields)
    return decoded


def _decoded(mine: Share) -> FieldSet:
    return (_remembered if len(mine.tail) <= COMMON_BYTES else _remembered.__wrapped__)(mine)


def show(entries: Iterable[Entry]) -> Owners:
    """Return the stored form of entries."""
    return Owners.of((share(e.manager, e.version, _in_order(e.fields)), e.time) for e in entries)


def is_reset(given: Any) -> bool:
    """Return whether a client resets managedFields, by a list of one empty entry."""
    return isinstance(given, list) and given == [{}]


def accepted(given: Any) -> Owners | None:
    """Return a client's managedFields; None if they cannot be parsed or are empty, which has no effect."""
    if not isinstance(given, list):
        return None
    entries = [_accepted(item) for item in given]
    readable = {e.manager: e for e in entries if e is not None}
    return show(readable.values()) if readable and None not in entries else None


def _accepted(item: Any) -> Entry | None:
    if not isinstance(item, dict) or item.get("operation") not in {APPLY, UPDATE}:
        return None
    name, version, subresource = (item.get(key) or "" for key in ("manager", "apiVersion", "subresource"))
    fields, time = item.get("fieldsV1") or {}, _time(item.get("time") or "")
    if not all(isinstance(text, str) for text in (name, version, subresource)) or time is None:
        return None
    if item.get("fieldsType") != FIELDS_V1 or not fieldsets.well_formed(fields):
        return None
    operation = item["operation"]
    return Entry(Manager(name, operation, subresource, "" if operation == APPLY else version), version, time, fields)


def _time(text: Any) -> bytes | None:
    """Parse RFC 3339 in UTC with seconds; None for anything else."""
    if text == "":
        return b""
    try:
        when = datetime.fromisoformat(text)
        return moment(when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")) if when.tzinfo else None
    except (TypeError, ValueError, OverflowError):
        return None


def created(kind: Fields, empty: Object, obj: Object, manager: Manager, time: str) -> Owners:
    """Return the owner of an object that a manager created; `empty` is the type's object without client values."""
    mine = _whole_share(kind, obj, manager) if not empty else _made_share(kind, empty, obj, manager)
    return NOBODY if mine is None else sole(mine, moment(time))


def _made_share(kind: Fields, empty: Object, obj: Object, manager: Manager) -> Share | None:
    taken = stripped(compare(kind, _bare(empty), _bare(obj)).changed)
    return share(manager, manager.api_version, _in_order(taken)) if taken else None


def _whole_share(kind: Fields, obj: Object, manager: Manager) -> Share | None:
    """Return the share of a new object whose type has no values of its own: only the object's paths matter."""
    signature: list[Any] = [kind, manager]
    signer(kind)(obj, signature)
    key = tuple(signature)
    if key in _known:
        return _known[key]
    mine = _made_share(kind, {}, obj, manager)
    if mine is None or len(mine.tail) <= COMMON_BYTES:
        if len(_known) >= REMEMBERED_SHARES:
            _known.clear()
        _known[key] = mine
    return mine


def updated(kind: Fields, old: Object, new: Object, given: Owners, manager: Manager, time: str) -> Owners:
    """Return the owners after a manager has replaced `old` by `new`.

    Args:
        given: the owners before, those of the old object or those that the manager sent.
    """
    if not given:
        return given
    change = _compared(kind, old, new)
    if not change.changed and not change.removed:
        return given
    changed, removed = _encode(change.changed), _encode(change.removed)
    common = len(changed) + len(removed) <= COMMON_BYTES
    steps = (_steps if common else _steps.__wrapped__)(given.shares, manager, changed, removed)
    now = moment(time)
    after = [(mine, now if index is None else given.times[index]) for mine, index in steps]
    if len(after) > MAX_UPDATERS:
        return show(_capped(read(Owners.of(after))).values())
    return Owners.of(after)


@lru_cache(maxsize=REMEMBERED_STEPS)
def _steps(
    shares: tuple[Share, ...], manager: Manager, changed: bytes, removed: bytes
) -> tuple[tuple[Share, int | None], ...]:
    """Return the rest of each share with its index; None is the index of the share that takes the changed fields.

    A manager usually writes the same fields again, in thousands of objects: then this is a cache hit.
    """
    change = Difference(stripped(msgspec.json.decode(changed)), stripped(msgspec.json.decode(removed)))
    before = {s.manager: Entry(s.manager, s.version, b"", _decoded(s)) for s in shares}
    entries = without(before, change, keep=manager)
    index: dict[Manager, int | None] = {s.manager: i for i, s in enumerate(shares)}
    if change.changed:
        mine = entries.get(manager) or Entry(manager, manager.api_version, b"", {})
        entries[manager] = replace(mine, fields=fieldsets.union(mine.fields, change.changed))
        index[manager] = None
    return tuple((share(m, e.version, _in_order(e.fields)), index[m]) for m, e in entries.items())


def without(entries: Entries, change: Difference, *, keep: Manager | None = None) -> Entries:
    """Return the entries without removed fields, and without fields that `keep` took from the others."""
    result: Entries = {}
    for manager, entry in entries.items():
        fields = fieldsets.difference(entry.fields, change.removed)
        if manager != keep:
            fields = fieldsets.difference(fields, change.changed)
        if fields is entry.fields:
            result[manager] = entry
        elif fields:
            result[manager] = replace(entry, fields=fields)
    return result


def conflicts(entries: Entries, changed: FieldSet, manager: Manager) -> dict[Manager, FieldSet]:
    """Return the changed fields that other managers own, by manager."""
    found = {m: fieldsets.intersection(e.fields, changed) for m, e in entries.items() if m != manager}
    return {m: found[m] for m in sorted(found, key=Manager.described) if found[m]}


def difference(kind: Fields, old: Object, new: Object) -> Difference:
    """Return the changes between two objects in fields that can be owned."""
    change = _compared(kind, old, new)
    return Difference(stripped(change.changed), stripped(change.removed))


def stripped(fields: FieldSet) -> FieldSet:
    """Remove the fields without owners: apiVersion, kind, name, and those that the server sets."""
    return fieldsets.difference(fields, _STRIPPED)


def _compared(kind: Fields, old: Object, new: Object) -> Difference:
    """Compare two objects without the metadata that has no owners."""
    if old.get("metadata") == new.get("metadata"):  # as after most writes of a status
        return compare(kind, old, new)
    return compare(kind, _bare(old), _bare(new))


def _bare(obj: Object) -> Object:
    """Return an object without the metadata that has no owners."""
    meta = obj.get("metadata")
    if not isinstance(meta, dict):
        return obj
    return {**obj, "metadata": {k: v for k, v in meta.items() if k not in _SET_BY_SERVER}}


def _capped(entries: Entries) -> Entries:
    """Limit the entries of updates to MAX_UPDATERS where possible: the oldest ones of one version become one."""
    updaters = [e for e in entries.values() if e.manager.operation == UPDATE]
    spare = len(updaters) - MAX_UPDATERS
    result = dict(entries)
    oldest: Entries = {}  # the oldest entries of each version, by the manager that they become
    for entry in sorted(updaters, key=lambda e: (e.time, e.manager.name)):
        if spare <= 0:
            break
        bucket = Manager(ANCIENT, UPDATE, "", entry.version)
        if (before := oldest.get(bucket)) is not None:
            del result[entry.manager]
            result.pop(before.manager, None)
            together = fieldsets.union(before.fields, entry.fields)
            oldest[bucket] = result[bucket] = Entry(bucket, entry.version, entry.time, together)
            spare -= 1
        else:
            oldest[bucket] = entry
    return result
