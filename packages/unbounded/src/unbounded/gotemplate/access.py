"""Access to fields, map entries and methods of values; calls, and the check of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from unbounded.gotemplate.literals import quote
from unbounded.gotemplate.nodes import Node
from unbounded.gotemplate.run import Argument, RenderState
from unbounded.gotemplate.types import (
    ANY,
    NILABLE,
    RAW,
    STRING,
    CallFailed,
    GoField,
    GoKind,
    GoType,
    Method,
    Signature,
    Value,
    assignable,
    indirect,
    inside,
    of,
    zero,
)

FREE_LETTERS: Final = 64
MISSING: Final = Value(RAW, None)  # no value of a stage before: unlike None, which is a nil one


def field(
    run: RenderState,
    dot: Value | None,
    name: str,
    node: Node,
    args: Sequence[Argument],
    final: Value | None,
    receiver: Value | None,
) -> Value | None:
    """Evaluate `receiver.name`: a method (called with the arguments), a field, or an entry of a map."""
    if receiver is None:
        if run.missing_key == "error":
            raise run.error(f"nil data; no entry for key {quote(name)}")
        return None
    plain = final is MISSING and not args
    if plain and (direct := _direct(receiver, name)) is not None:
        return direct
    found, nil = indirect(receiver)
    if found is None:  # only if there is no value at all
        return None
    type_ = found.type
    if type_.kind is GoKind.INTERFACE:
        raise run.error(f"nil pointer evaluating {receiver.type}.{name}")
    method = _method(found, name)
    if method is not None:
        return call(run, dot, _bound(method, name, found), name, node, args, final)
    if plain and (direct := _direct(found, name)) is not None:  # content of an interface
        return direct
    if type_.kind is GoKind.STRUCT and name in type_.fields:
        raise run.error(_field_error(type_.fields[name], receiver.type, not plain))
    if type_.kind is GoKind.MAP and assignable(STRING, type_.of_keys):
        if not plain:
            raise run.error(f"{name} is not a method but has arguments")
        return _entry(run, found, name)
    if nil and (type_.of_elements.kind is not GoKind.STRUCT or name in type_.of_elements.fields):
        raise run.error(f"nil pointer evaluating {receiver.type}.{name}")
    raise run.error(f"can't evaluate field {name} in type {receiver.type}")


def _field_error(entry: GoField, type_: GoType, given: bool) -> str:
    """Return the error for a field of a struct that has no value here, or takes no arguments."""
    if given and entry.exported:
        return f"{entry.name} has arguments but cannot be invoked as function"
    return f"{entry.name} is an unexported field of struct type {type_}"


def _direct(receiver: Value, name: str) -> Value | None:
    """Return the field of a struct or of a pointer's target: the fast path of nearly all accesses."""
    struct, data, addressable = receiver.type, receiver.data, receiver.addressable
    if struct.kind is GoKind.POINTER and struct.elem is not None:
        struct, addressable = struct.elem, True
    if data is None or struct.kind is not GoKind.STRUCT or name in struct.methods:
        return None
    entry = struct.fields.get(name)
    return Value(entry.type, entry.get(data), addressable) if entry is not None and entry.exported else None


def _entry(run: RenderState, found: Value, name: str) -> Value | None:
    if found.data and name in found.data:
        return Value(found.type.of_elements, found.data[name])
    if run.missing_key == "zero":
        return zero(found.type.of_elements)
    if run.missing_key == "error":
        raise run.error(f"map has no entry for key {quote(name)}")
    return None


def _method(found: Value, name: str) -> Method | None:
    type_ = found.type
    if type_.kind is GoKind.POINTER and type_.elem is not None:
        return type_.elem.methods.get(name)
    method = type_.methods.get(name)
    return method if method and (found.addressable or not method.pointer) else None


def _bound(method: Method, name: str, found: Value) -> Signature:
    """Return a method as a function without its receiver."""
    signature, receiver = method.signature, found.data

    def bound(*args: Any) -> Any:
        if receiver is None and found.type.kind is GoKind.POINTER and not method.pointer:
            struct = found.type.elem
            short = found.type.name.rpartition(".")[2]
            raise CallFailed(f"value method {struct}.{name} called using nil *{short} pointer")
        return signature.call(receiver, *args)

    return Signature(signature.params, signature.result, bound, signature.variadic, signature.invalid)


def call(
    run: RenderState,
    dot: Value | None,
    signature: Signature,
    name: str,
    node: Node,
    args: Sequence[Argument],
    final: Value | None,
    insert: Callable[[], str] | None = None,
) -> Value | None:
    """Call a function with evaluated and checked arguments; `insert` makes an object to prepend."""
    types = parameter_types(run, signature, name, len(args), final is not MISSING)
    objects = [arg(run, dot, type_) for arg, type_ in zip(args, types, strict=False)]
    if final is not MISSING:
        objects.append(as_object(checked(run, final, types[-1]), types[-1]))
    for each in objects:  # reading a long string takes time, too
        text = each.data if type(each) is Value else each
        if type(text) is str and len(text) > FREE_LETTERS:
            run.made(text)
            run.step()
    if insert is not None:
        objects.insert(0, insert())
    try:
        result = signature.call(*objects)
    except CallFailed as failed:
        run.node = node
        raise run.error(f"error calling {name}: {failed}") from failed
    if type(result) is str:
        run.made(result)
    if signature.result is RAW:
        return cast("Value | None", result)
    return Value(signature.result, result)


def parameter_types(run: RenderState, signature: Signature, name: str, given: int, has_final: bool) -> list[GoType]:
    """Return the type of each argument, after a check of their number."""
    params, count = signature.params, given + has_final
    if signature.variadic:
        fixed = len(params) - 1
        if count < fixed:
            raise run.error(f"wrong number of args for {name}: want at least {fixed} got {given}")
    elif count != len(params):
        raise run.error(f"wrong number of args for {name}: want {len(params)} got {count}")
    if signature.invalid:
        raise run.error(f"invalid function signature for {name}: {signature.invalid}")
    return [params[min(place, len(params) - 1)] for place in range(count)]


def checked(run: RenderState, value: Value | None, desired: GoType) -> Value | None:
    """Convert a value to an argument of the type; dereference it if that makes it fit.

    Returns:
        None only for a nil interface or no value at all.
    """
    if value is None:
        if desired.kind in NILABLE:
            return None if desired.kind in (GoKind.RAW, GoKind.INTERFACE) else zero(desired)
        raise run.error(f"invalid value; expected {desired}")
    if desired is RAW or assignable(value.type, desired):
        return value
    if value.type.kind is GoKind.INTERFACE and value.data is not None:
        value = of(value.data) or value
        if assignable(value.type, desired):
            return value
    elem = value.type.elem
    if value.type.kind is GoKind.POINTER and elem is not None and assignable(elem, desired):
        if value.data is None:
            raise run.error(f"dereference of nil pointer of type {desired}")
        return Value(elem, value.data, addressable=True)
    if desired.kind is GoKind.POINTER and value.addressable and desired.name == f"*{value.type}":
        return Value(desired, value.data)
    raise run.error(f"wrong type for value; expected {desired}; got {value.type}")


def as_object(value: Value | None, desired: GoType) -> object:
    """Return the object for a parameter of the type: the value itself for RAW, its content for interfaces."""
    if desired is RAW:
        return value
    if desired is ANY:
        return inside(value)
    return None if value is None else value.data
