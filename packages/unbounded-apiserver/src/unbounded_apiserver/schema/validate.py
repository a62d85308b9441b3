"""Compilation of schemas to closures that validate values and append their problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unbounded_apiserver.schema import scalars
from unbounded_apiserver.schema.defaulting import check_embedded
from unbounded_apiserver.schema.errors import (
    NO_FIELD,
    Path,
    SchemaProblem,
    duplicate,
    go_json,
    invalid,
    not_supported,
    render,
    required,
    too_many,
)
from unbounded_apiserver.schema.structure import Raw


def validator(raw: Raw) -> scalars.Check:
    """Return the check of values against a schema.

    It reports the same problems as kube-apiserver, including those that follow from a value of the wrong type.
    """
    typed = _typed(raw)
    common = _common(raw)
    if not common:
        return typed

    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        typed(value, path, out)
        if value is not None or not raw.get("nullable"):
            for each in common:
                each(value, path, out)

    return check


def _typed(raw: Raw) -> scalars.Check:
    nullable = bool(raw.get("nullable"))
    if raw.get("x-kubernetes-int-or-string"):
        return scalars.int_or_string(raw, nullable)
    match raw.get("type"):
        case "object":
            return _object(raw, nullable)
        case "array":
            return _array(raw, nullable)
        case "string":
            return scalars.text(raw, nullable)
        case "boolean":
            return scalars.boolean(nullable)
        case "integer":
            return scalars.number(raw, "integer", nullable)
        case "number":
            return scalars.number(raw, "number", nullable)
        case _:
            return _untyped(raw)


def _common(raw: Raw) -> list[scalars.Check]:
    checks: list[scalars.Check] = []
    if raw.get("enum"):
        checks.append(enum(list(raw["enum"])))
    if raw.get("anyOf"):
        checks.append(any_of([validator(inner) for inner in raw["anyOf"]]))
    if raw.get("oneOf"):
        checks.append(one_of([validator(inner) for inner in raw["oneOf"]]))
    if raw.get("allOf"):
        checks.append(all_of([validator(inner) for inner in raw["allOf"]]))
    if isinstance(raw.get("not"), Mapping):
        checks.append(negation(validator(raw["not"])))
    return checks


def _object(raw: Raw, nullable: bool) -> scalars.Check:
    return _members(raw, nullable, untyped=False)


def _members(raw: Raw, nullable: bool, *, untyped: bool) -> scalars.Check:
    """Return the check of an object's required and known fields, and of their number.

    Most fields are strings and integers with few constraints: valid ones are recognized without a call.

    Args:
        untyped: values of other types are ignored.
    """
    given = raw.get("properties") or {}
    properties = {name: validator(inner) for name, inner in given.items()}
    texts = {name: lengths for name, inner in given.items() if (lengths := scalars.text_bounds(inner)) is not None}
    integers = {name: limits for name, inner in given.items() if (limits := scalars.integer_bounds(inner)) is not None}
    additional = raw.get("additionalProperties")
    others = validator(additional) if isinstance(additional, Mapping) else None
    desired = frozenset(raw.get("required") or ())
    count = _count_check(raw.get("minProperties"), raw.get("maxProperties"), "properties")
    embedded = bool(raw.get("x-kubernetes-embedded-resource"))

    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        if type(value) is not dict:
            if not untyped and not (value is None and nullable):
                scalars.mistyped(value, "object", path, out)
            return
        if desired and not value.keys() >= desired:
            out.extend(SchemaProblem(required(render((path, name))), path) for name in sorted(desired - value.keys()))
        for name, item in value.items():
            kind = type(item)
            if kind is str:
                if (lengths := texts.get(name)) is not None and lengths[0] <= len(item) <= lengths[1]:
                    continue
            elif kind is int and (limits := integers.get(name)) is not None and limits[0] <= item <= limits[1]:
                continue
            inner = properties.get(name, others)
            if inner is not None:
                inner(item, (path, name), out)
        if count is not None:
            count(value, path, out)
        if embedded:
            check_embedded(value, path, out)

    return check


def _array(raw: Raw, nullable: bool) -> scalars.Check:
    inside = _elements(raw)

    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        if type(value) is list:
            inside(value, path, out)
        elif not (value is None and nullable):
            scalars.mistyped(value, "array", path, out)

    return check


def _elements(raw: Raw) -> scalars.Check:
    inner = raw["items"] if isinstance(raw.get("items"), Mapping) else None
    items = None if inner is None else validator(inner)
    least, most = (None if inner is None else scalars.text_bounds(inner)) or (0, -1)  # limits that no string fits
    count = _count_check(raw.get("minItems"), raw.get("maxItems"), "items")
    unique = _uniqueness(raw)

    def check(value: list[Any], path: Path, out: list[SchemaProblem]) -> None:
        if items is not None:
            for index, item in enumerate(value):
                if type(item) is not str or not least <= len(item) <= most:
                    items(item, (path, index), out)
        if count is not None:
            count(value, path, out)
        if unique is not None:
            unique(value, path, out)

    return check


def _count_check(least: int | None, most: int | None, noun: str) -> scalars.Check | None:
    if least is None and most is None:
        return None

    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        count = len(value)
        if most is not None and count > most:
            out.append(SchemaProblem(too_many(render(path), count, int(most)), path))
        if least is not None and count < least:
            field = render(path)
            out.append(
                SchemaProblem(invalid(field, count, f"{field} in body should have at least {int(least)} {noun}"), path)
            )

    return check


def _uniqueness(raw: Raw) -> scalars.Check | None:
    list_type = raw.get("x-kubernetes-list-type")
    if list_type not in ("set", "map"):
        return None
    keys = tuple(raw.get("x-kubernetes-list-map-keys") or ())

    def check(value: list[Any], path: Path, out: list[SchemaProblem]) -> None:
        seen: set[Any] = set()
        for index, item in enumerate(value):
            if list_type == "map" and type(item) is not dict:
                continue
            before = len(seen)
            seen.add(tuple([_hashable(item.get(key)) for key in keys]) if list_type == "map" else _hashable(item))
            if len(seen) == before:
                shown = {key: item[key] for key in keys if key in item} if list_type == "map" else item
                out.append(SchemaProblem(duplicate(render((path, index)), shown), path))

    return check


def _hashable(value: Any) -> Any:
    """Return a key that is equal for equal JSON values only: 1 and true differ."""
    return value if type(value) is str else (type(value).__name__, go_json(value))


def _untyped(raw: Raw) -> scalars.Check:
    """Return the check of a schema without a type: each keyword applies to values of its own type."""
    objects, arrays = _members(raw, nullable=True, untyped=True), _elements(raw)
    strings, numbers = scalars.string_checks(raw), scalars.number_checks(raw)

    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
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


def enum(values: list[Any]) -> scalars.Check:
    allowed = {go_json(value) for value in values}
    quick = frozenset(value for value in values if isinstance(value, str))

    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        if type(value) is str and value in quick:
            return
        if go_json(value) not in allowed:
            out.append(SchemaProblem(not_supported(render(path), value, values), path))

    return check


def _verdicts(checks: list[scalars.Check], value: Any, path: Path) -> list[list[SchemaProblem]]:
    """Return the problems of each alternative."""
    found: list[list[SchemaProblem]] = []
    for check in checks:
        problems: list[SchemaProblem] = []
        check(value, path, problems)
        found.append(problems)
    return found


def _combinator(detail: str, path: Path) -> SchemaProblem:
    return SchemaProblem(invalid(NO_FIELD, "", f'"{render(path)}" {detail}'), path)


def any_of(checks: list[scalars.Check]) -> scalars.Check:
    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        verdicts = _verdicts(checks, value, path)
        if all(verdicts):
            out.append(_combinator("must validate at least one schema (anyOf)", path))
            out.extend(verdicts[0])

    return check


def one_of(checks: list[scalars.Check]) -> scalars.Check:
    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        verdicts = _verdicts(checks, value, path)
        valid = sum(not problems for problems in verdicts)
        if valid == 0:
            out.append(_combinator("must validate one and only one schema (oneOf). Found none valid", path))
            out.extend(verdicts[0])
        elif valid > 1:
            detail = f"must validate one and only one schema (oneOf). Found {valid} valid alternatives"
            out.append(_combinator(detail, path))

    return check


def all_of(checks: list[scalars.Check]) -> scalars.Check:
    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        verdicts = _verdicts(checks, value, path)
        for problems in verdicts:
            out.extend(problems)
        if any(verdicts):
            none = ". None validated" if all(verdicts) else ""
            out.append(_combinator(f"must validate all the schemas (allOf){none}", path))

    return check


def negation(inner: scalars.Check) -> scalars.Check:
    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        problems: list[SchemaProblem] = []
        inner(value, path, problems)
        if not problems:
            out.append(_combinator("must not validate the schema (not)", path))

    return check
