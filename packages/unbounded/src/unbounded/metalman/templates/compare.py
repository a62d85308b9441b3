"""eq, ne and lt between values, under the rules of text/template."""

from __future__ import annotations

from typing import Final

from unbounded.metalman.templates.errors import CallFailed
from unbounded.metalman.templates.fmt import sprintf
from unbounded.metalman.templates.types import INTEGERS, GoKind, Value, comparable, inside, is_nil

_BASIC: Final = frozenset({GoKind.BOOL, GoKind.COMPLEX, GoKind.FLOAT, GoKind.INT, GoKind.STRING, GoKind.UINT})
_ORDERED: Final = _BASIC - {GoKind.BOOL, GoKind.COMPLEX}


def equal(first: Value | None, *others: Value | None) -> bool:
    """Return whether the first value equals any of the others."""
    first = inside(first)
    if not others:
        raise CallFailed("missing argument for comparison")
    return any(_same(first, inside(other)) for other in others)


def unequal(first: Value | None, second: Value | None) -> bool:
    return not equal(first, second)


def _basic(value: Value | None) -> str | None:
    return value.type.kind if value is not None and value.type.kind in _BASIC else None


def _same(first: Value | None, second: Value | None) -> bool:
    one, two = _basic(first), _basic(second)
    if first is not None and second is not None:
        if one is two and one is not None:
            return bool(first.data == second.data)
        if one in INTEGERS and two in INTEGERS:
            return bool(first.data == second.data)
        if one is not two:
            raise CallFailed(f"incompatible types for comparison: {first.type} and {second.type}")
    elif one is not two:
        return False
    return _same_reference(first, second)


def _same_reference(first: Value | None, second: Value | None) -> bool:
    """Compare values other than numbers, strings and booleans; either may be nil."""
    if first is not None and second is not None and first.type.kind is not second.type.kind:
        shown = sprintf("%s", [first]), sprintf("%v", [second])
        raise CallFailed(f"non-comparable types {shown[0]}: {first.type}, {second.type}: {shown[1]}")
    if first is None or second is None or is_nil(first) or is_nil(second):
        return is_nil(first) == is_nil(second)
    if not comparable(second.type):
        raise CallFailed(f"non-comparable type {sprintf('%s', [second])}: {second.type}")
    if first.type.name != second.type.name:
        return False
    if first.type.kind is GoKind.POINTER:
        return first.data is second.data
    return bool(first.data == second.data)


def less(first: Value | None, second: Value | None) -> bool:
    first, second = inside(first), inside(second)
    one, two = _basic(first), _basic(second)
    if one is None or two is None or first is None or second is None:
        raise CallFailed("invalid type for comparison")
    if one is not two and not (one in INTEGERS and two in INTEGERS):
        raise CallFailed(f"incompatible types for comparison: {first.type} and {second.type}")
    if one not in _ORDERED:
        raise CallFailed("invalid type for comparison")
    return bool(first.data < second.data)
