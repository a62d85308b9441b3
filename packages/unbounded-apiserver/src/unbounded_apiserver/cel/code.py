"""Closures that each evaluate one node, made from those of its children, and the conversion of JSON to CEL values."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from unbounded_apiserver.cel.functions.times import parse_duration, parse_timestamp
from unbounded_apiserver.cel.types import BYTES, DOUBLE, DURATION, TIMESTAMP, Decl, TypeKind
from unbounded_apiserver.cel.values import NONE, EvalError, MapListValue, Optional, SetListValue, no_such_overload, some

Convert: TypeAlias = Callable[[Any], Any]
Frame: TypeAlias = list[Any]
Code: TypeAlias = Callable[[Frame], Any]
# Python raises these for a value that dyn or null brought in another form than its type.
_MISFITS: Final = (TypeError, AttributeError)


def converter(decl: Decl) -> Convert | None:
    """Return a function that converts JSON of this type to its CEL value, or None if they are the same."""
    kind = decl.type.kind
    if kind is TypeKind.LIST and decl.element is not None:
        return _list_converter(decl, converter(decl.element))
    if kind is TypeKind.MAP and decl.element is not None:
        inner = converter(decl.element)
        return None if inner is None else _map_converter(inner)
    return {DOUBLE: _to_double, TIMESTAMP: _to_timestamp, DURATION: _to_duration, BYTES: _to_bytes}.get(decl.type)


def _list_converter(decl: Decl, inner: Convert | None) -> Convert | None:
    keys = decl.map_keys
    if inner is None and keys is None:
        return None

    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        items = value if inner is None else [inner(item) for item in value]
        if keys is None:
            return items
        return MapListValue(items, keys) if keys else SetListValue(items)

    return convert


def _map_converter(inner: Convert) -> Convert:
    return lambda value: {key: inner(item) for key, item in value.items()} if isinstance(value, dict) else value


def _to_double(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _to_timestamp(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.upper()
    instant = parse_timestamp(text if "T" in text else f"{text}T00:00:00Z")
    if instant is None:
        raise EvalError(f"Invalid date format: {value}")
    return instant


def _to_duration(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    duration = parse_duration(value)
    if duration is None:
        raise EvalError(f"Invalid duration format: {value}")
    return duration


def _to_bytes(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value)
    except (binascii.Error, ValueError):
        raise EvalError("Invalid base64 value") from None


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
