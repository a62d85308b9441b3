"""The functions that every template has: Go's own, with its typing rules and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote_plus

from unbounded.gotemplate.fmt import sprint, sprintf, sprintln
from unbounded.gotemplate.types import (
    ANY,
    BOOL,
    INT,
    INTEGERS,
    NILABLE,
    RAW,
    STRING,
    UINT8,
    CallFailed,
    GoKind,
    GoType,
    Signature,
    Value,
    assignable,
    comparable,
    elements,
    indirect,
    inside,
    is_nil,
    truth,
    zero,
)

_BASIC: Final = frozenset({GoKind.BOOL, GoKind.COMPLEX, GoKind.FLOAT, GoKind.INT, GoKind.STRING, GoKind.UINT})
_ORDERED: Final = _BASIC - {GoKind.BOOL, GoKind.COMPLEX}


def equal(first: Value | None, *others: Value | None) -> bool:
    """Return whether the first value equals any of the others."""
    first = inside(first)
    if not others:
        raise CallFailed("missing argument for comparison")
    return any(_same(first, inside(other)) for other in others)


def unequal(first: Value | None, second: Value | None) -> bool:
    return not equal(first, second)


def _basic(value: Value | None) -> str | None:
    return value.type.kind if value is not None and value.type.kind in _BASIC else None


def _same(first: Value | None, second: Value | None) -> bool:
    one, two = _basic(first), _basic(second)
    if first is not None and second is not None:
        if one is two and one is not None:
            return bool(first.data == second.data)
        if one in INTEGERS and two in INTEGERS:
            return bool(first.data == second.data)
        if one is not two:
            raise CallFailed(f"incompatible types for comparison: {first.type} and {second.type}")
    elif one is not two:
        return False
    return _same_reference(first, second)


def _same_reference(first: Value | None, second: Value | None) -> bool:
    """Compare values other than numbers, strings and booleans; either may be nil."""
    if first is not None and second is not None and first.type.kind is not second.type.kind:
        shown = sprintf("%s", [first]), sprintf("%v", [second])
        raise CallFailed(f"non-comparable types {shown[0]}: {first.type}, {second.type}: {shown[1]}")
    if first is None or second is None or is_nil(first) or is_nil(second):
        return is_nil(first) == is_nil(second)
    if not comparable(second.type):
        raise CallFailed(f"non-comparable type {sprintf('%s', [second])}: {second.type}")
    if first.type.name != second.type.name:
        return False
    if first.type.kind is GoKind.POINTER:
        return first.data is second.data
    return bool(first.data == second.data)


def less(first: Value | None, second: Value | None) -> bool:
    first, second = inside(first), inside(second)
    one, two = _basic(first), _basic(second)
    if one is None or two is None or first is None or second is None:
        raise CallFailed("invalid type for comparison")
    if one is not two and not (one in INTEGERS and two in INTEGERS):
        raise CallFailed(f"incompatible types for comparison: {first.type} and {second.type}")
    if one not in _ORDERED:
        raise CallFailed("invalid type for comparison")
    return bool(first.data < second.data)


_HTML: Final = str.maketrans({"\0": "\ufffd", '"': "&#34;", "'": "&#39;", "&": "&amp;", "<": "&lt;", ">": "&gt;"})
_JS: Final = {"\\": "\\\\", "'": "\\'", '"': '\\"', "<": "\\u003C", ">": "\\u003E", "&": "\\u0026", "=": "\\u003D"}


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def size(value: Value) -> int | None:
    """Return the length of a value in Go's sense; None if it has none."""
    if value.type.kind is GoKind.STRING:
        return len(value.data) if value.data.isascii() else len(encoded(value.data))
    if value.type.kind in (GoKind.SLICE, GoKind.ARRAY, GoKind.MAP):
        return len(value.data or ())
    return None


def length(item: Value | None) -> int:
    if item is None:
        raise CallFailed("reflect: call of reflect.Value.Type on zero Value")
    found, nil = indirect(item)
    if nil or found is None:
        raise CallFailed("len of nil pointer")
    count = size(found)
    if count is None:
        raise CallFailed(f"len of type {found.type}")
    return count


