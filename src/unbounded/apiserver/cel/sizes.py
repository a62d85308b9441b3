"""Ranges of sizes, and what is known of the cost and the value of an expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from unbounded.apiserver.cel.types import Decl

UNBOUNDED: Final = 2**64 - 1  # the greatest cost, and the size of what nothing bounds
LIST_COST: Final = 10  # of building a list
MAP_COST: Final = 30


class Size(NamedTuple):
    least: int
    most: int

    def __or__(self, other: Size) -> Size:
        return Size(min(self.least, other.least), max(self.most, other.most))

    def plus(self, other: Size) -> Size:
        return Size(capped(self.least + other.least), capped(self.most + other.most))

    def times(self, other: Size) -> Size:
        return Size(capped(self.least * other.least), capped(self.most * other.most))


UNKNOWN: Final = Size(0, UNBOUNDED)
ONE: Final = Size(1, 1)
EMPTY: Final = Size(0, 0)


def capped(value: int) -> int:
    return min(value, UNBOUNDED)


class Entries(NamedTuple):
    """Sizes of the keys and values that a list or map built by the expression holds."""

    key: Size
    value: Size

    def __or__(self, other: Entries) -> Entries:
        return Entries(self.key | other.key, self.value | other.value)


@dataclass(frozen=True, slots=True)
class Cost:
    """An expression's greatest cost; for what is known of its value: where it stands in the schema, its sizes."""

    cost: int
    decl: Decl | None = None
    size: Size | None = None
    entries: Entries | None = None
