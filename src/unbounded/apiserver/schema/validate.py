"""Schemas to closures that validate values; the closures append what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

from unbounded.apiserver.cel.formats import STRING_FORMATS
from unbounded.apiserver.cel.functions.numbers import format_float
from unbounded.apiserver.cel.regexp import compile_pattern
from unbounded.apiserver.schema.embedded import check_embedded
from unbounded.apiserver.schema.structure import Raw
from unbounded.apiserver.schema.words import (
    JSON_TYPES,
    NO_FIELD,
    Path,
    Problem,
    duplicate,
    go_json,
    invalid,
    not_supported,
    render,
    required,
    too_long,
    too_many,
    type_invalid,
)

Check: TypeAlias = Callable[[Any, Path, "list[Problem]"], None]

_UNLIMITED: Final = 2**63
_REMEMBERED_CHARS: Final = 256
_INTEGER_FORMATS: Final[Mapping[str, tuple[int, int]]] = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}


def validator(raw: Raw) -> Check:
    """The check of values against a schema.

    It reports what kube-apiserver reports, including what follows from a value of the wrong type.
    """
    typed = _typed(raw)
    common = _common(raw)
    if not common:
        return typed

    def check(value: Any, path: Path, out: list[Problem]) -> None:
        typed(value, path, out)
        if value is not None or not raw.get("nullable"):
            for each in common:
                each(value, path, out)

    return check


def _typed(raw: Raw) -> Check:
    nullable = bool(raw.get("nullable"))
    if raw.get("x-kubernetes-int-or-string"):
        return _int_or_string(raw, nullable)
    match raw.get("type"):
        case "object":
            return _object(raw, nullable)
        case "array":
            return _array(raw, nullable)
        case "string":
            return _text(raw, nullable)
        case "boolean":
            return _boolean(nullable)
        case "integer":
            return _number(raw, "integer", nullable)
        case "number":
            return _number(raw, "number", nullable)
        case _:
            return _untyped(raw)


def _mistyped(value: Any, wanted: str, path: Path, out: list[Problem]) -> None:
    found, field = JSON_TYPES.get(type(value), "object"), render(path)
    out.append(Problem(type_invalid(field, found, f'{field} in body must be of type {wanted}: "{found}"'), path))


# scalars


def _boolean(nullable: bool) -> Check:
    def check(value: Any, path: Path, out: list[Problem]) -> None:
        if type(value) is not bool and not (value is None and nullable):
            _mistyped(value, "boolean", path, out)

    return check


def _text(raw: Raw, nullable: bool) -> Check:
    """Strings are most of what is checked: their lengths are compared here, and only the rest is called."""
    most = _UNLIMITED if raw.get("maxLength") is None else int(raw["maxLength"])
    least = int(raw.get("minLength") or 0)
    lengths, others = _length_checks(raw), _content_checks(raw)

    def check(value: Any, path: Path, out: list[Problem]) -> None:
        if type(value) is str:
            if not least <= len(value) <= most:
                for each in lengths:
                    each(value, path, out)
            for each in others:
                each(value, path, out)
        elif not (value is None and nullable):
            _mistyped(value, "string", path, out)

    return check


def _int_or_string(raw: Raw, nullable: bool) -> Check:
    numbers, strings = _number_checks(raw), _string_checks(raw)

    def check(value: Any, path: Path, out: list[Problem]) -> None:
        if type(value) is str:
            for each in strings:
                each(value, path, out)
        elif type(value) is int:
            for each in numbers:
                each(value, path, out)
        elif not (value is None and nullable):
            _mistyped(value, "integer,string", path, out)

    return check


def _number(raw: Raw, name: str, nullable: bool) -> Check:
    checks = _number_checks(raw)
    whole = name == "integer"

    def check(value: Any, path: Path, out: list[Problem]) -> None:
        kind = type(value)
        if kind is not int and not (kind is float and (not whole or value.is_integer())):
            if value is None and nullable:
                return
            _mistyped(value, name, path, out)
            if kind is not float:
                return
            out.append(_unchecked(f"{name} (default format)", path))
        for each in checks:
            each(value, path, out)

    return check


def _unchecked(wanted: str, path: Path) -> Problem:
    return Problem(invalid(NO_FIELD, "", f"Checked value must be of type {wanted} in {render(path)}"), path)


def _number_checks(raw: Raw) -> list[Check]:
    checks: list[Check] = []
    if raw.get("type") == "integer" or raw.get("x-kubernetes-int-or-string"):
        checks.append(_integer_range(raw.get("format", "")))
    if raw.get("multipleOf") is not None:
        checks.append(_multiple_of(float(raw["multipleOf"])))
    if raw.get("maximum") is not None:
        checks.append(_bound(raw["maximum"], upper=True, exclusive=bool(raw.get("exclusiveMaximum"))))
    if raw.get("minimum") is not None:
        checks.append(_bound(raw["minimum"], upper=False, exclusive=bool(raw.get("exclusiveMinimum"))))
    return checks


def _integer_range(name: str) -> Check:
    least, most = _INTEGER_FORMATS.get(name, _INTEGER_FORMATS["int64"])
    wanted = f"integer with format {name}" if name in _INTEGER_FORMATS else "integer (default format)"

    def check(value: Any, path: Path, out: list[Problem]) -> None:
        if not least <= value <= most:
            out.append(_unchecked(wanted, path))

    return check


def _bound(limit: float, *, upper: bool, exclusive: bool) -> Check:
    side = "less" if upper else "greater"
    words = f"should be {side} than {'' if exclusive else 'or equal to '}{format_float(float(limit))}"

    def check(value: Any, path: Path, out: list[Problem]) -> None:
        over = value - limit if upper else limit - value
        if over > 0 or (exclusive and over == 0):
            field = render(path)
            out.append(Problem(invalid(field, value, f"{field} in body {words}"), path))

    return check


def _multiple_of(factor: float) -> Check:
    def check(value: Any, path: Path, out: list[Problem]) -> None:
        field = render(path)
        if value == 0:  # kube-apiserver refuses zero, in these words
            detail = f"factor MultipleOf declared for {field} must be positive: 0"
            out.append(Problem(invalid(field, value, detail), path))
            return
        quotient = value / factor if factor >= 1 else value * (1 / factor)
        if abs(quotient - round(quotient)) > 1e-9 * max(1.0, abs(quotient)):
            detail = f"{field} in body should be a multiple of {format_float(factor)}"
            out.append(Problem(invalid(field, value, detail), path))

    return check


def _string_checks(raw: Raw) -> list[Check]:
    return [*_length_checks(raw), *_content_checks(raw)]


def _length_checks(raw: Raw) -> list[Check]:
    checks: list[Check] = []
    if raw.get("maxLength") is not None:
        checks.append(_max_length(int(raw["maxLength"])))
    if raw.get("minLength"):
        checks.append(_min_length(int(raw["minLength"])))
    return checks


def _content_checks(raw: Raw) -> list[Check]:
    checks: list[Check] = []
    if raw.get("pattern"):
        checks.append(_pattern(raw["pattern"]))
    if raw.get("format") in STRING_FORMATS:
        checks.append(_format(raw["format"]))
    return checks


def _max_length(limit: int) -> Check:
    def check(value: str, path: Path, out: list[Problem]) -> None:
        if len(value) > limit:
            out.append(Problem(too_long(render(path), limit), path))

    return check


def _min_length(limit: int) -> Check:
    def check(value: str, path: Path, out: list[Problem]) -> None:
        if len(value) < limit:
            field = render(path)
            detail = f"{field} in body should be at least {limit} chars long"
            out.append(Problem(invalid(field, value, detail), path))

    return check


def _remembered(check: Callable[[str], bool]) -> Callable[[str], bool]:
    """The check with a memory, for short texts: most writes change few of an object's fields."""
    return lru_cache(maxsize=1024)(check)


