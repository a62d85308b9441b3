"""Operations on values whose kind describes merging: comparison, paths, merge and removal.

The kinds are made from the shapes of built-in types and from the schemas of custom resources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias

from unbounded_apiserver.managed_fields import fieldsets
from unbounded_apiserver.managed_fields.fieldsets import LEAF, SELF, FieldSet
from unbounded_apiserver.type_descriptor_parser import OBJECT_META
from unbounded_apiserver.type_descriptors import AnyType, ListType, MapType, ScalarType, StructType, TypeDesc

# defaults of built-in fields that are keys of elements; configurations may leave them out
_DEFAULTS: Final = {"protocol": "TCP"}


class Mistyped(Exception):
    """A configuration that does not fit its kind; the message has path and reason."""


@dataclass(frozen=True)
class AtomicKind:
    """A value that has one owner: a scalar, or an atomic list or map."""


@dataclass(frozen=True)
class DeducedKind:
    """A value without a schema: maps are merged by their keys, all else is a leaf."""


@dataclass(frozen=True, eq=False)
class ObjectKind:
    """An object. `rest` is the kind of undeclared fields, None if they are not allowed."""

    declared: Mapping[str, MergeKind] = field(default_factory=dict)
    rest: MergeKind | None = None


@dataclass(frozen=True)
class SetKind:
    """A list whose elements are their own keys."""


@dataclass(frozen=True, eq=False)
class MapListKind:
    """A list of objects identified by the fields `keys`; `defaults` are values of these fields."""

    keys: tuple[str, ...]
    item: MergeKind
    defaults: Mapping[str, Any] = field(default_factory=dict)


MergeKind: TypeAlias = "AtomicKind | DeducedKind | ObjectKind | SetKind | MapListKind"
DEDUCED_FIELDS: Final = ObjectKind(rest=DeducedKind())
ATOMIC: Final = AtomicKind()  # the only instance in kinds: code that runs in each write compares by identity
_LISTS: Final = (SetKind, MapListKind)
_MISSING: Final = object()
SHORT: Final = 128  # characters of a key that is worth caching


@dataclass(frozen=True)
class FieldChanges:
    """The difference of two objects: fields that are new or have another value, and fields that are gone."""

    changed: FieldSet
    removed: FieldSet


def compare(kind: ObjectKind, old: Mapping[str, Any], new: Mapping[str, Any]) -> FieldChanges:
    """Return the difference of two objects."""
    changed: FieldSet = {}
    removed: FieldSet = {}
    _compare_members(kind, old, new, changed, removed)
    return FieldChanges(changed, removed)


def _compare_members(
    kind: ObjectKind, old: Mapping[str, Any], new: Mapping[str, Any], changed: FieldSet, removed: FieldSet
) -> None:
    declared, rest = kind.declared, kind.rest or ATOMIC
    for name, value in new.items():  # this and the code below runs in each update
        before = old.get(name, _MISSING)
        if before is value or before == value:
            continue
        below = declared.get(name, rest)
        if before is _MISSING:
            changed[f"f:{name}"] = all_paths(below, value)
        elif below is ATOMIC:
            changed[f"f:{name}"] = LEAF
        else:
            _note(f"f:{name}", below, before, value, changed, removed)
    if not old.keys() <= new.keys():
        for name in old.keys() - new.keys():
            removed[f"f:{name}"] = all_paths(declared.get(name, rest), old[name])


def _note(name: str, kind: MergeKind, old: Any, new: Any, changed: FieldSet, removed: FieldSet) -> None:
    """Record the difference of two unequal values under their path element."""
    more: FieldSet = {}
    less: FieldSet = {}
    inner = _actual(kind, old, new) if isinstance(kind, DeducedKind) else kind
    if isinstance(inner, ObjectKind) and ((old and isinstance(old, dict)) or (new and isinstance(new, dict))):
        _compare_members(inner, _dict(old), _dict(new), more, less)
    elif isinstance(inner, _LISTS) and ((old and isinstance(old, list)) or (new and isinstance(new, list))):
        _compare_items(inner, _list(old), _list(new), more, less)
    else:
        changed[name] = LEAF
        return
    if more:
        changed[name] = more
    if less:
        removed[name] = less


def _compare_items(kind: SetKind | MapListKind, old: list[Any], new: list[Any], more: FieldSet, less: FieldSet) -> None:
    below = _item_kind(kind)
    if _same_order(kind, old, new):
        for before_item, item in zip(old, new, strict=True):
            if before_item != item:
                _note(element_of(kind, item), below, before_item, item, more, less)
        return
    before, after = _by_element(kind, old), _by_element(kind, new)
    for name, value in after.items():
        if name not in before:
            more[name] = all_paths(below, value)
        elif before[name] != value:
            _note(name, below, before[name], value, more, less)
    for name, value in before.items():
        if name not in after:
            less[name] = all_paths(below, value)


def _same_order(kind: SetKind | MapListKind, old: list[Any], new: list[Any]) -> bool:
    """Return whether the lists have the same elements in the same order, the usual case."""
    if len(old) != len(new):
        return False
    if isinstance(kind, MapListKind):
        keys = kind.keys
        try:
            return all(a[key] == b[key] for a, b in zip(old, new, strict=True) for key in keys)
        except (KeyError, TypeError):  # keys with defaults, and items that are no objects
            pass
    return [element_of(kind, item) for item in old] == [element_of(kind, item) for item in new]


def all_paths(kind: MergeKind, value: Any) -> FieldSet:
    """Return the node of a value that was added or removed as a whole: all its paths, containers included."""
    inner = _actual(kind, value) if isinstance(kind, DeducedKind) else kind
    if isinstance(inner, ObjectKind) and isinstance(value, dict) and value:
        declared, rest = inner.declared, inner.rest or ATOMIC
        node: FieldSet = {SELF: LEAF}
        for name, item in value.items():
            below = declared.get(name, rest)
            node[f"f:{name}"] = LEAF if below is ATOMIC else all_paths(below, item)
        return node
    if isinstance(inner, _LISTS) and isinstance(value, list) and value:
        below = _item_kind(inner)
        return {SELF: LEAF} | {name: all_paths(below, item) for name, item in _by_element(inner, value).items()}
    return LEAF


def owned_paths(kind: ObjectKind, value: Mapping[str, Any], where: str = "") -> FieldSet:
    """Return the paths that a configuration takes ownership of. Raises Mistyped, with every error in its message."""
    errors: list[str] = []
    found = _owned_members(kind, value, where, errors)
    if errors:
        raise Mistyped(errors[0] if len(errors) == 1 else "errors:\n  " + "\n  ".join(errors))
    return found


def _owned_members(kind: ObjectKind, value: Mapping[str, Any], where: str, errors: list[str]) -> FieldSet:
    found: FieldSet = {}
    for name, inner in value.items():
        declared = kind.declared.get(name)
        below = declared or kind.rest
        if below is None:
            errors.append(f"{where}.{name}: field not declared in schema")
            break  # as kube-apiserver: the other fields of this object are not checked
        node = _owned(below, inner, f"{where}.{name}", errors)
        whole = inner is None or inner == {} or declared is None
        if node is None:
            if whole:
                found[f"f:{name}"] = LEAF
        else:
            found[f"f:{name}"] = fieldsets.member(node) if whole else node
    return found


def _owned(kind: MergeKind, value: Any, where: str, errors: list[str]) -> FieldSet | None:
    """Return the node of a value; None if it has no path."""
    match _actual(kind, value):
        case ObjectKind() as inner if isinstance(value, dict):
            return _owned_members(inner, value, where, errors) or None
        case (SetKind() | MapListKind()) as inner if isinstance(value, list):
            below = _item_kind(inner)
            found: FieldSet = {}
            for index, item in enumerate(value):
                if isinstance(inner, MapListKind) and not isinstance(item, dict):
                    errors.append(f"{where}: element {index}: associative list with keys may not have non-map elements")
                    continue
                name = element_of(inner, item)
                if name in found:
                    errors.append(f"{where}: duplicate entries for key {fieldsets.shown((name,))}")
                node = _owned(below, item, f"{where}{fieldsets.shown((name,))}", errors)
                found[name] = fieldsets.member(node or LEAF)
            return found or None
    return LEAF


def merge(kind: MergeKind, live: Any, config: Any) -> Any:
    """Return the live value with the configuration merged into it."""
    match _actual(kind, live, config):
        case ObjectKind(declared=declared, rest=rest) if isinstance(live, dict) and isinstance(config, dict):
            merged = dict(live)
            for name, value in config.items():
                below = declared.get(name) or rest or ATOMIC
                merged[name] = merge(below, live[name], value) if name in live else value
            return merged
        case (SetKind() | MapListKind()) as inner if isinstance(live, list) and isinstance(config, list):
            return _merge_items(inner, live, config)
    return config


def _merge_items(kind: SetKind | MapListKind, live: list[Any], config: list[Any]) -> list[Any]:
    """Merge lists: elements of both have the order of the configuration, the others keep their positions."""
    before = _by_element(kind, live)
    desired = _by_element(kind, config)
    below = _item_kind(kind)
    merged = {name: merge(below, before[name], v) if name in before else v for name, v in desired.items()}
    result: list[Any] = []
    todo = list(desired)
    shared = [name for name in desired if name in before]
    for item in live:
        name = element_of(kind, item)
        if name not in desired:
            result.append(item)
        elif shared and name == shared[0]:
            upto = todo.index(name) + 1
            result += [merged[n] for n in todo[:upto]]
            todo, shared = todo[upto:], shared[1:]
    return result + [merged[name] for name in todo]


def remove(kind: MergeKind, value: Any, removed: FieldSet) -> Any:
    """Return the value without the fields and elements of the set, and all that is below them."""
    match _actual(kind, value):
        case ObjectKind(declared=declared, rest=rest) if isinstance(value, dict):
            kept = {}
            for name, inner in value.items():
                node = removed.get(f"f:{name}")
                if node is None:
                    kept[name] = inner
                elif not fieldsets.is_member(node):
                    kept[name] = remove(declared.get(name) or rest or ATOMIC, inner, node)
            return kept
        case (SetKind() | MapListKind()) as inner if isinstance(value, list):
            items = []
            for item in value:
                node = removed.get(element_of(inner, item))
                if node is None:
                    items.append(item)
                elif not fieldsets.is_member(node):
                    items.append(remove(_item_kind(inner), item, node))
            return items
    return value


def with_parents(kind: MergeKind, node: FieldSet) -> FieldSet:
    """Return the set with the declared fields above its paths, which are removed with the last path below them."""
    result: FieldSet = {}
    for name, child in node.items():
        if name == SELF or not child:
            result[name] = child
            continue
        below: MergeKind = ATOMIC
        named = False
        match kind:
            case ObjectKind(declared=declared, rest=rest) if name.startswith("f:"):
                named = name[2:] in declared
                below = declared.get(name[2:]) or rest or ATOMIC
            case MapListKind(item=item):
                below = item
            case DeducedKind():
                below = kind
        inner = with_parents(below, child)
        result[name] = fieldsets.member(inner) if named else inner
    return result


def element_of(kind: SetKind | MapListKind, item: Any) -> str:
    """Return the path element of an item."""
    if isinstance(kind, SetKind) or not isinstance(item, dict):
        return fieldsets.element(item)
    keys = kind.keys
    if len(keys) == 1 and isinstance(value := item.get(keys[0]), str) and len(value) <= SHORT:
        return _named(keys[0], value)
    values = [item.get(key, kind.defaults.get(key)) for key in keys]
    return fieldsets.keyed({k: v for k, v in zip(keys, values, strict=True) if v is not None})


@lru_cache(maxsize=4096)
def _named(key: str, value: str) -> str:
    return fieldsets.keyed({key: value})


def _by_element(kind: SetKind | MapListKind, items: list[Any]) -> dict[str, Any]:
    """Return the first item of each path element; stored data may have duplicates."""
    found: dict[str, Any] = {}
    for item in items:
        found.setdefault(element_of(kind, item), item)
    return found


def _item_kind(kind: SetKind | MapListKind) -> MergeKind:
    return kind.item if isinstance(kind, MapListKind) else ATOMIC


def _actual(kind: MergeKind, *values: Any) -> MergeKind:
    if isinstance(kind, DeducedKind):
        return DEDUCED_FIELDS if all(isinstance(value, dict) for value in values) else ATOMIC
    return kind


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def of_shape(shape: StructType) -> ObjectKind:
    """Return the kind of a built-in type."""
    return ObjectKind({name: _of_member(member.shape) for name, member in shape.members().items()})


def _of_member(shape: TypeDesc) -> MergeKind:
    match shape:
        case StructType(atomic=True) | ScalarType() | AnyType():
            return ATOMIC
        case StructType():
            return of_shape(shape)
        case MapType(value=value):
            return ObjectKind(rest=_of_member(value))
        case ListType(item=item, merge_key=merge_key, map_keys=map_keys, as_set=as_set):
            keys = map_keys or ((merge_key,) if merge_key else ())
            if keys:
                return MapListKind(keys, _of_member(item), {key: _DEFAULTS[key] for key in keys if key in _DEFAULTS})
            return SetKind() if as_set or merge_key == "" else ATOMIC


METADATA: Final = of_shape(OBJECT_META)
_HEAD: Final[Mapping[str, MergeKind]] = {"apiVersion": ATOMIC, "kind": ATOMIC, "metadata": METADATA}


def of_schema(schema: Mapping[str, Any]) -> ObjectKind:
    """Return the kind of a custom resource by its structural schema."""
    kind = _of_schema(schema)
    declared, rest = (kind.declared, kind.rest) if isinstance(kind, ObjectKind) else ({}, DeducedKind())
    return ObjectKind({**declared, **_HEAD}, rest)


def _of_schema(schema: Mapping[str, Any]) -> MergeKind:
    if schema.get("x-kubernetes-int-or-string"):
        return ATOMIC
    match schema.get("type"):
        case "object":
            return _of_object(schema)
        case "array":
            return _of_array(schema)
        case None | "":
            return DeducedKind() if schema.get("x-kubernetes-preserve-unknown-fields") else ATOMIC
    return ATOMIC


def _of_object(schema: Mapping[str, Any]) -> MergeKind:
    if schema.get("x-kubernetes-map-type") == "atomic":
        return ATOMIC
    declared = {name: _of_schema(inner) for name, inner in (schema.get("properties") or {}).items()}
    if schema.get("x-kubernetes-embedded-resource"):
        declared |= _HEAD
    others = schema.get("additionalProperties")
    rest: MergeKind | None = None
    if isinstance(others, Mapping):
        rest = _of_schema(others)
    elif others or schema.get("x-kubernetes-preserve-unknown-fields"):
        rest = DeducedKind()
    return ObjectKind(declared, rest)


def _of_array(schema: Mapping[str, Any]) -> MergeKind:
    match schema.get("x-kubernetes-list-type"):
        case "set":
            return SetKind()
        case "map":
            item = schema.get("items") or {}
            keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
            properties = item.get("properties") or {}
            defaults = {key: properties[key]["default"] for key in keys if "default" in properties.get(key, {})}
            return MapListKind(keys, _of_schema(item), defaults)
    return ATOMIC