def _place(index: Value | None, limit: int) -> int:
    """Return an index or bound, which is at most the limit."""
    if index is None:
        raise CallFailed("cannot index slice/array with nil")
    if index.type.kind not in INTEGERS:
        raise CallFailed(f"cannot index slice/array with type {index.type}")
    if not 0 <= index.data <= limit:
        raise CallFailed(f"index out of range: {index.data}")
    return int(index.data)


def prepared(value: Value | None, desired: GoType) -> Value:
    """Convert a value to a key or argument of a type."""
    if value is None:
        if desired.kind not in NILABLE:
            raise CallFailed(f"value is nil; should be of type {desired}")
        return zero(desired)
    if assignable(value.type, desired):
        return value
    if value.type.kind in INTEGERS and desired.kind in INTEGERS:
        return Value(desired, wrapped(value.data, desired))
    raise CallFailed(f"value has type {value.type}; should be {desired}")


def wrapped(number: int, type_: GoType) -> int:
    """Wrap an integer as a type of fewer bits does."""
    number &= (1 << type_.bits) - 1
    return number - (1 << type_.bits) if type_.kind is GoKind.INT and number >> (type_.bits - 1) else number


def index(item: Value | None, *indexes: Value | None) -> Value | None:
    item = inside(item)
    if item is None:
        raise CallFailed("index of untyped nil")
    for each in indexes:
        found, nil = indirect(item)
        if nil or found is None:
            raise CallFailed("index of nil pointer")
        item = _element(found, inside(each))
    return item


def _element(item: Value, where: Value | None) -> Value:
    kind = item.type.kind
    if kind is GoKind.MAP:
        key = prepared(where, item.type.of_keys).data
        if item.data and key in item.data:
            return Value(item.type.of_elements, item.data[key])
        return zero(item.type.of_elements)
    count = size(item)
    if count is None:
        raise CallFailed(f"can't index item of type {item.type}")
    place = _place(where, count)
    if place == count:
        raise CallFailed(f"reflect: {kind} index out of range")
    if kind is GoKind.STRING:
        return Value(UINT8, encoded(item.data)[place])
    return elements(item)[place]


def cut(item: Value | None, *indexes: Value | None) -> Value:
    """The function `slice`."""
    item = inside(item)
    if item is None:
        raise CallFailed("slice of untyped nil")
    if len(indexes) > 3:
        raise CallFailed(f"too many slice indexes: {len(indexes)}")
    kind, count = item.type.kind, size(item)
    if kind is GoKind.STRING and len(indexes) == 3:
        raise CallFailed("cannot 3-index slice a string")
    if count is None or kind is GoKind.MAP:
        raise CallFailed(f"can't slice item of type {item.type}")
    bounds = [0, count, count]
    for place, each in enumerate(indexes):
        bounds[place] = _place(each, count)
    for first, second in ((0, 1), (1, 2)):
        if bounds[first] > bounds[second]:
            raise CallFailed(f"invalid slice index: {bounds[first]} > {bounds[second]}")
    if kind is GoKind.STRING:
        return Value(item.type, decoded(encoded(item.data)[bounds[0] : bounds[1]]))
    if kind is GoKind.ARRAY and not item.addressable:
        raise CallFailed("reflect.Value.Slice: slice of unaddressable array")
    type_ = item.type if kind is GoKind.SLICE else GoType(GoKind.SLICE, f"[]{item.type.elem}", elem=item.type.elem)
    return Value(type_, (item.data or ())[bounds[0] : bounds[1]])


