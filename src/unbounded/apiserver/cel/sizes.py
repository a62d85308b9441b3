"""Ranges of sizes, and the known cost and value of an expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from unbounded.apiserver.cel.types import Decl

UNBOUNDED: Final = 2**64 - 1  # the greatest cost, and the size of values without a bound
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
    """Sizes of the keys and values in a list or map that the expression builds."""

    key: Size
    value: Size

    def __or__(self, other: Entries) -> Entries:
        return Entries(self.key | other.key, self.value | other.value)


@dataclass(frozen=True, slots=True)
class Cost:
    """An expression's greatest cost, and the known facts about its value: its place in the schema, its sizes."""

    cost: int
    decl: Decl | None = None
    size: Size | None = None
    entries: Entries | None = None
