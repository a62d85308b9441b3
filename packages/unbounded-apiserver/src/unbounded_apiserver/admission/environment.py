"""The variables of a policy's expressions, with Kubernetes' types, and the compilation of expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from unbounded_apiserver.cel import (
    CelProgram,
    CompileError,
    CostExceeded,
    EvalError,
    Meter,
    ProgramError,
    check_expression,
    types,
)
from unbounded_apiserver.cel.declare import MAX_REQUEST_BYTES
from unbounded_apiserver.cel.functions.authorization import AUTHORIZER, RESOURCE_CHECK

BUDGET: Final = 10_000_000  # cost limit of all expressions of a policy, for one request
MATCH_BUDGET: Final = 2_500_000  # cost limit of its match conditions
OUT_OF_BUDGET: Final = "validation failed due to running out of cost budget, no further validation rules will be run"
REQUEST_RESOURCE: Final = "authorizer.requestResource"
ANY: Final = types.Decl(types.DYN)
_TEXT: Final = types.Decl(types.STRING, MAX_REQUEST_BYTES)


def _object(name: str, /, **members: types.Decl) -> types.Decl:
    return types.Decl(
        types.CelType(
            types.TypeKind.OBJECT, name, (), {key: types.PropertyDecl(key, decl) for key, decl in members.items()}
        )
    )


def _list(element: types.Decl) -> types.Decl:
    return types.Decl(types.list_of(element.type), MAX_REQUEST_BYTES, element=element)


def _map(value: types.Decl) -> types.Decl:
    return types.Decl(types.map_of(types.STRING, value.type), MAX_REQUEST_BYTES, element=value, key=_TEXT)


_GVK: Final = _object("kubernetes.GroupVersionKind", group=_TEXT, version=_TEXT, kind=_TEXT)
_GVR: Final = _object("kubernetes.GroupVersionResource", group=_TEXT, version=_TEXT, resource=_TEXT)
_USER: Final = _object("kubernetes.UserInfo", username=_TEXT, uid=_TEXT, groups=_list(_TEXT), extra=_map(_list(_TEXT)))
REQUEST: Final = _object(
    "kubernetes.AdmissionRequest",
    kind=_GVK,
    resource=_GVR,
    subResource=_TEXT,
    requestKind=_GVK,
    requestResource=_GVR,
    requestSubResource=_TEXT,
    name=_TEXT,
    namespace=_TEXT,
    operation=_TEXT,
    userInfo=_USER,
    dryRun=types.Decl(types.BOOL),
    options=ANY,
)
_NAMESPACE_CONDITION: Final = _object(
    "kubernetes.NamespaceCondition",
    status=_TEXT,
    type=_TEXT,
    lastTransitionTime=types.Decl(types.TIMESTAMP),
    message=_TEXT,
    reason=_TEXT,
)
NAMESPACE: Final = _object(
    "kubernetes.Namespace",
    metadata=_object(
        "kubernetes.NamespaceMetadata",
        name=_TEXT,
        generateName=_TEXT,
        namespace=_TEXT,
        labels=_map(_TEXT),
        annotations=_map(_TEXT),
        UID=_TEXT,
        creationTimestamp=types.Decl(types.TIMESTAMP),
        deletionGracePeriodSeconds=types.Decl(types.INT),
        deletionTimestamp=types.Decl(types.TIMESTAMP),
        generation=types.Decl(types.INT),
        resourceVersion=_TEXT,
        finalizers=_list(_TEXT),
    ),
    spec=_object("kubernetes.NamespaceSpec", finalizers=_list(_TEXT)),
    status=_object("kubernetes.NamespaceStatus", conditions=_list(_NAMESPACE_CONDITION), phase=_TEXT),
)


class ExpressionRejected(Exception):
    """An expression that does not compile; the message is kube-apiserver's."""


class ExpressionFailed(Exception):
    """An expression has no value for this request; the message names it."""


class OutOfBudget(Exception):
    """The expressions of a policy exceed their common cost limit."""


