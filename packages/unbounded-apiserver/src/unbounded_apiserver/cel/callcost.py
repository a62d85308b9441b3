"""The greatest cost of one call, function by function, from the known cost, value and size range of its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from unbounded_apiserver.cel.ast import CallNode, LiteralNode
from unbounded_apiserver.cel.meter import quarter, tenth
from unbounded_apiserver.cel.types import BYTES, STRING, CelType, Decl, TypeKind, is_optional

UNBOUNDED: Final = 2**64 - 1  # the greatest cost, and the size of values without a bound
LIST_COST: Final = 10  # of building a list
MAP_COST: Final = 30
_FORMAT_PATTERN: Final = 128  # the length that Kubernetes assumes for the pattern behind a named format


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


class Operands:
    """The operands of one call, for the rules below."""

    def __init__(self, node: CallNode, costs: list[Cost]) -> None:
        self.node = node
        self.costs = costs
        self.ids = {overload.id for overload in node.overloads}

    def __len__(self) -> int:
        return len(self.costs)

    def size(self, index: int) -> SizeRange:
        return self.costs[index].size or UNKNOWN

    def type(self, index: int) -> CelType:
        return self.node.operands[index].type

    def element_size(self, index: int) -> SizeRange:
        """Return the size of a list's elements by the schema; the content of literals is ignored."""
        decl = self.costs[index].decl
        if decl is not None and decl.element is not None:
            return SizeRange(0, decl.element.max_elements)
        return UNKNOWN


_Rule: TypeAlias = Callable[[Operands], tuple[int, SizeRange | None]]


def _constant(_call: Operands) -> tuple[int, SizeRange | None]:
    return 1, None


def _pass_over(index: int, *, factor: int = 1, keeps_size: bool = False) -> _Rule:
    """Return the cost of reading an operand once or more; the result may be as large as the operand."""

    def rule(call: Operands) -> tuple[int, SizeRange | None]:
        size = call.size(index)
        return tenth(factor * size.most), size if keeps_size else None

    return rule


def _list_scan(call: Operands) -> tuple[int, SizeRange | None]:
    if call.type(0).kind is not TypeKind.LIST:
        return tenth(call.size(0).most), None
    cost = 1
    if call.type(0).params[0] in (STRING, BYTES):
        cost += tenth(call.element_size(0).most)
    return capped(call.size(0).most * cost), None


