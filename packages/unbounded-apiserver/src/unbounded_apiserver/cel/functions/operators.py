"""Operators: arithmetic with the overflow rules of 64 bits, comparison, membership, indexing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from unbounded_apiserver.cel.functions.times import checked_duration, checked_timestamp
from unbounded_apiserver.cel.types import (
    BOOL,
    BYTES,
    COMPARABLE,
    DOUBLE,
    DURATION,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    CelType,
    Overload,
    function,
    list_of,
    map_of,
    optional_of,
    param,
)
from unbounded_apiserver.cel.values import (
    INT_MAX,
    INT_MIN,
    NONE,
    UINT_MAX,
    Duration,
    EvalError,
    MapListValue,
    Optional,
    SetListValue,
    Timestamp,
    UInt,
    compare,
    concatenate,
    contains,
    equal,
    some,
)

_A, _B = param("A"), param("B")


def checked_int(value: int) -> int:
    if not INT_MIN <= value <= INT_MAX:
        raise EvalError("integer overflow")
    return value


def checked_uint(value: int) -> UInt:
    if not 0 <= value <= UINT_MAX:
        raise EvalError("unsigned integer overflow")
    return UInt(value)


def _quotient(left: int, right: int) -> int:
    """Divide towards zero, as Go does; Python rounds down."""
    if right == 0:
        raise EvalError("division by zero")
    size = abs(left) // abs(right)
    return size if (left < 0) == (right < 0) else -size


def _remainder(left: int, right: int) -> int:
    if right == 0:
        raise EvalError("modulus by zero")
    return left - right * _quotient(left, right)


def _divide_doubles(left: float, right: float) -> float:
    """Divide by IEEE 754: division by zero gives an infinity or NaN."""
    if right != 0:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _multiply_doubles(left: float, right: float) -> float:
    return left * right


def _arithmetic() -> Iterator[Overload]:
    yield function("_+_", "add_int64", (INT, INT), INT, lambda a, b: checked_int(a + b))
    yield function("_+_", "add_uint64", (UINT, UINT), UINT, lambda a, b: checked_uint(int(a) + int(b)))
    yield function("_+_", "add_double", (DOUBLE, DOUBLE), DOUBLE, lambda a, b: a + b)
    yield function("_+_", "add_string", (STRING, STRING), STRING, lambda a, b: a + b)
    yield function("_+_", "add_bytes", (BYTES, BYTES), BYTES, lambda a, b: a + b)
    yield function("_+_", "add_list", (list_of(_A), list_of(_A)), list_of(_A), _add_lists)
    yield function("_+_", "add_duration_duration", (DURATION, DURATION), DURATION, _add_durations)
    yield function("_+_", "add_timestamp_duration", (TIMESTAMP, DURATION), TIMESTAMP, _later)
    yield function("_+_", "add_duration_timestamp", (DURATION, TIMESTAMP), TIMESTAMP, lambda a, b: _later(b, a))
    yield function("_-_", "subtract_int64", (INT, INT), INT, lambda a, b: checked_int(a - b))
    yield function("_-_", "subtract_uint64", (UINT, UINT), UINT, lambda a, b: checked_uint(int(a) - int(b)))
    yield function("_-_", "subtract_double", (DOUBLE, DOUBLE), DOUBLE, lambda a, b: a - b)
    yield function("_-_", "subtract_timestamp_timestamp", (TIMESTAMP, TIMESTAMP), DURATION, _between)
    yield function("_-_", "subtract_timestamp_duration", (TIMESTAMP, DURATION), TIMESTAMP, _earlier)
    yield function("_-_", "subtract_duration_duration", (DURATION, DURATION), DURATION, _between)
    yield function("_*_", "multiply_int64", (INT, INT), INT, lambda a, b: checked_int(a * b))
    yield function("_*_", "multiply_uint64", (UINT, UINT), UINT, lambda a, b: checked_uint(int(a) * int(b)))
    yield function("_*_", "multiply_double", (DOUBLE, DOUBLE), DOUBLE, _multiply_doubles)
    yield function("_/_", "divide_int64", (INT, INT), INT, lambda a, b: checked_int(_quotient(a, b)))
    yield function("_/_", "divide_uint64", (UINT, UINT), UINT, lambda a, b: UInt(_quotient(a, b)))
    yield function("_/_", "divide_double", (DOUBLE, DOUBLE), DOUBLE, _divide_doubles)
    yield function("_%_", "modulo_int64", (INT, INT), INT, _remainder)
    yield function("_%_", "modulo_uint64", (UINT, UINT), UINT, lambda a, b: UInt(_remainder(a, b)))
    yield function("-_", "negate_int64", (INT,), INT, lambda a: checked_int(-a))
    yield function("-_", "negate_double", (DOUBLE,), DOUBLE, lambda a: -a)


def _add_lists(left: list[Any], right: list[Any]) -> list[Any]:
    return concatenate(left, right) if isinstance(left, (SetListValue, MapListValue)) else left + right


def _add_durations(left: Duration, right: Duration) -> Duration:
    return checked_duration(left.nanos + right.nanos)


def _between(left: Timestamp | Duration, right: Timestamp | Duration) -> Duration:
    return checked_duration(left.nanos - right.nanos)


def _later(left: Timestamp, right: Duration) -> Timestamp:
    return checked_timestamp(left.nanos + right.nanos)


def _earlier(left: Timestamp, right: Duration) -> Timestamp:
    return checked_timestamp(left.nanos - right.nanos)


_ORDER: Final[tuple[tuple[str, str, Callable[[Any, Any], bool]], ...]] = (
    ("_<_", "less", lambda a, b: compare(a, b) < 0),
    ("_<=_", "less_equals", lambda a, b: compare(a, b) <= 0),
    ("_>_", "greater", lambda a, b: compare(a, b) > 0),
    ("_>=_", "greater_equals", lambda a, b: compare(a, b) >= 0),
)
_FAST: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "_<_": lambda a, b: a < b,
    "_<=_": lambda a, b: a <= b,
    "_>_": lambda a, b: a > b,
    "_>=_": lambda a, b: a >= b,
}
_ID_NAMES: Final = {INT: "int64", UINT: "uint64"}


def _type_id(named: CelType) -> str:
    return _ID_NAMES.get(named, named.name)


def _comparison() -> Iterator[Overload]:
    numbers = (INT, UINT, DOUBLE)
    for name, prefix, apply in _ORDER:
        for same in COMPARABLE:
            quick = apply if same is DOUBLE else _FAST[name]  # only doubles hold NaN, which has no order
            yield function(name, f"{prefix}_{_type_id(same)}", (same, same), BOOL, quick)
        for left in numbers:
            for right in numbers:
                if left is not right:
                    overload_id = f"{prefix}_{_type_id(left)}_{_type_id(right)}"
                    yield function(name, overload_id, (left, right), BOOL, apply)
    yield function("_==_", "equals", (_A, _A), BOOL, equal)
    yield function("_!=_", "not_equals", (_A, _A), BOOL, lambda a, b: not equal(a, b))


def element_at(values: list[Any], index: Any) -> Any:
    position = int(index)
    if position != index or not 0 <= position < len(values):
        raise EvalError(f"index out of bounds: {index}")
    return values[position]


def value_at(values: dict[Any, Any], key: Any) -> Any:
    try:
        return values[key]
    except (KeyError, TypeError):
        raise EvalError(f"no such key: {key}") from None


def _perhaps(lookup: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Optional]:
    def apply(container: Any, key: Any) -> Optional:
        try:
            return some(lookup(container, key))
        except EvalError:
            return NONE

    return apply


def _through_optional(lookup: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Optional]:
    perhaps = _perhaps(lookup)
    return lambda container, key: perhaps(container.value, key) if container.present else NONE


def _indexing() -> Iterator[Overload]:
    yield function("_[_]", "index_list", (list_of(_A), INT), _A, element_at)
    yield function("_[_]", "index_map", (map_of(_A, _B), _A), _B, value_at)
    maybe_list, maybe_map = optional_of(list_of(_A)), optional_of(map_of(_A, _B))
    for name, prefix in (("_[_]", "optional"), ("_[?_]", "optional_opt")):
        yield function(
            name, f"{prefix}_list_index_int", (maybe_list, INT), optional_of(_A), _through_optional(element_at)
        )
        yield function(name, f"{prefix}_map_index_value", (maybe_map, _A), optional_of(_B), _through_optional(value_at))
    yield function("_[?_]", "list_optindex_optional_int", (list_of(_A), INT), optional_of(_A), _perhaps(element_at))
    yield function("_[?_]", "map_optindex_optional_value", (map_of(_A, _B), _A), optional_of(_B), _perhaps(value_at))
    yield function("@in", "in_list", (_A, list_of(_A)), BOOL, lambda value, values: contains(values, value))
    yield function("@in", "in_map", (_A, map_of(_A, _B)), BOOL, lambda key, values: key in values)


def _logic() -> Iterator[Overload]:
    """Yield the logical operators, declared for their types only: the compiler evaluates them."""
    yield function("_&&_", "logical_and", (BOOL, BOOL), BOOL, lambda a, b: a and b)
    yield function("_||_", "logical_or", (BOOL, BOOL), BOOL, lambda a, b: a or b)
    yield function("_?_:_", "conditional", (BOOL, _A, _A), _A, lambda a, b, c: b if a else c)
    yield function("!_", "logical_not", (BOOL,), BOOL, lambda a: not a)


OPERATORS: Final = (*_arithmetic(), *_comparison(), *_indexing(), *_logic())