def _pattern(pattern: str) -> Check:
    matches = compile_pattern(pattern).matches
    recall = _remembered(matches)

    def check(value: str, path: Path, out: list[Problem]) -> None:
        if not (recall(value) if len(value) <= _REMEMBERED_CHARS else matches(value)):
            field = render(path)
            out.append(Problem(invalid(field, value, f"{field} in body should match '{pattern}'"), path))

    return check


def _format(name: str) -> Check:
    conforms = STRING_FORMATS[name]
    recall = _remembered(conforms)

    def check(value: str, path: Path, out: list[Problem]) -> None:
        if not (recall(value) if len(value) <= _REMEMBERED_CHARS else conforms(value)):
            field = render(path)
            detail = f'{field} in body must be of type {name}: "{value}"'
            out.append(Problem(type_invalid(field, value, detail), path))

    return check


# containers


def _object(raw: Raw, nullable: bool) -> Check:
    return _members(raw, nullable, untyped=False)


def _members(raw: Raw, nullable: bool, *, untyped: bool) -> Check:
    """The check of an object's required and known fields, and of their number.

    Args:
        untyped: other values are none of its business.
    """
    properties = {name: validator(inner) for name, inner in (raw.get("properties") or {}).items()}
    additional = raw.get("additionalProperties")
    others = validator(additional) if isinstance(additional, Mapping) else None
    wanted = frozenset(raw.get("required") or ())
    count = _count_check(raw.get("minProperties"), raw.get("maxProperties"), "properties")
    embedded = bool(raw.get("x-kubernetes-embedded-resource"))

    def check(value: Any, path: Path, out: list[Problem]) -> None:
        if type(value) is not dict:
            if not untyped and not (value is None and nullable):
                _mistyped(value, "object", path, out)
            return
        if wanted and not value.keys() >= wanted:
            out.extend(Problem(required(render((path, name))), path) for name in sorted(wanted - value.keys()))
        for name, item in value.items():
            inner = properties.get(name, others)
            if inner is not None:
                inner(item, (path, name), out)
        if count is not None:
            count(value, path, out)
        if embedded:
            check_embedded(value, path, out)

    return check


