"""Kinds of values, from the shapes of built-in types and from the schemas of custom resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from unbounded_apiserver.managed_fields.merge import ATOMIC, DeducedKind, MapListKind, MergeKind, ObjectKind, SetKind
from unbounded_apiserver.notation import OBJECT_META
from unbounded_apiserver.type_desc import AnyType, ListType, MapType, ScalarType, StructType, TypeDesc

# defaults of built-in fields that are keys of elements; configurations may leave them out
_DEFAULTS: Final = {"protocol": "TCP"}


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
