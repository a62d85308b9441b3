"""Values at run time, their equality and order, and the errors of expressions.

int, float, str, bytes, bool, None, list and dict are used directly; this module has the types that Python lacks.
Objects of a schema are the JSON dicts themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import total_ordering
from typing import Any, Final

from unbounded_apiserver.cel import types

SHOWN_ISSUES: Final = 100
SHOWN_CHARACTERS: Final = 64 * 1024  # each issue repeats its line, twice


class CelError(Exception):
    """Base class of this package's errors about an expression or its values."""


@dataclass(frozen=True, slots=True)
class Issue:
    """One error in the source; the offset counts code points from its start."""

    offset: int
    message: str


class CompileError(CelError):
    """The expression does not parse or does not type-check; `str()` shows the positions as cel-go prints them."""

    def __init__(self, source: str, issues: Sequence[Issue]) -> None:
        self.issues = sorted(issues, key=lambda issue: issue.offset)
        shown = min(SHOWN_ISSUES, max(1, SHOWN_CHARACTERS // (2 * len(source) + 1)))
        super().__init__("\n".join(render_issue(source, issue) for issue in self.issues[:shown]))


class ProgramError(CelError):
    """The expression is well-typed, but a constant part of it cannot be evaluated."""


class EvalError(CelError):
    """Evaluation ended without a value; `||`, `&&`, `all` and `exists` may still absorb the error."""


class CostExceeded(CelError):
    """Evaluation was stopped because its cost exceeded a limit; nothing absorbs the error."""

    def __init__(self) -> None:
        super().__init__("operation cancelled: actual cost limit exceeded")


def no_such_overload() -> EvalError:
    """Return the error for a value, known only at run time, that does not fit the function."""
    return EvalError("no such overload")


def render_issue(source: str, issue: Issue) -> str:
    """Return message, source line and a marker below the position, in the layout of cel-go's error listing."""
    start = source.rfind("\n", 0, issue.offset) + 1
    end = source.find("\n", issue.offset)
    line = source[start : end if end >= 0 else len(source)]
    column = issue.offset - start
    dots = "".join("." if char.isascii() else "．" for char in line[:column])  # wide characters get wide dots
    caret = "^" if column >= len(line) or line[column].isascii() else "＾"
    number = source.count("\n", 0, issue.offset) + 1
    snippet = line.replace("\t", " ")
    return f"ERROR: <input>:{number}:{column + 1}: {issue.message}\n | {snippet}\n | {dots}{caret}"


INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
UINT_MAX: Final = 2**64 - 1


class UInt(int):
    """An unsigned 64-bit integer; equal to an int of the same value, but another type."""

    __slots__ = ()


@total_ordering
@dataclass(frozen=True, slots=True)
class Timestamp:
    """Nanoseconds since the epoch, within the years 1 to 9999."""

    nanos: int

    def __lt__(self, other: Timestamp) -> bool:
        return self.nanos < other.nanos


@total_ordering
@dataclass(frozen=True, slots=True)
class Duration:
    nanos: int

    def __lt__(self, other: Duration) -> bool:
        return self.nanos < other.nanos


class SetListValue(list[Any]):
    """A list whose schema has x-kubernetes-list-type: set. Neither order nor duplicates matter."""


class MapListValue(list[Any]):
    """A list with x-kubernetes-list-type: map. Elements correspond to each other by their keys."""

    def __init__(self, values: Sequence[Any], keys: tuple[str, ...]) -> None:
        super().__init__(values)
        self.keys = keys

    def key_of(self, element: Any) -> tuple[Any, ...]:
        return tuple(element.get(key) for key in self.keys) if isinstance(element, dict) else (repr(element),)


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may be absent; `NONE` is the absent one."""

    present: bool
    value: Any = None


NONE: Final = Optional(present=False)


def some(value: Any) -> Optional:
    return Optional(present=True, value=value)


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type as a value; parameters do not count, so that `type([1]) == list` holds."""

    name: str


_NUMBERS = (int, float)


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def equal(left: Any, right: Any) -> bool:
    """Return CEL equality: numbers by value across their types, other types never equal each other."""
    kind = type(left)
    if kind is type(right) and kind in (str, int, bool, float, bytes):
        return bool(left == right)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if _is_number(left) or _is_number(right):
        return _is_number(left) and _is_number(right) and bool(left == right)
    if isinstance(left, list) and isinstance(right, list):
        return _lists_equal(left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        return len(left) == len(right) and all(key in right and equal(left[key], right[key]) for key in left)
    if isinstance(left, Optional) and isinstance(right, Optional):
        return left.present == right.present and equal(left.value, right.value)
    return kind is type(right) and bool(left == right)


def contains(values: Sequence[Any], desired: Any) -> bool:
    return any(equal(value, desired) for value in values)


def _lists_equal(left: list[Any], right: list[Any]) -> bool:
    if len(left) != len(right):
        return False
    if isinstance(left, SetListValue):
        return all(contains(right, value) for value in left) and all(contains(left, value) for value in right)
    if isinstance(left, MapListValue):
        others = {left.key_of(value): value for value in right}
        return all((key := left.key_of(value)) in others and equal(value, others[key]) for value in left)
    return all(map(equal, left, right))


def concatenate(left: list[Any], right: list[Any]) -> list[Any]:
    """Add lists; sets take missing elements, map lists replace elements of the same key and append the rest."""
    if isinstance(left, SetListValue):
        return SetListValue([*left, *(value for value in right if not contains(left, value))])
    if isinstance(left, MapListValue):
        merged = {left.key_of(value): value for value in left}
        merged.update((left.key_of(value), value) for value in right)
        return MapListValue(list(merged.values()), left.keys)
    return [*left, *right]


def compare(left: Any, right: Any) -> int:
    """Return -1, 0 or 1 for values that have an order among each other; NaN has none.

    Raises:
        EvalError: the values have no order.
    """
    if _is_number(left) and _is_number(right):
        if math.isnan(left) or math.isnan(right):
            raise EvalError("NaN values cannot be ordered")
    elif type(left) is not type(right) or not isinstance(left, (str, bytes, bool, Timestamp, Duration)):
        raise no_such_overload()
    return int(left > right) - int(left < right)


def zero(value: Any) -> bool:
    """Return whether `optional.ofNonZeroValue` takes the value for an absent one."""
    if isinstance(value, (Timestamp, Duration)):
        return value.nanos == 0
    return value is None or (isinstance(value, (bool, int, float, str, bytes, list, dict)) and not value)


_PLAIN: Final[Mapping[type, types.CelType]] = {
    bool: types.BOOL,
    int: types.INT,
    UInt: types.UINT,
    float: types.DOUBLE,
    str: types.STRING,
    bytes: types.BYTES,
    type(None): types.NULL,
    Timestamp: types.TIMESTAMP,
    Duration: types.DURATION,
    list: types.list_of(types.DYN),
    SetListValue: types.list_of(types.DYN),
    MapListValue: types.list_of(types.DYN),
    dict: types.map_of(types.DYN, types.DYN),
    Optional: types.optional_of(types.DYN),
    TypeValue: types.type_of_types(types.DYN),
}

_OPAQUE: dict[type, types.CelType] = {}


def register_opaque(python_type: type, cel_type: types.CelType) -> None:
    """Register the CEL type of a Python class; called once by the library that defines the class."""
    _OPAQUE[python_type] = cel_type


def type_of(value: Any) -> types.CelType:
    found = _PLAIN.get(type(value)) or _OPAQUE.get(type(value))
    if found is None:
        raise no_such_overload()
    return found


_TYPE_VALUE_NAMES: Final = {
    "timestamp": "google.protobuf.Timestamp",
    "duration": "google.protobuf.Duration",
    "null": "null_type",
}


def type_value(cel_type: types.CelType) -> TypeValue:
    return TypeValue(_TYPE_VALUE_NAMES.get(cel_type.name, cel_type.name))


def fits(value: Any, desired: types.CelType) -> bool:
    """Return whether a value fits a declared type; for a list, only the first element is checked."""
    if desired.kind in (types.TypeKind.DYN, types.TypeKind.PARAM):
        return True
    actual = type_of(value)
    if isinstance(value, list) and desired.kind is types.TypeKind.LIST:
        return not value or fits(value[0], desired.params[0])
    if desired.kind is types.TypeKind.OBJECT:
        return actual.kind is types.TypeKind.MAP
    return actual.kind is desired.kind and actual.name == desired.name


def size_of(value: Any) -> int:
    """Return the size for run-time cost: characters, bytes, elements; 1 for all else."""
    return len(value) if isinstance(value, (str, bytes, list, dict)) else 1
