"""Types of expressions; declarations of variables (a type and the sizes that a schema promises) and of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, TypeAlias


class TypeKind(Enum):
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
class CelType:
    """A CEL type. `fields` belongs to object types only and is no part of their identity: the name is."""

    kind: TypeKind
    name: str
    params: tuple[CelType, ...] = ()
    fields: Mapping[str, PropertyDecl] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        if not self.params:
            return self.name
        return f"{self.name}({', '.join(str(param) for param in self.params)})"


@dataclass(frozen=True, slots=True)
class Decl:
    """A type with bounds: the greatest number of elements (or characters), and the least size as JSON."""

    type: CelType
    max_elements: int = 0
    min_size: int = 1
    element: Decl | None = None
    key: Decl | None = None
    map_keys: tuple[str, ...] | None = None  # of a list with x-kubernetes-list-type map; () means set


@dataclass(frozen=True, slots=True)
class PropertyDecl:
    """A property of an object: its name in the data differs from that in expressions when it is escaped."""

    data_name: str
    decl: Decl


DYN: Final = CelType(TypeKind.DYN, "dyn")
ERROR: Final = CelType(TypeKind.ERROR, "!error!")
NULL: Final = CelType(TypeKind.NULL, "null")
BOOL: Final = CelType(TypeKind.PRIMITIVE, "bool")
INT: Final = CelType(TypeKind.PRIMITIVE, "int")
UINT: Final = CelType(TypeKind.PRIMITIVE, "uint")
DOUBLE: Final = CelType(TypeKind.PRIMITIVE, "double")
STRING: Final = CelType(TypeKind.PRIMITIVE, "string")
BYTES: Final = CelType(TypeKind.PRIMITIVE, "bytes")
TIMESTAMP: Final = CelType(TypeKind.PRIMITIVE, "timestamp")
DURATION: Final = CelType(TypeKind.PRIMITIVE, "duration")
URL: Final = CelType(TypeKind.OPAQUE, "kubernetes.URL")
QUANTITY: Final = CelType(TypeKind.OPAQUE, "kubernetes.Quantity")
FORMAT: Final = CelType(TypeKind.OPAQUE, "kubernetes.NamedFormat")
SEMVER: Final = CelType(TypeKind.OPAQUE, "kubernetes.Semver")
IP: Final = CelType(TypeKind.OPAQUE, "net.IP")
CIDR: Final = CelType(TypeKind.OPAQUE, "net.CIDR")

SCALARS: Final = frozenset({BOOL, DOUBLE, DURATION, INT, TIMESTAMP, UINT})
COMPARABLE: Final = (INT, UINT, DOUBLE, BOOL, DURATION, TIMESTAMP, STRING, BYTES)


def list_of(element: CelType) -> CelType:
    return CelType(TypeKind.LIST, "list", (element,))


def map_of(key: CelType, value: CelType) -> CelType:
    return CelType(TypeKind.MAP, "map", (key, value))


def optional_of(value: CelType) -> CelType:
    return CelType(TypeKind.OPAQUE, "optional_type", (value,))


def type_of_types(value: CelType) -> CelType:
    return CelType(TypeKind.TYPE, "type", (value,))


def param(name: str) -> CelType:
    return CelType(TypeKind.PARAM, name)


def is_optional(candidate: CelType) -> bool:
    return candidate.kind is TypeKind.OPAQUE and candidate.name == "optional_type"


TYPE_NAMES: Final[Mapping[str, CelType]] = {
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


class TypeBindings:
    """The inferred type parameters of one expression."""

    def __init__(self) -> None:
        self._bound: dict[str, CelType] = {}
        self._fresh = 0

    def fresh(self, signature: Iterable[CelType]) -> tuple[CelType, ...]:
        """Return the signature with its own parameters, so that two calls of a function do not share them."""
        self._fresh += 1
        return tuple(_rename(part, self._fresh) for part in signature)

    def new_param(self) -> CelType:
        self._fresh += 1
        return param(f"_{self._fresh}")

    def resolve(self, candidate: CelType) -> CelType:
        """Return the type with all known parameters filled in; unknown ones stay."""
        if candidate.kind is TypeKind.PARAM:
            bound = self._bound.get(candidate.name)
            return candidate if bound is None else self.resolve(bound)
        if not candidate.params:
            return candidate
        return CelType(candidate.kind, candidate.name, tuple(map(self.resolve, candidate.params)), candidate.fields)

    def final(self, candidate: CelType) -> CelType:
        """Return the type like `resolve`, with dyn for parameters that stay unknown."""
        resolved = self.resolve(candidate)
        if resolved.kind is TypeKind.PARAM:
            return DYN
        if not resolved.params:
            return resolved
        return CelType(resolved.kind, resolved.name, tuple(map(self.final, resolved.params)), resolved.fields)

    def all_assignable(self, given: Iterable[CelType], desired: Iterable[CelType]) -> bool:
        """Return whether each given type is assignable to the wanted one; binds parameters only if all are."""
        before = dict(self._bound)
        if all(self._assignable(one, other) for one, other in zip(given, desired, strict=True)):
            return True
        self._bound = before
        return False

    def assignable(self, given: CelType, desired: CelType) -> bool:
        return self.all_assignable((given,), (desired,))

    def _assignable(self, given: CelType, desired: CelType) -> bool:
        given, desired = self.resolve(given), self.resolve(desired)
        if given == desired:
            return True
        for one, other in ((desired, given), (given, desired)):
            if one.kind is TypeKind.PARAM:
                return self._bind(one, other)
        if {given.kind, desired.kind} & {TypeKind.DYN, TypeKind.ERROR}:
            return True
        if given.kind is TypeKind.NULL:
            return desired.kind in (TypeKind.OBJECT, TypeKind.OPAQUE) or desired in (TIMESTAMP, DURATION)
        if desired.kind is TypeKind.NULL:
            return given.kind in (TypeKind.OBJECT, TypeKind.OPAQUE) or given in (TIMESTAMP, DURATION)
        if given.kind is not desired.kind or given.name != desired.name or len(given.params) != len(desired.params):
            return False
        return all(self._assignable(one, other) for one, other in zip(given.params, desired.params, strict=True))

    def _bind(self, parameter: CelType, value: CelType) -> bool:
        if _mentions(value, parameter.name):
            return False
        if value.kind not in (TypeKind.DYN, TypeKind.ERROR):  # dyn fits everywhere and must not bind the parameter
            self._bound[parameter.name] = value
        return True


def _rename(candidate: CelType, number: int) -> CelType:
    if candidate.kind is TypeKind.PARAM:
        return param(f"{candidate.name}{number}")
    if not candidate.params:
        return candidate
    renamed = tuple(_rename(inner, number) for inner in candidate.params)
    return CelType(candidate.kind, candidate.name, renamed, candidate.fields)


def _mentions(candidate: CelType, name: str) -> bool:
    if candidate.kind is TypeKind.PARAM:
        return candidate.name == name
    return any(_mentions(inner, name) for inner in candidate.params)


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function. The first parameter of a method is the receiver.

    Attributes:
        id: stable name, as in cel-go; the key of cost tables.
        apply: computes the result; raises EvalError.
    """

    function: str
    id: str
    params: tuple[CelType, ...]
    result: CelType
    apply: Callable[..., Any]
    method: bool = False


Table: TypeAlias = Mapping[str, tuple[Overload, ...]]


def function(
    name: str, overload_id: str, params: Iterable[CelType], result: CelType, apply: Callable[..., Any]
) -> Overload:
    return Overload(name, overload_id, tuple(params), result, apply)


def method(
    name: str, overload_id: str, params: Iterable[CelType], result: CelType, apply: Callable[..., Any]
) -> Overload:
    """Return a `function` that is called as `receiver.name(…)`; the receiver is the first of `params`."""
    return Overload(name, overload_id, tuple(params), result, apply, method=True)


def table(*libraries: Iterable[Overload]) -> Table:
    """Return all overloads by function name."""
    found: dict[str, list[Overload]] = {}
    for library in libraries:
        for overload in library:
            found.setdefault(overload.function, []).append(overload)
    return {name: tuple(overloads) for name, overloads in found.items()}
