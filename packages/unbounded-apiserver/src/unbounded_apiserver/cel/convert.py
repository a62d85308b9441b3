"""Conversion of JSON to CEL values for types that JSON lacks: times, bytes, doubles.

Objects stay dicts; their fields are converted when they are read.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, TypeAlias

from unbounded_apiserver.cel.errors import EvalError
from unbounded_apiserver.cel.functions.times import parse_duration, parse_timestamp
from unbounded_apiserver.cel.types import BYTES, DOUBLE, DURATION, TIMESTAMP, Decl, TypeKind
from unbounded_apiserver.cel.values import MapListValue, SetListValue

Convert: TypeAlias = Callable[[Any], Any]


def converter(decl: Decl) -> Convert | None:
    """Return a function that converts JSON of this type to its CEL value, or None if they are the same."""
    kind = decl.type.kind
    if kind is TypeKind.LIST and decl.element is not None:
        return _list_converter(decl, converter(decl.element))
    if kind is TypeKind.MAP and decl.element is not None:
        inner = converter(decl.element)
        return None if inner is None else _map_converter(inner)
    return {DOUBLE: _to_double, TIMESTAMP: _to_timestamp, DURATION: _to_duration, BYTES: _to_bytes}.get(decl.type)


def _list_converter(decl: Decl, inner: Convert | None) -> Convert | None:
    keys = decl.map_keys
    if inner is None and keys is None:
        return None

    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        items = value if inner is None else [inner(item) for item in value]
        if keys is None:
            return items
        return MapListValue(items, keys) if keys else SetListValue(items)

    return convert


def _map_converter(inner: Convert) -> Convert:
    return lambda value: {key: inner(item) for key, item in value.items()} if isinstance(value, dict) else value


def _to_double(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _to_timestamp(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.upper()
    instant = parse_timestamp(text if "T" in text else f"{text}T00:00:00Z")
    if instant is None:
        raise EvalError(f"Invalid date format: {value}")
    return instant


def _to_duration(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    duration = parse_duration(value)
    if duration is None:
        raise EvalError(f"Invalid duration format: {value}")
    return duration


def _to_bytes(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value)
    except (binascii.Error, ValueError):
        raise EvalError("Invalid base64 value") from None
