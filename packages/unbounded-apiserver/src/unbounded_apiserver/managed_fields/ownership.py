"""Field ownership by manager, and its changes by writes.

As in kube-apiserver, no write fails because of managedFields: an object that nests too deeply leaves them unchanged.

Objects of the same client differ in values, but hardly ever in paths: the set of paths is computed once for each
signature. A signature lists, for each container, the number of its names, the names, and the content of its containers.
It is cheaper to compute than the set: leaves, to which most names belong, take no step of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from unbounded_apiserver.managed_fields import fieldsets, merge
from unbounded_apiserver.managed_fields.encoding import (
    APPLY,
    COMMON_BYTES,
    FIELDS_V1,
    NO_OWNERS,
    UPDATE,
    EncodedEntry,
    FieldManager,
    ManagedFields,
    encode_time,
    encoded_entry,
    single_owner,
)
from unbounded_apiserver.managed_fields.fieldsets import FieldSet
from unbounded_apiserver.resource_model import Object, Resource

BEFORE_APPLY: Final = "before-first-apply"
ANCIENT: Final = "ancient-changes"
MAX_UPDATERS: Final = 10
CACHED_STEPS: Final = 2048
CACHED_SETS: Final = 256
CACHED_ENTRIES: Final = 1024


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
_known: Final[dict[tuple[Any, ...], EncodedEntry | None]] = {}  # by kind, manager and signature
_encode: Final = msgspec.json.Encoder().encode
_in_order: Final = msgspec.json.Encoder(order="sorted").encode
CACHED_KINDS: Final = 1024

Signature = list[Any]
Walk = Callable[[Any, Signature], None]


@dataclass(frozen=True)
class ManagerEntry:
    """The fields of one manager. `version` is its last apiVersion, `time` the time at which it last took a field."""

    manager: FieldManager
    version: str
    time: bytes
    fields: FieldSet


ManagerEntries = dict[FieldManager, ManagerEntry]


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
        return created(resource.type.merge_fields, resource.type.empty(), obj, owner, time)
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
        owners = NO_OWNERS if is_reset(given) else client_entries(given) or owners
    if manager is None or not owners:
        return owners
    if "status" in resource.subresources and not subresource:  # the server itself changes the status here
        old, obj = _without_status(old), _without_status(obj)
    owner = FieldManager(manager, UPDATE, subresource, resource.api_version)
    try:
        return updated(resource.type.merge_fields, old, obj, owners, owner, time)
    except RecursionError:
        return owners


def after_edit(resource: Resource, obj: Object, old: Object, owners: ManagedFields) -> ManagedFields:
    """Return the owners of an object that the server itself has edited: the changed fields lose their owners."""
    if not owners:
        return owners
    try:
        change = difference(resource.type.merge_fields, old, obj)
    except RecursionError:
        return owners
    return encode_entries(without(decode_entries(owners), change).values())


def with_path(owners: ManagedFields, path: fieldsets.Path, owner: FieldManager | None) -> ManagedFields:
    """Return the owners after one field got another one; None for no owner. A field without an owner stays without.

    An entry that is new has no time.
    """
    before, mine = decode_entries(owners), fieldsets.single(path)
    entries = without(before, merge.FieldChanges({}, mine))
    if entries == before:
        return owners
    if owner is not None:
        earlier = before.get(owner)
        entries[owner] = ManagerEntry(owner, owner.api_version, b"" if earlier is None else earlier.time, mine)
    return encode_entries(entries.values())


def _without_status(obj: Object) -> Object:
    return {k: v for k, v in obj.items() if k != "status"}


def decode_entries(owners: ManagedFields) -> ManagerEntries:
    """Return the entries by their managers; the sets in them may be shared and must not be changed."""
    found = zip(owners.entries, owners.times, strict=True)
    return {s.manager: ManagerEntry(s.manager, s.version, time, _decoded(s)) for s, time in found}


@lru_cache(maxsize=CACHED_SETS)
def _cached(mine: EncodedEntry) -> FieldSet:
    decoded: FieldSet = msgspec.json.decode(mine.fields)
    return decoded


def _decoded(mine: EncodedEntry) -> FieldSet:
    return (_cached if len(mine.tail) <= COMMON_BYTES else _cached.__wrapped__)(mine)


def encode_entries(entries: Iterable[ManagerEntry]) -> ManagedFields:
    """Return the stored form of entries."""
    return ManagedFields.of((encoded_entry(e.manager, e.version, _in_order(e.fields)), e.time) for e in entries)


def is_reset(given: Any) -> bool:
    """Return whether a client resets managedFields, by a list of one empty entry."""
    return isinstance(given, list) and given == [{}]


def client_entries(given: Any) -> ManagedFields | None:
    """Return a client's managedFields; None if they cannot be parsed or are empty, which has no effect."""
    if not isinstance(given, list):
        return None
    entries = [_accepted(item) for item in given]
    readable = {e.manager: e for e in entries if e is not None}
    return encode_entries(readable.values()) if readable and None not in entries else None


