"""The paths of rules' `fieldPath`: dots and quoted keys through a schema, to the field that an error is about."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from unbounded.apiserver.schema.structure import Raw

_STEP: Final = re.compile(r"\.([^.\[\]']+)|\['((?:[^'\\]|\\.)*)'\]")
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "'": "'", "\\": "\\"}


class BadFieldPath(Exception):
    """The path names no field of the schema."""


def resolve_field_path(path: str, raw: Raw) -> str:
    """The path as errors print it (`.spec.a['x.y']` as `spec.a.x.y`, keys of maps in brackets).

    Raises:
        BadFieldPath: it is malformed, or leads nowhere.
    """
    schema: Any = raw
    printed: list[str] = []
    at = 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None or not isinstance(schema, Mapping):
            raise BadFieldPath("must be a valid path")
        name = match[1] if match[1] is not None else _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], ""), match[2])
        additional = schema.get("additionalProperties")
        if schema.get("properties") is None and isinstance(additional, Mapping):
            printed.append(f"[{name}]")
            schema = additional
        elif name in (schema.get("properties") or {}):
            printed.append(f".{name}")
            schema = schema["properties"][name]
        else:
            raise BadFieldPath("must be a valid path")
        at = match.end()
    return "".join(printed).removeprefix(".")
