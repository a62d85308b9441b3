"""Checked trees to closures.

A closure takes the frame: a list with the meter in slot 0, then the variables, then those of the macros. Names become
slots and overloads are chosen here, so that evaluation looks nothing up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from unbounded.apiserver.cel.ast import (
    Call,
    Comprehension,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
    Select,
    walk,
)
from unbounded.apiserver.cel.convert import Convert, converter
from unbounded.apiserver.cel.errors import EvalError, ProgramError, no_such_overload
from unbounded.apiserver.cel.folds import FOLDS, Parts
from unbounded.apiserver.cel.meter import call_charge
from unbounded.apiserver.cel.regexp import BadPattern, compile_pattern
from unbounded.apiserver.cel.types import TYPE_NAMES, Kind, is_optional
from unbounded.apiserver.cel.values import NONE, Optional, fits, some, type_value

Frame: TypeAlias = list[Any]
Code: TypeAlias = Callable[[Frame], Any]

_TAKES_ANYTHING: Final = frozenset({"equals", "not_equals", "to_dyn", "type"})
_FOLDED: Final = frozenset({"int", "uint", "double", "string", "bytes", "bool", "duration", "timestamp"})


def compile_tree(tree: Node, slots: Mapping[str, int], *, metered: bool) -> tuple[Code, int]:
    """The code of a checked expression, and how many slots its frame needs.

    Args:
        slots: where the variables stand; slot 0 is the meter's.
        metered: charge the meter; only expressions whose estimate is high need that.
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
            case Literal(value=value):
                return _constant(value)
            case Ident():
                return self._ident(node)
            case Select():
                return self._select(node)
            case Call():
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
            return _constant(named)
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
        if inner.kind is Kind.OBJECT and inner.fields is not None:
            field = inner.fields[node.name]
            key, convert = field.data_name, converter(field.decl)
        if node.test:
            return _presence(operand, key)
        if through_optional or node.optional:
            return _optional_field(operand, key, convert)
        return _field(operand, key, convert)

    # calls

    def _call(self, node: Call) -> Code:
        match node.function:
            case "_&&_":
                return _both(*map(self.code, node.args))
            case "_||_":
                return _either(*map(self.code, node.args))
            case "_?_:_":
                return _conditional(*map(self.code, node.args))
            case "matches" | "find" | "findAll":
                self._check_pattern(node)
        codes = [self.code(operand) for operand in node.operands]
        apply: Callable[..., Any] | _Metered = _dispatcher(node)
        if self.metered:
            apply = self._charged(node, _dispatcher(node))
        called = _applied(apply, codes)
        return self._folded(node, called)

    def _check_pattern(self, node: Call) -> None:
        pattern = node.operands[1]
        if isinstance(pattern, Literal):
            try:
                compile_pattern(pattern.value)
            except BadPattern as error:
                raise ProgramError(str(error)) from None

    def _charged(self, node: Call, apply: Callable[..., Any]) -> Callable[..., Any] | _Metered:
        """The function, made to leave word of its cost before it runs; the frame's meter is given by `_applied`."""
        charge = call_charge(node.function)
        return apply if charge is None else _Metered(apply, charge)

    def _folded(self, node: Call, called: Code) -> Code:
        """Conversions of constants are done now, so that those that fail are found now."""
        if node.function not in _FOLDED or not isinstance(node.args[0], Literal) or len(node.overloads) != 1:
            return called
        try:
            value = node.overloads[0].apply(node.args[0].value)
        except EvalError as error:
            raise ProgramError(str(error)) from None
        return _constant(value)

    # literals

    def _list(self, node: ListLiteral) -> Code:
        if all(isinstance(element, Literal) for element in node.elements) and not node.optional:
            constant = [element.value for element in node.elements if isinstance(element, Literal)]
            return _constant(constant)
        codes = [self.code(element) for element in node.elements]
        if not node.optional:
            return lambda frame: [code(frame) for code in codes]
        marked = [(code, index in node.optional) for index, code in enumerate(codes)]
        return lambda frame: [value for code, optional in marked for value in _present(code(frame), optional)]

    def _map(self, node: MapLiteral) -> Code:
        entries = [(self.code(entry.key), self.code(entry.value), entry.optional) for entry in node.entries]

        def build(frame: Frame) -> dict[Any, Any]:
            built: dict[Any, Any] = {}
            for key_code, value_code, optional in entries:
                key = key_code(frame)
                for value in _present(value_code(frame), optional):
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
        parts = Parts(ranged, first, len(node.variables) == 2, condition, body, per_element)
        return FOLDS[node.fold](parts)


class _Metered:
    """A function with what a call of it costs beyond the ordinary."""

    __slots__ = ("apply", "charge")

    def __init__(self, apply: Callable[..., Any], charge: Callable[[Sequence[Any]], int]) -> None:
        self.apply = apply
        self.charge = charge


