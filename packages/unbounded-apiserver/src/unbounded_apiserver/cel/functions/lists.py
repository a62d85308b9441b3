"""List functions: Kubernetes' list library, CEL's lists extension (version 3) and its sets extension."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cmp_to_key
from itertools import pairwise
from typing import Any, Final

from unbounded_apiserver.cel.functions.operators import checked_int, checked_uint
from unbounded_apiserver.cel.functions.times import checked_duration
from unbounded_apiserver.cel.types import (
    BOOL,
    COMPARABLE,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    UINT,
    Overload,
    function,
    list_of,
    method,
    param,
)
from unbounded_apiserver.cel.values import Duration, EvalError, UInt, compare, contains, equal, type_of

_T = param("T")
_MAX_RANGE: Final = 1_000_000


def _is_sorted(values: list[Any]) -> bool:
    return all(compare(left, right) <= 0 for left, right in pairwise(values))


def _extreme(values: list[Any], sign: int, name: str) -> Any:
    if not values:
        raise EvalError(f"{name} called on empty list")
    best = values[0]
    for value in values[1:]:
        if compare(value, best) * sign > 0:
            best = value
    return best


def _sum_ints(values: list[int]) -> int:
    return checked_int(sum(values))


def _sum_uints(values: list[UInt]) -> UInt:
    return checked_uint(sum(map(int, values)))


def _sum_doubles(values: list[float]) -> float:
    return float(sum(values))


def _sum_durations(values: list[Duration]) -> Duration:
    return checked_duration(sum(value.nanos for value in values))


def _index_of(values: list[Any], desired: Any) -> int:
    return next((index for index, value in enumerate(values) if equal(value, desired)), -1)


def _last_index_of(values: list[Any], desired: Any) -> int:
    return next((index for index in reversed(range(len(values))) if equal(values[index], desired)), -1)


def sort_by_keys(values: list[Any], keys: list[Any]) -> list[Any]:
    """Return the values in the order of their keys, which must be comparable and of one type."""
    if keys:
        first = type_of(keys[0])
        if first not in COMPARABLE:
            raise EvalError("list elements must be comparable")
        if any(type_of(key) != first for key in keys):
            raise EvalError("list elements must have the same type")
    rank = cmp_to_key(compare)
    order = sorted(range(len(values)), key=lambda index: rank(keys[index]))
    return [values[index] for index in order]


def _slice(values: list[Any], start: int, end: int) -> list[Any]:
    if start < 0 or end < 0:
        raise EvalError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise EvalError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if end > len(values):
        raise EvalError(f"cannot slice({start}, {end}), list is length {len(values)}")
    return values[start:end]


def _flatten(values: list[Any], depth: int = 1) -> list[Any]:
    if depth < 0:
        raise EvalError("level must be non-negative")
    flat: list[Any] = []
    for value in values:
        if isinstance(value, list) and depth > 0:
            flat += _flatten(value, depth - 1)
        else:
            flat.append(value)
    return flat


def _reversed(values: list[Any]) -> list[Any]:
    return values[::-1]


def _distinct(values: list[Any]) -> list[Any]:
    seen: list[Any] = []
    for value in values:
        if not contains(seen, value):
            seen.append(value)
    return seen


def _range(count: int) -> list[int]:
    if count < 0:
        raise EvalError(f"lists.range: size must be non-negative, got {count}")
    if count > _MAX_RANGE:
        raise EvalError(f"lists.range: size {count} exceeds maximum allowed ({_MAX_RANGE})")
    return list(range(count))


def _contains_all(values: list[Any], desired: list[Any]) -> bool:
    return all(contains(values, value) for value in desired)


def _kubernetes() -> Iterator[Overload]:
    for element in COMPARABLE:
        values = list_of(element)
        yield method("isSorted", f"list_{element}_is_sorted_bool", (values,), BOOL, _is_sorted)
        yield method("min", f"list_{element}_min", (values,), element, lambda items: _extreme(items, -1, "min"))
        yield method("max", f"list_{element}_max", (values,), element, lambda items: _extreme(items, 1, "max"))
    yield method("sum", "list_int_sum", (list_of(INT),), INT, _sum_ints)
    yield method("sum", "list_uint_sum", (list_of(UINT),), UINT, _sum_uints)
    yield method("sum", "list_double_sum", (list_of(DOUBLE),), DOUBLE, _sum_doubles)
    yield method("sum", "list_duration_sum", (list_of(DURATION),), DURATION, _sum_durations)
    yield method("indexOf", "list_a_index_of_int", (list_of(_T), _T), INT, _index_of)
    yield method("lastIndexOf", "list_a_last_index_of_int", (list_of(_T), _T), INT, _last_index_of)


def _extension() -> Iterator[Overload]:
    values = list_of(_T)
    yield method("slice", "list_slice", (values, INT, INT), values, _slice)
    yield method("flatten", "list_flatten", (list_of(values),), values, _flatten)
    yield method("flatten", "list_flatten_int", (list_of(DYN), INT), list_of(DYN), _flatten)
    for element in COMPARABLE:
        same = list_of(element)
        yield method("sort", f"list_{element}_sort", (same,), same, lambda items: sort_by_keys(items, items))
    yield method("reverse", "list_reverse", (values,), values, _reversed)
    yield method("distinct", "list_distinct", (values,), values, _distinct)
    yield function("lists.range", "lists_range", (INT,), list_of(INT), _range)


def _sets() -> Iterator[Overload]:
    pair = (list_of(_T), list_of(_T))
    yield function("sets.contains", "list_sets_contains_list", pair, BOOL, _contains_all)
    yield function(
        "sets.equivalent",
        "list_sets_equivalent_list",
        pair,
        BOOL,
        lambda one, other: _contains_all(one, other) and _contains_all(other, one),
    )
    yield function(
        "sets.intersects",
        "list_sets_intersects_list",
        pair,
        BOOL,
        lambda one, other: any(contains(other, value) for value in one),
    )


LISTS: Final = (*_kubernetes(), *_extension(), *_sets())
