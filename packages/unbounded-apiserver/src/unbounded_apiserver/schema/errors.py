"""Errors of objects and schemas, their causes worded as by kube-apiserver, and their paths."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from unbounded_apiserver.cel.functions.formatting import format_float, format_json_float, go_quote

Path: TypeAlias = "tuple[Path, str | int] | None"
"""Where a value stands, innermost last: a chain, as most of them are never printed. An int is an index."""
NO_FIELD: Final = "<nil>"
_HTML: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})
_LATE: Final = {"FieldValueNotSupported": 1, "FieldValueDuplicate": 2}
JSON_TYPES: Final[Mapping[type, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
    type(None): "null",
}


@dataclass(frozen=True)
class FieldError:
    """One cause of a rejection, as in `Status.details.causes`.

    Attributes:
        reason: FieldValueInvalid, FieldValueRequired, FieldValueNotSupported, FieldValueTypeInvalid, …
        field: the path, `spec.pxe.dhcpLeases[0].mac`; "<nil>" where Kubernetes has none.
        message: `Invalid value: "x": spec.mac in body should match '^…$'`.
    """

    reason: str
    field: str
    message: str


class SchemaError(Exception):
    """A definition's schema is rejected."""

    def __init__(self, causes: Sequence[FieldError]) -> None:
        self.causes = list(causes)
        super().__init__("; ".join(f"{cause.field}: {cause.message}" for cause in self.causes))


class MapKey(str):
    """A key of a map, which paths show in brackets."""

    __slots__ = ()


class SchemaProblem(NamedTuple):
    """A cause, and the path of the value whose validation found it (for a missing field, the parent's)."""

    error: FieldError
    at: Path


def render(path: Path) -> str:
    """Format a path: `spec.list[0].name`; empty for the root."""
    steps: list[str] = []
    while path is not None:
        path, step = path
        if isinstance(step, (int, MapKey)):
            steps.append(f"[{step}]")
        else:
            steps.append(f".{step}")
    return "".join(reversed(steps)).removeprefix(".")


def steps(path: Path) -> list[str | int]:
    """Return the steps of a path from the root on."""
    found: list[str | int] = []
    while path is not None:
        path, step = path
        found.append(step)
    return found[::-1]


def sort_key(problem: SchemaProblem) -> tuple[int, list[tuple[int, str]]]:
    """Return a sort key for the order in which kube-apiserver lists problems; those of one value keep their order."""
    place = [(step, "") if isinstance(step, int) else (-1, step) for step in steps(problem.at)]
    return _LATE.get(problem.error.reason, 0), place


def go_json(value: Any) -> str:
    """Encode JSON as Go does: keys in order, `<`, `>` and `&` escaped."""
    return _encode(value).translate(_HTML)


def _encode(value: Any) -> str:
    match value:
        case float():
            return format_json_float(value)
        case dict():
            return "{" + ",".join(f"{_encode(str(key))}:{_encode(value[key])}" for key in sorted(value)) + "}"
        case list() | tuple():
            return "[" + ",".join(map(_encode, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def json_equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal as JSON; Python takes 1 for true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(json_equal(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(json_equal, one, other))
    return bool(one == other)


def format_value(value: Any) -> str:
    """Format a value as errors show it."""
    match value:
        case str():
            return go_quote(value)
        case float():
            return format_float(value)
        case _:
            return go_json(value)


def invalid(field: str, value: Any, detail: str) -> FieldError:
    return FieldError("FieldValueInvalid", field, f"Invalid value: {format_value(value)}: {detail}")


def type_invalid(field: str, value: Any, detail: str) -> FieldError:
    return FieldError("FieldValueTypeInvalid", field, f"Invalid value: {format_value(value)}: {detail}")


def required(field: str, detail: str = "") -> FieldError:
    return FieldError("FieldValueRequired", field, f"Required value: {detail}" if detail else "Required value")


def forbidden(field: str, detail: str) -> FieldError:
    return FieldError("FieldValueForbidden", field, f"Forbidden: {detail}")


def duplicate(field: str, value: Any) -> FieldError:
    return FieldError("FieldValueDuplicate", field, f"Duplicate value: {format_value(value)}")


def not_supported(field: str, value: Any, supported: Iterable[Any]) -> FieldError:
    listed = ", ".join(go_quote(one) if isinstance(one, str) else go_quote(format_value(one)) for one in supported)
    return FieldError(
        "FieldValueNotSupported", field, f"Unsupported value: {format_value(value)}: supported values: {listed}"
    )


def too_long(field: str, limit: int) -> FieldError:
    return FieldError("FieldValueTooLong", field, f"Too long: may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> FieldError:
    noun = "item" if limit == 1 else "items"
    return FieldError("FieldValueTooMany", field, f"Too many: {count}: must have at most {limit} {noun}")
