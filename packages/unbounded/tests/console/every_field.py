"""Objects with an attacking text in each field that holds a text: by the types of the API, so also in later fields.

The API server accepts no such text in names, labels and many other fields. These objects are written into its store,
below the validation, as a server with a fault, or with other rules, would serve them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import count
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec
from msgspec.structs import fields as struct_fields

from tests.console.hostile import PAYLOADS, SET
from unbounded.api.fields import combined
from unbounded.api.meta import Kind

Raw = dict[str, Any]
NAME: Final = f"<img src=x onerror={SET}>"  # of all objects, with no part of a path
NOW: Final = "2030-01-01T00:00:00Z"
_TIME: Final = re.compile(r"(_time|_timestamp|_at|^at|^since|^until|^renewed)$")
_NAMES: Final = frozenset({"name", "namespace", "generate_name"})


class FieldTexts:
    """Attacking texts for fields, each with the name of its field.

    Args:
        fixed: values of fields, by their names or by `Type.name`, that have no free text.
    """

    def __init__(self, fixed: Mapping[str, Any]) -> None:
        self._fixed = fixed
        self._payloads = count()

    def object_of(self, kind: Kind[Any], metadata: Raw) -> Raw:
        """Return an object with a text in each of its fields, but for those of its metadata that are given."""
        body: Raw = self._value(kind.type, kind.kind, "")
        generated = {key: one for key, one in body["metadata"].items() if key not in ("deletionTimestamp", "namespace")}
        return {**body, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": {**generated, **metadata}}

    def _value(self, kind: Any, owner: str, name: str) -> Any:
        for key in (f"{owner}.{name}", name):
            if key in self._fixed:
                return self._fixed[key]
        origin, args = get_origin(kind), get_args(kind)
        if origin is Annotated:
            field = combined(args[1:])
            if field.format == "date-time":
                return NOW
            return field.enum[0] if field.enum else self._value(args[0], owner, name)
        if origin in (Union, UnionType):
            arms = [one for one in args if one is not type(None)]
            return self._value(str if str in arms else arms[0], owner, name)
        if origin is tuple:
            return [self._value(args[0], owner, name)]
        if origin is dict:
            return {self._text(owner, name): self._value(args[1], owner, name)}
        return self._plain(kind, owner, name)

    def _plain(self, kind: Any, owner: str, name: str) -> Any:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return {one.encode_name: self._value(one.type, kind.__name__, one.name) for one in struct_fields(kind)}
        if kind is bool:
            return True
        if kind in (int, float):
            return 1
        if kind is str:
            return NOW if _TIME.search(name) else self._text(owner, name)
        return {}

    def _text(self, owner: str, name: str) -> str:
        return f"{PAYLOADS[next(self._payloads) % len(PAYLOADS)]} {owner}.{name}"


def drawn_texts(part: Any) -> Iterator[str]:
    """Yield all texts in the data of a view."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, (tuple, list)):
        for one in part:
            yield from drawn_texts(one)
    elif is_dataclass(part) and not isinstance(part, type):
        for field in fields(part):
            if field.name != "path":
                yield from drawn_texts(getattr(part, field.name))


def is_attack(text: str) -> bool:
    """Return whether a text has one of the attacking texts."""
    return any(payload in text for payload in PAYLOADS) or NAME in text