def _applied(apply: Callable[..., Any] | _Metered, codes: list[Code]) -> Code:
    if isinstance(apply, _Metered):
        return _applied_metered(apply, codes)
    match codes:
        case []:
            return _constant_call(apply)
        case [one]:
            return _unary(apply, one)
        case [one, other]:
            return _binary(apply, one, other)
        case _:
            return _variadic(apply, codes)


def _constant(value: Any) -> Code:
    def run(_frame: Frame) -> Any:
        return value

    return run


def _constant_call(apply: Callable[..., Any]) -> Code:
    def run(_frame: Frame) -> Any:
        return apply()

    return run


# A value that the types promised, but that dyn or null brought in another form, makes Python raise these.
_MISFITS: Final = (TypeError, AttributeError)


def _unary(apply: Callable[..., Any], one: Code) -> Code:
    def run(frame: Frame) -> Any:
        try:
            return apply(one(frame))
        except _MISFITS:
            raise no_such_overload() from None

    return run


def _binary(apply: Callable[..., Any], one: Code, other: Code) -> Code:
    def run(frame: Frame) -> Any:
        try:
            return apply(one(frame), other(frame))
        except _MISFITS:
            raise no_such_overload() from None

    return run


def _variadic(apply: Callable[..., Any], codes: list[Code]) -> Code:
    def run(frame: Frame) -> Any:
        try:
            return apply(*[code(frame) for code in codes])
        except _MISFITS:
            raise no_such_overload() from None

    return run


def _applied_metered(metered: _Metered, codes: list[Code]) -> Code:
    apply, charge = metered.apply, metered.charge

    def run(frame: Frame) -> Any:
        values = [code(frame) for code in codes]
        frame[0].charge(charge(values))
        try:
            return apply(*values)
        except _MISFITS:
            raise no_such_overload() from None

    return run


def _dispatcher(node: Call) -> Callable[..., Any]:
    """The function where the types leave no choice, else one that looks at the values and chooses."""
    overloads = node.overloads
    open_types = any(operand.type.kind is Kind.DYN for operand in node.operands)
    if len(overloads) == 1 and (not open_types or overloads[0].id in _TAKES_ANYTHING):
        return overloads[0].apply

    def dispatch(*values: Any) -> Any:
        for overload in overloads:
            if all(map(fits, values, overload.params)):
                return overload.apply(*values)
        raise no_such_overload()

    return dispatch


def _field(operand: Code, key: str, convert: Convert | None) -> Code:
    def read(frame: Frame) -> Any:
        try:
            return operand(frame)[key]
        except KeyError:
            raise EvalError(f"no such key: {key}") from None
        except TypeError:
            raise no_such_overload() from None

    if convert is None:
        return read
    return lambda frame: convert(read(frame))


def _presence(operand: Code, key: str) -> Code:
    def present(frame: Frame) -> bool:
        value = operand(frame)
        if isinstance(value, Optional):
            value = value.value if value.present else {}
        if not isinstance(value, dict):
            raise no_such_overload()
        return key in value

    return present


def _optional_field(operand: Code, key: str, convert: Convert | None) -> Code:
    def read(frame: Frame) -> Optional:
        value = operand(frame)
        if isinstance(value, Optional):
            if not value.present:
                return NONE
            value = value.value
        if not isinstance(value, dict):
            raise no_such_overload()
        if key not in value:
            return NONE
        return some(value[key] if convert is None else convert(value[key]))

    return read


def _present(value: Any, optional: bool) -> tuple[Any, ...]:
    """The value as a tuple of one; of an optional one, what it holds, if anything."""
    if not optional:
        return (value,)
    if not isinstance(value, Optional):
        raise no_such_overload()
    return (value.value,) if value.present else ()


def _both(left: Code, right: Code) -> Code:
    """`&&`: false wins over an error, whichever side it stands on."""

    def run(frame: Frame) -> bool:
        try:
            first = left(frame)
        except EvalError:
            if _false(right, frame):
                return False
            raise
        if first is False:
            return False
        second = right(frame)
        if second is False:
            return False
        if first is True and second is True:
            return True
        raise no_such_overload()

    return run


def _either(left: Code, right: Code) -> Code:
    """`||`: true wins over an error, whichever side it stands on."""

    def run(frame: Frame) -> bool:
        try:
            first = left(frame)
        except EvalError:
            if _true(right, frame):
                return True
            raise
        if first is True:
            return True
        second = right(frame)
        if second is True:
            return True
        if first is False and second is False:
            return False
        raise no_such_overload()

    return run


def _false(code: Code, frame: Frame) -> bool:
    try:
        return code(frame) is False
    except EvalError:
        return False


def _true(code: Code, frame: Frame) -> bool:
    try:
        return code(frame) is True
    except EvalError:
        return False


def _conditional(condition: Code, chosen: Code, otherwise: Code) -> Code:
    def run(frame: Frame) -> Any:
        decided = condition(frame)
        if decided is True:
            return chosen(frame)
        if decided is False:
            return otherwise(frame)
        raise no_such_overload()

    return run