def _replace(call: Operands) -> tuple[int, SizeRange | None]:
    text, old, new = call.size(0), call.size(1), call.size(2)
    if old.least == 0:
        most = capped(text.most + (text.most + 1) * new.most)
    elif new.most <= old.least:
        most = text.most
    else:
        most = capped(-(-text.most // old.least) * new.most)
    return tenth(2 * text.most), SizeRange(0, most)


def _split(call: Operands) -> tuple[int, SizeRange | None]:
    text = call.size(0)
    limit = call.node.args[1] if len(call.node.args) > 1 else None
    parts = limit.value % 2**64 if isinstance(limit, LiteralNode) else text.most
    return tenth(2 * text.most), SizeRange(0, parts)


def _join(call: Operands) -> tuple[int, SizeRange | None]:
    count = call.size(0)
    total = count.times(call.element_size(0))
    if len(call) > 1:
        between = SizeRange(max(count.least - 1, 0), max(count.most - 1, 0))
        total = total.plus(call.size(1).times(between))
    return tenth(total.most), total


def _search(call: Operands) -> tuple[int, SizeRange | None]:
    text, pattern = call.size(0), call.size(1)
    result = SizeRange(0, text.most) if call.node.function != "matches" else None
    return capped(tenth(text.most + 1) * quarter(pattern.most)), result


def _contains(call: Operands) -> tuple[int, SizeRange | None]:
    return capped(tenth(call.size(0).most) * tenth(call.size(1).most)), None


def _membership(call: Operands) -> tuple[int, SizeRange | None]:
    return (call.size(1).most if "in_list" in call.ids else 1), None


def _equality(call: Operands) -> tuple[int, SizeRange | None]:
    left, right = call.type(0), call.type(1)
    if left == right and left.kind is TypeKind.OPAQUE and not is_optional(left):
        return 1, None
    return _comparison(call)


def _comparison(call: Operands) -> tuple[int, SizeRange | None]:
    kinds = {call.type(0), call.type(1)}
    if (
        call.node.function not in ("_==_", "_!=_")
        and not kinds & {STRING, BYTES}
        and TypeKind.DYN not in {kind.kind for kind in kinds}
    ):
        return 1, None
    return tenth(min(call.size(0).most, call.size(1).most)), None


def _addition(call: Operands) -> tuple[int, SizeRange | None]:
    total = call.size(0).plus(call.size(1))
    if call.ids & {"add_string", "add_bytes"}:
        return tenth(total.most), total
    return (1, total) if "add_list" in call.ids else (1, None)


def _to_bytes(call: Operands) -> tuple[int, SizeRange | None]:
    size = call.size(0)
    return (
        (tenth(size.most), SizeRange(size.least, capped(size.most * 4))) if "string_to_bytes" in call.ids else (1, None)
    )


def _to_string(call: Operands) -> tuple[int, SizeRange | None]:
    size = call.size(0)
    return (tenth(size.most), SizeRange(size.least // 4, size.most)) if "bytes_to_string" in call.ids else (1, None)


def _quote(call: Operands) -> tuple[int, SizeRange | None]:
    size = call.size(0)
    return tenth(size.most), SizeRange(size.least + 2, capped(size.most * 2 + 2))


def _contains_ip(call: Operands) -> tuple[int, SizeRange | None]:
    parsing = tenth(call.size(1).most) if "cidr_contains_ip_string" in call.ids else 0
    return tenth(32) + parsing, None


def _contains_cidr(call: Operands) -> tuple[int, SizeRange | None]:
    parsing = tenth(call.size(1).most) if "cidr_contains_cidr_string" in call.ids else 0
    return tenth(32) + tenth(16) + 1 + parsing, None


def _validate(call: Operands) -> tuple[int, SizeRange | None]:
    return tenth(call.size(1).most) * quarter(_FORMAT_PATTERN), None


def _canonical(call: Operands) -> tuple[int, SizeRange | None]:
    return tenth(2 * call.size(0).most), None


def _authorization(_call: Operands) -> tuple[int, SizeRange | None]:
    return 350_000, None  # so high that an expression can contain only a few such calls


def _slice(call: Operands) -> tuple[int, SizeRange | None]:
    start, end = call.node.args
    first = start.value if isinstance(start, LiteralNode) else 0
    last = end.value if isinstance(end, LiteralNode) else call.size(0).most
    count = max(last - first, 0)
    return 1 + LIST_COST + count, SizeRange(count, count)


def _copy(call: Operands) -> tuple[int, SizeRange | None]:
    size = call.size(0)
    return capped(1 + LIST_COST + size.most), size


def _quadratic(call: Operands) -> tuple[int, SizeRange | None]:
    size = call.size(0)
    each = 2 if call.type(0).params and call.type(0).params[0] in (STRING, BYTES) else 1
    return capped(1 + LIST_COST + size.most * size.most * each), size


def _range(call: Operands) -> tuple[int, SizeRange | None]:
    count = call.node.args[0]
    most = count.value if isinstance(count, LiteralNode) else 2**63 - 1
    return 1 + LIST_COST + max(most, 0), SizeRange(0, max(most, 0))


def _sets(call: Operands) -> tuple[int, SizeRange | None]:
    factor = 2 if call.node.function == "sets.equivalent" else 1
    return capped(call.size(0).most * call.size(1).most * factor + 1), ONE


_CALLS: Final[Mapping[str, _Rule]] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _list_scan),
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim", "url"), _pass_over(0, keeps_size=True)),
    **dict.fromkeys(("startsWith", "endsWith"), _pass_over(1)),
    **dict.fromkeys(("matches", "find", "findAll"), _search),
    **dict.fromkeys(("_<_", "_<=_", "_>_", "_>=_", "_!=_"), _comparison),
    **dict.fromkeys(("flatten", "reverse"), _copy),
    **dict.fromkeys(("sort", "distinct"), _quadratic),
    **dict.fromkeys(("sets.contains", "sets.equivalent", "sets.intersects"), _sets),
    "check": _authorization,
    "_==_": _equality,
    "_+_": _addition,
    "@in": _membership,
    "replace": _replace,
    "split": _split,
    "join": _join,
    "contains": _contains,
    "format": _pass_over(0),
    "bytes": _to_bytes,
    "string": _to_string,
    "strings.quote": _quote,
    "containsIP": _contains_ip,
    "containsCIDR": _contains_cidr,
    "ip.isCanonical": _canonical,
    "validate": _validate,
    "slice": _slice,
    "lists.range": _range,
}  # calls that cost more than one; the rest, accessors and arithmetic, cost one


def call_cost(call: Operands) -> tuple[int, SizeRange | None]:
    """Return the cost of the call without its operands, and the size of its result where it has one of its own."""
    return _CALLS.get(call.node.function, _constant)(call)
