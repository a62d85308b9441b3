"""Types of expressions, and declarations: a type together with the sizes that a schema promises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final


class Kind(Enum):
    PRIMITIVE = auto()
    DYN = auto()
    ERROR = auto()
    NULL = auto()
    LIST = auto()
    MAP = auto()
    OBJECT = auto()
    OPAQUE = auto()
    TYPE = auto()
    PARAM = auto()


@dataclass(frozen=True, slots=True)
class Type:
    """A CEL type. `fields` belongs to object types only and is no part of their identity: the name is."""

    kind: Kind
    name: str
    params: tuple[Type, ...] = ()
    fields: Mapping[str, Field] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        if not self.params:
            return self.name
        return f"{self.name}({', '.join(str(param) for param in self.params)})"


@dataclass(frozen=True, slots=True)
class Decl:
    """A type with bounds: the greatest number of elements (or characters), and the least size as JSON."""

    type: Type
    max_elements: int = 0
    min_size: int = 1
    element: Decl | None = None
    key: Decl | None = None
    map_keys: tuple[str, ...] | None = None  # of a list with x-kubernetes-list-type map; () means set


@dataclass(frozen=True, slots=True)
class Field:
    """A property of an object: its name in the data differs from that in expressions when it is escaped."""

    data_name: str
    decl: Decl


DYN: Final = Type(Kind.DYN, "dyn")
ERROR: Final = Type(Kind.ERROR, "!error!")
NULL: Final = Type(Kind.NULL, "null")
BOOL: Final = Type(Kind.PRIMITIVE, "bool")
INT: Final = Type(Kind.PRIMITIVE, "int")
UINT: Final = Type(Kind.PRIMITIVE, "uint")
DOUBLE: Final = Type(Kind.PRIMITIVE, "double")
STRING: Final = Type(Kind.PRIMITIVE, "string")
BYTES: Final = Type(Kind.PRIMITIVE, "bytes")
TIMESTAMP: Final = Type(Kind.PRIMITIVE, "timestamp")
DURATION: Final = Type(Kind.PRIMITIVE, "duration")
URL: Final = Type(Kind.OPAQUE, "kubernetes.URL")
QUANTITY: Final = Type(Kind.OPAQUE, "kubernetes.Quantity")
FORMAT: Final = Type(Kind.OPAQUE, "kubernetes.NamedFormat")
SEMVER: Final = Type(Kind.OPAQUE, "kubernetes.Semver")
IP: Final = Type(Kind.OPAQUE, "net.IP")
CIDR: Final = Type(Kind.OPAQUE, "net.CIDR")

SCALARS: Final = frozenset({BOOL, DOUBLE, DURATION, INT, TIMESTAMP, UINT})
COMPARABLE: Final = (INT, UINT, DOUBLE, BOOL, DURATION, TIMESTAMP, STRING, BYTES)


def list_of(element: Type) -> Type:
    return Type(Kind.LIST, "list", (element,))


def map_of(key: Type, value: Type) -> Type:
    return Type(Kind.MAP, "map", (key, value))


def optional_of(value: Type) -> Type:
    return Type(Kind.OPAQUE, "optional_type", (value,))


def type_of_types(value: Type) -> Type:
    return Type(Kind.TYPE, "type", (value,))


def param(name: str) -> Type:
    return Type(Kind.PARAM, name)


def is_optional(candidate: Type) -> bool:
    return candidate.kind is Kind.OPAQUE and candidate.name == "optional_type"


TYPE_NAMES: Final[Mapping[str, Type]] = {
    "bool": BOOL,
    "int": INT,
    "uint": UINT,
    "double": DOUBLE,
    "string": STRING,
    "bytes": BYTES,
    "null_type": NULL,
    "list": list_of(DYN),
    "map": map_of(DYN, DYN),
    "type": type_of_types(DYN),
    "optional_type": optional_of(DYN),
    "google.protobuf.Timestamp": TIMESTAMP,
    "google.protobuf.Duration": DURATION,
    "net.IP": IP,
    "net.CIDR": CIDR,
}  # names of types in expressions


class Bindings:
    """The inferred type parameters of one expression."""

    def __init__(self) -> None:
        self._bound: dict[str, Type] = {}
        self._fresh = 0

    def fresh(self, signature: Iterable[Type]) -> tuple[Type, ...]:
        """Return the signature with its own parameters, so that two calls of a function do not share them."""
        self._fresh += 1
        return tuple(_rename(part, self._fresh) for part in signature)

    def new_param(self) -> Type:
        self._fresh += 1
        return param(f"_{self._fresh}")

    def resolve(self, candidate: Type) -> Type:
        """Return the type with all known parameters filled in; unknown ones stay."""
        if candidate.kind is Kind.PARAM:
            bound = self._bound.get(candidate.name)
            return candidate if bound is None else self.resolve(bound)
        if not candidate.params:
            return candidate
        return Type(candidate.kind, candidate.name, tuple(map(self.resolve, candidate.params)), candidate.fields)

    def final(self, candidate: Type) -> Type:
        """Return the type like `resolve`, with dyn for parameters that stay unknown."""
        resolved = self.resolve(candidate)
        if resolved.kind is Kind.PARAM:
            return DYN
        if not resolved.params:
            return resolved
        return Type(resolved.kind, resolved.name, tuple(map(self.final, resolved.params)), resolved.fields)

    def all_assignable(self, given: Iterable[Type], wanted: Iterable[Type]) -> bool:
        """Return whether each given type is assignable to the wanted one; binds parameters only if all are."""
        before = dict(self._bound)
        if all(self._assignable(one, other) for one, other in zip(given, wanted, strict=True)):
            return True
        self._bound = before
        return False

    def assignable(self, given: Type, wanted: Type) -> bool:
        return self.all_assignable((given,), (wanted,))

    def _assignable(self, given: Type, wanted: Type) -> bool:
        given, wanted = self.resolve(given), self.resolve(wanted)
        if given == wanted:
            return True
        for one, other in ((wanted, given), (given, wanted)):
            if one.kind is Kind.PARAM:
                return self._bind(one, other)
        if {given.kind, wanted.kind} & {Kind.DYN, Kind.ERROR}:
            return True
        if given.kind is Kind.NULL:
            return wanted.kind in (Kind.OBJECT, Kind.OPAQUE) or wanted in (TIMESTAMP, DURATION)
        if wanted.kind is Kind.NULL:
            return given.kind in (Kind.OBJECT, Kind.OPAQUE) or given in (TIMESTAMP, DURATION)
        if given.kind is not wanted.kind or given.name != wanted.name or len(given.params) != len(wanted.params):
            return False
        return all(self._assignable(one, other) for one, other in zip(given.params, wanted.params, strict=True))

    def _bind(self, parameter: Type, value: Type) -> bool:
        if _mentions(value, parameter.name):
            return False
        if value.kind not in (Kind.DYN, Kind.ERROR):  # dyn fits everywhere and must not bind the parameter
            self._bound[parameter.name] = value
        return True


def _rename(candidate: Type, number: int) -> Type:
    if candidate.kind is Kind.PARAM:
        return param(f"{candidate.name}{number}")
    if not candidate.params:
        return candidate
    renamed = tuple(_rename(inner, number) for inner in candidate.params)
    return Type(candidate.kind, candidate.name, renamed, candidate.fields)


def _mentions(candidate: Type, name: str) -> bool:
    if candidate.kind is Kind.PARAM:
        return candidate.name == name
    return any(_mentions(inner, name) for inner in candidate.params)
