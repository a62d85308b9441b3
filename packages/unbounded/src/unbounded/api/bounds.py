"""Reported values within the limits of their API fields: of installers, BMCs and agents. Pure.

Nearly every value is within its limits, and 500 hosts report at once: such a value is checked, and not copied.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from unbounded.api.conditions import fit_message
from unbounded.api.crd import unwrapped
from unbounded.api.fields import MAX_LIST, MAX_STRING, ApiStruct

LARGEST_INT: Final = (1 << 63) - 1
MULTILINE: Final = "ekCertificate"  # the only text of several lines

Struct = TypeVar("Struct", bound=ApiStruct)


def bounded(struct: Struct, path: str = "") -> Struct:
    """Return a reported Struct within the limits of its fields: long texts and lists are cut, odd links dropped,
    and unprintable characters become blanks.

    Raises:
        ValueError: a value is impossible; the message begins with the path of its field.
    """
    try:
        return _bounded_struct(struct)
    except _Impossible as error:
        raise ValueError(f"{path}{error.path}".lstrip(".") + f": {error.why}") from None


class _Impossible(Exception):
    """A value that its field cannot have."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.path = ""  # from the Struct that is checked; each level prepends its part


@dataclass(frozen=True, slots=True)
class _Limit:
    """The limits of a field, or of the elements of a list."""

    field: str
    key: str  # its name on the wire
    enum: tuple[str, ...] | None
    pattern: re.Pattern[str] | None
    longest: int
    least: int
    most_items: int
    element: _Limit | None

    def bounded(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, ApiStruct):
            return _bounded_struct(value)
        if isinstance(value, tuple):
            return self._items(value)
        if isinstance(value, int) and not self.least <= value <= LARGEST_INT:
            raise _Impossible(f"must be a number from {self.least} to {LARGEST_INT}")
        return value

    def _text(self, value: str) -> str:
        if self.enum and value not in self.enum:
            raise _Impossible(f"must be one of {', '.join(self.enum)}")
        if self.pattern is not None and not self.pattern.fullmatch(value):
            raise _Impossible(f"must match {self.pattern.pattern}")
        if len(value) <= self.longest and value.isascii() and value.isprintable():
            return value
        lines = value.split("\n") if self.key == MULTILINE else [value]
        return fit_message("\n".join(map(_printable, lines)), self.longest)

    def _items(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        element = self.element
        if element is None:
            return items
        if element.pattern is not None:
            items = tuple(one for one in items if element.pattern.fullmatch(one))
        return tuple(element.at(index, one) for index, one in enumerate(items[: self.most_items]))

    def at(self, index: int, value: Any) -> Any:
        try:
            return self.bounded(value)
        except _Impossible as error:
            error.path = f"[{index}]{error.path}"
            raise


def _bounded_struct(struct: Struct) -> Struct:
    changes = {}
    for limit in _limits(type(struct)):
        value = getattr(struct, limit.field)
        if value is None:
            continue
        try:
            kept = limit.bounded(value)
        except _Impossible as error:
            error.path = f".{limit.key}{error.path}"
            raise
        if kept is not value:
            changes[limit.field] = kept
    return msgspec.structs.replace(struct, **changes) if changes else struct


@functools.cache
def _limits(struct: type[ApiStruct]) -> tuple[_Limit, ...]:
    hints = get_type_hints(struct, include_extras=True)  # too slow for each of hundreds of disks
    return tuple(_limit(info.name, info.encode_name, hints[info.name]) for info in msgspec.structs.fields(struct))


def _limit(field: str, key: str, hint: Any) -> _Limit:
    plain, limit = unwrapped(hint)
    return _Limit(
        field,
        key,
        limit.enum,
        re.compile(limit.pattern) if limit.pattern else None,
        limit.max_length or MAX_STRING,
        limit.minimum or 0,
        limit.max_items or MAX_LIST,
        _limit(field, key, get_args(plain)[0]) if get_origin(plain) is tuple else None,
    )


def _printable(line: str) -> str:
    """Return a line that cannot control the terminal on which a message quotes it."""
    return line if line.isprintable() else "".join(char if char.isprintable() else " " for char in line)
