"""Go types and typed values: the information that text/template gets by reflection, as data.

A `Value` is a Python object with a Go type. Objects are not converted: a string is a str (with bytes that are not UTF-8
as surrogates), a pointer is its target or None, and a map is a dict. An interface contains a `Value`, plain Python data
(typed on access), or None.

Errors of a template are here as well, in the words of Go's text/template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final


class GoKind:
    """Kinds of types: plain constants, as they are compared all the time and members of an Enum are slow."""

    BOOL: Final = "bool"
    INT: Final = "int"
    UINT: Final = "uint"
    FLOAT: Final = "float"
    COMPLEX: Final = "complex"
    STRING: Final = "string"
    SLICE: Final = "slice"
    ARRAY: Final = "array"
    MAP: Final = "map"
    STRUCT: Final = "struct"
    POINTER: Final = "ptr"
    INTERFACE: Final = "interface"
    FUNC: Final = "func"
    RAW: Final = "reflect.Value"  # a parameter that accepts any value as it is, and no value


@dataclass(frozen=True, slots=True)
class GoField:
    """Field of a struct; `get` maps the struct's object to the object of the field."""

    name: str
    type: GoType
    get: Callable[[Any], Any]
    exported: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """Parameters and result of a function. `call` gets one object per parameter and returns the result's object."""

    params: tuple[GoType, ...]
    result: GoType
    call: Callable[..., Any]
    variadic: bool = False  # the last parameter's type is that of each further argument
    invalid: str = ""  # reason why templates may not call it


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A method; the object of the receiver is the first argument of its `call`."""

    signature: Signature
    pointer: bool = False  # declared on *T


@dataclass(frozen=True, slots=True, eq=False)
class GoType:
    """Go type. Two types of one name are the same type."""

    kind: str
    name: str
    bits: int = 64
    elem: GoType | None = None
    key: GoType | None = None
    named: bool = False
    fields: Mapping[str, GoField] = field(default_factory=dict)  # also promoted ones
    own: tuple[str, ...] = ()  # fields that are printed, in order
    methods: Mapping[str, Method] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    @property
    def of_elements(self) -> GoType:
        """Type of the elements of a slice, array or map, or of a pointer's target."""
        if self.elem is None:
            raise TypeError(f"{self} has no elements")
        return self.elem

    @property
    def of_keys(self) -> GoType:
        """Type of the keys of a map."""
        if self.key is None:
            raise TypeError(f"{self} has no keys")
        return self.key


class Value:
    """Object with a Go type. `addressable` as in Go: reached through a pointer or a slice."""

    __slots__ = ("addressable", "data", "type")

    def __init__(self, type_: GoType, data: Any, addressable: bool = False) -> None:
        self.type = type_
        self.data = data
        self.addressable = addressable


BOOL: Final = GoType(GoKind.BOOL, "bool")
INT: Final = GoType(GoKind.INT, "int")
INT32: Final = GoType(GoKind.INT, "int32", bits=32)
INT64: Final = GoType(GoKind.INT, "int64")
UINT8: Final = GoType(GoKind.UINT, "uint8", bits=8)
FLOAT64: Final = GoType(GoKind.FLOAT, "float64")
COMPLEX128: Final = GoType(GoKind.COMPLEX, "complex128")
STRING: Final = GoType(GoKind.STRING, "string")
ANY: Final = GoType(GoKind.INTERFACE, "interface {}")
RAW: Final = GoType(GoKind.RAW, "reflect.Value")

INTEGERS: Final = frozenset({GoKind.INT, GoKind.UINT})
NILABLE: Final = frozenset({GoKind.SLICE, GoKind.MAP, GoKind.POINTER, GoKind.INTERFACE, GoKind.FUNC, GoKind.RAW})
_ZERO: Final[Mapping[str, object]] = {
    GoKind.BOOL: False,
    GoKind.INT: 0,
    GoKind.UINT: 0,
    GoKind.FLOAT: 0.0,
    GoKind.COMPLEX: 0j,
    GoKind.STRING: "",
}


def slice_of(elem: GoType) -> GoType:
    return GoType(GoKind.SLICE, f"[]{elem}", elem=elem)