def _accepted(item: Any) -> ManagerEntry | None:
    if not isinstance(item, dict) or item.get("operation") not in {APPLY, UPDATE}:
        return None
    name, version, subresource = (item.get(key) or "" for key in ("manager", "apiVersion", "subresource"))
    fields, time = item.get("fieldsV1") or {}, _time(item.get("time") or "")
    if not all(isinstance(text, str) for text in (name, version, subresource)) or time is None:
        return None
    if item.get("fieldsType") != FIELDS_V1 or not fieldsets.well_formed(fields):
        return None
    operation = item["operation"]
    return ManagerEntry(
        FieldManager(name, operation, subresource, "" if operation == APPLY else version), version, time, fields
    )


def _time(text: Any) -> bytes | None:
    """Parse RFC 3339 in UTC with seconds; None for anything else."""
    if text == "":
        return b""
    try:
        when = datetime.fromisoformat(text)
        return encode_time(when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")) if when.tzinfo else None
    except (TypeError, ValueError, OverflowError):
        return None


def created(kind: merge.ObjectKind, empty: Object, obj: Object, manager: FieldManager, time: str) -> ManagedFields:
    """Return the owner of an object that a manager created; `empty` is the type's object without client values."""
    mine = _whole_share(kind, obj, manager) if not empty else _made_share(kind, empty, obj, manager)
    return NO_OWNERS if mine is None else single_owner(mine, encode_time(time))


def _made_share(kind: merge.ObjectKind, empty: Object, obj: Object, manager: FieldManager) -> EncodedEntry | None:
    taken = stripped(merge.compare(kind, _bare(empty), _bare(obj)).changed)
    return encoded_entry(manager, manager.api_version, _in_order(taken)) if taken else None


def _whole_share(kind: merge.ObjectKind, obj: Object, manager: FieldManager) -> EncodedEntry | None:
    """Return the share of a new object whose type has no values of its own: only the object's paths matter."""
    signature: list[Any] = [kind, manager]
    signer(kind)(obj, signature)
    key = tuple(signature)
    if key in _known:
        return _known[key]
    mine = _made_share(kind, {}, obj, manager)
    if mine is None or len(mine.tail) <= COMMON_BYTES:
        if len(_known) >= CACHED_ENTRIES:
            _known.clear()
        _known[key] = mine
    return mine


def updated(
    kind: merge.ObjectKind, old: Object, new: Object, given: ManagedFields, manager: FieldManager, time: str
) -> ManagedFields:
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
    steps = (_steps if common else _steps.__wrapped__)(given.entries, manager, changed, removed)
    now = encode_time(time)
    after = [(mine, now if index is None else given.times[index]) for mine, index in steps]
    if len(after) > MAX_UPDATERS:
        return encode_entries(_capped(decode_entries(ManagedFields.of(after))).values())
    return ManagedFields.of(after)


@lru_cache(maxsize=CACHED_STEPS)
def _steps(
    shares: tuple[EncodedEntry, ...], manager: FieldManager, changed: bytes, removed: bytes
) -> tuple[tuple[EncodedEntry, int | None], ...]:
    """Return the rest of each share with its index; None is the index of the share that takes the changed fields.

    A manager usually writes the same fields again, in thousands of objects: then this is a cache hit.
    """
    change = merge.FieldChanges(stripped(msgspec.json.decode(changed)), stripped(msgspec.json.decode(removed)))
    before = {s.manager: ManagerEntry(s.manager, s.version, b"", _decoded(s)) for s in shares}
    entries = without(before, change, keep=manager)
    index: dict[FieldManager, int | None] = {s.manager: i for i, s in enumerate(shares)}
    if change.changed:
        mine = entries.get(manager) or ManagerEntry(manager, manager.api_version, b"", {})
        entries[manager] = replace(mine, fields=fieldsets.union(mine.fields, change.changed))
        index[manager] = None
    return tuple((encoded_entry(m, e.version, _in_order(e.fields)), index[m]) for m, e in entries.items())


def without(entries: ManagerEntries, change: merge.FieldChanges, *, keep: FieldManager | None = None) -> ManagerEntries:
    """Return the entries without removed fields, and without fields that `keep` took from the others."""
    result: ManagerEntries = {}
    for manager, entry in entries.items():
        fields = fieldsets.difference(entry.fields, change.removed)
        if manager != keep:
            fields = fieldsets.difference(fields, change.changed)
        if fields is entry.fields:
            result[manager] = entry
        elif fields:
            result[manager] = replace(entry, fields=fields)
    return result


def conflicts(entries: ManagerEntries, changed: FieldSet, manager: FieldManager) -> dict[FieldManager, FieldSet]:
    """Return the changed fields that other managers own, by manager."""
    found = {m: fieldsets.intersection(e.fields, changed) for m, e in entries.items() if m != manager}
    return {m: found[m] for m in sorted(found, key=FieldManager.described) if found[m]}


def difference(kind: merge.ObjectKind, old: Object, new: Object) -> merge.FieldChanges:
    """Return the changes between two objects in fields that can be owned."""
    change = _compared(kind, old, new)
    return merge.FieldChanges(stripped(change.changed), stripped(change.removed))


def stripped(fields: FieldSet) -> FieldSet:
    """Remove the fields without owners: apiVersion, kind, name, and those that the server sets."""
    return fieldsets.difference(fields, _STRIPPED)


def _compared(kind: merge.ObjectKind, old: Object, new: Object) -> merge.FieldChanges:
    """Compare two objects without the metadata that has no owners."""
    if old.get("metadata") == new.get("metadata"):  # as after most writes of a status
        return merge.compare(kind, old, new)
    return merge.compare(kind, _bare(old), _bare(new))


def _bare(obj: Object) -> Object:
    """Return an object without the metadata that has no owners."""
    meta = obj.get("metadata")
    if not isinstance(meta, dict):
        return obj
    return {**obj, "metadata": {k: v for k, v in meta.items() if k not in _SET_BY_SERVER}}


def _capped(entries: ManagerEntries) -> ManagerEntries:
    """Limit the entries of updates to MAX_UPDATERS where possible: the oldest ones of one version become one."""
    updaters = [e for e in entries.values() if e.manager.operation == UPDATE]
    spare = len(updaters) - MAX_UPDATERS
    result = dict(entries)
    oldest: ManagerEntries = {}  # the oldest entries of each version, by the manager that they become
    for entry in sorted(updaters, key=lambda e: (e.time, e.manager.name)):
        if spare <= 0:
            break
        bucket = FieldManager(ANCIENT, UPDATE, "", entry.version)
        if (before := oldest.get(bucket)) is not None:
            del result[entry.manager]
            result.pop(before.manager, None)
            together = fieldsets.union(before.fields, entry.fields)
            oldest[bucket] = result[bucket] = ManagerEntry(bucket, entry.version, entry.time, together)
            spare -= 1
        else:
            oldest[bucket] = entry
    return result


@lru_cache(maxsize=CACHED_KINDS)
def signer(kind: merge.ObjectKind) -> Walk:
    """Return a function that appends an object's signature: equal signatures mean equal paths."""
    walk = _walk(kind)
    return _plain if walk is None else walk


def _walk(kind: merge.MergeKind) -> Walk | None:
    """Return the walk of a kind; None if it has no paths below it."""
    match kind:
        case merge.ObjectKind(declared=declared, rest=rest):
            deep = {name: walk for name, below in declared.items() if (walk := _walk(below)) is not None}
            return _fields(frozenset(declared), deep, None if rest is None else _walk(rest))
        case merge.MapListKind(item=item):
            return _map_list(kind, _walk(item))
        case merge.SetKind():
            return _map_list(kind, None)
        case merge.DeducedKind():
            return _deduced
    return None


def _plain(value: Any, out: Signature) -> None:
    """Append a container of leaves, distinguished from a value that is no container."""
    if isinstance(value, dict):
        out.append(len(value))
        out.extend(value)
    else:
        out.append(None)


def _fields(declared: frozenset[str], deep: Mapping[str, Walk], rest: Walk | None) -> Walk:
    if not deep and rest is None:
        return _plain
    pairs = tuple(deep.items())

    def walk(value: Any, out: Signature) -> None:
        _plain(value, out)
        if isinstance(value, dict):
            for name, below in pairs:
                if name in value:
                    below(value[name], out)
            if rest is not None:
                for name, item in value.items():
                    if name not in declared:
                        rest(item, out)

    return walk


def _map_list(kind: merge.MapListKind | merge.SetKind, below: Walk | None) -> Walk:
    def walk(value: Any, out: Signature) -> None:
        if not isinstance(value, list):
            out.append(None)
            return
        out.append(len(value))
        for item in value:
            out.append(merge.element_of(kind, item))
            if below is not None:
                below(item, out)

    return walk


def _deduced(value: Any, out: Signature) -> None:
    _plain(value, out)
    if isinstance(value, dict):
        for item in value.values():
            _deduced(item, out)
