"""The syntax tree. The checker writes `type` and `overloads` into it; everything after the checker reads them.

`offset` is the position of a node in messages: the operator, the dot, the bracket or the parenthesis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from unbounded_apiserver.cel.types import DYN, CelType

if TYPE_CHECKING:
    from unbounded_apiserver.cel.types import Overload


@dataclass(slots=True, eq=False, kw_only=True)
class _Node:
    offset: int
    depth: int = 1
    type: CelType = DYN


@dataclass(slots=True, eq=False)
class LiteralNode(_Node):
    value: Any


@dataclass(slots=True, eq=False)
class Ident(_Node):
    """A variable, or after checking the name of a type (then `type` is a type of types)."""

    name: str


@dataclass(slots=True, eq=False)
class Select(_Node):
    """`operand.field`; with `test`, `has(operand.field)`; with `optional`, `operand.?field`."""

    operand: Node
    name: str
    test: bool = False
    optional: bool = False


@dataclass(slots=True, eq=False)
class CallNode(_Node):
    """A function, method or operator; operators are named as in cel-go (`_+_`, `_[_]`, `_?_:_`)."""

    function: str
    args: list[Node]
    target: Node | None = None
    overloads: tuple[Overload, ...] = ()

    @property
    def operands(self) -> list[Node]:
        """Target (if any) and arguments, the operands that overloads declare."""
        return self.args if self.target is None else [self.target, *self.args]


@dataclass(slots=True, eq=False)
class ListLiteral(_Node):
    elements: list[Node]
    optional: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class MapEntry:
    key: Node
    value: Node
    optional: bool
    offset: int


@dataclass(slots=True, eq=False)
class MapLiteral(_Node):
    entries: list[MapEntry]


class Fold(StrEnum):
    """The comprehension macros, by their use of the body."""

    ALL = "all"
    EXISTS = "exists"
    EXISTS_ONE = "exists_one"
    MAP = "map"
    FILTER = "filter"
    TRANSFORM_LIST = "transformList"
    TRANSFORM_MAP = "transformMap"
    TRANSFORM_MAP_ENTRY = "transformMapEntry"
    SORT_BY = "sortBy"
    OPT_MAP = "optMap"
    OPT_FLAT_MAP = "optFlatMap"


@dataclass(slots=True, eq=False)
class Comprehension(_Node):
    """A macro over the elements of `range`: one variable, or key (index) and value."""

    fold: Fold
    range: Node
    variables: tuple[str, ...]
    body: Node
    condition: Node | None = field(default=None)


Node: TypeAlias = LiteralNode | Ident | Select | CallNode | ListLiteral | MapLiteral | Comprehension


def children(node: Node) -> Iterator[Node]:
    """Yield the direct children of a node, in source order."""
    match node:
        case Select(operand=operand):
            yield operand
        case CallNode():
            yield from node.operands
        case ListLiteral(elements=elements):
            yield from elements
        case MapLiteral(entries=entries):
            for entry in entries:
                yield entry.key
                yield entry.value
        case Comprehension():
            yield node.range
            if node.condition is not None:
                yield node.condition
            yield node.body
        case LiteralNode() | Ident():
            return


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and all nodes below it, parents first."""
    yield node
    for child in children(node):
        yield from walk(child)


def qualified_name(node: Node) -> str | None:
    """Return `a.b.c` if the node is an identifier with plain selections, else None."""
    match node:
        case Ident(name=name):
            return name
        case Select(operand=operand, name=name, test=False, optional=False):
            prefix = qualified_name(operand)
            return None if prefix is None else f"{prefix}.{name}"
        case _:
            return None
