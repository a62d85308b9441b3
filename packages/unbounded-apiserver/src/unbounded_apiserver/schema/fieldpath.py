"""The paths of rules' `fieldPath`: dots and quoted keys through a schema, to the field of an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from unbounded_apiserver.schema.structure import Raw

_STEP: Final = re.compile(r"\.([^.\[\]']+)|\['((?:[^'\\]|\\.)*)'\]")
_WORD: Final = re.compile(r"'(?:[^'\\]|\\.)*'|[.\[\]]|[^.\[\]]+")
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "'": "'", "\\": "\\"}


class BadFieldPath(Exception):
    """The path leads to no field of the schema."""


def selected_field(path: str, raw: Raw) -> Raw:
    """Return the schema of a selectable field such as `.spec.a`.

    Raises:
        BadFieldPath: the path is malformed or leads to no field; the message is kube-apiserver's.
    """
    schema: Any = raw
    words = iter(_WORD.findall(path))
    for word in words:
        if word == "[":
            raise BadFieldPath("array notation is not allowed")
        if word != ".":
            raise BadFieldPath(f"expected [ or . but got: {word}")
        name = next(words, None)
        if name is None:
            raise BadFieldPath("unexpected end of JSON path")
        properties = schema.get("properties")
        schema = schema.get("additionalProperties") if properties is None else properties.get(name)
        if not isinstance(schema, Mapping):
            raise BadFieldPath("does not refer to a valid field")
    return cast(Raw, schema)


def resolve_field_path(path: str, raw: Raw) -> str:
    """Return the path as errors print it (`.spec.a['x.y']` as `spec.a.x.y`, keys of maps in brackets).

    Raises:
        BadFieldPath: the path is malformed or leads to no field.
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
