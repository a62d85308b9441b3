"""Label and field selectors: from text to a predicate, and from an API object's selector to text. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from unbounded.api.meta import LabelSelector, LabelSelectorRequirement

LabelTest = Callable[[Mapping[str, str]], bool]

_KEY: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_SET: Final = re.compile(rf"^({_KEY})\s+(in|notin)\s*\(([^()]*)\)$")
_EQUAL: Final = re.compile(rf"^({_KEY})\s*(==|=|!=)\s*([-A-Za-z0-9_.]*)$")
_EXISTS: Final = re.compile(rf"^(!?)\s*({_KEY})$")

_OPERATORS: Final = {"In": "in", "NotIn": "notin"}


class SelectorError(ValueError):
    """The text is no selector."""


def label_test(text: str) -> LabelTest:
    """The predicate of a label selector (`a=b,c!=d,e in (f,g),!h`); the empty text matches everything.

    Raises:
        SelectorError: it cannot be parsed.
    """
    tests = [_requirement(part.strip()) for part in _parts(text)] if text.strip() else []
    if len(tests) == 1:
        return tests[0]
    return lambda labels: all(test(labels) for test in tests)


def _parts(text: str) -> list[str]:
    """Split a selector at the commas outside parentheses."""
    parts, depth, begins = [], 0, 0
    for at, character in enumerate(text):
        if character == "(":
            depth += 1
        elif character == ")":
            depth = max(depth - 1, 0)
        elif character == "," and not depth:
            parts.append(text[begins:at])
            begins = at + 1
    return [*parts, text[begins:]]


def _requirement(text: str) -> LabelTest:
    key, operator, listed = _parsed(text)
    values = frozenset(listed)
    match operator:
        case "In":
            return lambda labels: labels.get(key) in values
        case "NotIn":
            return lambda labels: labels.get(key) not in values
        case _:
            return lambda labels: (key in labels) is (operator == "Exists")


def field_terms(text: str) -> tuple[tuple[str, bool, str], ...]:
    """Return the terms of a field selector as (path, whether equality is required, value).

    Raises:
        SelectorError: it cannot be parsed.
    """
    terms = []
    for part in (piece.strip() for piece in text.split(",") if piece.strip()):
        path, operator, value = _field_term(part)
        terms.append((path, operator != "!=", value))
    return tuple(terms)


def _field_term(part: str) -> tuple[str, str, str]:
    for operator in ("!=", "==", "="):
        path, found, value = part.partition(operator)
        if found:
            return path.strip(), operator, value.strip()
    raise SelectorError(f'invalid selector: "{part}"; can\'t understand "{part}"')


def field_value(body: Mapping[str, Any], path: str) -> str:
    """Return the value at a dotted path of plain JSON, which a field selector compares; "" if it is absent."""
    value: Any = body
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def selector_text(selector: LabelSelector) -> str:
    """The text form of a LabelSelector, as list and watch take it; the empty selector gives the empty text.

    Raises:
        SelectorError: an operator that does not exist, or one without the values that it needs.
    """
    parts = [f"{key}={value}" for key, value in sorted(selector.match_labels.items())]
    for desired in selector.match_expressions:
        if desired.operator in _OPERATORS and desired.values:
            parts.append(f"{desired.key} {_OPERATORS[desired.operator]} ({','.join(desired.values)})")
        elif desired.operator == "Exists":
            parts.append(desired.key)
        elif desired.operator == "DoesNotExist":
            parts.append(f"!{desired.key}")
        else:
            raise SelectorError(f"{desired.key}: operator {desired.operator!r} with {len(desired.values)} values")
    return ",".join(parts)


def selector_of(text: str) -> LabelSelector:
    """The LabelSelector that means the same as a text such as `a=b,c!=d,e in (f,g),!h`; the inverse of selector_text.

    Raises:
        SelectorError: it cannot be parsed.
    """
    labels: dict[str, str] = {}
    desired: list[LabelSelectorRequirement] = []
    for part in (piece.strip() for piece in _parts(text)):
        key, operator, values = _parsed(part)
        if operator == "In" and len(values) == 1 and "(" not in part and key not in labels:
            labels[key] = values[0]
        else:
            desired.append(LabelSelectorRequirement(key=key, operator=operator, values=values))
    return LabelSelector(match_labels=labels, match_expressions=tuple(desired))


def _parsed(text: str) -> tuple[str, str, tuple[str, ...]]:
    """Key, operator of a LabelSelectorRequirement, values."""
    if found := _SET.match(text):
        key, operator, listed = found.groups()
        return key, "In" if operator == "in" else "NotIn", tuple(value.strip() for value in listed.split(","))
    if found := _EQUAL.match(text):
        key, operator, value = found.groups()
        return key, "NotIn" if operator == "!=" else "In", (value,)
    if found := _EXISTS.match(text):
        absent, key = found.groups()
        return key, "DoesNotExist" if absent else "Exists", ()
    raise SelectorError(f"unable to parse requirement: {text!r}")