def map_of(key: GoType, elem: GoType) -> GoType:
    return GoType(GoKind.MAP, f"map[{key}]{elem}", key=key, elem=elem)


def pointer_to(elem: GoType) -> GoType:
    return GoType(GoKind.POINTER, f"*{elem}", elem=elem)


ANY_SLICE: Final = slice_of(ANY)
ANY_MAP: Final = map_of(STRING, ANY)
BYTES: Final = slice_of(UINT8)
_PLAIN: Final[Mapping[type, GoType]] = {
    str: STRING,
    bool: BOOL,
    int: INT,
    float: FLOAT64,
    complex: COMPLEX128,
    dict: ANY_MAP,
    list: ANY_SLICE,
    tuple: ANY_SLICE,
    bytes: BYTES,
}


def of(data: object) -> Value | None:
    """Return plain Python data as the content of a Go interface; None is nil.

    Raises:
        TypeError: neither plain data nor a Value.
    """
    if data is None or isinstance(data, Value):
        return data
    plain = _PLAIN.get(type(data))
    if plain is None:
        raise TypeError(f"{type(data).__name__} is no data of templates")
    return Value(plain, data)


def zero(type_: GoType) -> Value:
    """Return the zero value of a type."""
    return Value(type_, _ZERO.get(type_.kind))


def inside(value: Value | None) -> Value | None:
    """Return the content of an interface (None: nil), or any other value itself."""
    if value is not None and value.type.kind is GoKind.INTERFACE:
        return of(value.data)
    return value


def indirect(value: Value | None) -> tuple[Value | None, bool]:
    """Follow pointers and interfaces to the end; True if the end is a nil one, which is the value then."""
    while value is not None:
        kind = value.type.kind
        if kind is GoKind.POINTER:
            if value.data is None:
                return value, True
            value = Value(value.type.of_elements, value.data, addressable=True)
        elif kind is GoKind.INTERFACE:
            held = of(value.data)
            if held is None:
                return value, True
            value = held
        else:
            return value, False
    return None, False


def is_nil(value: Value | None) -> bool:
    return value is None or (value.data is None and value.type.kind in NILABLE)


def truth(value: Value | None) -> bool:
    """Return whether `if` takes a value as true: not the zero of its type; structs are always true."""
    value = inside(value)
    if value is None:
        return False
    return value.type.kind is GoKind.STRUCT or (
        value.data is not None if value.type.kind in (GoKind.POINTER, GoKind.FUNC) else bool(value.data)
    )


def assignable(value: GoType, target: GoType) -> bool:
    if value is target or value.name == target.name:
        return True
    return target.kind is GoKind.INTERFACE


def comparable(type_: GoType) -> bool:
    """Return whether == is defined for a type."""
    if type_.kind is GoKind.STRUCT:
        return all(comparable(type_.fields[name].type) for name in type_.own)
    if type_.kind is GoKind.ARRAY:
        return type_.elem is not None and comparable(type_.elem)
    return type_.kind not in (GoKind.SLICE, GoKind.MAP, GoKind.FUNC)


def elements(value: Value) -> list[Value]:
    """Return the elements of a slice or array."""
    elem, addressable = value.type.of_elements, value.addressable or value.type.kind is GoKind.SLICE
    return [Value(elem, item, addressable) for item in value.data or ()]


def sorted_items(value: Value) -> list[tuple[Value, Value]]:
    """Return the entries of a map in the order in which Go prints and ranges over them."""
    key, elem = value.type.of_keys, value.type.of_elements
    data: dict[Any, Any] = value.data or {}
    ordered = sorted(data, key=_bytes_first if key.kind is GoKind.STRING else None)
    return [(Value(key, name), Value(elem, data[name])) for name in ordered]


def _bytes_first(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


class TemplateError(Exception):
    """A template cannot be parsed or rendered; the text names file, line and expression."""


class ParseError(TemplateError):
    """The text of the template is invalid."""


class RenderError(TemplateError):
    """The template is valid, but does not fit the data or exceeds a limit."""


class CallFailed(Exception):
    """A function or method that a template called returned an error; the text is Go's, without a place."""
