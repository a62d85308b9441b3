"""Descriptions of the built-in types, from which the server decodes, prunes and generates OpenAPI.

A shape has the fields of an object and their types. Decoding returns the object as Kubernetes would print it. Unknown
fields are left out and reported. Wrong types are rejected with the message of Go's decoder. Empty values of fields that
Go marks `omitempty` are left out.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias

from unbounded_apiserver import quantity


class WrongType(Exception):
    """A value that Go could not decode into the type; the message is Go's."""


@dataclass(frozen=True)
class ScalarType:
    """A string, number or boolean, with a further check of its text, and its canonical form."""

    go: str
    json: str
    format: str = ""
    check: Callable[[str], None] | None = None
    rewrite: Callable[[str], str] | None = None


@dataclass(frozen=True)
class ListType:
    """An array.

    With `merge_key`, strategic merge patches match its elements by that field, or by themselves with "".
    Where server-side apply differs, it matches elements by the fields `map_keys`, or takes the list `as_set`.
    """

    item: TypeDesc
    merge_key: str | None = None
    map_keys: tuple[str, ...] = ()
    as_set: bool = False


@dataclass(frozen=True)
class MapType:
    value: TypeDesc


@dataclass(frozen=True)
class AnyType:
    """Any JSON value, kept unchanged."""


@dataclass(frozen=True)
class StructField:
    """A field of a Struct.

    `keep`: a pointer in Go, so that false, 0, "" and {} are kept. `always`: printed even if it was absent. `replaced`:
    a strategic merge patch replaces the object as a whole.
    """

    shape: TypeDesc
    about: str = ""
    keep: bool = False
    always: bool = False
    replaced: bool = False


@dataclass(frozen=True)
class StructType:
    """An object with known fields. `name` is that of the Go type, `about` its description for `kubectl explain`.

    `later` returns the fields on first use, for types that contain themselves. `atomic`: the object has one owner as a
    whole in server-side apply.
    """

    name: str
    fields: Mapping[str, StructField] = field(default_factory=dict)
    about: str = ""
    package: str = "io.k8s.api.core.v1"
    later: Callable[[], Mapping[str, StructField]] | None = None
    atomic: bool = False

    @cached_property
    def always(self) -> tuple[tuple[str, StructField], ...]:
        """The fields that are always printed."""
        return tuple((name, member) for name, member in self.members().items() if member.always)

    @cached_property
    def fits(self) -> Mapping[str, Fits]:
        """For each field, a function that returns whether a value already has the type's form."""
        return {name: _fitting(member.shape) for name, member in self.members().items()}

    def members(self) -> Mapping[str, StructField]:
        return self.fields if self.later is None else self.later()


Fits: TypeAlias = Callable[[Any], bool]
TypeDesc: TypeAlias = "ScalarType | ListType | MapType | AnyType | StructType"


def _check_base64(text: str) -> None:
    compact = text.replace("\n", "").replace("\r", "")
    try:
        base64.b64decode(compact, validate=True)
    except (binascii.Error, ValueError):
        wrong = re.search(r"[^A-Za-z0-9+/=]", compact)
        at = wrong.start() if wrong else len(compact.rstrip("=")) // 4 * 4
        raise WrongType(f"illegal base64 data at input byte {at}") from None


def _one_line(text: str) -> str:
    """Return base64 as Go encodes the same bytes: without line breaks, and with zeros for unused bits."""
    compact = text.replace("\n", "").replace("\r", "")
    return compact[:-4] + base64.b64encode(base64.b64decode(compact[-4:])).decode()


_LAYOUTS: Final = {"2006-01-02T15:04:05Z07:00": "", "2006-01-02T15:04:05.000000Z07:00": r"\.[0-9]{6}"}


