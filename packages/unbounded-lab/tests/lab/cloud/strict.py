"""Holding a cloud's answers against the models of its official SDK: every field known, of its type, none missing."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

Fields = Mapping[str, tuple[Any, bool]]
"""{name on the wire: (annotation, whether it is required)}."""


def faults(value: Any, kind: Any, fields_of: Callable[[Any], Fields | None], path: str = "$") -> Iterator[str]:
    """Yield the faults of a decoded JSON value.

    Args:
        kind: the expected type, as an annotation.
        fields_of: the fields of one of the SDK's models; None for any other annotation.
    """
    fields = fields_of(kind)
    if fields is not None:
        yield from _model_faults(value, fields, fields_of, path)
        return
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if any(_is_enum(each) for each in arguments):  # SDKs add `str` for values of tomorrow: a simulator has none
            arguments = tuple(each for each in arguments if each is not str)
        found = [list(faults(value, each, fields_of, path)) for each in arguments]
        if all(found):
            yield from min(found, key=len)
    elif origin is list or kind is list:
        if not isinstance(value, list):
            yield f"{path}: {value!r} is no list"
            return
        for index, each in enumerate(value):
            yield from faults(each, arguments[0] if arguments else Any, fields_of, f"{path}[{index}]")
    elif origin is dict or kind is dict:
        if not isinstance(value, dict):
            yield f"{path}: {value!r} is no object"
            return
        for name, each in value.items():
            yield from faults(each, arguments[1] if arguments else Any, fields_of, f"{path}.{name}")
    elif not _is_a(value, kind):
        name = kind if typing.get_origin(kind) else getattr(kind, "__name__", kind)
        yield f"{path}: {value!r} is no {name}"


def _model_faults(value: Any, fields: Fields, fields_of: Callable[[Any], Fields | None], path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: {value!r} is no object"
        return
    yield from (f"{path}.{name}: the model does not know it" for name in value.keys() - fields.keys())
    for name, (kind, is_required) in fields.items():
        if name in value:
            yield from faults(value[name], kind, fields_of, f"{path}.{name}")
        elif is_required:
            yield f"{path}.{name}: it is required"


def _is_a(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    if kind in (None, type(None)):
        return value is None
    if kind is datetime:
        return isinstance(value, str) and _is_time(value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    if _is_enum(kind):
        return value in [each.value for each in kind]
    return isinstance(value, kind)


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
