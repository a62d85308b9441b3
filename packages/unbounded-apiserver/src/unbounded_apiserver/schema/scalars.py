"""Checks of strings, numbers and booleans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

from unbounded_apiserver.cel.functions.formats import STRING_FORMATS
from unbounded_apiserver.cel.functions.formatting import format_float
from unbounded_apiserver.cel.regexp import compile_pattern
from unbounded_apiserver.schema.errors import (
    JSON_TYPES,
    NO_FIELD,
    Path,
    SchemaProblem,
    invalid,
    render,
    too_long,
    type_invalid,
)
from unbounded_apiserver.schema.structure import Raw

Check: TypeAlias = Callable[[Any, Path, "list[SchemaProblem]"], None]
"""Appends what is wrong with a value that stands at a path."""

_UNLIMITED: Final = 2**63
_REMEMBERED_CHARS: Final = 256
_NO_CONSTRAINT: Final = frozenset(
    {"description", "default", "example", "title", "nullable", "externalDocs"}
)  # of a string or an integer
_GO_FORMATS: Final[Mapping[type, str]] = {int: "int64", float: "float64"}
_FLOAT_FORMATS: Final = frozenset({"double", "float"})
_INTEGER_FORMATS: Final[Mapping[str, tuple[int, int]]] = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}


def mistyped(value: Any, desired: str, path: Path, out: list[SchemaProblem]) -> None:
    found, field = JSON_TYPES.get(type(value), "object"), render(path)
    out.append(SchemaProblem(type_invalid(field, found, f'{field} in body must be of type {desired}: "{found}"'), path))


def _misformatted(value: Any, desired: str, format_name: str, path: Path, out: list[SchemaProblem]) -> None:
    """Report a value of the wrong type where the schema has a format: kube-apiserver then names the format."""
    if not format_name or value is None or isinstance(value, (str, list)):
        mistyped(value, desired, path, out)
        return
    found, field = _GO_FORMATS.get(type(value), ""), render(path)
    out.append(
        SchemaProblem(type_invalid(field, found, f'{field} in body must be of type {format_name}: "{found}"'), path)
    )


def boolean(nullable: bool) -> Check:
    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        if type(value) is not bool and not (value is None and nullable):
            mistyped(value, "boolean", path, out)

    return check


def text(raw: Raw, nullable: bool) -> Check:
    """Return the check of a string.

    Most checked values are strings: this closure compares their lengths itself, and calls other checks only if there
    are any. As in kube-apiserver, a string of the wrong length is not matched with the pattern.
    """
    most = _UNLIMITED if raw.get("maxLength") is None else int(raw["maxLength"])
    least = int(raw.get("minLength") or 0)
    formats = _format_checks(raw)
    format_name = raw["format"] if formats else ""
    wrong, others = [*_length_checks(raw), *formats], [*_pattern_checks(raw), *formats]

    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        if type(value) is str:
            for each in others if least <= len(value) <= most else wrong:
                each(value, path, out)
        elif not (value is None and nullable):
            _misformatted(value, "string", format_name, path, out)

    return check


def text_bounds(raw: Raw) -> tuple[int, int] | None:
    """Return the length limits of a string without other constraints; None for all other schemas."""
    if raw.get("type") != "string" or _keywords(raw) - {"type", "minLength", "maxLength"}:
        return None
    most = raw.get("maxLength")
    return int(raw.get("minLength") or 0), _UNLIMITED if most is None else int(most)


def integer_bounds(raw: Raw) -> tuple[float, float] | None:
    """Return the limits of an integer without other constraints; None for all other schemas."""
    if raw.get("type") != "integer" or _keywords(raw) - {"type", "format", "minimum", "maximum"}:
        return None
    least, most = _integer_limits(raw)
    minimum, maximum = raw.get("minimum"), raw.get("maximum")
    return least if minimum is None else max(least, minimum), most if maximum is None else min(most, maximum)


def _keywords(raw: Raw) -> set[str]:
    return {word for word, value in raw.items() if value is not None} - _NO_CONSTRAINT


def int_or_string(raw: Raw, nullable: bool) -> Check:
    numbers, strings = number_checks(raw), string_checks(raw)

    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        if type(value) is str:
            for each in strings:
                each(value, path, out)
        elif type(value) is int:
            for each in numbers:
                each(value, path, out)
        elif not (value is None and nullable):
            mistyped(value, "integer,string", path, out)

    return check


def number(raw: Raw, name: str, nullable: bool) -> Check:
    checks = number_checks(raw)
    is_integer = name == "integer"
    format_name = raw.get("format", "")
    if format_name not in _INTEGER_FORMATS and format_name not in _FLOAT_FORMATS:
        format_name = ""
    expected = f"{name} with format {format_name}" if is_integer and format_name else f"{name} (default format)"

    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        kind = type(value)
        if kind is not int and not (kind is float and (not is_integer or value.is_integer())):
            if value is None and nullable:
                return
            _misformatted(value, name, format_name, path, out)
            if kind is not float:
                return
            out.append(_unchecked(expected, path))
        for each in checks:
            each(value, path, out)

    return check


def _unchecked(desired: str, path: Path) -> SchemaProblem:
    return SchemaProblem(invalid(NO_FIELD, "", f"Checked value must be of type {desired} in {render(path)}"), path)


def number_checks(raw: Raw) -> list[Check]:
    checks: list[Check] = []
    if raw.get("type") == "integer" or raw.get("x-kubernetes-int-or-string"):
        checks.append(_integer_range(raw))
    if raw.get("multipleOf") is not None:
        checks.append(_multiple_of(float(raw["multipleOf"])))
    if raw.get("maximum") is not None:
        checks.append(_bound(raw["maximum"], upper=True, exclusive=bool(raw.get("exclusiveMaximum"))))
    if raw.get("minimum") is not None:
        checks.append(_bound(raw["minimum"], upper=False, exclusive=bool(raw.get("exclusiveMinimum"))))
    return checks


def _integer_limits(raw: Raw) -> tuple[int, int]:
    return _INTEGER_FORMATS.get(raw.get("format", ""), _INTEGER_FORMATS["int64"])


def _integer_range(raw: Raw) -> Check:
    least, most = _integer_limits(raw)
    name = raw.get("format", "")
    desired = f"integer with format {name}" if name in _INTEGER_FORMATS else "integer (default format)"

    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        if not least <= value <= most:
            out.append(_unchecked(desired, path))

    return check


def _bound(limit: float, *, upper: bool, exclusive: bool) -> Check:
    side = "less" if upper else "greater"
    words = f"should be {side} than {'' if exclusive else 'or equal to '}{format_float(float(limit))}"

    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        over = value - limit if upper else limit - value
        if over > 0 or (exclusive and over == 0):
            field = render(path)
            out.append(SchemaProblem(invalid(field, value, f"{field} in body {words}"), path))

    return check


def _multiple_of(factor: float) -> Check:
    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        field = render(path)
        if value == 0:  # kube-apiserver rejects zero with this message
            detail = f"factor MultipleOf declared for {field} must be positive: 0"
            out.append(SchemaProblem(invalid(field, value, detail), path))
            return
        quotient = value / factor if factor >= 1 else value * (1 / factor)
        if abs(quotient - round(quotient)) > 1e-9 * max(1.0, abs(quotient)):
            detail = f"{field} in body should be a multiple of {format_float(factor)}"
            out.append(SchemaProblem(invalid(field, value, detail), path))

    return check


def string_checks(raw: Raw) -> list[Check]:
    """Return the checks of a string whose schema allows other types too."""
    words = ("minLength", "maxLength", "pattern", "format")
    return [text(raw, nullable=False)] if any(raw.get(word) is not None for word in words) else []


def _length_checks(raw: Raw) -> list[Check]:
    checks: list[Check] = []
    if raw.get("maxLength") is not None:
        checks.append(_max_length(int(raw["maxLength"])))
    if raw.get("minLength"):
        checks.append(_min_length(int(raw["minLength"])))
    return checks


def _pattern_checks(raw: Raw) -> list[Check]:
    return [_pattern(raw["pattern"])] if raw.get("pattern") else []


def _format_checks(raw: Raw) -> list[Check]:
    return [_format(raw["format"])] if raw.get("format") in STRING_FORMATS else []


def _max_length(limit: int) -> Check:
    def check(value: str, path: Path, out: list[SchemaProblem]) -> None:
        if len(value) > limit:
            out.append(SchemaProblem(too_long(render(path), limit), path))

    return check


def _min_length(limit: int) -> Check:
    def check(value: str, path: Path, out: list[SchemaProblem]) -> None:
        if len(value) < limit:
            field = render(path)
            detail = f"{field} in body should be at least {limit} chars long"
            out.append(SchemaProblem(invalid(field, value, detail), path))

    return check


def _cached(check: Callable[[str], bool]) -> Callable[[str], bool]:
    """Cache the check for short strings: most writes change few fields of an object."""
    return lru_cache(maxsize=1024)(check)


def _pattern(pattern: str) -> Check:
    matches = compile_pattern(pattern).matches
    recall = _cached(matches)

    def check(value: str, path: Path, out: list[SchemaProblem]) -> None:
        if not (recall(value) if len(value) <= _REMEMBERED_CHARS else matches(value)):
            field = render(path)
            out.append(SchemaProblem(invalid(field, value, f"{field} in body should match '{pattern}'"), path))

    return check


def _format(name: str) -> Check:
    conforms = STRING_FORMATS[name]
    recall = _cached(conforms)

    def check(value: str, path: Path, out: list[SchemaProblem]) -> None:
        if not (recall(value) if len(value) <= _REMEMBERED_CHARS else conforms(value)):
            field = render(path)
            detail = f'{field} in body must be of type {name}: "{value}"'
            out.append(SchemaProblem(type_invalid(field, value, detail), path))

    return check
