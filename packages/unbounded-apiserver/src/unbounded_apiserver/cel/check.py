"""The type checker: sets the type of each node and the possible overloads of each call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unbounded_apiserver.cel import ast, types
from unbounded_apiserver.cel.functions import FUNCTIONS, Overload
from unbounded_apiserver.cel.values import CompileError, Issue, UInt

_LITERALS: Final[Mapping[type, types.CelType]] = {
    bool: types.BOOL,
    int: types.INT,
    UInt: types.UINT,
    float: types.DOUBLE,
    str: types.STRING,
    bytes: types.BYTES,
    type(None): types.NULL,
}


def check(source: str, tree: ast.Node, variables: Mapping[str, types.CelType]) -> ast.Node:
    """Return the tree with types and overloads, and with qualified names resolved to functions and types.

    Raises:
        CompileError: a name is not declared, or types do not fit.
    """
    checker = _Checker(variables)
    tree = checker.visit(tree)
    if checker.issues:
        raise CompileError(source, checker.issues)
    for node in ast.walk(tree):
        node.type = checker.bindings.final(node.type)
    return tree


class _Checker:
    def __init__(self, variables: Mapping[str, types.CelType]) -> None:
        self.scopes: list[dict[str, types.CelType]] = [dict(variables)]
        self.bindings = types.TypeBindings()
        self.issues: list[Issue] = []

    def visit(self, node: ast.Node) -> ast.Node:
        """Return the checked node; another one if a name is that of a function or a type."""
        match node:
            case ast.LiteralNode():
                node.type = _LITERALS[type(node.value)]
                return node
            case ast.Ident():
                return self._ident(node)
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

    def _complain(self, offset: int, message: str) -> types.CelType:
        self.issues.append(Issue(offset, message))
        return types.ERROR

    def _shown(self, candidate: types.CelType) -> str:
        return str(self.bindings.final(candidate))

    def _variable(self, name: str) -> types.CelType | None:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    # names and fields

    def _ident(self, node: ast.Ident) -> ast.Node:
        found = self._variable(node.name)
        if found is None and node.name in types.TYPE_NAMES:
            found = types.type_of_types(types.TYPE_NAMES[node.name])
        if found is None:
            found = self._complain(node.offset, f"undeclared reference to '{node.name}' (in container '')")
        node.type = found
        return node

    def _select(self, node: ast.Select) -> ast.Node:
        name = ast.qualified_name(node)
        if name is not None and (declared := self._variable(name)) is not None:  # such as authorizer.requestResource
            return ast.Ident(name, offset=node.offset, type=declared)
        if name is not None and name in types.TYPE_NAMES and self._variable(name.partition(".")[0]) is None:
            return ast.Ident(name, offset=node.offset, type=types.type_of_types(types.TYPE_NAMES[name]))
        node.operand = self.visit(node.operand)
        operand = self.bindings.resolve(node.operand.type)
        through_optional = types.is_optional(operand)
        inner = self.bindings.resolve(operand.params[0]) if through_optional else operand
        selected = self._field(node, inner)
        if node.test:
            node.type = types.BOOL
        else:
            node.type = types.optional_of(selected) if through_optional or node.optional else selected
        return node

    def _field(self, node: ast.Select, operand: types.CelType) -> types.CelType:
        match operand.kind:
            case types.TypeKind.OBJECT:
                field = (operand.fields or {}).get(node.name)
                if field is None:
                    return self._complain(node.offset, f"undefined field '{node.name}'")
                return field.decl.type
            case types.TypeKind.MAP:
                return operand.params[1]
            case types.TypeKind.DYN | types.TypeKind.ERROR | types.TypeKind.PARAM:
                return operand if operand.kind is types.TypeKind.ERROR else types.DYN
            case types.TypeKind.OPAQUE if not types.is_optional(operand):
                return self._complain(node.offset, f"unexpected failed resolution of '{operand.name}'")
            case _:
                return self._complain(node.offset, f"type '{self._shown(operand)}' does not support field selection")

    # calls

    def _call(self, node: ast.CallNode) -> ast.Node:
        if node.target is not None:
            prefix = ast.qualified_name(node.target)
            if prefix is not None and f"{prefix}.{node.function}" in FUNCTIONS:
                node.function, node.target = f"{prefix}.{node.function}", None
            else:
                node.target = self.visit(node.target)
        node.args = [self.visit(arg) for arg in node.args]
        declared = FUNCTIONS.get(node.function)
        if declared is None:
            message = f"undeclared reference to '{node.function}' (in container '')"
            node.type = self._complain(node.offset, message)
            return node
        if node.function in ("_&&_", "_||_"):
            return self._logic(node, declared[0])
        self._resolve(node, declared)
        return node

    def _logic(self, node: ast.CallNode, overload: Overload) -> ast.Node:
        for arg in node.args:
            self._expect(arg, types.BOOL)
        node.type, node.overloads = types.BOOL, (overload,)
        return node

    def _expect(self, node: ast.Node, desired: types.CelType) -> None:
        if not self.bindings.assignable(node.type, desired):
            self._complain(node.offset, f"expected type '{desired}' but found '{self._shown(node.type)}'")

    def _resolve(self, node: ast.CallNode, declared: tuple[Overload, ...]) -> None:
        """Find the overloads that fit; with dyn among the arguments there may be several."""
        given = [operand.type for operand in node.operands]
        fitting: list[Overload] = []
        result: types.CelType | None = None
        for overload in declared:
            if overload.method != (node.target is not None) or len(overload.params) != len(given):
                continue
            *params, returned = self.bindings.fresh((*overload.params, overload.result))
            if not self.bindings.all_assignable(given, params):
                continue
            fitting.append(overload)
            returned = self.bindings.resolve(returned)
            if returned.kind is types.TypeKind.PARAM:  # of dyn: a later call must not bind it to its first overload
                returned = types.DYN
            result = returned if result is None or result == returned else types.DYN
        if result is None:
            if any(self.bindings.resolve(one).kind is types.TypeKind.ERROR for one in given):
                result = types.ERROR
            else:
                result = self._complain(node.offset, self._no_overload(node))
        node.type, node.overloads = result, tuple(fitting)

    def _no_overload(self, node: ast.CallNode) -> str:
        args = ", ".join(self._shown(arg.type) for arg in node.args)
        receiver = "" if node.target is None else f"{self._shown(node.target.type)}."
        return f"found no matching overload for '{node.function}' applied to '{receiver}({args})'"

    # literals

    def _list(self, node: ast.ListLiteral) -> ast.Node:
        node.elements = [self.visit(element) for element in node.elements]
        joined: types.CelType | None = None
        for index, element in enumerate(node.elements):
            given = self._entry_type(element, optional=index in node.optional)
            joined = given if joined is None else self._join(joined, given)
        node.type = types.list_of(self.bindings.new_param() if joined is None else joined)
        return node

    def _map(self, node: ast.MapLiteral) -> ast.Node:
        key: types.CelType | None = None
        value: types.CelType | None = None
        for entry in node.entries:
            entry.key, entry.value = self.visit(entry.key), self.visit(entry.value)
            given = self._entry_type(entry.value, optional=entry.optional)
            key = entry.key.type if key is None else self._join(key, entry.key.type)
            value = given if value is None else self._join(value, given)
        fresh = self.bindings.new_param
        node.type = types.map_of(fresh() if key is None else key, fresh() if value is None else value)
        return node

    def _entry_type(self, node: ast.Node, *, optional: bool) -> types.CelType:
        """Return the type of an element; an element with `?` must be an optional, and counts as its value."""
        given = self.bindings.resolve(node.type)
        if not optional:
            return given
        if types.is_optional(given):
            return given.params[0]
        if given.kind not in (types.TypeKind.DYN, types.TypeKind.ERROR):
            message = f"expected type 'optional_type({self._shown(given)})' but found '{self._shown(given)}'"
            return self._complain(node.offset, message)
        return given

    def _join(self, one: types.CelType, other: types.CelType) -> types.CelType:
        if not self.bindings.assignable(other, one):
            return types.DYN
        return other if one.kind is types.TypeKind.DYN else one

    # comprehensions

    def _comprehension(self, node: ast.Comprehension) -> ast.Node:
        node.range = self.visit(node.range)
        self.scopes.append(dict(zip(node.variables, self._variables(node), strict=True)))
        if node.condition is not None:
            node.condition = self.visit(node.condition)
            self._expect(node.condition, types.BOOL)
        node.body = self.visit(node.body)
        self.scopes.pop()
        node.type = self._folded(node)
        return node

    def _variables(self, node: ast.Comprehension) -> tuple[types.CelType, ...]:
        ranged = self.bindings.resolve(node.range.type)
        two = len(node.variables) == 2
        if node.fold in (ast.Fold.OPT_MAP, ast.Fold.OPT_FLAT_MAP):
            if types.is_optional(ranged):
                return (ranged.params[0],)
            if ranged.kind not in (types.TypeKind.DYN, types.TypeKind.ERROR):
                self._complain(
                    node.offset, self._no_overload(ast.CallNode(node.fold, [], node.range, offset=node.offset))
                )
            return (types.DYN,)
        match ranged.kind:
            case types.TypeKind.LIST:
                return (types.INT, ranged.params[0]) if two else (ranged.params[0],)
            case types.TypeKind.MAP if node.fold is not ast.Fold.SORT_BY:
                return ranged.params if two else (ranged.params[0],)
            case types.TypeKind.DYN | types.TypeKind.ERROR | types.TypeKind.PARAM:
                return (types.DYN,) * len(node.variables)
        shown = self._shown(ranged)
        message = f"expression of type '{shown}' cannot be range of a comprehension (must be list, map, or dynamic)"
        self._complain(node.range.offset, message)
        return (types.ERROR,) * len(node.variables)

    def _folded(self, node: ast.Comprehension) -> types.CelType:
        body = self.bindings.resolve(node.body.type)
        match node.fold:
            case ast.Fold.ALL | ast.Fold.EXISTS | ast.Fold.EXISTS_ONE:
                self._expect(node.body, types.BOOL)
                return types.BOOL
            case ast.Fold.FILTER:
                self._expect(node.body, types.BOOL)
                ranged = self.bindings.resolve(node.range.type)
                return types.list_of(ranged.params[0] if ranged.params else types.DYN)
            case ast.Fold.MAP | ast.Fold.TRANSFORM_LIST:
                return types.list_of(body)
            case ast.Fold.TRANSFORM_MAP:
                return types.map_of(self._key_of(node.range.type), body)
            case ast.Fold.TRANSFORM_MAP_ENTRY:
                return self._entries(node, body)
            case ast.Fold.SORT_BY:
                if body not in types.COMPARABLE and body.kind not in (types.TypeKind.DYN, types.TypeKind.ERROR):
                    call = ast.CallNode("sortBy", [node.body], node.range, offset=node.offset)
                    self._complain(node.offset, self._no_overload(call))
                return node.range.type
            case ast.Fold.OPT_MAP:
                return types.optional_of(body)
            case ast.Fold.OPT_FLAT_MAP:
                if not types.is_optional(body) and body.kind not in (types.TypeKind.DYN, types.TypeKind.ERROR):
                    shown = self._shown(body)
                    return self._complain(
                        node.body.offset, f"expected type 'optional_type({shown})' but found '{shown}'"
                    )
                return body

    def _key_of(self, ranged: types.CelType) -> types.CelType:
        ranged = self.bindings.resolve(ranged)
        return {
            types.TypeKind.LIST: types.INT,
            types.TypeKind.MAP: ranged.params[0] if ranged.params else types.DYN,
        }.get(ranged.kind, types.DYN)

    def _entries(self, node: ast.Comprehension, body: types.CelType) -> types.CelType:
        if body.kind in (types.TypeKind.MAP, types.TypeKind.DYN, types.TypeKind.ERROR):
            return body if body.kind is types.TypeKind.MAP else types.map_of(types.DYN, types.DYN)
        return self._complain(node.body.offset, f"expected type 'map(dyn, dyn)' but found '{self._shown(body)}'")


def references(tree: ast.Node, name: str) -> bool:
    """Return whether a checked expression reads a variable; bodies that bind the name themselves do not count."""
    match tree:
        case ast.Ident():
            return tree.name == name
        case ast.Comprehension() if name in tree.variables:
            return references(tree.range, name)
        case _:
            return any(references(child, name) for child in ast.children(tree))
