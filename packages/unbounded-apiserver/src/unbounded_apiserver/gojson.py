"""Decode JSON and YAML from clients into plain Python values, with the messages of Go's decoder for common errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from unbounded_apiserver import yamldoc

MAX_DEPTH: Final = yamldoc.MAX_DEPTH  # code that walks objects recurses one to three calls for each level
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
    """Return the plain values of a JSON document. Raises Malformed."""
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
    """Return the plain values of a YAML document, and go-yaml's messages about duplicate keys. Raises Malformed.

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
        return yamldoc.decode(data)
    except yamldoc.BadYaml as error:
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
