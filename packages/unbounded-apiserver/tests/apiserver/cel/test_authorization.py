"""The authorizer library: the checks that expressions build, their errors, and what does not compile."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from unbounded_apiserver.cel import CompileError, EvalError, Meter, check_expression
from unbounded_apiserver.cel.functions.authorization import (
    AUTHORIZER,
    RESOURCE_CHECK,
    Check,
    CheckDecision,
    ResourceCheck,
)
from unbounded_apiserver.cel.types import Decl

DECLARED = {"authorizer": Decl(AUTHORIZER), "authorizer.requestResource": Decl(RESOURCE_CHECK)}
REQUESTED: dict[str, Any] = {
    "group": "example.com",
    "resource": "widgets",
    "subresource": "status",
    "namespace": "n",
    "name": "w",
}


def refuse(_check: Check) -> CheckDecision:
    return CheckDecision(False, "because", "broken")


def checks_of(expression: str) -> list[Check]:
    """Return the checks that an expression makes; each is refused."""
    made: list[Check] = []

    def decide(check: Check) -> CheckDecision:
        made.append(replace(check, decide=refuse))
        return refuse(check)

    program = check_expression(expression, DECLARED).program()
    program.evaluate(Check(decide), ResourceCheck(decide, **REQUESTED))
    return made


BUILT: dict[str, dict[str, Any]] = {
    "path('/healthz').check('get')": {"path": "/healthz", "verb": "get"},
    "path('healthz').check('GET')": {"path": "healthz", "verb": "GET"},
    "group('').resource('pods').check('list')": {"resource": "pods", "verb": "list"},
    "group('a').resource('b').subresource('c').namespace('d').name('e').check('erase')": {
        "group": "a",
        "resource": "b",
        "subresource": "c",
        "namespace": "d",
        "name": "e",
        "verb": "erase",
    },
    "group('').resource('pods').name('a').name('').check('get')": {"resource": "pods", "verb": "get"},
    "group('').resource('pods').fieldSelector('a=b').labelSelector('c').check('list')": {
        "resource": "pods",
        "field_selector": "a=b",
        "label_selector": "c",
        "verb": "list",
    },
    "requestResource.check('delete')": {**REQUESTED, "verb": "delete"},
    "requestResource.subresource('').name('x').check('get')": {
        **REQUESTED,
        "subresource": "",
        "name": "x",
        "verb": "get",
    },
}


@pytest.mark.parametrize(("steps", "expected"), BUILT.items())
def test_an_expression_checks(steps: str, expected: dict[str, Any]) -> None:
    (made,) = checks_of(f"authorizer.{steps}.allowed()")
    assert asdict(made) == asdict(Check(refuse, **expected))


def test_a_check_is_for_the_requesting_user_or_for_one_service_account() -> None:
    expression = "[authorizer.serviceAccount('n', 'a.b').path('/x'), authorizer.path('/x')]"
    made = checks_of(f"{expression}.exists(c, c.check('get').allowed())")
    assert [check.service_account for check in made] == [("n", "a.b"), None]


def test_a_decision_has_a_reason_and_an_error() -> None:
    decided = "authorizer.path('/x').check('get')"
    parts = [f"!{decided}.allowed()", f"{decided}.reason() == 'because'"]
    parts += [f"{decided}.errored()", f"{decided}.error() == 'broken'"]
    program = check_expression(" && ".join(parts[:2]), DECLARED).program()
    assert program.evaluate(Check(refuse), None) is True
    program = check_expression(" && ".join(parts[2:]), DECLARED).program()
    assert program.evaluate(Check(refuse), None) is True
    program = check_expression(f"{decided}.errored() || {decided}.error() != ''", DECLARED).program()
    assert program.evaluate(Check(lambda _: CheckDecision(True)), None) is False


FAILURES = {
    "path('')": "path must not be empty",
    "path(' \\t')": "path must not be empty",
    "group('').resource('')": "resource must not be empty",
    "group('').resource('  ')": "resource must not be empty",
    "serviceAccount('a.b', 'c').path('/x')": "Invalid service account namespace",
    "serviceAccount('', 'c').path('/x')": "Invalid service account namespace",
    "serviceAccount('a', 'C').path('/x')": "Invalid service account name",
    "serviceAccount('a.b', '').path('/x')": "Invalid service account name",
}


@pytest.mark.parametrize(("steps", "expected"), FAILURES.items())
def test_a_check_cannot_be_built_from(steps: str, expected: str) -> None:
    with pytest.raises(EvalError) as raised:
        checks_of(f"authorizer.{steps}.check('get').allowed()")
    assert str(raised.value) == expected


REFUSED = {
    "authorizer.group('').check('get')": (
        "1:27: found no matching overload for 'check' applied to 'kubernetes.authorization.GroupCheck.(string)'"
    ),
    "authorizer.path('/x').name('y')": (
        "1:27: found no matching overload for 'name' applied to 'kubernetes.authorization.PathCheck.(string)'"
    ),
    "authorizer.requestResource.check(1)": (
        "1:33: found no matching overload for 'check' applied to 'kubernetes.authorization.ResourceCheck.(int)'"
    ),
    "authorizer.serviceAccount('a')": (
        "1:26: found no matching overload for 'serviceAccount' applied to "
        "'kubernetes.authorization.Authorizer.(string)'"
    ),
    "authorizer.requestResource.check('get').allowed": (
        "1:40: unexpected failed resolution of 'kubernetes.authorization.Decision'"
    ),
}


@pytest.mark.parametrize(("expression", "expected"), REFUSED.items())
def test_an_expression_does_not_compile(expression: str, expected: str) -> None:
    with pytest.raises(CompileError) as raised:
        check_expression(expression, DECLARED)
    assert str(raised.value).splitlines()[0] == f"ERROR: <input>:{expected}"


def test_a_check_costs_what_it_does_in_kubernetes() -> None:
    program = check_expression("authorizer.path('/x').check('get').allowed()", DECLARED).program()
    budget = Meter(1_000_000)
    program.evaluate(Check(refuse), None, budget=budget)
    assert 1_000_000 - budget.left == 350_000
