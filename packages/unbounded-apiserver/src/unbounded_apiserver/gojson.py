"""Decode JSON and YAML from clients into plain Python values, with the messages of Go's decoder for common errors.

YAML is read as Kubernetes parses it, in one pass and within bounds. Its scalars are resolved as go-yaml v2 does:
YAML 1.1's booleans, no dates, no numbers in base 60.
"""

from __future__ import annotations

import base64
import binascii
import copy
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
import yaml

_AT: Final = re.compile(r"JSON is malformed: (.*) \(byte (\d+)\)")
_CONTEXTS: Final = {  # msgspec's words for what clients send by mistake, and those of Go's decoder
    "invalid character": "looking for beginning of value",
    "object keys must be strings": "looking for beginning of object key string",
}


class MalformedJson(Exception):
    """Not JSON (or YAML), with a message for the client."""


def _number(text: str) -> int | float:
    """Parse a number as Go would print it: a float without a fraction becomes an integer."""
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"number {text} is out of range")
    return int(value) if value.is_integer() and abs(value) < 1e21 else value


_decoder: Final = msgspec.json.Decoder(float_hook=_number)


def decode(data: bytes) -> Any:
    """Return the plain values of a JSON document. Raises MalformedJson."""
    try:
        value = _decoder.decode(data)
    except RecursionError:
        raise MalformedJson("exceeded max depth") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise MalformedJson(_go_message(data, str(error))) from error
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise MalformedJson("exceeded max depth")
    return value


def _go_message(data: bytes, error: str) -> str:
    """Return the message of Go's decoder where a document ends early or has a wrong word; else that of msgspec."""
    if error == "Input data was truncated":
        return "unexpected end of JSON input"
    found = _AT.fullmatch(error)
    if found is None or found[1] not in _CONTEXTS or int(found[2]) >= len(data):
        return error
    return f"invalid character {chr(data[int(found[2])])!r} {_CONTEXTS[found[1]]}"


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [item for holder in level for item in _members(holder) if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _members(holder: Any) -> Iterable[Any]:
    return holder.values() if isinstance(holder, dict) else holder if isinstance(holder, list) else ()


def decode_yaml(data: bytes) -> tuple[Any, list[str]]:
    """Return the plain values of a YAML document, and go-yaml's messages about duplicate keys. Raises MalformedJson.

    JSON is YAML too, and is decoded faster.
    """
    if data[:1] == b"{":
        try:
            value = decode(data)
        except MalformedJson:
            pass
        else:
            if not duplicate_keys(data, value):
                return value, []
    try:
        return _read_yaml(data)
    except BadYaml as error:
        raise MalformedJson(f"error converting YAML to JSON: yaml: {error}") from error


def duplicate_keys(data: bytes, decoded: Any) -> list[str]:
    """Return the paths of duplicate object keys in a JSON document that `decode` accepted."""
    if len(msgspec.json.encode(decoded)) == len(data):
        return []  # compact JSON, and nothing was lost
    found: dict[int, tuple[Any, list[str]]] = {}

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            seen: set[str] = set()
            twice = [k for k, _ in items if k in seen or seen.add(k)]  # type: ignore[func-returns-value]  # add is None
            found[id(result)] = (result, list(dict.fromkeys(twice)))
        return result

    root = json.loads(data, object_pairs_hook=pairs)
    if not found:
        return []
    paths: list[str] = []
    _locate(root, "", found, paths)
    return sorted(paths)


def _locate(value: Any, path: str, found: dict[int, tuple[Any, list[str]]], paths: list[str]) -> None:
    if isinstance(value, dict):
        paths += [f"{path}.{k}".lstrip(".") for k in found.get(id(value), (None, []))[1]]
        for key, item in value.items():
            _locate(item, f"{path}.{key}".lstrip("."), found, paths)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _locate(item, f"{path}[{index}]", found, paths)


MAX_NODES: Final = 100_000  # aliases followed
MAX_DEPTH: Final = 200  # code that walks objects recurses one to three calls for each level
_MERGE: Final = "<<"
_TAG: Final = "tag:yaml.org,2002:"
_BOOLEANS: Final = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE"), False),
}
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_INTEGER: Final = re.compile(r"[-+]?(0b[01]+|0o[0-7]+|0x[0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INTEGER_CHARACTERS: Final = 70  # longer text is no 64-bit integer in any base
_WHOLE: Final = 1e21  # up to here Go prints a float without a fraction as an integer


class BadYaml(Exception):
    """Not YAML, or larger than the limits."""


def _read_yaml(data: bytes) -> tuple[Any, list[str]]:
    """Return the value of the one document in `data`, and go-yaml's messages about duplicate keys. Raises BadYaml."""
    try:
        parser = yaml.CSafeLoader(data)
        try:
            reader = _Reader(parser.get_event)
            return reader.document(), reader.repeated
        finally:
            parser.dispose()
    except (yaml.YAMLError, ValueError) as error:
        raise BadYaml(str(error)) from error


class _Reader:
    """Build values from the events of the parser."""

    def __init__(self, next_event: Callable[[], Any]) -> None:
        self.repeated: list[str] = []
        self._next = next_event
        self._nodes = 0
        self._anchors: dict[str, tuple[Any, int]] = {}  # value, and its number of nodes

    def document(self) -> Any:
        self._next()  # the stream begins
        event = self._next()
        if isinstance(event, yaml.StreamEndEvent):
            return None
        value = self._value(self._next(), 0)
        self._next()  # the document ends
        if not isinstance(self._next(), yaml.StreamEndEvent):
            raise BadYaml("expected a single document in the stream")
        return value

    def _value(self, event: Any, depth: int) -> Any:
        before = self._nodes
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor)
        self._count(1)
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event)
        elif depth >= MAX_DEPTH:
            raise BadYaml("exceeded max depth")
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(depth + 1)
        else:
            value = self._mapping(depth + 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._nodes - before)
        return value

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise BadYaml("document contains excessive aliasing" if nodes > 1 else "document has too many values")

    def _alias(self, name: str | None) -> Any:
        if name is None or name not in self._anchors:
            raise BadYaml(f"unknown anchor '{name}' referenced")
        value, nodes = self._anchors[name]
        self._count(nodes)
        return copy.deepcopy(value) if isinstance(value, dict | list) else value

    def _sequence(self, depth: int) -> list[Any]:
        items = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._value(event, depth))
        return items

    def _mapping(self, depth: int) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        seen: set[tuple[type, str]] = set()
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            merging = isinstance(event, yaml.ScalarEvent) and event.value == _MERGE and event.implicit[0]
            read = self._value(event, depth)
            key, of = _key(read), self._next()
            value = self._value(of, depth)
            if (type(read), key) in seen:
                written = event.value if isinstance(event, yaml.ScalarEvent) else key
                shown = msgspec.json.encode(key).decode() if isinstance(read, str) else written
                self.repeated.append(f"line {of.start_mark.line + 1}: key {shown} already set in map")
            seen.add((type(read), key))
            if merging:
                merged = {**_merged(value), **merged}
            else:
                own[key] = value
        return {**merged, **own} if merged else own


