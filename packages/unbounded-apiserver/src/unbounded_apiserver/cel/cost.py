"""The greatest cost of an expression, estimated from the sizes that a schema allows.

Kubernetes rejects rules by this estimate. The estimate therefore follows the cost model of kube-apiserver: units,
factors, omissions, and known sizes of literals. A definition that one of them accepts is accepted by the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from unbounded_apiserver.cel import ast
from unbounded_apiserver.cel.ast import CallNode, LiteralNode
from unbounded_apiserver.cel.meter import quarter, tenth
from unbounded_apiserver.cel.types import BYTES, SCALARS, STRING, CelType, Decl, TypeKind, is_optional

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


def estimate(tree: ast.Node, variables: Mapping[str, Decl]) -> int:
    """Return the greatest cost of a checked expression."""
    scope = {name: Cost(1, decl) for name, decl in variables.items()}
    root = next(iter(variables.values()), None)
    return capped(_Estimator(scope, SizeRange(0, root.max_elements) if root else UNKNOWN).cost(tree).cost)


class _Estimator:
    """Estimate a tree with the known cost and sizes of each variable in scope.

    Attributes:
        root: the size of the first variable. kube-apiserver uses it for names of types, and for macro variables over
            values without a place in the schema, such as literals. Rules in the field depend on this quirk.
    """

    def __init__(self, scope: dict[str, Cost], root: SizeRange) -> None:
        self.scope = scope
        self.root = root

    def cost(self, node: ast.Node) -> Cost:
        match node:
            case ast.LiteralNode(value=value):
                return Cost(0, size=_literal_size(value))
            case ast.Ident(name=name):
                return self._sized(node, self.scope.get(name, Cost(1, size=self.root)))
            case ast.Select():
                return self._select(node)
            case ast.CallNode():
                return self._call(node)
            case ast.ListLiteral():
                return self._list(node)
            case ast.MapLiteral():
                return self._map(node)
            case ast.Comprehension():
                return self._comprehension(node)

    def _sized(self, node: ast.Node, found: Cost) -> Cost:
        """Add the size: the schema's bound first, then one for scalars, then the known size of the value."""
        if found.decl is not None:
            size: SizeRange | None = SizeRange(0, found.decl.max_elements)
        elif _is_scalar(node.type):
            size = ONE
        else:
            size = found.size
        return Cost(found.cost, found.decl, size, found.entries)

    def _select(self, node: ast.Select) -> Cost:
        operand = self.cost(node.operand)
        if node.test:
            return Cost(operand.cost, size=ONE)
        if node.optional:
            return self._sized(node, Cost(operand.cost + 1))
        own = 1 if node.operand.type.kind in (TypeKind.MAP, TypeKind.OBJECT, TypeKind.PARAM) else 0
        field = (node.operand.type.fields or {}).get(node.name)
        known = operand.decl is not None and field is not None
        return self._sized(node, Cost(operand.cost + own, field.decl if known and field is not None else None))

    def _list(self, node: ast.ListLiteral) -> Cost:
        costs = [self.cost(element) for element in node.elements]
        value = _union([cost.size or UNKNOWN for cost in costs])
        total = LIST_COST + sum(cost.cost for cost in costs)
        return Cost(total, size=SizeRange(len(costs), len(costs)), entries=Entries(ONE, value))

    def _map(self, node: ast.MapLiteral) -> Cost:
        keys = [self.cost(entry.key) for entry in node.entries]
        values = [self.cost(entry.value) for entry in node.entries]
        total = MAP_COST + sum(cost.cost for cost in (*keys, *values))
        entries = Entries(
            _union([key.size or UNKNOWN for key in keys]), _union([one.size or UNKNOWN for one in values])
        )
        return Cost(total, size=SizeRange(len(keys), len(keys)), entries=entries)

    # calls

    def _call(self, node: ast.CallNode) -> Cost:
        operands = [self.cost(operand) for operand in node.operands]
        args = sum(operand.cost for operand in operands)
        if node.function == "_?_:_":
            condition, *branches = operands
            size = (branches[0].size or UNKNOWN) | (branches[1].size or UNKNOWN)
            entries = None
            if branches[0].entries is not None and branches[1].entries is not None:
                entries = branches[0].entries | branches[1].entries
            return Cost(condition.cost + max(branch.cost for branch in branches), size=size, entries=entries)
        if node.function in ("_&&_", "_||_"):
            return Cost(args, size=ONE)
        if node.function == "dyn":
            return Cost(args + 1, size=operands[0].size, entries=operands[0].entries)
        call = Operands(node, operands)
        own, result = call_cost(call)
        decl = _indexed(operands[0].decl) if node.function == "_[_]" else None
        found = Cost(capped(args + own), decl, result, _entries_of(node, operands))
        if result is not None:
            return found
        if node.function == "_[_]" and operands[0].entries is not None:
            return Cost(found.cost, decl, operands[0].entries.value, None)
        return self._sized(node, found)

    # comprehensions

    def _comprehension(self, node: ast.Comprehension) -> Cost:
        ranged = self.cost(node.range)
        before = dict(self.scope)
        self._bind(node, ranged)
        condition = 0 if node.condition is None else self.cost(node.condition).cost
        body = self.cost(node.body)
        self.scope = before
        count = ranged.size or UNKNOWN
        if node.fold in (ast.Fold.OPT_MAP, ast.Fold.OPT_FLAT_MAP):
            return Cost(capped(2 * ranged.cost + 3 + body.cost), size=body.size, entries=body.entries)
        initial, step, end = _FOLD_COSTS[node.fold]
        per_element = step + body.cost + condition
        total = capped(ranged.cost + initial + end + count.most * per_element)
        if node.fold is ast.Fold.SORT_BY:
            total = capped(total + count.most * count.most)
            return Cost(total, ranged.decl, count, ranged.entries)
        if node.type.kind not in (TypeKind.LIST, TypeKind.MAP):
            return Cost(total, size=ONE)
        return Cost(total, size=count, entries=self._folded_entries(node, ranged, body))

    def _bind(self, node: ast.Comprehension, ranged: Cost) -> None:
        decl = ranged.decl
        is_list = node.range.type.kind is TypeKind.LIST
        value = Cost(1, decl.element if decl else None, self.root)
        key = Cost(1, decl.key if decl and not is_list else None, self.root)
        found = (key, value) if len(node.variables) == 2 else (value if is_list else key,)
        if node.fold in (ast.Fold.OPT_MAP, ast.Fold.OPT_FLAT_MAP):
            found = (Cost(1),)
        self.scope.update(zip(node.variables, found, strict=True))

    def _folded_entries(self, node: ast.Comprehension, ranged: Cost, body: Cost) -> Entries | None:
        """Return the sizes of elements in the built list or map; an empty result is possible, hence sizes from zero."""
        match node.fold:
            case ast.Fold.MAP | ast.Fold.TRANSFORM_LIST:
                return Entries(ONE, EMPTY | (body.size or UNKNOWN))
            case ast.Fold.FILTER:
                if ranged.entries is not None:
                    return Entries(ONE, EMPTY | ranged.entries.value)
                element = ranged.decl.element if ranged.decl else None
                return Entries(ONE, UNKNOWN if element is None else SizeRange(0, element.max_elements))
            case _:
                return None