def _time_check(layout: str) -> Callable[[str], None]:
    fraction = _LAYOUTS[layout]
    whole = re.compile(rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d{fraction or '([.][0-9]+)?'}(Z|[-+]\d\d:\d\d)")
    seconds = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")

    def check(text: str) -> None:
        if whole.fullmatch(text):
            return
        begun = seconds.match(text)
        rest, element = (text[begun.end() :], ".000000") if begun and fraction else (text, "2006")
        if begun and not fraction:
            rest, element = text[begun.end() :], "Z07:00"
        raise WrongType(f'parsing time "{text}" as "{layout}": cannot parse "{rest}" as "{element}"')

    return check


STRING: Final = ScalarType("string", "string")
BOOL: Final = ScalarType("bool", "boolean")
INT32: Final = ScalarType("int32", "integer", "int32")
INT64: Final = ScalarType("int64", "integer", "int64")
BYTES: Final = ScalarType("[]uint8", "string", "byte", _check_base64, _one_line)
TIME: Final = ScalarType("v1.Time", "string", "date-time", _time_check("2006-01-02T15:04:05Z07:00"))
MICRO_TIME: Final = ScalarType("v1.MicroTime", "string", "date-time", _time_check("2006-01-02T15:04:05.000000Z07:00"))
QUANTITY: Final = ScalarType("resource.Quantity", "quantity")
INT_OR_STRING: Final = ScalarType("intstr.IntOrString", "int-or-string")
FLOAT: Final = ScalarType("float64", "number", "double")
ANYTHING: Final = AnyType()

_LIMITS: Final = {"int32": 1 << 31, "int64": 1 << 63}
_JSON_NAMES: Final = {str: "string", int: "number", float: "number", bool: "bool", list: "array", dict: "object"}
_PYTHON: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "quantity": (str, int, float),
    "int-or-string": (int, str),
}
_ONLY_STRINGS: Final = frozenset({str})
_EXACT: Final = {"string": str, "boolean": bool, "integer": int}  # the others have more than one form


def go_type(shape: TypeDesc) -> str:
    """Return the Go type that a decoding error names."""
    match shape:
        case ScalarType(go=go):
            return go
        case ListType(item=item):
            return f"[]{go_type(item)}"
        case MapType(value=value):
            return f"map[string]{go_type(value)}"
        case StructType(name=name):
            return f"v1.{name}"
        case _:
            return "interface {}"


def decode(shape: StructType, value: Mapping[str, Any], unknown: list[str], *, at: str = "") -> dict[str, Any]:
    """Return the object in the type's form; unknown fields are left out and their paths added to `unknown`.

    Args:
        at: the path of the value in the whole document, for the paths in `unknown`.
    Raises:
        WrongType: a field has another type.
    """
    if type(value) is dict and _struct_fits(shape, value):
        return dict(value)
    return _struct(shape, value, at, "", unknown)


def _fitting(shape: TypeDesc) -> Fits:
    """Return a function that checks whether decoding a value would change, drop or reject nothing.

    Most values pass. The check costs a tenth of a decoding, which tracks paths for its errors.
    """
    match shape:
        case ScalarType():
            exact = _EXACT.get(shape.json)
            if shape.check is None and shape.format not in _LIMITS:
                return lambda value: type(value) is exact
            return lambda value: type(value) is exact and _passes(shape, value)
        case MapType(value=inner):
            all_fit = _all_fitting(inner)
            return lambda value: type(value) is dict and all_fit(value.values())
        case ListType(item=inner):
            all_fit = _all_fitting(inner)
            return lambda value: type(value) is list and all_fit(value)
        case StructType():
            return lambda value: type(value) is dict and _struct_fits(shape, value)
    return lambda value: value is not None


def _all_fitting(shape: TypeDesc) -> Callable[[Collection[Any]], bool]:
    if shape is STRING:
        return lambda values: _ONLY_STRINGS.issuperset(map(type, values))
    fits = _fitting(shape)
    return lambda values: all(map(fits, values))


