"""The JSONPath of printer columns: fields, indexes, wildcards and equality filters, as far as CRDs may use them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

_STEP: Final = re.compile(
    r"""\.\.(?P<deep>[A-Za-z_][\w-]*)
      | \.(?P<field>(?:\\.|[^.\[\]\\*])+)
      | (?P<all>\.\*|\[\*\])
      | \['(?P<quoted>(?:[^'\\]|\\.)*)'\]
      | \["(?P<double>(?:[^"\\]|\\.)*)"\]
      | \[(?P<index>-?\d+)\]
      | \[(?P<slice>-?\d*:-?\d*)\]
      | \[\?\(\s*@(?P<left>(?:\.[A-Za-z_][\w-]*)*)\s*
            (?:(?P<op>==|!=|<=|>=|<|>)\s*(?P<right>"[^"]*"|'[^']*'|[-\w.]+))?\s*\)\]
    """,
    re.VERBOSE,
)

Step = Callable[[Any], Iterable[Any]]


class BadPath(Exception):
    """The path cannot be parsed."""


@lru_cache(maxsize=1024)
def compile_path(path: str) -> Callable[[Any], list[Any]]:
    """Return a function that finds all values of a path like `.spec.a[?(@.type=="Ready")].status`. Raises BadPath."""
    steps: list[Step] = []
    at = 0
    text = path.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            raise BadPath(f"unrecognized text in {path!r} at {text[at:]!r}")
        steps.append(_step(match))
        at = match.end()

    def find(value: Any) -> list[Any]:
        found = [value]
        for step in steps:
            found = [inner for outer in found for inner in step(outer)]
        return found

    return find


def _step(match: re.Match[str]) -> Step:
    kind = match.lastgroup
    if match["left"] is not None:
        return _filter(match["left"], match["op"], match["right"])
    if kind in {"field", "quoted", "double"}:
        name = re.sub(r"\\(.)", r"\1", match[kind])
        return lambda value: (value[name],) if isinstance(value, Mapping) and name in value else ()
    if kind == "all":
        return _children
    if kind == "deep":
        return lambda value: _deep(value, match["deep"])
    if kind == "index":
        index = int(match["index"])
        return lambda value: value[index : index + 1 or None] if isinstance(value, list) else ()
    first, last = (int(part) if part else None for part in match["slice"].split(":"))
    return lambda value: value[first:last] if isinstance(value, list) else ()


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def _deep(value: Any, name: str) -> Iterable[Any]:
    if isinstance(value, Mapping) and name in value:
        yield value[name]
    for child in _children(value):
        yield from _deep(child, name)


def _filter(left: str, operator: str | None, right: str | None) -> Step:
    find = compile_path(left)

    def holds(item: Any) -> bool:
        found = find(item)
        if operator is None or right is None:
            return bool(found)
        return any(_compare(value, operator, right) for value in found)

    return lambda value: [item for item in _children(value) if holds(item)]


def _compare(value: Any, operator: str, text: str) -> bool:
    desired: Any = text[1:-1] if text[0] in "\"'" else {"true": True, "false": False}.get(text, _number(text))
    if operator == "==":
        return bool(value == desired)
    if operator == "!=":
        return bool(value != desired)
    if type(value) is not type(desired) and not (isinstance(value, int | float) and isinstance(desired, int | float)):
        return False
    compared = {"<": value < desired, "<=": value <= desired, ">": value > desired, ">=": value >= desired}
    return bool(compared[operator])


def _number(text: str) -> int | float | str:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text
