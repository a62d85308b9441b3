"""Compiled expressions, and the checks of their constants: durations, patterns, formats, uniform lists and maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from unbounded_apiserver.cel.ast import CallNode, ListLiteral, LiteralNode, MapLiteral, Node, children
from unbounded_apiserver.cel.check import check, references
from unbounded_apiserver.cel.code import Code, Convert, converter
from unbounded_apiserver.cel.compile import compile_tree
from unbounded_apiserver.cel.cost import estimate
from unbounded_apiserver.cel.errors import CompileError, Issue
from unbounded_apiserver.cel.functions.formatting import check_format
from unbounded_apiserver.cel.functions.times import parse_duration, parse_timestamp
from unbounded_apiserver.cel.meter import Meter
from unbounded_apiserver.cel.parser import parse
from unbounded_apiserver.cel.regexp import BadPattern, compile_pattern
from unbounded_apiserver.cel.types import CelType, Decl, TypeKind, is_optional

CALL_LIMIT: Final = 1_000_000  # cost limit of one evaluation
_UNMETERED: Final = 1_000  # up to this estimate the meter is not used: the estimate itself is charged


@dataclass(frozen=True, slots=True)
class Checked:
    """An expression that parses and type-checks.

    Attributes:
        type: of its value.
        reads: the declared variables that it reads.
    """

    source: str
    type: CelType
    reads: frozenset[str]
    max_cost: int
    _tree: Any
    _variables: Mapping[str, Decl]

    def program(self) -> CelProgram:
        """Compile the expression.

        Raises:
            ProgramError: a constant part of it cannot be evaluated.
        """
        slots = {name: slot for slot, name in enumerate(self._variables, 1)}
        metered = self.max_cost > _UNMETERED
        code, size = compile_tree(self._tree, slots, metered=metered)
        converters = tuple(converter(decl) for decl in self._variables.values())
        return CelProgram(code, size, converters, 0 if metered else self.max_cost)


class CelProgram:
    """One compiled expression, without state, so that threads can share it."""

    __slots__ = ("_code", "_converters", "_fixed_cost", "_size")

    def __init__(self, code: Code, size: int, converters: tuple[Convert | None, ...], fixed_cost: int) -> None:
        self._code = code
        self._converters = converters if any(converters) else ()
        self._fixed_cost = fixed_cost
        self._size = size

    def evaluate(self, *values: Any, budget: Meter | None = None) -> Any:
        """Return the value for these values of the variables, in the order of their declaration (JSON, or CEL values).

        Args:
            budget: the common cost limit of several evaluations; it is always charged.
        Raises:
            EvalError: no value.
            CostExceeded: the cost exceeded CALL_LIMIT or the rest of the budget.
        """
        if self._converters:
            values = tuple(
                value if convert is None else convert(value)
                for value, convert in zip(values, self._converters, strict=True)
            )
        frame = [None, *values] + [None] * (self._size - len(values) - 1)
        if self._fixed_cost:
            if budget is not None:
                budget.charge(self._fixed_cost)
            return self._code(frame)
        frame[0] = meter = Meter(CALL_LIMIT)
        try:
            return self._code(frame)
        finally:
            if budget is not None:
                budget.charge(CALL_LIMIT - meter.left)


def check_expression(source: str, variables: Mapping[str, Decl]) -> Checked:
    """Parse an expression and check it against the declared variables.

    Raises:
        CompileError: it does not parse, or its types do not fit, or a constant in it is malformed.
    """
    tree = check(source, parse(source), {name: decl.type for name, decl in variables.items()})
    check_literals(source, tree)
    reads = frozenset(name for name in variables if references(tree, name))
    return Checked(source, tree.type, reads, estimate(tree, variables), tree, variables)


def check_literals(source: str, tree: Node) -> None:
    """Reject constants that could never be evaluated.

    Raises:
        CompileError: with all of them.
    """
    issues = list(_issues(tree, in_format=False))
    if issues:
        raise CompileError(source, issues)


def _issues(node: Node, *, in_format: bool) -> Iterator[Issue]:
    match node:
        case CallNode(function="duration", args=[LiteralNode(value=str(text)) as arg]) if parse_duration(text) is None:
            yield Issue(arg.offset, "invalid duration argument")
        case CallNode(function="timestamp", args=[LiteralNode(value=str(text)) as arg]) if (
            parse_timestamp(text) is None
        ):
            yield Issue(arg.offset, "invalid timestamp argument")
        case CallNode(function="matches", args=[*_, LiteralNode(value=str(text)) as arg]) if not _is_pattern(text):
            yield Issue(arg.offset, "invalid matches argument")
        case CallNode(function="format", target=LiteralNode(value=str(text)), args=[ListLiteral(elements=elements)]):
            problem = check_format(text, [element.type for element in elements])
            if problem is not None:
                index, message = problem
                yield Issue(node.offset if index is None else elements[index].offset, message)
        case ListLiteral() if not in_format:
            marked = [(element, index in node.optional) for index, element in enumerate(node.elements)]
            yield from _uneven(marked)
        case MapLiteral() if not in_format:
            yield from _uneven([(entry.key, False) for entry in node.entries])
            yield from _uneven([(entry.value, entry.optional) for entry in node.entries])
        case _:
            pass
    inside = in_format or (isinstance(node, CallNode) and node.function == "format")
    for child in children(node):
        yield from _issues(child, in_format=inside)


def _is_pattern(text: str) -> bool:
    try:
        compile_pattern(text)
    except BadPattern:
        return False
    return True


def _uneven(marked: Sequence[tuple[Node, bool]]) -> Iterator[Issue]:
    """Yield the first element whose type differs from that of the first one."""
    expected: CelType | None = None
    for node, optional in marked:
        given = node.type.params[0] if optional and is_optional(node.type) else node.type
        if expected is None:
            expected = given
        elif not _alike(expected, given):
            yield Issue(node.offset, f"expected type '{expected}' but found '{given}'")
            return


def _alike(one: CelType, other: CelType) -> bool:
    if TypeKind.DYN in (one.kind, other.kind):
        return True
    if one.kind is not other.kind or one.name != other.name:
        return False
    return all(map(_alike, one.params, other.params))