def _array(raw: Raw, nullable: bool) -> Check:
    inside = _elements(raw)

    def check(value: Any, path: Path, out: list[Problem]) -> None:
        if type(value) is list:
            inside(value, path, out)
        elif not (value is None and nullable):
            _mistyped(value, "array", path, out)

    return check


def _elements(raw: Raw) -> Check:
    items = validator(raw["items"]) if isinstance(raw.get("items"), Mapping) else None
    count = _count_check(raw.get("minItems"), raw.get("maxItems"), "items")
    unique = _uniqueness(raw)

    def check(value: list[Any], path: Path, out: list[Problem]) -> None:
        if items is not None:
            for index, item in enumerate(value):
                items(item, (path, index), out)
        if count is not None:
            count(value, path, out)
        if unique is not None:
            unique(value, path, out)

    return check


def _count_check(least: int | None, most: int | None, noun: str) -> Check | None:
    if least is None and most is None:
        return None

    def check(value: Any, path: Path, out: list[Problem]) -> None:
        count = len(value)
        if most is not None and count > most:
            out.append(Problem(too_many(render(path), count, int(most)), path))
        if least is not None and count < least:
            field = render(path)
            out.append(
                Problem(invalid(field, count, f"{field} in body should have at least {int(least)} {noun}"), path)
            )

    return check


def _uniqueness(raw: Raw) -> Check | None:
    list_type = raw.get("x-kubernetes-list-type")
    if list_type not in ("set", "map"):
        return None
    keys = tuple(raw.get("x-kubernetes-list-map-keys") or ())

    def check(value: list[Any], path: Path, out: list[Problem]) -> None:
        seen: set[Any] = set()
        for index, item in enumerate(value):
            if list_type == "map" and type(item) is not dict:
                continue
            before = len(seen)
            seen.add(tuple([_hashable(item.get(key)) for key in keys]) if list_type == "map" else _hashable(item))
            if len(seen) == before:
                shown = {key: item[key] for key in keys if key in item} if list_type == "map" else item
                out.append(Problem(duplicate(render((path, index)), shown), path))

    return check


