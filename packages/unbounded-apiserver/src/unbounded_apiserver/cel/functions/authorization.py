"""Kubernetes' authorizer library: checks of a user's rights, built step by step.

Rules of definitions can call none of it, as they have no variable `authorizer`. Admission policies provide a `Check`
(and a `ResourceCheck` as `authorizer.requestResource`), whose `decide` calls the server's authorizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Final

from unbounded_apiserver import name_validation
from unbounded_apiserver.cel.types import BOOL, STRING, CelType, Overload, TypeKind, method
from unbounded_apiserver.cel.values import EvalError, register_opaque

AUTHORIZER: Final = CelType(TypeKind.OPAQUE, "kubernetes.authorization.Authorizer")
_PATH: Final = CelType(TypeKind.OPAQUE, "kubernetes.authorization.PathCheck")
_GROUP: Final = CelType(TypeKind.OPAQUE, "kubernetes.authorization.GroupCheck")
RESOURCE_CHECK: Final = CelType(TypeKind.OPAQUE, "kubernetes.authorization.ResourceCheck")
_DECISION: Final = CelType(TypeKind.OPAQUE, "kubernetes.authorization.Decision")


@dataclass(frozen=True, slots=True)
class CheckDecision:
    allowed: bool
    reason: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A check under construction; `service_account` is (namespace, name) if it is about one.

    The class is the stage of the construction: values of unknown type are distinguished by it.
    """

    decide: Callable[[Check], CheckDecision]
    service_account: tuple[str, str] | None = None
    path: str | None = None
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    field_selector: str = ""
    label_selector: str = ""
    verb: str = ""


class PathCheck(Check):
    """A check of a path that is not a resource."""

    __slots__ = ()


class GroupCheck(Check):
    """A check of an API group."""

    __slots__ = ()


class ResourceCheck(Check):
    """A check of a resource that lacks only the verb."""

    __slots__ = ()


register_opaque(Check, AUTHORIZER)
register_opaque(PathCheck, _PATH)
register_opaque(GroupCheck, _GROUP)
register_opaque(ResourceCheck, RESOURCE_CHECK)
register_opaque(CheckDecision, _DECISION)


def _asking(field: str, kind: type[Check], *, required: bool = False) -> Callable[[Check, str], Check]:
    def ask(check: Check, value: str) -> Check:
        if required and not value.strip():
            raise EvalError(f"{field} must not be empty")
        known = {one.name: getattr(check, one.name) for one in fields(Check)}
        return kind(**known | {field: value})

    return ask


def _decided(check: Check, verb: str) -> CheckDecision:
    return check.decide(replace(check, verb=verb))


def _for_service_account(check: Check, namespace: str, name: str) -> Check:
    if name_validation.subdomain(name):
        raise EvalError("Invalid service account name")
    if name_validation.label_1123(namespace):
        raise EvalError("Invalid service account namespace")
    return replace(check, service_account=(namespace, name))


def _library() -> Iterator[Overload]:
    path = _asking("path", PathCheck, required=True)
    yield method("path", "authorizer_path", (AUTHORIZER, STRING), _PATH, path)
    yield method("group", "authorizer_group", (AUTHORIZER, STRING), _GROUP, _asking("group", GroupCheck))
    yield method(
        "serviceAccount", "authorizer_serviceaccount", (AUTHORIZER, STRING, STRING), AUTHORIZER, _for_service_account
    )
    resource = _asking("resource", ResourceCheck, required=True)
    yield method("resource", "groupcheck_resource", (_GROUP, STRING), RESOURCE_CHECK, resource)
    yield method(
        "subresource",
        "resourcecheck_subresource",
        (RESOURCE_CHECK, STRING),
        RESOURCE_CHECK,
        _asking("subresource", ResourceCheck),
    )
    yield method(
        "namespace",
        "resourcecheck_namespace",
        (RESOURCE_CHECK, STRING),
        RESOURCE_CHECK,
        _asking("namespace", ResourceCheck),
    )
    yield method("name", "resourcecheck_name", (RESOURCE_CHECK, STRING), RESOURCE_CHECK, _asking("name", ResourceCheck))
    yield method(
        "fieldSelector",
        "authorizer_fieldselector",
        (RESOURCE_CHECK, STRING),
        RESOURCE_CHECK,
        _asking("field_selector", ResourceCheck),
    )
    yield method(
        "labelSelector",
        "authorizer_labelselector",
        (RESOURCE_CHECK, STRING),
        RESOURCE_CHECK,
        _asking("label_selector", ResourceCheck),
    )
    yield method("check", "pathcheck_check", (_PATH, STRING), _DECISION, _decided)
    yield method("check", "resourcecheck_check", (RESOURCE_CHECK, STRING), _DECISION, _decided)
    yield method("allowed", "decision_allowed", (_DECISION,), BOOL, lambda decision: decision.allowed)
    yield method("reason", "decision_reason", (_DECISION,), STRING, lambda decision: decision.reason)
    yield method("error", "decision_error", (_DECISION,), STRING, lambda decision: decision.error)
    yield method("errored", "decision_errored", (_DECISION,), BOOL, lambda decision: bool(decision.error))


AUTHORIZATION: Final = tuple(_library())
