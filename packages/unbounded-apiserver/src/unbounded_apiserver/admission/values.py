"""Values of one request for the expressions of a policy, each computed on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from unbounded_apiserver.access.rbac_authorizer import account_groups, account_name
from unbounded_apiserver.admission.compiled import Code
from unbounded_apiserver.admission.environment import REQUEST_RESOURCE, Values
from unbounded_apiserver.admission.request import AdmissionRequest
from unbounded_apiserver.auth import AuthAttributes, User
from unbounded_apiserver.auth import AuthDecision as Decided
from unbounded_apiserver.cel import CostExceeded, EvalError, Meter
from unbounded_apiserver.cel.functions.authorization import Check, CheckDecision, ResourceCheck
from unbounded_apiserver.types import Object

Decide = Callable[[User, AuthAttributes], Decided]
_KEPT_META: Final = frozenset(
    {"name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp"}
    | {"deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "finalizers"}
)


class RequestValues(dict[str, Any]):
    """Values by the name of the variable.

    Args:
        version: the policy's version of the resource.
        namespace: returns the Namespace object, None if there is none.
        decide: authorizes.
        variables: the policy's; `budget` limits their cost.
    """

    def __init__(
        self,
        admission: AdmissionRequest,
        version: str,
        params: Object | None,
        namespace: Callable[[], Object | None],
        decide: Decide,
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
            "authorizer": lambda: Check(_asking(admission.user, decide)),
            REQUEST_RESOURCE: lambda: ResourceCheck(
                _asking(admission.user, decide),
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


def _asking(user: User, decide: Decide) -> Callable[[Check], CheckDecision]:
    def answer(check: Check) -> CheckDecision:
        asker = user
        if check.service_account is not None:
            namespace, name = check.service_account
            asker = User(account_name(namespace, name), account_groups(namespace))
        if check.path is not None:
            decided = decide(asker, AuthAttributes(check.verb, path=check.path))
        else:
            parts = (check.group, check.resource, check.subresource, check.namespace, check.name)
            decided = decide(asker, AuthAttributes(check.verb, *parts))
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
