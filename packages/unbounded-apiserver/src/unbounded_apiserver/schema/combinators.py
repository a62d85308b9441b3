"""Checks of values of any type: enumerations, and allOf, anyOf, oneOf and not."""

from __future__ import annotations

from typing import Any

from unbounded_apiserver.schema.messages import NO_FIELD, Path, SchemaProblem, go_json, invalid, not_supported, render
from unbounded_apiserver.schema.scalars import Check


def enum(values: list[Any]) -> Check:
    allowed = {go_json(value) for value in values}
    quick = frozenset(value for value in values if isinstance(value, str))

    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        if type(value) is str and value in quick:
            return
        if go_json(value) not in allowed:
            out.append(SchemaProblem(not_supported(render(path), value, values), path))

    return check


def _verdicts(checks: list[Check], value: Any, path: Path) -> list[list[SchemaProblem]]:
    """Return the problems of each alternative."""
    found: list[list[SchemaProblem]] = []
    for check in checks:
        problems: list[SchemaProblem] = []
        check(value, path, problems)
        found.append(problems)
    return found


def _combinator(detail: str, path: Path) -> SchemaProblem:
    return SchemaProblem(invalid(NO_FIELD, "", f'"{render(path)}" {detail}'), path)


def any_of(checks: list[Check]) -> Check:
    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        verdicts = _verdicts(checks, value, path)
        if all(verdicts):
            out.append(_combinator("must validate at least one schema (anyOf)", path))
            out.extend(verdicts[0])

    return check


def one_of(checks: list[Check]) -> Check:
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


def all_of(checks: list[Check]) -> Check:
    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        verdicts = _verdicts(checks, value, path)
        for problems in verdicts:
            out.extend(problems)
        if any(verdicts):
            none = ". None validated" if all(verdicts) else ""
            out.append(_combinator(f"must validate all the schemas (allOf){none}", path))

    return check


def negation(inner: Check) -> Check:
    def check(value: Any, path: Path, out: list[SchemaProblem]) -> None:
        problems: list[SchemaProblem] = []
        inner(value, path, problems)
        if not problems:
            out.append(_combinator("must not validate the schema (not)", path))

    return check
