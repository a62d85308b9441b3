"""Declarations of variables from schemas: types field by field, and their greatest sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count
from typing import Any, Final

from unbounded_apiserver.cel import types
from unbounded_apiserver.cel.lexer import KEYWORDS, RESERVED

MAX_REQUEST_BYTES: Final = 3 * 1024 * 1024  # the largest object; bounds values that the schema does not bound
_MAX_TEXT: Final = MAX_REQUEST_BYTES - 2

_RESERVED: Final = KEYWORDS | RESERVED
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ESCAPED: Final = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_serial = count(1)


def escape(name: str) -> str | None:
    """Return the name of a property in expressions (`__namespace__`, `a__dash__b`), or None if it has none."""
    if name in _RESERVED:
        return f"__{name}__"
    escaped = re.sub(r"__|[.\-/]", lambda match: _ESCAPED[match.group()], name)
    return escaped if _IDENTIFIER.fullmatch(escaped) else None


def declare(schema: Mapping[str, Any], *, resource_root: bool = False) -> types.Decl | None:
    """Return the declaration of values of a structural schema; None if expressions cannot see them.

    Args:
        resource_root: also declare apiVersion, kind, metadata.name and metadata.generateName.
    """
    if schema.get("x-kubernetes-int-or-string"):
        return types.Decl(types.DYN, _max_length(schema), min_size=1)
    if resource_root:
        schema = _with_type_and_metadata(schema)
    match schema.get("type"):
        case "object":
            return _object(schema)
        case "array":
            return _list(schema)
        case "string":
            return _string(schema)
        case "boolean":
            return types.Decl(types.BOOL, min_size=4)
        case "integer":
            return types.Decl(types.INT)
        case "number":
            return types.Decl(types.DOUBLE)
        case _:
            return None


def _embedded(schema: Mapping[str, Any]) -> types.Decl | None:
    return declare(schema, resource_root=bool(schema.get("x-kubernetes-embedded-resource")))


def _with_type_and_metadata(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    text = {"type": "string"}
    metadata = {"type": "object", "properties": {"name": text, "generateName": text}}
    properties = {**schema.get("properties", {}), "kind": text, "apiVersion": text, "metadata": metadata}
    return {**schema, "type": schema.get("type", "object"), "properties": properties}


def _max_length(schema: Mapping[str, Any]) -> int:
    """Return the greatest size of a string in bytes: four for each allowed character."""
    if "maxLength" in schema:
        return max(int(schema["maxLength"]), 0) * 4
    if schema.get("enum") and not schema.get("x-kubernetes-int-or-string"):
        return max((len(value.encode()) for value in schema["enum"] if isinstance(value, str)), default=0)
    return _MAX_TEXT


def _string(schema: Mapping[str, Any]) -> types.Decl:
    match schema.get("format"):
        case "byte":
            return types.Decl(types.BYTES, max(int(schema.get("maxLength", _MAX_TEXT)), 0), min_size=2)
        case "duration":
            return types.Decl(types.DURATION, 32, min_size=3)
        case "date":
            return types.Decl(types.TIMESTAMP, 12, min_size=12)
        case "date-time":
            return types.Decl(types.TIMESTAMP, 32, min_size=21)
        case _:
            return types.Decl(types.STRING, _max_length(schema), min_size=2)


def _list(schema: Mapping[str, Any]) -> types.Decl | None:
    items = schema.get("items")
    element = _embedded(items) if isinstance(items, Mapping) else None
    if element is None:
        return None
    most = _MAX_TEXT // (element.min_size + 1) if "maxItems" not in schema else max(int(schema["maxItems"]), 0)
    keys = {"map": tuple(schema.get("x-kubernetes-list-map-keys", ())), "set": ()}
    map_keys = keys.get(schema.get("x-kubernetes-list-type", ""))
    return types.Decl(types.list_of(element.type), most, min_size=2, element=element, map_keys=map_keys)


def _object(schema: Mapping[str, Any]) -> types.Decl | None:
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping):
        value = _embedded(additional)
        if value is None:
            return None
        most = _MAX_TEXT // (value.min_size + 6) if "maxProperties" not in schema else int(schema["maxProperties"])
        return types.Decl(
            types.map_of(types.STRING, value.type),
            max(most, 0),
            min_size=2,
            element=value,
            key=types.Decl(types.STRING, 0, 2),
        )
    fields: dict[str, types.PropertyDecl] = {}
    required = frozenset(schema.get("required", ()))
    least = 2
    for name, inner in schema.get("properties", {}).items():
        decl = _embedded(inner)
        if decl is None:
            continue
        escaped = escape(name)
        if escaped is not None:
            fields[escaped] = types.PropertyDecl(name, decl)
        if name in required and "default" not in inner:
            least += len(name) + decl.min_size + 4
    return types.Decl(types.CelType(types.TypeKind.OBJECT, f"object{next(_serial)}", (), fields), 0, min_size=least)
