"""A short notation for shapes with many fields.

    Probe: How kubelet finds out whether a container works.
      exec ExecAction*  Runs a command.
      periodSeconds int32  Seconds from one to the next.

A line without indentation begins a type: its name, modifiers, and its description. Modifiers are:
- `of OTHER`: has all fields of another type,
- `atomic`: has one owner as a whole,
- `meta`: belongs to the package of metadata.

The lines below are its fields: name, type and, after two spaces, a description. A type is one of:
- a scalar,
- `port`: a number or a name,
- `set` of strings, or `mergeset`, which strategic patches merge,
- `any`: kept unchanged,
- another type,
- `[T]`: a list, or `[T]key+key`, whose elements are identified by these fields, and merged by the first,
- `{T}`: a map.

After a type, `*` marks a pointer in Go, so that an empty value is kept; `!` marks a field that is always printed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from unbounded_apiserver.core_types import (
    CONDITION,
    CORE,
    LABEL_SELECTOR,
    LOCAL_REFERENCE,
    META,
    OBJECT_META,
    OBJECT_REFERENCE,
    kind_shape,
)
from unbounded_apiserver.type_desc import (
    ANYTHING,
    BOOL,
    INT32,
    INT64,
    INT_OR_STRING,
    MICRO_TIME,
    QUANTITY,
    STRING,
    TIME,
    ListType,
    MapType,
    StructField,
    StructType,
    TypeDesc,
)

KNOWN: Final[Mapping[str, TypeDesc]] = {
    "any": ANYTHING,
    "bool": BOOL,
    "int32": INT32,
    "int64": INT64,
    "mergeset": ListType(STRING, ""),
    "microtime": MICRO_TIME,
    "port": INT_OR_STRING,
    "quantity": QUANTITY,
    "set": ListType(STRING, as_set=True),
    "string": STRING,
    "time": TIME,
    "Condition": CONDITION,
    "LabelSelector": LABEL_SELECTOR,
    "LocalObjectReference": LOCAL_REFERENCE,
    "ObjectMeta": OBJECT_META,
    "ObjectReference": OBJECT_REFERENCE,
}
_HEAD: Final = re.compile(
    r"(?P<name>\w+)(?: of (?P<base>\w+))?(?P<atomic> atomic)?(?P<meta> meta)?(?:: (?P<about>.*))?"
)
_FIELD: Final = re.compile(r"  (?P<name>\w+) (?P<type>\S+?)(?P<mark>[!*]?)(?:  (?P<about>.*))?")
_LIST: Final = re.compile(r"\[(?P<item>\w+)\](?P<keys>[\w+]*)")


def read(*texts: str, package: str = CORE, known: Mapping[str, TypeDesc] | None = None) -> Mapping[str, StructType]:
    """Return the types of some texts by name; they may reference each other, in any order.

    Args:
        package: the package of the types in OpenAPI.
        known: further types that fields may have.
    """
    last = ""
    members: dict[str, dict[str, StructField]] = {}
    found: dict[str, TypeDesc] = {**KNOWN, **(known or {})}
    begun: list[tuple[str, str]] = []  # a type, and the line of one of its fields
    for line in "\n".join(texts).splitlines():
        if line.startswith("  "):
            begun.append((last, line))
        elif line:
            last, base = _begin(line, members, found, package)
            begun += [(last, inherited) for owner, inherited in begun if owner == base]
    for name, line in begun:
        field = _match(_FIELD, line)
        shape = _shape(field["type"], found)
        members[name][field["name"]] = StructField(
            shape, field["about"] or "", keep=field["mark"] == "*", always=field["mark"] == "!"
        )
    return {name: shape for name, shape in found.items() if isinstance(shape, StructType) and name in members}


def kind(types: Mapping[str, StructType], name: str) -> StructType:
    """Return the shape of a kind whose own fields the notation gives."""
    own = types[name]
    return kind_shape(name, own.about, own.package, own.fields)


def _begin(
    line: str, members: dict[str, dict[str, StructField]], found: dict[str, TypeDesc], package: str
) -> tuple[str, str]:
    """Add a type without its fields; return its name, and that of the type whose fields it also has."""
    head = _match(_HEAD, line)
    name: str = head["name"]
    members[name] = {}
    where = META if head["meta"] else package
    found[name] = StructType(name, members[name], head["about"] or "", where, atomic=bool(head["atomic"]))
    return name, head["base"] or ""


def _shape(text: str, found: Mapping[str, TypeDesc]) -> TypeDesc:
    if text.startswith("{"):
        return MapType(found[text[1:-1]])
    listed = _LIST.fullmatch(text)
    if listed is None:
        return found[text]
    item, keys = found[listed["item"]], tuple(listed["keys"].split("+")) if listed["keys"] else ()
    return ListType(item, keys[0] if keys else None, keys if len(keys) > 1 else ())


def _match(pattern: re.Pattern[str], line: str) -> re.Match[str]:
    match = pattern.fullmatch(line)
    if match is None:
        raise ValueError(f"not in the notation of shapes: {line!r}")
    return match