def _merged(value: Any) -> dict[str, Any]:
    """Return the result of `<<`: a mapping, or several, of which the first with a key wins."""
    found: dict[str, Any] = {}
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, dict):
            raise BadYaml("map merge requires map or sequence of maps as the value")
        found = {**one, **found}
    return found


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, str | int | float):
        return str(key)
    raise BadYaml(f"unsupported map key of type {type(key).__name__}")


def _scalar(event: Any) -> Any:
    text: str = event.value
    tag: str | None = event.tag
    if tag is None or tag == "!":
        return _plain(text) if tag is None and event.implicit[0] else text
    convert = _TAGGED.get(tag.removeprefix(_TAG)) if tag.startswith(_TAG) else None
    if convert is None:
        raise BadYaml(f"cannot decode a value with the tag {tag}")
    return convert(text)


def _plain(text: str) -> Any:
    """Resolve a scalar without quotes and tag."""
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text[0] not in "+-.0123456789":
        return text
    number = text.replace("_", "")
    if len(number) <= _INTEGER_CHARACTERS and _INTEGER.fullmatch(number):
        return _integer(number)
    return _finite(float(number)) if _FLOAT.fullmatch(number) else _infinite(text)


def _integer(text: str) -> int | float:
    digits = text.lstrip("+-")
    base = {"0b": 2, "0o": 8, "0x": 16}.get(digits[:2], 8 if digits[0] == "0" else 10)
    value = int(digits[2:] if digits[1:2] in {"b", "o", "x"} else digits, base)
    value = -value if text[0] == "-" else value
    return value if -(2**63) <= value < 2**64 else float(value)


def _finite(value: float) -> int | float:
    """Return a number as Go prints it: a float without a fraction becomes an integer."""
    if not math.isfinite(value):
        raise BadYaml("number is out of range")
    return int(value) if value.is_integer() and abs(value) < _WHOLE else value


def _infinite(text: str) -> str:
    if text.lstrip("+-").lower() in {".inf", ".nan"}:
        raise BadYaml(f"number {text} is out of range")
    return text


def _as(kind: type, text: str) -> Any:
    value = _plain(text)
    if isinstance(value, bool) and kind is not bool:
        value = text
    if kind is float and isinstance(value, int):
        return value
    if not isinstance(value, kind):
        raise BadYaml(f"cannot decode {text[:40]!r} as a {kind.__name__}")
    return value


def _binary(text: str) -> str:
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode(errors="replace")
    except binascii.Error as error:
        raise BadYaml("!!binary value contains invalid base64 data") from error


_TAGGED: Final[Mapping[str, Callable[[str], Any]]] = {
    "str": str,
    "timestamp": str,
    "null": lambda _: None,
    "bool": lambda text: _as(bool, text),
    "int": lambda text: _as(int, text),
    "float": lambda text: _as(float, text),
    "binary": _binary,
}
