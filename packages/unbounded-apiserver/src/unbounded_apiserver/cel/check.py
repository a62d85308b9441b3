"""The type checker: sets the type of each node and the possible overloads of each call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unbounded_apiserver.cel.ast import (
    CallNode,
    Comprehension,
    Fold,
    Ident,
    ListLiteral,
    LiteralNode,
    MapLiteral,
    Node,
    Select,
    children,
    qualified_name,
    walk,
)
from unbounded_apiserver.cel.errors import CompileError, Issue
from unbounded_apiserver.cel.functions import FUNCTIONS, Overload
from unbounded_apiserver.cel.types import (
    BOOL,
    BYTES,
    COMPARABLE,
    DOUBLE,
    DYN,
    ERROR,
    INT,
    NULL,
    STRING,
    TYPE_NAMES,
    UINT,
    CelType,
    TypeBindings,
    TypeKind,
    is_optional,
    list_of,
    map_of,
    optional_of,
    type_of_types,
)
from unbounded_apiserver.cel.values import UInt

_LITERALS: Final[Mapping[type, CelType]] = {
    bool: BOOL,
    int: INT,
    UInt: UINT,
    float: DOUBLE,
    str: STRING,
    bytes: BYTES,
    type(None): NULL,
}


def check(source: str, tree: Node, variables: Mapping[str, CelType]) -> Node:
    """Return the tree with types and overloads, and with qualified names resolved to functions and types.

    Raises:
        CompileError: a name is not declared, or types do not fit.
    """
    checker = _Checker(variables)
    tree = checker.visit(tree)
    if checker.issues:
        raise CompileError(source, checker.issues)
    for node in walk(tree):
        node.type = checker.bindings.final(node.type)
    return tree


class _Checker:
    def __init__(self, variables: Mapping[str, CelType]) -> None:
        self.scopes: list[dict[str, CelType]] = [dict(variables)]
        self.bindings = TypeBindings()
        self.issues: list[Issue] = []

    def visit(self, node: Node) -> Node:
        """Return the checked node; another one if a name is that of a function or a type."""
        match node:
            case LiteralNode():
                node.type = _LITERALS[type(node.value)]
                return node
            case Ident():
                return self._ident(node)
            case Select():
                return self._select(node)
            case CallNode():
                return self._call(node)
            case ListLiteral():
                return self._list(node)
            case MapLiteral():
                return self._map(node)
            case Comprehension():
                return self._comprehension(node)

    def _complain(self, offset: int, message: str) -> CelType:
        self.issues.append(Issue(offset, message))
        return ERROR

    def _shown(self, candidate: CelType) -> str:
        return str(self.bindings.final(candidate))

    def _variable(self, name: str) -> CelType | None:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    # names and fields

    def _ident(self, node: Ident) -> Node:
        found = self._variable(node.name)
        if found is None and node.name in TYPE_NAMES:
            found = type_of_types(TYPE_NAMES[node.name])
        if found is None:
            found = self._complain(node.offset, f"undeclared reference to '{node.name}' (in container '')")
        node.type = found
        return node

    def _select(self, node: Select) -> Node:
        name = qualified_name(node)
        if name is not None and (declared := self._variable(name)) is not None:  # such as authorizer.requestResource
            return Ident(name, offset=node.offset, type=declared)
        if name is not None and name in TYPE_NAMES and self._variable(name.partition(".")[0]) is None:
            return Ident(name, offset=node.offset, type=type_of_types(TYPE_NAMES[name]))
        node.operand = self.visit(node.operand)
        operand = self.bindings.resolve(node.operand.type)
        through_optional = is_optional(operand)
        inner = self.bindings.resolve(operand.params[0]) if through_optional else operand
        selected = self._field(node, inner)
        if node.test:
            node.type = BOOL
        else:
            node.type = optional_of(selected) if through_optional or node.optional else selected
        return node

    def _field(self, node: Select, operand: CelType) -> CelType:
        match operand.kind:
            case TypeKind.OBJECT:
                field = (operand.fields or {}).get(node.name)
                if field is None:
                    return self._complain(node.offset, f"undefined field '{node.name}'")
                return field.decl.type
            case TypeKind.MAP:
                return operand.params[1]
            case TypeKind.DYN | TypeKind.ERROR | TypeKind.PARAM:
                return operand if operand.kind is TypeKind.ERROR else DYN
            case TypeKind.OPAQUE if not is_optional(operand):
                return self._complain(node.offset, f"unexpected failed resolution of '{operand.name}'")
            case _:
                return self._complain(node.offset, f"type '{self._shown(operand)}' does not support field selection")

    # calls

    def _call(self, node: CallNode) -> Node:
        if node.target is not None:
            prefix = qualified_name(node.target)
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

    def _logic(self, node: CallNode, overload: Overload) -> Node:
        for arg in node.args:
            self._expect(arg, BOOL)
        node.type, node.overloads = BOOL, (overload,)
        return node

    def _expect(self, node: Node, desired: CelType) -> None:
        if not self.bindings.assignable(node.type, desired):
            self._complain(node.offset, f"expected type '{desired}' but found '{self._shown(node.type)}'")

    def _resolve(self, node: CallNode, declared: tuple[Overload, ...]) -> None:
        """Find the overloads that fit; with dyn among the arguments there may be several."""
        given = [operand.type for operand in node.operands]
        fitting: list[Overload] = []
        result: CelType | None = None
        for overload in declared:
            if overload.method != (node.target is not None) or len(overload.params) != len(given):
                continue
            *params, returned = self.bindings.fresh((*overload.params, overload.result))
            if not self.bindings.all_assignable(given, params):
                continue
            fitting.append(overload)
            returned = self.bindings.resolve(returned)
            result = returned if result is None or result == returned else DYN
        if result is None:
            if any(self.bindings.resolve(one).kind is TypeKind.ERROR for one in given):
                result = ERROR
            else:
                result = self._complain(node.offset, self._no_overload(node))
        node.type, node.overloads = result, tuple(fitting)

    def _no_overload(self, node: CallNode) -> str:
        args = ", ".join(self._shown(arg.type) for arg in node.args)
        receiver = "" if node.target is None else f"{self._shown(node.target.type)}."
        return f"found no matching overload for '{node.function}' applied to '{receiver}({args})'"

    # literals

    def _list(self, node: ListLiteral) -> Node:
        node.elements = [self.visit(element) for element in node.elements]
        joined: CelType | None = None
        for index, element in enumerate(node.elements):
            given = self._entry_type(element, optional=index in node.optional)
            joined = given if joined is None else self._join(joined, given)
        node.type = list_of(self.bindings.new_param() if joined is None else joined)
        return node

    def _map(self, node: MapLiteral) -> Node:
        key: CelType | None = None
        value: CelType | None = None
        for entry in node.entries:
            entry.key, entry.value = self.visit(entry.key), self.visit(entry.value)
            given = self._entry_type(entry.value, optional=entry.optional)
            key = entry.key.type if key is None else self._join(key, entry.key.type)
            value = given if value is None else self._join(value, given)
        fresh = self.bindings.new_param
        node.type = map_of(fresh() if key is None else key, fresh() if value is None else value)
        return node

    def _entry_type(self, node: Node, *, optional: bool) -> CelType:
        """Return the type of an element; an element with `?` must be an optional, and counts as its value."""
        given = self.bindings.resolve(node.type)
        if not optional:
            return given
        if is_optional(given):
            return given.params[0]
        if given.kind not in (TypeKind.DYN, TypeKind.ERROR):
            message = f"expected type 'optional_type({self._shown(given)})' but found '{self._shown(given)}'"
            return self._complain(node.offset, message)
        return given

    def _join(self, one: CelType, other: CelType) -> CelType:
        if not self.bindings.assignable(other, one):
            return DYN
        return other if one.kind is TypeKind.DYN else one

    # comprehensions

    def _comprehension(self, node: Comprehension) -> Node:
        node.range = self.visit(node.range)
        self.scopes.append(dict(zip(node.variables, self._variables(node), strict=True)))
        if node.condition is not None:
            node.condition = self.visit(node.condition)
            self._expect(node.condition, BOOL)
        node.body = self.visit(node.body)
        self.scopes.pop()
        node.type = self._folded(node)
        return node

    def _variables(self, node: Comprehension) -> tuple[CelType, ...]:
        ranged = self.bindings.resolve(node.range.type)
        two = len(node.variables) == 2
        if node.fold in (Fold.OPT_MAP, Fold.OPT_FLAT_MAP):
            if is_optional(ranged):
                return (ranged.params[0],)
            if ranged.kind not in (TypeKind.DYN, TypeKind.ERROR):
                self._complain(node.offset, self._no_overload(CallNode(node.fold, [], node.range, offset=node.offset)))
            return (DYN,)
        match ranged.kind:
            case TypeKind.LIST:
                return (INT, ranged.params[0]) if two else (ranged.params[0],)
            case TypeKind.MAP if node.fold is not Fold.SORT_BY:
                return ranged.params if two else (ranged.params[0],)
            case TypeKind.DYN | TypeKind.ERROR | TypeKind.PARAM:
                return (DYN,) * len(node.variables)
        shown = self._shown(ranged)
        message = f"expression of type '{shown}' cannot be range of a comprehension (must be list, map, or dynamic)"
        self._complain(node.range.offset, message)
        return (ERROR,) * len(node.variables)

    def _folded(self, node: Comprehension) -> CelType:
        body = self.bindings.resolve(node.body.type)
        match node.fold:
            case Fold.ALL | Fold.EXISTS | Fold.EXISTS_ONE:
                self._expect(node.body, BOOL)
                return BOOL
            case Fold.FILTER:
                self._expect(node.body, BOOL)
                ranged = self.bindings.resolve(node.range.type)
                return list_of(ranged.params[0] if ranged.params else DYN)
            case Fold.MAP | Fold.TRANSFORM_LIST:
                return list_of(body)
            case Fold.TRANSFORM_MAP:
                return map_of(self._key_of(node.range.type), body)
            case Fold.TRANSFORM_MAP_ENTRY:
                return self._entries(node, body)
            case Fold.SORT_BY:
                if body not in COMPARABLE and body.kind not in (TypeKind.DYN, TypeKind.ERROR):
                    call = CallNode("sortBy", [node.body], node.range, offset=node.offset)
                    self._complain(node.offset, self._no_overload(call))
                return node.range.type
            case Fold.OPT_MAP:
                return optional_of(body)
            case Fold.OPT_FLAT_MAP:
                if not is_optional(body) and body.kind not in (TypeKind.DYN, TypeKind.ERROR):
                    shown = self._shown(body)
                    return self._complain(
                        node.body.offset, f"expected type 'optional_type({shown})' but found '{shown}'"
                    )
                return body

    def _key_of(self, ranged: CelType) -> CelType:
        ranged = self.bindings.resolve(ranged)
        return {TypeKind.LIST: INT, TypeKind.MAP: ranged.params[0] if ranged.params else DYN}.get(ranged.kind, DYN)

    def _entries(self, node: Comprehension, body: CelType) -> CelType:
        if body.kind in (TypeKind.MAP, TypeKind.DYN, TypeKind.ERROR):
            return body if body.kind is TypeKind.MAP else map_of(DYN, DYN)
        return self._complain(node.body.offset, f"expected type 'map(dyn, dyn)' but found '{self._shown(body)}'")


def references(tree: Node, name: str) -> bool:
    """Return whether a checked expression reads a variable; bodies that bind the name themselves do not count."""
    match tree:
        case Ident():
            return tree.name == name
        case Comprehension() if name in tree.variables:
            return references(tree.range, name)
        case _:
            return any(references(child, name) for child in children(tree))
