"""The cost of a running evaluation, in the units of kube-apiserver (one is about 50 ns there).

The meter charges the elements that macros visit, and the calls whose cost grows with their arguments. The length of the
expression bounds the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from unbounded_apiserver.cel.values import CostExceeded, size_of


class Meter:
    """Count down from the cost limit of one expression."""

    __slots__ = ("left",)

    def __init__(self, limit: int) -> None:
        self.left = limit

    def charge(self, cost: int) -> None:
        self.left -= cost
        if self.left < 0:
            raise CostExceeded


def tenth(size: int) -> int:
    """Return the cost of passing over that many characters."""
    return (size + 9) // 10


def quarter(size: int) -> int:
    """Return the cost of a regular expression of that length, for each character that it is matched with."""
    return (size + 3) // 4


def _first(values: Sequence[Any]) -> int:
    return tenth(size_of(values[0]))


def _first_twice(values: Sequence[Any]) -> int:
    return tenth(2 * size_of(values[0]))


def _both(values: Sequence[Any]) -> int:
    return tenth(size_of(values[0]) + size_of(values[1]))


def _smaller(values: Sequence[Any]) -> int:
    return tenth(min(size_of(values[0]), size_of(values[1])))


def _product(values: Sequence[Any]) -> int:
    return tenth(size_of(values[0])) * tenth(size_of(values[1]))


def _pattern(values: Sequence[Any]) -> int:
    return tenth(size_of(values[0]) + 1) * quarter(size_of(values[1]))


def _elements(values: Sequence[Any]) -> int:
    return sum(tenth(size_of(item)) if isinstance(item, (str, bytes)) else 1 for item in _items(values[0]))


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else (value,)


def _squared(values: Sequence[Any]) -> int:
    return size_of(values[0]) ** 2


def _second(values: Sequence[Any]) -> int:
    return size_of(values[1])


def _sets(values: Sequence[Any]) -> int:
    return size_of(values[0]) * size_of(values[1])


def _range(values: Sequence[Any]) -> int:
    return max(int(values[0]), 0)


_CHARGES: Final[Mapping[str, Callable[[Sequence[Any]], int]]] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "join"), _elements),
    **dict.fromkeys(("url", "isURL", "lowerAscii", "upperAscii", "substring", "trim", "string", "bytes"), _first),
    **dict.fromkeys(("quantity", "isQuantity", "semver", "isSemver", "ip", "isIP", "cidr", "isCIDR"), _first),
    **dict.fromkeys(("replace", "split", "ip.isCanonical", "format"), _first_twice),
    **dict.fromkeys(("matches", "find", "findAll"), _pattern),
    **dict.fromkeys(("_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "startsWith", "endsWith"), _smaller),
    **dict.fromkeys(("sort", "distinct"), _squared),
    **dict.fromkeys(("slice", "flatten", "reverse"), _elements),
    **dict.fromkeys(("sets.contains", "sets.equivalent", "sets.intersects"), _sets),
    "_+_": _both,
    "check": lambda _values: 350_000,
    "contains": _product,
    "@in": _second,
    "validate": lambda values: tenth(size_of(values[1]) + 1) * quarter(60),
    "lists.range": _range,
}


def call_charge(function: str) -> Callable[[Sequence[Any]], int] | None:
    """Return a function that computes the cost of a call from its arguments; None for the many calls that cost one."""
    return _CHARGES.get(function)
