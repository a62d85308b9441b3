"""Expressions of a policy: compiled once, and evaluated on the values of a request, each computed on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from unbounded_apiserver.access.rbac_authorizer import account_groups, account_name
from unbounded_apiserver.admission.environment import (
    ANY,
    BUDGET,
    MATCH_BUDGET,
    REQUEST_RESOURCE,
    Environment,
    Expression,
    ExpressionFailed,
    ExpressionRejected,
    OutOfBudget,
    Values,
)
from unbounded_apiserver.admission.requests import AdmissionRequest
from unbounded_apiserver.auth import AuthAttributes, User
from unbounded_apiserver.auth import AuthDecision as Decided
from unbounded_apiserver.cel import CostExceeded, EvalError, Meter
from unbounded_apiserver.cel.functions.authorization import Check, CheckDecision, ResourceCheck
from unbounded_apiserver.cel.types import BOOL, NULL, STRING, CelType
from unbounded_apiserver.resource_model import Object

MAX_MESSAGE_BYTES: Final = 5 * 1024
INVALID: Final = "Invalid"

Part = Mapping[str, Any]
Decide = Callable[[User, AuthAttributes], Decided]
_KEPT_META: Final = frozenset(
    {"name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp"}
    | {"deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "finalizers"}
)


@dataclass(frozen=True)
class BrokenExpression:
    """A stored expression that cannot be used any more: each evaluation fails."""

    why: str

    def value(self, _values: Values, _budget: Meter) -> Any:
        raise ExpressionFailed(f"compilation error: {self.why}")

    def raw(self, _values: Values, _budget: Meter) -> Any:
        raise EvalError(f"fails to compile: {self.why}")


Code = Expression | BrokenExpression


@dataclass(frozen=True)
class Validation:
    expression: Code
    source: str
    message: str
    message_code: Code | None  # returns the message
    reason: str


@dataclass(frozen=True)
class ValidationFailure:
    """A validation, by its index, that a request fails, or that cannot be evaluated."""

    index: int
    message: str
    reason: str = INVALID


@dataclass(frozen=True)
class PolicyVerdict:
    """The result of a policy for one request: its failures, and its audit annotations.

    `unusable` has the errors of audit annotations; with the failure policy Fail, they reject the request.
    """

    failures: Sequence[ValidationFailure] = ()
    annotations: Sequence[tuple[str, str]] = ()
    unusable: Sequence[str] = ()


@dataclass(frozen=True)
class CompiledPolicy:
    """The expressions of one policy. With `fail_closed`, an error of evaluation rejects the request."""

    fail_closed: bool
    conditions: tuple[Code, ...]
    variables: Mapping[str, Code]
    validations: tuple[Validation, ...]
    annotations: tuple[tuple[str, Code], ...]

    def evaluate(self, values: Values, budget: Meter, unauthorized: Callable[[Meter], Values]) -> PolicyVerdict:
        """Evaluate the policy for a request.

        Args:
            budget: limits the validations and their messages, with variables; audit annotations have one of their own.
            unauthorized: returns the values of messages and audit annotations; kube-apiserver gives them no authorizer.
        """
        try:
            if not self._applies(values):
                return PolicyVerdict()
            return self._annotated(self._failures(values, budget, unauthorized(budget)), unauthorized)
        except (ExpressionFailed, OutOfBudget) as error:
            return PolicyVerdict([ValidationFailure(0, str(error))]) if self.fail_closed else PolicyVerdict()

    def _applies(self, values: Values) -> bool:
        """Return whether all match conditions hold; a false one outweighs failing ones.

        Raises:
            ExpressionFailed, OutOfBudget
        """
        budget, errors = Meter(MATCH_BUDGET), []
        for condition in self.conditions:
            try:
                if condition.value(values, budget) is False:
                    return False
            except ExpressionFailed as error:
                errors.append(str(error))
        if errors:
            raise ExpressionFailed(errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]")
        return True

    def _failures(self, values: Values, budget: Meter, for_messages: Values) -> list[ValidationFailure]:
        """Return the failed validations. Raises OutOfBudget."""
        results: list[bool | ExpressionFailed] = []
        for validation in self.validations:
            try:
                results.append(validation.expression.value(values, budget) is True)
            except ExpressionFailed as error:
                results.append(error)
        failures = []
        for index, (validation, result) in enumerate(zip(self.validations, results, strict=True)):
            if isinstance(result, ExpressionFailed):
                if self.fail_closed:
                    failures.append(ValidationFailure(index, str(result)))
            elif not result:
                message = _message(validation, for_messages, budget)
                failures.append(ValidationFailure(index, message, validation.reason))
        return failures

    def _annotated(self, failures: list[ValidationFailure], values_within: Callable[[Meter], Values]) -> PolicyVerdict:
        found, unusable = [], []
        budget = Meter(BUDGET)
        values = values_within(budget)
        for key, expression in self.annotations:
            try:
                value = expression.value(values, budget)
            except ExpressionFailed as error:
                if self.fail_closed:
                    unusable.append(str(error))
                continue
            if isinstance(value, str) and value.strip():
                found.append((key, value.strip()))
        return PolicyVerdict(failures, found, unusable)


def _message(validation: Validation, values: Values, budget: Meter) -> str:
    """Return the message of a failed validation. Raises OutOfBudget."""
    made = ""
    if validation.message_code is not None:
        try:
            value = validation.message_code.value(values, budget)
        except ExpressionFailed:
            value = None  # the fixed message is used instead
        except OutOfBudget as error:
            raise OutOfBudget(f"failed messageExpression: {error}") from error
        made = value.strip() if isinstance(value, str) else ""
        if "\n" in made or len(made.encode()) > MAX_MESSAGE_BYTES:
            made = ""
    return made or validation.message or f"failed expression: {validation.source}"


def compile_policy(spec: Part) -> CompiledPolicy:
    """Compile a policy's spec. It was accepted when written; an expression that does not compile now was valid then."""
    params = None if spec.get("paramKind") is None else ANY
    alone = Environment(params=params)
    conditions = tuple(_code(alone, one["expression"].strip(), BOOL) for one in spec.get("matchConditions") or ())
    environment = Environment(params=params, composed=bool(spec.get("variables")))
    variables = {
        one["name"]: _usable(lambda one=one: environment.define(one["name"], one["expression"]))  # type: ignore[misc]
        for one in spec.get("variables") or ()
    }
    return CompiledPolicy(
        fail_closed=spec.get("failurePolicy") != "Ignore",
        conditions=conditions,
        variables=variables,
        validations=tuple(_validation(environment, one) for one in spec.get("validations") or ()),
        annotations=tuple(
            (one["key"], _code(environment, one["valueExpression"].strip(), STRING, NULL))
            for one in spec.get("auditAnnotations") or ()
        ),
    )