def _hashable(value: Any) -> Any:
    """Something that is equal for equal JSON values only: 1 and true are not."""
    return value if type(value) is str else (type(value).__name__, go_json(value))


def _untyped(raw: Raw) -> Check:
    """A value validation without a type, or a field that preserves anything: each word applies to its own type."""
    objects, arrays = _members(raw, nullable=True, untyped=True), _elements(raw)
    strings, numbers = _string_checks(raw), _number_checks(raw)

    def check(value: Any, path: Path, out: list[Problem]) -> None:
        kind = type(value)
        if kind is dict:
            objects(value, path, out)
        elif kind is list:
            arrays(value, path, out)
        elif kind is str:
            for each in strings:
                each(value, path, out)
        elif kind in (int, float):
            for each in numbers:
                each(value, path, out)

    return check


# what holds for values of any type


def _common(raw: Raw) -> list[Check]:
    checks: list[Check] = []
    if raw.get("enum"):
        checks.append(_enum(list(raw["enum"])))
    if raw.get("anyOf"):
        checks.append(_any_of([validator(inner) for inner in raw["anyOf"]]))
    if raw.get("oneOf"):
        checks.append(_one_of([validator(inner) for inner in raw["oneOf"]]))
    if raw.get("allOf"):
        checks.append(_all_of([validator(inner) for inner in raw["allOf"]]))
    if isinstance(raw.get("not"), Mapping):
        checks.append(_not(validator(raw["not"])))
    return checks


def _enum(values: list[Any]) -> Check:
    allowed = {go_json(value) for value in values}
    quick = frozenset(value for value in values if isinstance(value, str))

    def check(value: Any, path: Path, out: list[Problem]) -> None:
        if type(value) is str and value in quick:
            return
        if go_json(value) not in allowed:
            out.append(Problem(not_supported(render(path), value, values), path))

    return check


def _verdicts(checks: list[Check], value: Any, path: Path) -> list[list[Problem]]:
    """What each alternative finds wrong."""
    found: list[list[Problem]] = []
    for check in checks:
        problems: list[Problem] = []
        check(value, path, problems)
        found.append(problems)
    return found


def _junction(detail: str, path: Path) -> Problem:
    return Problem(invalid(NO_FIELD, "", f'"{render(path)}" {detail}'), path)


def _any_of(checks: list[Check]) -> Check:
    def check(value: Any, path: Path, out: list[Problem]) -> None:
        verdicts = _verdicts(checks, value, path)
        if all(verdicts):
            out.append(_junction("must validate at least one schema (anyOf)", path))
            out.extend(verdicts[0])

    return check


def _one_of(checks: list[Check]) -> Check:
    def check(value: Any, path: Path, out: list[Problem]) -> None:
        verdicts = _verdicts(checks, value, path)
        valid = sum(not problems for problems in verdicts)
        if valid == 0:
            out.append(_junction("must validate one and only one schema (oneOf). Found none valid", path))
            out.extend(verdicts[0])
        elif valid > 1:
            detail = f"must validate one and only one schema (oneOf). Found {valid} valid alternatives"
            out.append(_junction(detail, path))

    return check


def _all_of(checks: list[Check]) -> Check:
    def check(value: Any, path: Path, out: list[Problem]) -> None:
        verdicts = _verdicts(checks, value, path)
        for problems in verdicts:
            out.extend(problems)
        if any(verdicts):
            none = ". None validated" if all(verdicts) else ""
            out.append(_junction(f"must validate all the schemas (allOf){none}", path))

    return check


def _not(inner: Check) -> Check:
    def check(value: Any, path: Path, out: list[Problem]) -> None:
        problems: list[Problem] = []
        inner(value, path, problems)
        if not problems:
            out.append(_junction("must not validate the schema (not)", path))

    return check
