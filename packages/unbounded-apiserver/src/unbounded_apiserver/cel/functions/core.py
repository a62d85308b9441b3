"""Standard functions: conversions, sizes, types, and optional values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from unbounded_apiserver.cel.functions import times
from unbounded_apiserver.cel.functions.formatting import format_float, parse_float, parse_int, parse_uint
from unbounded_apiserver.cel.functions.operators import checked_int, checked_uint
from unbounded_apiserver.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    Overload,
    function,
    list_of,
    map_of,
    method,
    optional_of,
    param,
    type_of_types,
)
from unbounded_apiserver.cel.values import (
    NONE,
    Duration,
    EvalError,
    Optional,
    Timestamp,
    UInt,
    some,
    type_of,
    type_value,
    zero,
)

_T = param("T")
_MAYBE: Final = optional_of(_T)
_A, _B = param("A"), param("B")
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def _value(optional: Optional) -> Any:
    if not optional.present:
        raise EvalError("optional.none() dereference")
    return optional.value


def _unwrap(values: list[Optional]) -> list[Any]:
    return [value.value for value in values if value.present]


def _end(values: list[Any], index: int) -> Optional:
    return some(values[index]) if values else NONE


OPTIONALS: Final = (
    function("optional.of", "optional_of", (_T,), _MAYBE, some),
    function(
        "optional.ofNonZeroValue", "optional_ofNonZeroValue", (_T,), _MAYBE, lambda v: NONE if zero(v) else some(v)
    ),
    function("optional.none", "optional_none", (), _MAYBE, lambda: NONE),
    function("optional.unwrap", "optional_unwrap", (list_of(_MAYBE),), list_of(_T), _unwrap),
    method("unwrapOpt", "optional_unwrapOpt", (list_of(_MAYBE),), list_of(_T), _unwrap),
    method("hasValue", "optional_hasValue", (_MAYBE,), BOOL, lambda optional: optional.present),
    method("value", "optional_value", (_MAYBE,), _T, _value),
    method("or", "optional_or_optional", (_MAYBE, _MAYBE), _MAYBE, lambda one, other: one if one.present else other),
    method(
        "orValue", "optional_orValue_value", (_MAYBE, _T), _T, lambda one, other: one.value if one.present else other
    ),
    method("first", "list_first", (list_of(_T),), _MAYBE, lambda values: _end(values, 0)),
    method("last", "list_last", (list_of(_T),), _MAYBE, lambda values: _end(values, -1)),
)


def _unconvertible(source: str, target: str) -> EvalError:
    return EvalError(f"type conversion error from '{source}' to '{target}'")


def _double_to_int(value: float) -> int:
    if not math.isfinite(value):
        raise EvalError("integer overflow")
    if not -(2.0**63) < value < 2.0**63:
        raise EvalError("integer overflow")
    return int(value)


def _double_to_uint(value: float) -> UInt:
    if not math.isfinite(value) or not 0 <= value < 2.0**64:
        raise EvalError("unsigned integer overflow")
    return UInt(int(value))


def _string_to_int(text: str) -> int:
    value = parse_int(text)
    if value is None or not -(2**63) <= value < 2**63:
        raise _unconvertible("string", "int")
    return value


def _string_to_uint(text: str) -> UInt:
    value = parse_uint(text)
    if value is None or value >= 2**64:
        raise _unconvertible("string", "uint")
    return UInt(value)


def _string_to_double(text: str) -> float:
    value = parse_float(text)
    if value is None:
        raise _unconvertible("string", "double")
    return value


def _string_to_bool(text: str) -> bool:
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise _unconvertible("string", "bool")


def _bytes_to_string(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise EvalError("invalid UTF-8 in bytes, cannot convert to string") from None


def _string_to_timestamp(text: str) -> Timestamp:
    value = times.parse_timestamp(text)
    if value is None:
        raise _unconvertible("string", "google.protobuf.Timestamp")
    return value


def _string_to_duration(text: str) -> Duration:
    value = times.parse_duration(text)
    if value is None:
        raise _unconvertible("string", "google.protobuf.Duration")
    return value


def _same(value: Any) -> Any:
    return value


def _conversions() -> Iterator[Overload]:
    yield function("int", "int64_to_int64", (INT,), INT, _same)
    yield function("int", "uint64_to_int64", (UINT,), INT, lambda value: checked_int(int(value)))
    yield function("int", "double_to_int64", (DOUBLE,), INT, _double_to_int)
    yield function("int", "string_to_int64", (STRING,), INT, _string_to_int)
    yield function("int", "timestamp_to_int64", (TIMESTAMP,), INT, lambda value: value.nanos // times.SECOND)
    yield function("int", "duration_to_int64", (DURATION,), INT, lambda value: value.nanos)
    yield function("uint", "uint64_to_uint64", (UINT,), UINT, _same)
    yield function("uint", "int64_to_uint64", (INT,), UINT, checked_uint)
    yield function("uint", "double_to_uint64", (DOUBLE,), UINT, _double_to_uint)
    yield function("uint", "string_to_uint64", (STRING,), UINT, _string_to_uint)
    yield function("double", "double_to_double", (DOUBLE,), DOUBLE, _same)
    yield function("double", "int64_to_double", (INT,), DOUBLE, float)
    yield function("double", "uint64_to_double", (UINT,), DOUBLE, float)
    yield function("double", "string_to_double", (STRING,), DOUBLE, _string_to_double)
    yield function("bool", "bool_to_bool", (BOOL,), BOOL, _same)
    yield function("bool", "string_to_bool", (STRING,), BOOL, _string_to_bool)
    yield function("bytes", "bytes_to_bytes", (BYTES,), BYTES, _same)
    yield function("bytes", "string_to_bytes", (STRING,), BYTES, lambda value: value.encode("utf-8", "surrogatepass"))
    yield function("string", "string_to_string", (STRING,), STRING, _same)
    yield function("string", "bool_to_string", (BOOL,), STRING, lambda value: "true" if value else "false")
    yield function("string", "int64_to_string", (INT,), STRING, str)
    yield function("string", "uint64_to_string", (UINT,), STRING, str)
    yield function("string", "double_to_string", (DOUBLE,), STRING, format_float)
    yield function("string", "bytes_to_string", (BYTES,), STRING, _bytes_to_string)
    yield function("string", "timestamp_to_string", (TIMESTAMP,), STRING, times.format_timestamp)
    yield function("string", "duration_to_string", (DURATION,), STRING, times.format_duration)
    yield function("timestamp", "timestamp_to_timestamp", (TIMESTAMP,), TIMESTAMP, _same)
    yield function("timestamp", "string_to_timestamp", (STRING,), TIMESTAMP, _string_to_timestamp)
    yield function(
        "timestamp",
        "int64_to_timestamp",
        (INT,),
        TIMESTAMP,
        lambda value: times.checked_timestamp(value * times.SECOND),
    )
    yield function("duration", "duration_to_duration", (DURATION,), DURATION, _same)
    yield function("duration", "string_to_duration", (STRING,), DURATION, _string_to_duration)
    yield function("duration", "int64_to_duration", (INT,), DURATION, Duration)
    yield function("dyn", "to_dyn", (_A,), DYN, _same)
    yield function("type", "type", (_A,), type_of_types(_A), lambda value: type_value(type_of(value)))


def _sizes() -> Iterator[Overload]:
    for sized, name in ((STRING, "string"), (BYTES, "bytes"), (list_of(_A), "list"), (map_of(_A, _B), "map")):
        yield function("size", f"size_{name}", (sized,), INT, len)
        yield method("size", f"{name}_size", (sized,), INT, len)


CORE: Final = (*_conversions(), *_sizes())