_FOLD_COSTS: Final[Mapping[ast.Fold, tuple[int, int, int]]] = {
    ast.Fold.ALL: (0, 3, 1),
    ast.Fold.EXISTS: (0, 4, 1),
    ast.Fold.EXISTS_ONE: (0, 2, 2),
    ast.Fold.MAP: (LIST_COST, 2 + LIST_COST, 1),
    ast.Fold.FILTER: (LIST_COST, 3 + LIST_COST, 1),
    ast.Fold.TRANSFORM_LIST: (LIST_COST, 2 + LIST_COST, 1),
    ast.Fold.TRANSFORM_MAP: (MAP_COST, 3, 1),
    ast.Fold.TRANSFORM_MAP_ENTRY: (MAP_COST, 2, 1),
    ast.Fold.SORT_BY: (LIST_COST, 2 + LIST_COST, 1 + LIST_COST),
}  # before the loop, for each element besides the body, after it


def _literal_size(value: object) -> SizeRange:
    count = len(value) if isinstance(value, (str, bytes)) else 1
    return SizeRange(count, count)


def _is_scalar(candidate: CelType) -> bool:
    return candidate in SCALARS or (is_optional(candidate) and candidate.params[0] in SCALARS)


def _union(sizes: list[SizeRange]) -> SizeRange:
    if not sizes:
        return EMPTY
    return SizeRange(min(size.least for size in sizes), max(size.most for size in sizes))


def _indexed(container: Decl | None) -> Decl | None:
    return None if container is None else container.element


def _entries_of(node: ast.CallNode, operands: list[Cost]) -> Entries | None:
    if node.function == "_+_" and operands[0].entries is not None and operands[1].entries is not None:
        return operands[0].entries | operands[1].entries
    return None
