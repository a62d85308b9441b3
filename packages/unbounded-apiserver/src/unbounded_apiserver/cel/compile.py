"""Compilation of checked trees to closures.

A closure takes the frame: a list with the meter in slot 0, then the variables, then those of the macros. Names are
resolved to slots and overloads are selected here, so that evaluation resolves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from unbounded_apiserver.cel.ast import (
    CallNode,
    Comprehension,
    Ident,
    ListLiteral,
    LiteralNode,
    MapLiteral,
    Node,
    Select,
    walk,
)
from unbounded_apiserver.cel.code import (
    Code,
    Frame,
    applied,
    both,
    conditional,
    constant,
    converter,
    either,
    field,
    held,
    optional_field,
    presence,
)
from unbounded_apiserver.cel.errors import EvalError, ProgramError, no_such_overload
from unbounded_apiserver.cel.macros import FOLDS, FoldCode
from unbounded_apiserver.cel.meter import call_charge
from unbounded_apiserver.cel.regexp import BadPattern, compile_pattern
from unbounded_apiserver.cel.types import TYPE_NAMES, TypeKind, is_optional
from unbounded_apiserver.cel.values import fits, type_value

_TAKES_ANYTHING: Final = frozenset({"equals", "not_equals", "to_dyn", "type"})
_FOLDED: Final = frozenset({"int", "uint", "double", "string", "bytes", "bool", "duration", "timestamp"})


def compile_tree(tree: Node, slots: Mapping[str, int], *, metered: bool) -> tuple[Code, int]:
    """Return the closure of a checked expression, and the number of slots in its frame.

    Args:
        slots: positions of the variables; slot 0 is the meter's.
        metered: charge the meter; only expressions with a high estimate need that.
    Raises:
        ProgramError: a constant part cannot be evaluated.
    """
    compiler = _Compiler(dict(slots), metered=metered)
    return compiler.code(tree), compiler.size


class _Compiler:
    def __init__(self, slots: dict[str, int], *, metered: bool) -> None:
        self.slots = slots
        self.size = max(slots.values(), default=0) + 1
        self.metered = metered

    def code(self, node: Node) -> Code:
        match node:
            case LiteralNode(value=value):
                return constant(value)
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

    def _ident(self, node: Ident) -> Code:
        slot = self.slots.get(node.name)
        if slot is None:
            named = type_value(TYPE_NAMES[node.name])
            return constant(named)
        position = slot
        return lambda frame: frame[position]

    # fields

    def _select(self, node: Select) -> Code:
        operand = self.code(node.operand)
        inner = node.operand.type
        through_optional = is_optional(inner)
        if through_optional:
            inner = inner.params[0]
        key, convert = node.name, None
        if inner.kind is TypeKind.OBJECT and inner.fields is not None:
            declared = inner.fields[node.name]
            key, convert = declared.data_name, converter(declared.decl)
        if node.test:
            return presence(operand, key)
        if through_optional or node.optional:
            return optional_field(operand, key, convert)
        return field(operand, key, convert)

    # calls

    def _call(self, node: CallNode) -> Code:
        match node.function:
            case "_&&_":
                return both(*map(self.code, node.args))
            case "_||_":
                return either(*map(self.code, node.args))
            case "_?_:_":
                return conditional(*map(self.code, node.args))
            case "matches" | "find" | "findAll":
                self._check_pattern(node)
        codes = [self.code(operand) for operand in node.operands]
        charge = call_charge(node.function) if self.metered else None
        return self._folded(node, applied(_dispatcher(node), codes, charge))

    def _check_pattern(self, node: CallNode) -> None:
        pattern = node.operands[1]
        if isinstance(pattern, LiteralNode):
            try:
                compile_pattern(pattern.value)
            except BadPattern as error:
                raise ProgramError(str(error)) from None

    def _folded(self, node: CallNode, called: Code) -> Code:
        """Evaluate conversions of constants during compilation, so that errors are found here."""
        if node.function not in _FOLDED or not isinstance(node.args[0], LiteralNode) or len(node.overloads) != 1:
            return called
        try:
            value = node.overloads[0].apply(node.args[0].value)
        except EvalError as error:
            raise ProgramError(str(error)) from None
        return constant(value)

    # literals

    def _list(self, node: ListLiteral) -> Code:
        if all(isinstance(element, LiteralNode) for element in node.elements) and not node.optional:
            return constant([element.value for element in node.elements if isinstance(element, LiteralNode)])
        codes = [self.code(element) for element in node.elements]
        if not node.optional:
            return lambda frame: [code(frame) for code in codes]
        marked = [(code, index in node.optional) for index, code in enumerate(codes)]
        return lambda frame: [value for code, optional in marked for value in held(code(frame), optional)]

    def _map(self, node: MapLiteral) -> Code:
        entries = [(self.code(entry.key), self.code(entry.value), entry.optional) for entry in node.entries]

        def build(frame: Frame) -> dict[Any, Any]:
            built: dict[Any, Any] = {}
            for key_code, value_code, optional in entries:
                key = key_code(frame)
                for value in held(value_code(frame), optional):
                    if key in built:
                        raise EvalError(f"Failed with repeated key: {key}")
                    built[key] = value
            return built

        return build

    # comprehensions

    def _comprehension(self, node: Comprehension) -> Code:
        ranged = self.code(node.range)
        outer = {name: self.slots.get(name) for name in node.variables}
        first = self.size
        for name in node.variables:
            self.slots[name] = self.size
            self.size += 1
        condition = None if node.condition is None else self.code(node.condition)
        body = self.code(node.body)
        for name, slot in outer.items():
            if slot is None:
                del self.slots[name]
            else:
                self.slots[name] = slot
        per_element = sum(1 for _ in walk(node.body)) + 2 if self.metered else 0
        parts = FoldCode(ranged, first, len(node.variables) == 2, condition, body, per_element)
        return FOLDS[node.fold](parts)


def _dispatcher(node: CallNode) -> Callable[..., Any]:
    """Return the function if the types leave one overload, else one that selects by the values."""
    overloads = node.overloads
    open_types = any(operand.type.kind is TypeKind.DYN for operand in node.operands)
    if len(overloads) == 1 and (not open_types or overloads[0].id in _TAKES_ANYTHING):
        return overloads[0].apply

    def dispatch(*values: Any) -> Any:
        for overload in overloads:
            if all(map(fits, values, overload.params)):
                return overload.apply(*values)
        raise no_such_overload()

    return dispatch
