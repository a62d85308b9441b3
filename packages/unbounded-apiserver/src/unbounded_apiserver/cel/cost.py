"""The greatest cost of an expression, estimated from the sizes that a schema allows.

Kubernetes rejects rules by this estimate. The estimate therefore follows the cost model of kube-apiserver: units,
factors, omissions, and known sizes of literals. A definition that one of them accepts is accepted by the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unbounded_apiserver.cel import ast
from unbounded_apiserver.cel.callcost import (
    EMPTY,
    LIST_COST,
    MAP_COST,
    ONE,
    UNKNOWN,
    Cost,
    Entries,
    Operands,
    SizeRange,
    call_cost,
    capped,
)
from unbounded_apiserver.cel.types import SCALARS, CelType, Decl, TypeKind, is_optional


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
