"""Closures that each evaluate one node, made from the closures of its children."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from unbounded_apiserver.cel.convert import Convert
from unbounded_apiserver.cel.errors import EvalError, no_such_overload
from unbounded_apiserver.cel.values import NONE, Optional, some

Frame: TypeAlias = list[Any]
Code: TypeAlias = Callable[[Frame], Any]

# Python raises these for a value that dyn or null brought in another form than its type.
_MISFITS: Final = (TypeError, AttributeError)


def applied(apply: Callable[..., Any], codes: list[Code], charge: Callable[[Sequence[Any]], int] | None) -> Code:
    """Return a call of the function with the values of its operands; `charge` returns its cost beyond the usual one."""
    if charge is not None:
        return _metered(apply, codes, charge)
    match codes:
        case []:
            return _nullary(apply)
        case [one]:
            return _unary(apply, one)
        case [one, other]:
            return _binary(apply, one, other)
        case _:
            return _variadic(apply, codes)


def constant(value: Any) -> Code:
    def run(_frame: Frame) -> Any:
        return value

    return run


def _nullary(apply: Callable[..., Any]) -> Code:
    def run(_frame: Frame) -> Any:
        return apply()

    return run


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


def _metered(apply: Callable[..., Any], codes: list[Code], charge: Callable[[Sequence[Any]], int]) -> Code:
    def run(frame: Frame) -> Any:
        values = [code(frame) for code in codes]
        frame[0].charge(charge(values))
        try:
            return apply(*values)
        except _MISFITS:
            raise no_such_overload() from None

    return run


def field(operand: Code, key: str, convert: Convert | None) -> Code:
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


def presence(operand: Code, key: str) -> Code:
    def present(frame: Frame) -> bool:
        value = operand(frame)
        if isinstance(value, Optional):
            value = value.value if value.present else {}
        if not isinstance(value, dict):
            raise no_such_overload()
        return key in value

    return present


def optional_field(operand: Code, key: str, convert: Convert | None) -> Code:
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


def held(value: Any, optional: bool) -> tuple[Any, ...]:
    """Return the value as a tuple of one; for an optional, its value, if any."""
    if not optional:
        return (value,)
    if not isinstance(value, Optional):
        raise no_such_overload()
    return (value.value,) if value.present else ()


def both(left: Code, right: Code) -> Code:
    """Return `&&`: false wins over an error on either side."""

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


def either(left: Code, right: Code) -> Code:
    """Return `||`: true wins over an error on either side."""

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


def conditional(condition: Code, chosen: Code, otherwise: Code) -> Code:
    def run(frame: Frame) -> Any:
        decided = condition(frame)
        if decided is True:
            return chosen(frame)
        if decided is False:
            return otherwise(frame)
        raise no_such_overload()

    return run
