"""The field errors of built-in validation, worded as in Kubernetes' field package."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from unbounded_apiserver import name_validation
from unbounded_apiserver.schema import FieldError

REASON_BYTES: Final = 1024
MESSAGE_BYTES: Final = 32768
_STATES: Final = ["False", "True", "Unknown"]
_REASON: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_BAD_REASON: Final = (
    "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric "
    "characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or "
    "'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is "
    "'[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')"
)

__all__ = [
    "FieldError",
    "check_conditions",
    "duplicate",
    "forbidden",
    "go_text",
    "immutable",
    "invalid",
    "not_found",
    "required",
    "too_long",
    "unsupported",
]


def quoted(value: Any) -> str:
    """Format a value as messages show it: strings quoted, the rest as JSON."""
    return msgspec.json.encode(value).decode()


def go_text(value: Any) -> str:
    """Format a value as Go prints it with %v: map[a:1 b:[x y]]."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{k}:{go_text(v)}' for k, v in sorted(value.items()))}]"
    if isinstance(value, list):
        return f"[{' '.join(go_text(v) for v in value)}]"
    if value is None:
        return "<nil>"
    return str(value).lower() if isinstance(value, bool) else str(value)


def invalid(field: str, value: Any, why: str) -> FieldError:
    return FieldError("FieldValueInvalid", field, f"Invalid value: {quoted(value)}: {why}")


def immutable(field: str, value: Any) -> FieldError:
    return invalid(field, value, "field is immutable")


def required(field: str, why: str = "") -> FieldError:
    return FieldError("FieldValueRequired", field, f"Required value: {why}" if why else "Required value")


def forbidden(field: str, why: str) -> FieldError:
    return FieldError("FieldValueForbidden", field, f"Forbidden: {why}")


def unsupported(field: str, value: Any, supported: list[str]) -> FieldError:
    known = ", ".join(f'"{s}"' for s in supported)
    return FieldError("FieldValueNotSupported", field, f"Unsupported value: {quoted(value)}: supported values: {known}")


def duplicate(field: str, value: Any) -> FieldError:
    return FieldError("FieldValueDuplicate", field, f"Duplicate value: {quoted(value)}")


def too_long(field: str, limit: int) -> FieldError:
    return FieldError("FieldValueTooLong", field, f"Too long: may not be more than {limit} bytes")


def not_found(field: str, value: Any) -> FieldError:
    return FieldError("FieldValueNotFound", field, f"Not found: {quoted(value)}")


def check_conditions(conditions: Iterable[Mapping[str, Any]], at: str) -> Iterator[FieldError]:
    """Yield the errors of the conditions of a status (the type Condition that all kinds share)."""
    seen = set[str]()
    for index, condition in enumerate(conditions):
        where = f"{at}[{index}]"
        if condition["type"] in seen:
            yield duplicate(f"{where}.type", condition["type"])
        seen.add(condition["type"])
        yield from _check_condition(condition, where)


def _check_condition(condition: Mapping[str, Any], where: str) -> Iterator[FieldError]:
    for why in name_validation.qualified_name(condition["type"]):
        yield invalid(f"{where}.type", condition["type"], why)
    if condition["status"] not in _STATES:
        yield unsupported(f"{where}.status", condition["status"], _STATES)
    if (generation := condition.get("observedGeneration", 0)) < 0:
        yield invalid(f"{where}.observedGeneration", generation, "must be greater than or equal to zero")
    if condition.get("lastTransitionTime") is None:
        yield required(f"{where}.lastTransitionTime", "must be set")
    if not (reason := condition["reason"]):
        yield required(f"{where}.reason", "must be set")
    elif not _REASON.fullmatch(reason):
        yield invalid(f"{where}.reason", reason, _BAD_REASON)
    for name, limit in (("reason", REASON_BYTES), ("message", MESSAGE_BYTES)):
        if len(condition[name].encode()) > limit:
            yield too_long(f"{where}.{name}", limit)
