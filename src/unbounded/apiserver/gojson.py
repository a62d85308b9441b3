"""JSON and YAML from clients into plain Python values, with errors in the words of Go's decoder."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec
import yaml

MAX_NODES: Final = 200_000  # of a YAML document, aliases followed
MAX_DEPTH: Final = 200
_SPACE: Final = " \t\r\n"
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


class Malformed(Exception):
    """Not JSON (or YAML); the message is Go's."""


def _number(text: str) -> int | float:
    """Numbers as Go prints them again: a float without a fraction is written as an integer."""
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"number {text} is out of range")
    return int(value) if value.is_integer() and abs(value) < 1e21 else value


_decoder: Final = msgspec.json.Decoder(float_hook=_number)


def decode(data: bytes) -> Any:
    """Plain values of a JSON document. Raises Malformed."""
    try:
        return _decoder.decode(data)
    except RecursionError:
        raise Malformed("exceeded max depth") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise Malformed(explain(data.decode(errors="replace")) or str(error)) from error


def decode_yaml(data: bytes) -> Any:
    """Plain values of a YAML document, with YAML 1.1's booleans as Kubernetes reads them. Raises Malformed."""
    try:
        _check_depth(data)
        value = yaml.load(data, Loader=_Loader)  # noqa: S506 - a safe loader with fewer types
        return _plain(value, [0])
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Malformed(f"error converting YAML to JSON: yaml: {error}") from error


def duplicates(data: bytes, decoded: Any) -> list[str]:
    """Paths of the object keys that stand twice in a JSON document that `decode` accepted."""
    if len(msgspec.json.encode(decoded)) == len(data):
        return []  # written compactly and nothing was lost
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


def repeated_in_yaml(data: bytes) -> list[str]:
    """What go-yaml says of the keys that stand twice in a YAML document that `decode_yaml` accepted."""
    said: list[str] = []
    _tell_repeated(yaml.compose(data, Loader=_Loader), said, set())
    return said


def _tell_repeated(node: yaml.Node | None, said: list[str], seen: set[int]) -> None:
    if node is None or id(node) in seen:  # what an anchor names is told of once
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _tell_repeated(item, said, seen)
    elif isinstance(node, yaml.MappingNode):
        keys: set[tuple[str, str]] = set()
        for key, value in node.value:
            _tell_repeated(value, said, seen)
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in keys:
                shown = msgspec.json.encode(key.value).decode() if key.tag.endswith(":str") else key.value
                said.append(f"line {value.start_mark.line + 1}: key {shown} already set in map")
            keys.add((key.tag, key.value))


def _locate(value: Any, path: str, found: dict[int, tuple[Any, list[str]]], paths: list[str]) -> None:
    if isinstance(value, dict):
        paths += [f"{path}.{k}".lstrip(".") for k in found.get(id(value), (None, []))[1]]
        for key, item in value.items():
            _locate(item, f"{path}.{key}".lstrip("."), found, paths)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _locate(item, f"{path}[{index}]", found, paths)


def _check_depth(data: bytes) -> None:
    """Refuse what the composer, which recurses in C, would not survive."""
    depth = 0
    for event in yaml.parse(data, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError("exceeded max depth")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Loader(yaml.CSafeLoader):
    """YAML as go-yaml reads it for Kubernetes: no dates, `y` and `n` are booleans."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:y|Y|n|N)$"), list("yYnN"))
_Loader.bool_values = {**yaml.CSafeLoader.bool_values, "y": True, "n": False}


def _plain(value: Any, count: list[int]) -> Any:
    count[0] += 1
    if count[0] > MAX_NODES:
        raise ValueError("document contains excessive aliasing")
    if isinstance(value, dict):
        return {_key(k): _plain(v, count) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v, count) for v in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float):
        return _number(repr(value))
    if value is None or isinstance(value, str | int):
        return value
    raise ValueError(f"unsupported value of type {type(value).__name__}")


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, str | int | float):
        return str(key)
    raise ValueError(f"unsupported map key of type {type(key).__name__}")


def explain(text: str) -> str:
    """Why Go's decoder refuses this text; empty when this scanner finds nothing wrong."""
    try:
        end = _skip(text, _value(text, 0, 0))
    except Malformed as error:
        return str(error)
    except RecursionError:
        return "exceeded max depth"
    return f"invalid character {_char(text[end])} after top-level value" if end < len(text) else ""


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _char(char: str) -> str:
    return {"'": r"'\''", '"': "'\"'"}.get(char) or (f"'{char}'" if char.isprintable() else repr(char))


def _expect(text: str, at: int, allowed: str, context: str) -> int:
    at = _skip(text, at)
    if at >= len(text):
        raise Malformed("unexpected end of JSON input")
    if text[at] not in allowed:
        raise Malformed(f"invalid character {_char(text[at])} {context}")
    return at


def _value(text: str, at: int, depth: int) -> int:
    at = _skip(text, at)
    if at >= len(text):
        raise Malformed("unexpected end of JSON input")
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
        raise Malformed(f"invalid character {_char(first)} looking for beginning of value")
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
    while at < len(text):
        char = text[at]
        if char == '"':
            return at + 1
        if char == "\\":
            if at + 1 < len(text) and text[at + 1] not in '"\\/bfnrtu':
                raise Malformed(f"invalid character {_char(text[at + 1])} in string escape code")
            at += 1
        elif char < " ":
            raise Malformed(f"invalid character {_char(char)} in string literal")
        at += 1
    raise Malformed("unexpected end of JSON input")


def _literal(text: str, at: int, word: str) -> int:
    for offset, expected in enumerate(word):
        if at + offset >= len(text):
            raise Malformed("unexpected end of JSON input")
        if text[at + offset] != expected:
            got = _char(text[at + offset])
            raise Malformed(f"invalid character {got} in literal {word} (expecting '{expected}')")
    return at + len(word)