def call(name: str, function: Value | None, *args: Value | None) -> Any:
    """The function `call`; `name` is the text of its first argument."""
    function = inside(function)
    if function is None:
        raise CallFailed("call of nil")
    if function.type.kind is not GoKind.FUNC:
        raise CallFailed(f"non-function {name} of type {function.type}")
    signature: Signature | None = function.data
    if signature is None:
        raise CallFailed("reflect.Value.Call: call of nil function")
    params = signature.params
    if signature.variadic and len(args) < len(params) - 1:
        raise CallFailed(f"wrong number of args for {name}: got {len(args)} want at least {len(params) - 1}")
    if not signature.variadic and len(args) != len(params):
        raise CallFailed(f"wrong number of args for {name}: got {len(args)} want {len(params)}")
    objects = []
    for place, arg in enumerate(args):
        try:
            value = prepared(inside(arg), params[min(place, len(params) - 1)])
        except CallFailed as failed:
            raise CallFailed(f"arg {place}: {failed}") from failed
        objects.append(value.data)
    return Value(signature.result, signature.call(*objects))


def printable(value: Value | None) -> Value | None:
    """Return the printed form of an action's value; None if its type cannot be printed."""
    if value is not None and value.type.kind is GoKind.POINTER:
        value, _ = indirect(value)
    value = value if value is None or value.type.kind is not GoKind.INTERFACE else inside(value)
    if value is None:
        return Value(STRING, "<no value>")
    if value.addressable and any(
        (method := value.type.methods.get(name)) and method.pointer for name in ("Error", "String")
    ):
        return Value(GoType(GoKind.POINTER, f"*{value.type}", elem=value.type), value.data)
    return None if value.type.kind is GoKind.FUNC else value


def _joined(args: tuple[Value | None, ...]) -> str:
    if len(args) == 1 and args[0] is not None and args[0].type is STRING:
        return str(args[0].data)
    return sprint([printable(arg) or arg for arg in args])


def html(*args: Value | None) -> str:
    return _joined(args).translate(_HTML)


def js(*args: Value | None) -> str:
    return "".join(map(_js_letter, _joined(args)))


def _js_letter(letter: str) -> str:
    if letter in _JS:
        return _JS[letter]
    if letter >= " " and (letter.isascii() or letter.isprintable() or "\udc80" <= letter <= "\udcff"):
        return letter
    return f"\\u{ord(letter):04X}"


def urlquery(*args: Value | None) -> str:
    return quote_plus(encoded(_joined(args)))


def _less_or_equal(first: Value | None, second: Value | None) -> bool:
    return less(first, second) or equal(first, second)


def _last_of(*args: Value | None) -> Value | None:
    """Return the last argument: the renderer evaluates `and` and `or` one argument at a time."""
    return args[-1]


_SOME: Final = (RAW, RAW)
BUILTINS: Final[Mapping[str, Signature]] = {
    "and": Signature(_SOME, RAW, _last_of, variadic=True),
    "or": Signature(_SOME, RAW, _last_of, variadic=True),
    "not": Signature((RAW,), BOOL, lambda arg: not truth(arg)),
    "call": Signature(_SOME, RAW, call, variadic=True),
    "html": Signature((ANY,), STRING, html, variadic=True),
    "js": Signature((ANY,), STRING, js, variadic=True),
    "urlquery": Signature((ANY,), STRING, urlquery, variadic=True),
    "index": Signature(_SOME, RAW, index, variadic=True),
    "slice": Signature(_SOME, RAW, cut, variadic=True),
    "len": Signature((RAW,), INT, length),
    "print": Signature((ANY,), STRING, lambda *args: sprint(args), variadic=True),
    "printf": Signature((STRING, ANY), STRING, lambda text, *args: sprintf(text, args), variadic=True),
    "println": Signature((ANY,), STRING, lambda *args: sprintln(args), variadic=True),
    "eq": Signature(_SOME, BOOL, equal, variadic=True),
    "ne": Signature(_SOME, BOOL, unequal),
    "lt": Signature(_SOME, BOOL, less),
    "le": Signature(_SOME, BOOL, _less_or_equal),
    "gt": Signature(_SOME, BOOL, lambda first, second: not _less_or_equal(first, second)),
    "ge": Signature(_SOME, BOOL, lambda first, second: not less(first, second)),
}
