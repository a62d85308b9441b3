"""Checks of constants in a checked expression: durations, timestamps, patterns, formats, uniform lists and maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unbounded_apiserver.cel.ast import CallNode, ListLiteral, LiteralNode, MapLiteral, Node, children
from unbounded_apiserver.cel.errors import CompileError, Issue
from unbounded_apiserver.cel.functions.formatting import check_format
from unbounded_apiserver.cel.functions.times import parse_duration, parse_timestamp
from unbounded_apiserver.cel.regexp import BadPattern, compile_pattern
from unbounded_apiserver.cel.types import CelType, TypeKind, is_optional


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
