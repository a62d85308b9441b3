"""Compiled expressions: checks of constants (durations, patterns, formats, uniform lists and maps), then compilation.

A checked tree is compiled to a closure. The closure takes the frame: a list with the meter in slot 0, then the
variables, then those of the macros. Names are resolved to slots and overloads are selected during compilation, so that
evaluation resolves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from unbounded_apiserver.cel import ast
from unbounded_apiserver.cel.check import check, references
from unbounded_apiserver.cel.code import (
    Code,
    Convert,
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
from unbounded_apiserver.cel.cost import estimate
from unbounded_apiserver.cel.functions.formatting import check_format
from unbounded_apiserver.cel.functions.times import parse_duration, parse_timestamp
from unbounded_apiserver.cel.macros import FOLDS, FoldCode
from unbounded_apiserver.cel.meter import Meter, call_charge
from unbounded_apiserver.cel.parser import parse
from unbounded_apiserver.cel.regexp import BadPattern, compile_pattern
from unbounded_apiserver.cel.types import TYPE_NAMES, CelType, Decl, TypeKind, is_optional
from unbounded_apiserver.cel.values import (
    CompileError,
    EvalError,
    Issue,
    ProgramError,
    fits,
    no_such_overload,
    type_value,
)

CALL_LIMIT: Final = 1_000_000  # cost limit of one evaluation
_UNMETERED: Final = 1_000  # up to this estimate the meter is not used: the estimate itself is charged
_TAKES_ANYTHING: Final = frozenset({"equals", "not_equals", "to_dyn", "type"})
_FOLDED: Final = frozenset({"int", "uint", "double", "string", "bytes", "bool", "duration", "timestamp"})


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


def check_literals(source: str, tree: ast.Node) -> None:
    """Reject constants that could never be evaluated.

    Raises:
        CompileError: with all of them.
    """
    issues = list(_issues(tree, in_format=False))
    if issues:
        raise CompileError(source, issues)


def _issues(node: ast.Node, *, in_format: bool) -> Iterator[Issue]:
    match node:
        case ast.CallNode(function="duration", args=[ast.LiteralNode(value=str(text)) as arg]) if (
            parse_duration(text) is None
        ):
            yield Issue(arg.offset, "invalid duration argument")
        case ast.CallNode(function="timestamp", args=[ast.LiteralNode(value=str(text)) as arg]) if (
            parse_timestamp(text) is None
        ):
            yield Issue(arg.offset, "invalid timestamp argument")
        case ast.CallNode(function="matches", args=[*_, ast.LiteralNode(value=str(text)) as arg]) if not _is_pattern(
            text
        ):
            yield Issue(arg.offset, "invalid matches argument")
        case ast.CallNode(
            function="format", target=ast.LiteralNode(value=str(text)), args=[ast.ListLiteral(elements=elements)]
        ):
            problem = check_format(text, [element.type for element in elements])
            if problem is not None:
                index, message = problem
                yield Issue(node.offset if index is None else elements[index].offset, message)
        case ast.ListLiteral() if not in_format:
            marked = [(element, index in node.optional) for index, element in enumerate(node.elements)]
            yield from _uneven(marked)
        case ast.MapLiteral() if not in_format:
            yield from _uneven([(entry.key, False) for entry in node.entries])
            yield from _uneven([(entry.value, entry.optional) for entry in node.entries])
        case _:
            pass
    inside = in_format or (isinstance(node, ast.CallNode) and node.function == "format")
    for child in ast.children(node):
        yield from _issues(child, in_format=inside)


def _is_pattern(text: str) -> bool:
    try:
        compile_pattern(text)
    except BadPattern:
        return False
    return True


def _uneven(marked: Sequence[tuple[ast.Node, bool]]) -> Iterator[Issue]:
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


def compile_tree(tree: ast.Node, slots: Mapping[str, int], *, metered: bool) -> tuple[Code, int]:
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

    def code(self, node: ast.Node) -> Code:
        match node:
            case ast.LiteralNode(value=value):
                return constant(value)
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

    def _ident(self, node: ast.Ident) -> Code:
        slot = self.slots.get(node.name)
        if slot is None:
            named = type_value(TYPE_NAMES[node.name])
            return constant(named)
        position = slot
        return lambda frame: frame[position]

    # fields

    def _select(self, node: ast.Select) -> Code:
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

    def _call(self, node: ast.CallNode) -> Code:
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

    def _check_pattern(self, node: ast.CallNode) -> None:
        pattern = node.operands[1]
        if isinstance(pattern, ast.LiteralNode):
            try:
                compile_pattern(pattern.value)
            except BadPattern as error:
                raise ProgramError(str(error)) from None

    def _folded(self, node: ast.CallNode, called: Code) -> Code:
        """Evaluate conversions of constants during compilation, so that errors are found here."""
        if node.function not in _FOLDED or not isinstance(node.args[0], ast.LiteralNode) or len(node.overloads) != 1:
            return called
        try:
            value = node.overloads[0].apply(node.args[0].value)
        except EvalError as error:
            raise ProgramError(str(error)) from None
        return constant(value)

    # literals

    def _list(self, node: ast.ListLiteral) -> Code:
        if all(isinstance(element, ast.LiteralNode) for element in node.elements) and not node.optional:
            return constant([element.value for element in node.elements if isinstance(element, ast.LiteralNode)])
        codes = [self.code(element) for element in node.elements]
        if not node.optional:
            return lambda frame: [code(frame) for code in codes]
        marked = [(code, index in node.optional) for index, code in enumerate(codes)]
        return lambda frame: [value for code, optional in marked for value in held(code(frame), optional)]

    def _map(self, node: ast.MapLiteral) -> Code:
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

    def _comprehension(self, node: ast.Comprehension) -> Code:
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
        per_element = sum(1 for _ in ast.walk(node.body)) + 2 if self.metered else 0
        parts = FoldCode(ranged, first, len(node.variables) == 2, condition, body, per_element)
        return FOLDS[node.fold](parts)


def _dispatcher(node: ast.CallNode) -> Callable[..., Any]:
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
