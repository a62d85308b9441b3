"""Configuration files, read with the standard library alone."""

from __future__ import annotations

import json
from typing import Any


def read_yaml(text: str) -> Any:
    """JSON, or the YAML that our configuration files are written in: blocks, lists and plain or quoted scalars."""
    if text.lstrip().startswith(("{", "[")):
        return json.loads(text)
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#") and line != "---"]
    value, rest = _block([(len(line) - len(line.lstrip()), line.strip()) for line in lines])
    assert not rest, rest
    return value


def _block(lines: list[tuple[int, str]]) -> tuple[Any, list[tuple[int, str]]]:
    if not lines:
        return None, []
    depth, first = lines[0]
    return _items(lines, depth) if first.startswith("- ") or first == "-" else _members(lines, depth)


def _items(lines: list[tuple[int, str]], depth: int) -> tuple[list[Any], list[tuple[int, str]]]:
    items: list[Any] = []
    while lines and lines[0][0] == depth and (lines[0][1].startswith("- ") or lines[0][1] == "-"):
        text = lines[0][1][1:].strip()
        lines = lines[1:]
        if text and not text.startswith(("'", '"', "{", "[")) and (text.endswith(":") or ": " in text):
            value, lines = _block([(depth + 2, text), *lines])
        elif text:
            value = _scalar(text)
        else:
            value, lines = _block(lines)
        items.append(value)
    return items, lines


def _members(lines: list[tuple[int, str]], depth: int) -> tuple[dict[str, Any], list[tuple[int, str]]]:
    members: dict[str, Any] = {}
    while lines and lines[0][0] == depth and not lines[0][1].startswith("- "):
        key, _, text = lines[0][1].partition(":")
        text, lines = text.strip(), lines[1:]
        below = bool(lines) and (lines[0][0] > depth or (lines[0][0] == depth and lines[0][1].startswith("- ")))
        if not text and below:
            members[_scalar(key)], lines = _block(lines)
        else:
            members[_scalar(key)] = _scalar(text)
    return members, lines


def _scalar(text: str) -> Any:
    if text[:1] in ('"', "{", "["):
        return json.loads(text)
    if text[:1] == "'":
        return text[1:-1].replace("''", "'")
    words = {"true": True, "false": False, "null": None, "": None}
    if text in words:
        return words[text]
    return int(text) if text.lstrip("-").isdigit() else text


def seconds(text: Any, default: float) -> float:
    """A duration as Go writes it: 10s, 1m30s."""
    units, total, number = {"h": 3600.0, "m": 60.0, "s": 1.0}, 0.0, ""
    for letter in str(text or ""):
        if letter in units:
            total, number = total + float(number) * units[letter], ""
        else:
            number += letter
    return total or default
