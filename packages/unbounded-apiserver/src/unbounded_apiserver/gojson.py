"""Decode JSON and YAML from clients into plain Python values, with the error messages of Go's decoder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from unbounded_apiserver import yamldoc

MAX_DEPTH: Final = yamldoc.MAX_DEPTH  # code that walks objects recurses one to three calls for each level
EXPLAINED_BYTES: Final = 128 * 1024
_SPACES: Final = re.compile(r"[ \t\r\n]*")
_TEXT: Final = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


class MalformedJson(Exception):
    """Not JSON (or YAML); the message is Go's."""


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
        why = syntax_error(data.decode(errors="replace")) if len(data) <= EXPLAINED_BYTES else ""
        raise MalformedJson(why or str(error)) from error
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise MalformedJson("exceeded max depth")
    return value


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


def syntax_error(text: str) -> str:
    """Return the message of Go's decoder about this text; '' if this scanner finds no error."""
    try:
        end = _skip(text, _value(text, 0, 0))
    except MalformedJson as error:
        return str(error)
    except RecursionError:
        return "exceeded max depth"
    return f"invalid character {_char(text[end])} after top-level value" if end < len(text) else ""


def _skip(text: str, at: int) -> int:
    match = _SPACES.match(text, at)
    return match.end() if match else at


def _char(char: str) -> str:
    return {"'": r"'\''", '"': "'\"'"}.get(char) or (f"'{char}'" if char.isprintable() else repr(char))


def _expect(text: str, at: int, allowed: str, context: str) -> int:
    at = _skip(text, at)
    if at >= len(text):
        raise MalformedJson("unexpected end of JSON input")
    if text[at] not in allowed:
        raise MalformedJson(f"invalid character {_char(text[at])} {context}")
    return at


def _value(text: str, at: int, depth: int) -> int:
    at = _skip(text, at)
    if at >= len(text):
        raise MalformedJson("unexpected end of JSON input")
    first = text[at]
    if first == "{":
        return _object(text, at + 1, depth + 1)
    if first == "[":
        return _array(text, at + 1, depth + 1)
    if first == '"':
        return _string(text, at + 1)
    for word in ("true", "false", "null"):
        if first == word[0]:
            return _literal(text, at, word)
    number = _NUMBER.match(text, at)
    if number is None:
        raise MalformedJson(f"invalid character {_char(first)} looking for beginning of value")
    return number.end()


def _object(text: str, at: int, depth: int) -> int:
    at = _expect(text, at, '"}', "looking for beginning of object key string")
    if text[at] == "}":
        return at + 1
    while True:
        at = _string(text, at + 1)
        at = _expect(text, at, ":", "after object key")
        at = _value(text, at + 1, depth)
        at = _expect(text, at, ",}", "after object key:value pair")
        if text[at] == "}":
            return at + 1
        at = _expect(text, at + 1, '"', "looking for beginning of object key string")


def _array(text: str, at: int, depth: int) -> int:
    at = _skip(text, at)
    if at < len(text) and text[at] == "]":
        return at + 1
    while True:
        at = _value(text, at, depth)
        at = _expect(text, at, ",]", "after array element")
        if text[at] == "]":
            return at + 1
        at += 1


def _string(text: str, at: int) -> int:
    while (run := _TEXT.match(text, at)) is not None and (at := run.end()) < len(text):
        char = text[at]
        if char == '"':
            return at + 1
        if char == "\\":
            if at + 1 < len(text) and text[at + 1] not in '"\\/bfnrtu':
                raise MalformedJson(f"invalid character {_char(text[at + 1])} in string escape code")
            at += 1
        elif char < " ":
            raise MalformedJson(f"invalid character {_char(char)} in string literal")
        at += 1
    raise MalformedJson("unexpected end of JSON input")


def _literal(text: str, at: int, word: str) -> int:
    for offset, expected in enumerate(word):
        if at + offset >= len(text):
            raise MalformedJson("unexpected end of JSON input")
        if text[at + offset] != expected:
            got = _char(text[at + offset])
            raise MalformedJson(f"invalid character {got} in literal {word} (expecting '{expected}')")
    return at + len(word)
