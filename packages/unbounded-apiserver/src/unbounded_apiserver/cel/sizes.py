"""Ranges of sizes, and the known cost and value of an expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from unbounded_apiserver.cel.types import Decl

UNBOUNDED: Final = 2**64 - 1  # the greatest cost, and the size of values without a bound
LIST_COST: Final = 10  # of building a list
MAP_COST: Final = 30


class SizeRange(NamedTuple):
    least: int
    most: int

    def __or__(self, other: SizeRange) -> SizeRange:
        return SizeRange(min(self.least, other.least), max(self.most, other.most))

    def plus(self, other: SizeRange) -> SizeRange:
        return SizeRange(capped(self.least + other.least), capped(self.most + other.most))

    def times(self, other: SizeRange) -> SizeRange:
        return SizeRange(capped(self.least * other.least), capped(self.most * other.most))


UNKNOWN: Final = SizeRange(0, UNBOUNDED)
ONE: Final = SizeRange(1, 1)
EMPTY: Final = SizeRange(0, 0)


def capped(value: int) -> int:
    return min(value, UNBOUNDED)


class Entries(NamedTuple):
    """Sizes of the keys and values in a list or map that the expression builds."""

    key: SizeRange
    value: SizeRange

    def __or__(self, other: Entries) -> Entries:
        return Entries(self.key | other.key, self.value | other.value)


@dataclass(frozen=True, slots=True)
class Cost:
    """An expression's greatest cost, and the known facts about its value: its place in the schema, its sizes."""

    cost: int
    decl: Decl | None = None
    size: SizeRange | None = None
    entries: Entries | None = None
