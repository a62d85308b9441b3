"""Label and field selectors: parsing as in Kubernetes, with its error messages, and matching.

A label selector is a text in a request, and an object (matchLabels, matchExpressions) in resources.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from unbounded_apiserver import field_errors, name_validation
from unbounded_apiserver.field_errors import quoted
from unbounded_apiserver.schema import FieldError

_TOKEN: Final = re.compile(r"\s*(?:(==|!=|[=!(),<>])|([^\s=!(),<>]+))")
_OPERATORS: Final = "in, notin, =, ==, !=, gt, lt"
NONE: Final = "<none>"
_OBJECT_OPERATORS: Final = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}


class BadSelector(Exception):
    """The selector cannot be parsed; the message is for the client."""


@dataclass(frozen=True)
class LabelRequirement:
    """One term of a label selector: `operator` is in, notin, exists, !, gt or lt."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value is not None and value in self.values
            case "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "!":
                return value is None
        bound = int(next(iter(self.values)))
        if value is None or not _is_integer(value):
            return False
        return int(value) > bound if self.operator == "gt" else int(value) < bound


LabelSelector = tuple[LabelRequirement, ...]


def labels_match(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    return all(requirement.matches(labels) for requirement in selector)


def parse_labels(text: str) -> LabelSelector:
    """Parse `app=a,tier in (1,2),!old`. Raises BadSelector."""
    return _Parser(text).parse() if text.strip() else ()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [(m[1] or m[2], bool(m[1])) for m in _TOKEN.finditer(text)]
        self._at = 0

    def parse(self) -> LabelSelector:
        if not self._at_requirement():
            raise BadSelector(f"found '{self._peek()}', expected: !, identifier, or 'end of string'")
        found = [self._requirement()]
        while (word := self._next()) != "":
            if word != ",":
                raise BadSelector(f"found '{word}', expected: ',' or 'end of string'")
            if not self._at_requirement():
                raise BadSelector(f"found '{self._peek()}', expected: identifier after ','")
            found.append(self._requirement())
        return tuple(found)

    def _at_requirement(self) -> bool:
        return self._peek() == "!" or self._at_word()

    def _at_word(self) -> bool:
        return self._at < len(self._tokens) and not self._tokens[self._at][1]

    def _peek(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _requirement(self) -> LabelRequirement:
        negated = self._peek() == "!"
        if negated:
            self._next()
        if not self._at_word():
            raise BadSelector(f"unable to parse requirement: found '{self._peek()}', expected: identifier")
        key = self._next()
        _check([_wrong("<nil>", key, name_validation.qualified_name(key))])
        if negated:
            return LabelRequirement(key, "!")
        if self._peek() in {"", ","}:
            return LabelRequirement(key, "exists")
        return self._compared(key, self._next())

    def _compared(self, key: str, operator: str) -> LabelRequirement:
        match operator:
            case "=" | "==" | "!=":
                values = frozenset({self._exact()})
            case "in" | "notin":
                values = self._set()
            case ">" | "<" | "gt" | "lt":
                values = frozenset({self._exact()})
            case _:
                raise BadSelector(f"unable to parse requirement: found '{operator}', expected: {_OPERATORS}")
        name = {"=": "in", "==": "in", "!=": "notin", ">": "gt", "<": "lt"}.get(operator, operator)
        complaints = []
        for index, value in enumerate(sorted(values)):
            if name in {"gt", "lt"} and not _is_integer(value):
                why = ("for 'Gt', 'Lt' operators, the value must be an integer",)
                complaints.append(_wrong(f"values[{index}]", value, why))
            complaints.append(_wrong(f"values[{index}][{key}]", value, name_validation.label_value(value)))
        _check(complaints)
        return LabelRequirement(key, name, values)

    def _exact(self) -> str:
        if self._peek() in {"", ","}:
            return ""
        value = self._next()
        if self._tokens[self._at - 1][1]:
            raise BadSelector(f"unable to parse requirement: found '{value}', expected: identifier")
        return value

    def _set(self) -> frozenset[str]:
        if (word := self._next()) != "(":
            raise BadSelector(f"unable to parse requirement: found '{word}' expected: '('")
        if not (self._at_word() or self._peek() in {",", ")"}):
            raise BadSelector(f"unable to parse requirement: found '{self._peek()}', expected: ',', ')' or identifier")
        values: set[str] = set()
        while True:
            if self._at_word():
                values.add(self._next())
                if self._peek() not in {",", ")"}:
                    raise BadSelector(f"unable to parse requirement: found '{self._peek()}', expected: ',' or ')'")
            elif self._peek() in {",", ")"}:
                values.add("")
            else:
                raise BadSelector(f"unable to parse requirement: found '{self._peek()}', expected: ',', or identifier")
            if self._next() == ")":
                return frozenset(values)


def _is_integer(text: str) -> bool:
    return bool(re.fullmatch(r"[-+]?[0-9]+", text)) and -(1 << 63) <= int(text) < 1 << 63


def _wrong(field: str, value: str, why: tuple[str, ...]) -> str:
    return f"{field}: Invalid value: {quoted(value)}: {'; '.join(why)}" if why else ""


def _check(complaints: list[str]) -> None:
    distinct = list(dict.fromkeys(filter(None, complaints)))
    if distinct:
        listed = distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"
        raise BadSelector(f"unable to parse requirement: {listed}")


@dataclass(frozen=True)
class FieldRequirement:
    """One term of a field selector."""

    field: str
    value: str
    equal: bool


FieldSelector = tuple[FieldRequirement, ...]


def parse_fields(text: str) -> FieldSelector:
    r"""Parse `metadata.name=a,status.phase!=Failed`; `\,`, `\=` and `\\` are escapes. Raises BadSelector."""
    terms = []
    for part in _split(text):
        match = re.match(r"((?:[^=!\\]|\\.)*?)(!=|==|=)(.*)$", part, re.DOTALL)
        if match is None:
            raise BadSelector(f"invalid selector: '{text}'; can't understand '{part}'")
        field, operator, value = match.groups()
        terms.append(FieldRequirement(field, re.sub(r"\\([\\,=])", r"\1", value), operator != "!="))
    return tuple(terms)


def _split(text: str) -> list[str]:
    parts = re.findall(r"((?:[^,\\]|\\.)*)(?:,|$)", text, re.DOTALL)
    return [part for part in parts if part]


def from_object(selector: Mapping[str, Any] | None) -> LabelSelector:
    """Return the requirements of a well-formed selector; none for an empty one, which matches everything."""
    given = selector or {}
    equal = [LabelRequirement(key, "in", frozenset({value})) for key, value in (given.get("matchLabels") or {}).items()]
    other = [
        LabelRequirement(one["key"], _OBJECT_OPERATORS[one["operator"]], frozenset(one.get("values") or ()))
        for one in given.get("matchExpressions") or ()
    ]
    return (*equal, *other)


def check_object(selector: Mapping[str, Any], at: str) -> Iterator[FieldError]:
    """Yield the errors of a selector, worded as by Kubernetes."""
    for key, value in (selector.get("matchLabels") or {}).items():
        yield from (field_errors.invalid(f"{at}.matchLabels", key, why) for why in name_validation.qualified_name(key))
        yield from (field_errors.invalid(f"{at}.matchLabels", value, why) for why in name_validation.label_value(value))
    for index, one in enumerate(selector.get("matchExpressions") or ()):
        yield from _check_requirement(one, f"{at}.matchExpressions[{index}]")


def _check_requirement(one: Mapping[str, Any], at: str) -> Iterator[FieldError]:
    values = one.get("values") or ()
    match one["operator"]:
        case "In" | "NotIn":
            if not values:
                yield field_errors.required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        case "Exists" | "DoesNotExist":
            if values:
                why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                yield field_errors.forbidden(f"{at}.values", why)
        case other:
            yield field_errors.invalid(f"{at}.operator", other, "not a valid selector operator")
    yield from (
        field_errors.invalid(f"{at}.key", one["key"], why) for why in name_validation.qualified_name(one["key"])
    )
    for index, value in enumerate(values):
        yield from (
            field_errors.invalid(f"{at}.values[{index}]", value, why) for why in name_validation.label_value(value)
        )


def format_object(selector: Mapping[str, Any] | None) -> str:
    """Format a selector as kubectl prints it: app=a,tier in (1,2),!old."""
    given = selector or {}
    terms = {key: f"{key}={value}" for key, value in (given.get("matchLabels") or {}).items()}
    words = []
    for one in given.get("matchExpressions") or ():
        key, values = one["key"], ",".join(sorted(one.get("values") or ()))
        words.append(
            {
                "In": f"{key} in ({values})",
                "NotIn": f"{key} notin ({values})",
                "Exists": key,
                "DoesNotExist": f"!{key}",
            }[one["operator"]]
        )
    return ",".join(sorted([*terms.values(), *words])) or NONE
