"""The field errors of built-in validation, worded as in Kubernetes' field package."""

from __future__ import annotations

from typing import Any

import msgspec

from unbounded_apiserver.schema import FieldError

__all__ = [
    "FieldError",
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
