"""Checks of values of any type: enumerations, and allOf, anyOf, oneOf and not."""

from __future__ import annotations

from typing import Any

from unbounded.apiserver.schema.scalars import Check
from unbounded.apiserver.schema.words import NO_FIELD, Path, Problem, go_json, invalid, not_supported, render


def enum(values: list[Any]) -> Check:
    allowed = {go_json(value) for value in values}
    quick = frozenset(value for value in values if isinstance(value, str))

    def check(value: Any, path: Path, out: list[Problem]) -> None:
        if type(value) is str and value in quick:
            return
        if go_json(value) not in allowed:
            out.append(Problem(not_supported(render(path), value, values), path))

    return check


def _verdicts(checks: list[Check], value: Any, path: Path) -> list[list[Problem]]:
    """Return the problems of each alternative."""
    found: list[list[Problem]] = []
    for check in checks:
        problems: list[Problem] = []
        check(value, path, problems)
        found.append(problems)
    return found


def _junction(detail: str, path: Path) -> Problem:
    return Problem(invalid(NO_FIELD, "", f'"{render(path)}" {detail}'), path)


def any_of(checks: list[Check]) -> Check:
    def check(value: Any, path: Path, out: list[Problem]) -> None:
        verdicts = _verdicts(checks, value, path)
        if all(verdicts):
            out.append(_junction("must validate at least one schema (anyOf)", path))
            out.extend(verdicts[0])

    return check


def one_of(checks: list[Check]) -> Check:
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


def all_of(checks: list[Check]) -> Check:
    def check(value: Any, path: Path, out: list[Problem]) -> None:
        verdicts = _verdicts(checks, value, path)
        for problems in verdicts:
            out.extend(problems)
        if any(verdicts):
            none = ". None validated" if all(verdicts) else ""
            out.append(_junction(f"must validate all the schemas (allOf){none}", path))

    return check


def negation(inner: Check) -> Check:
    def check(value: Any, path: Path, out: list[Problem]) -> None:
        problems: list[Problem] = []
        inner(value, path, problems)
        if not problems:
            out.append(_junction("must not validate the schema (not)", path))

    return check