def _validation(environment: Environment, one: Part) -> Validation:
    message = one.get("messageExpression", "")
    return Validation(
        _code(environment, one["expression"], BOOL),
        one["expression"].strip(),
        one.get("message", "").strip(),
        _usable(lambda: environment.compile(message, STRING, authorizer=False)) if message.strip() else None,
        one.get("reason") or INVALID,
    )


def _code(environment: Environment, source: str, *wanted: CelType) -> Code:
    return _usable(lambda: environment.compile(source, *wanted))


def _usable(compile_it: Callable[[], Expression]) -> Code:
    try:
        return compile_it()
    except ExpressionRejected as error:
        return BrokenExpression(str(error))


class RequestValues(dict[str, Any]):
    """Values by the name of the variable.

    Args:
        version: the policy's version of the resource.
        namespace: returns the Namespace object, None if there is none.
        decide: authorizes; None where expressions have no authorizer.
        variables: the policy's; `budget` limits their cost.
    """

    def __init__(
        self,
        admission: AdmissionRequest,
        version: str,
        params: Object | None,
        namespace: Callable[[], Object | None],
        decide: Decide | None,
        variables: Mapping[str, Code],
        budget: Meter,
    ) -> None:
        super().__init__()
        self._admission = admission
        resource = admission.resource
        self._made: Mapping[str, Callable[[], Any]] = {
            "object": lambda: _in_version(admission, admission.obj, version),
            "oldObject": lambda: _in_version(admission, admission.old, version),
            "request": lambda: admission.request(version),
            "params": lambda: params,
            "namespaceObject": lambda: _namespace(namespace()),
            "variables": lambda: Variables(variables, self, budget),
            "authorizer": lambda: Check(_asking(admission.user, decide, "authorizer")),
            REQUEST_RESOURCE: lambda: ResourceCheck(
                _asking(admission.user, decide, REQUEST_RESOURCE),
                group=resource.group,
                resource=resource.plural,
                subresource=admission.subresource,
                namespace=admission.namespace,
                name=admission.name,
            ),
        }

    def __missing__(self, name: str) -> Any:
        self[name] = value = self._made[name]()
        return value


def _in_version(admission: AdmissionRequest, obj: Object | None, version: str) -> Object | None:
    resource = admission.resource
    if obj is None or version == resource.version:
        return obj
    return {**obj, "apiVersion": f"{resource.group}/{version}" if resource.group else version}


def _namespace(namespace: Object | None) -> Object | None:
    if namespace is None:
        return None
    return {**namespace, "metadata": {k: v for k, v in namespace["metadata"].items() if k in _KEPT_META}}


def _asking(user: User, decide: Decide | None, variable: str) -> Callable[[Check], CheckDecision]:
    def answer(check: Check) -> CheckDecision:
        if decide is None:
            raise EvalError(f"no such attribute(s): {variable}")
        asker = user
        if check.service_account is not None:
            namespace, name = check.service_account
            asker = User(account_name(namespace, name), account_groups(namespace))
        if check.path is not None:
            decided = decide(asker, AuthAttributes(check.verb, path=check.path))
        else:
            parts = (check.group, check.resource, check.subresource, check.namespace, check.name)
            decided = decide(asker, AuthAttributes(check.verb, *parts, selector=check.field_selector))
        return CheckDecision(decided.allowed, decided.reason)

    return answer


class Variables(dict[str, Any]):
    """The variables of a policy, each computed on first use from `values`, which include this."""

    def __init__(self, code: Mapping[str, Code], values: Values, budget: Meter) -> None:
        super().__init__()
        self._code = code
        self._values = values
        self._budget = budget
        self._failed: dict[str, EvalError] = {}

    def __missing__(self, name: str) -> Any:
        code = self._code.get(name)
        if code is None:
            raise KeyError(name)
        if name in self._failed:
            raise self._failed[name]
        try:
            self[name] = value = code.raw(self._values, self._budget)
        except (EvalError, CostExceeded) as error:
            if self._budget.left < 0:
                raise
            self._failed[name] = EvalError(f'composited variable "{name}" fails to evaluate: {error}')
            raise self._failed[name] from error
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._code