def _struct_fits(shape: StructType, value: Mapping[str, Any]) -> bool:
    known = shape.fits
    for name, given in value.items():
        fits = known.get(name)
        if fits is None or not given or not fits(given):
            return False
    return not shape.always or all(name in value for name, _ in shape.always)


def _passes(shape: ScalarType, value: Any) -> bool:
    limit = _LIMITS.get(shape.format)
    if limit is not None:
        return bool(-limit <= value < limit)
    if shape.check is None:
        return True
    try:
        shape.check(value)
    except WrongType:
        return False
    return shape.rewrite is None or shape.rewrite(value) == value


def _struct(shape: StructType, value: Mapping[str, Any], at: str, path: str, unknown: list[str]) -> dict[str, Any]:
    members = shape.members()
    result: dict[str, Any] = {}
    for name, given in value.items():
        member = members.get(name)
        if member is None:
            unknown.append(f"{at}.{name}" if at else name)
            continue
        if given is None:
            continue
        inner = f"{path}.{name}" if path else name
        decoded = _value(member.shape, given, f"{at}.{name}" if at else name, inner, f"{shape.name}.{inner}", unknown)
        if member.keep or member.always or not _is_empty(decoded):
            result[name] = decoded
    for name, member in shape.always:
        if name not in result:
            result[name] = _zero(member)
    return result


def _value(shape: TypeDesc, value: Any, at: str, path: str, where: str, unknown: list[str]) -> Any:
    match shape:
        case ScalarType():
            return _scalar(shape, value, where)
        case StructType():
            if not isinstance(value, dict):
                raise _wrong(value, where, shape)
            return _struct(shape, value, at, path, unknown)
        case MapType(value=inner):
            if not isinstance(value, dict):
                raise _wrong(value, where, shape)
            return {
                k: _value(inner, _zero_if_null(v, inner), f"{at}.{k}", path, where, unknown) for k, v in value.items()
            }
        case ListType(item=inner):
            if not isinstance(value, list):
                raise _wrong(value, where, shape)
            return [
                _value(inner, _zero_if_null(v, inner), f"{at}[{i}]", path, where, unknown) for i, v in enumerate(value)
            ]
        case _:
            return value


def _scalar(shape: ScalarType, value: Any, where: str) -> Any:
    if not isinstance(value, _PYTHON[shape.json]) or (isinstance(value, bool) and shape.json != "boolean"):
        raise _wrong(value, where, shape)
    limit = _LIMITS.get(shape.format)
    if limit is not None and isinstance(value, int) and not -limit <= value < limit:
        raise WrongType(f"json: cannot unmarshal number {value} into Go struct field {where} of type {shape.go}")
    if shape.check is not None and isinstance(value, str) and value:
        shape.check(value)
        if shape.rewrite is not None:
            return shape.rewrite(value)
    return _canonical(value) if shape.json == "quantity" else value


def _canonical(value: str | float) -> str:
    """Return an amount as Kubernetes writes it. Raises WrongType."""
    text = str(value).strip()
    found = quantity.canonical(text)
    if found is None:
        raise WrongType(quantity.MALFORMED if text else quantity.EMPTY)
    return found


def _wrong(value: Any, where: str, shape: TypeDesc) -> WrongType:
    kind = _JSON_NAMES.get(type(value), "null")
    shown = f"number {value}" if isinstance(value, float) else kind
    return WrongType(f"json: cannot unmarshal {shown} into Go struct field {where} of type {go_type(shape)}")


def _zero_if_null(value: Any, shape: TypeDesc) -> Any:
    return _zero(StructField(shape)) if value is None else value


def _zero(member: StructField) -> Any:
    match member.shape:
        case ScalarType(json="string", format="date-time"):
            return None
        case ScalarType(json="string"):
            return ""
        case ScalarType(json="boolean"):
            return False
        case ScalarType():
            return 0
        case StructType() as inner:
            return decode(inner, {}, [])
        case _:
            return None


def _is_empty(value: Any) -> bool:
    return not value