class Values(Protocol):
    """Values of variables, by name."""

    def __getitem__(self, name: str) -> Any: ...


@dataclass(frozen=True)
class Expression:
    """One compiled expression."""

    source: str
    type: types.CelType
    _program: CelProgram
    _names: tuple[str, ...]
    _reads: frozenset[str]

    def raw(self, values: Values, budget: Meter) -> Any:
        """Return its value. Raises EvalError and CostExceeded of cel."""
        given = [values[name] if name in self._reads else None for name in self._names]
        return self._program.evaluate(*given, budget=budget)

    def value(self, values: Values, budget: Meter) -> Any:
        """Return its value. Raises ExpressionFailed, OutOfBudget."""
        try:
            return self.raw(values, budget)
        except (EvalError, CostExceeded) as error:
            if budget.left < 0:
                raise OutOfBudget(OUT_OF_BUDGET) from error
            raise ExpressionFailed(f"expression '{self.source}' resulted in error: {error}") from error


class Environment:
    """Compile the expressions of one policy; variables are defined in the order of the policy.

    Args:
        obj: the type of object and oldObject.
        params: the type of params; None if the policy has none.
        composed: whether `variables` can be read.
    """

    def __init__(self, *, obj: types.Decl = ANY, params: types.Decl | None = None, composed: bool = False) -> None:
        self._declared = {"object": obj, "oldObject": obj, "namespaceObject": NAMESPACE, "request": REQUEST}
        if params is not None:
            self._declared["params"] = params
        self._variables: dict[str, types.PropertyDecl] | None = {} if composed else None

    def define(self, name: str, source: str) -> Expression:
        """Define a variable for later expressions; a rejected one has any type. Raises ExpressionRejected."""
        if self._variables is None:
            raise ExpressionRejected("variable composition is not allowed")
        self._variables[name] = types.PropertyDecl(name, ANY)
        expression = self._compile(source, authorizer=True)
        self._variables[name] = types.PropertyDecl(name, _declared_as(expression.type))
        return expression

    def compile(self, source: str, *wanted: types.CelType, authorizer: bool = True) -> Expression:
        """Compile an expression of one of the given types, or of any. Raises ExpressionRejected."""
        expression = self._compile(source, authorizer=authorizer)
        if wanted and expression.type not in wanted:
            names = [_shown(one) for one in wanted]
            what = names[0] if len(names) == 1 else f"one of [{' '.join(names)}]"
            raise ExpressionRejected(f"must evaluate to {what} but got {_shown(expression.type)}")
        return expression

    def _compile(self, source: str, *, authorizer: bool) -> Expression:
        declared: dict[str, types.Decl] = dict(self._declared)
        if authorizer:
            declared |= {"authorizer": types.Decl(AUTHORIZER), REQUEST_RESOURCE: types.Decl(RESOURCE_CHECK)}
        if self._variables is not None:
            declared["variables"] = types.Decl(
                types.CelType(types.TypeKind.OBJECT, "kubernetes.variables", (), dict(self._variables))
            )
        try:
            checked = check_expression(source, declared)
            return Expression(source, checked.type, checked.program(), tuple(declared), checked.reads)
        except CompileError as error:
            raise ExpressionRejected(f"compilation failed: {error}") from error
        except ProgramError as error:
            raise ExpressionRejected(f"program instantiation failed: {error}") from error


def _declared_as(value: types.CelType) -> types.Decl:
    """Return the declaration of a variable's type: lists and maps keep their element types, objects become dyn."""
    match value.kind:
        case types.TypeKind.LIST:
            return _list(_declared_as(value.params[0]))
        case types.TypeKind.MAP:
            key, inner = map(_declared_as, value.params)
            return types.Decl(types.map_of(key.type, inner.type), MAX_REQUEST_BYTES, element=inner, key=key)
        case types.TypeKind.PRIMITIVE | types.TypeKind.NULL:
            return types.Decl(value, MAX_REQUEST_BYTES if value == types.STRING else 0)
        case _:
            return ANY


def _shown(value: types.CelType) -> str:
    return "null_type" if value == types.NULL else str(value)
