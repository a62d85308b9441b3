"""Type-check the expressions of admission policies against the schemas that they match, and write their status.

Errors are only warnings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from unbounded_apiserver.admission.environment import ANY, Environment, ExpressionRejected
from unbounded_apiserver.admission.params import resource_of
from unbounded_apiserver.admission.policy_types import POLICIES
from unbounded_apiserver.builtin_resources import BuiltInType
from unbounded_apiserver.cel import types
from unbounded_apiserver.cel.declare import MAX_REQUEST_BYTES, declare, escape
from unbounded_apiserver.collection import ObjectChange
from unbounded_apiserver.controllers.work_queue import ControllerQueue
from unbounded_apiserver.resource_model import Object, Resource
from unbounded_apiserver.served_resources import Catalog
from unbounded_apiserver.store import Store
from unbounded_apiserver.type_descriptor_parser import OBJECT_META
from unbounded_apiserver.type_descriptors import ListType, MapType, ScalarType, StructType, TypeDesc
from unbounded_apiserver.writes import Writes, WriteTarget

MAX_TYPES: Final = 10
_SCALARS: Final = {"string": types.STRING, "boolean": types.BOOL, "integer": types.INT, "number": types.DOUBLE}

Part = Mapping[str, Any]


class PolicyStatusController:
    """The controller of policies' status; it checks each generation once, as kube-controller-manager does."""

    def __init__(self, store: Store, catalog: Catalog, writes: Writes) -> None:
        self._store = store
        self._catalog = catalog
        self._writes = writes
        self._queue: ControllerQueue[str] = ControllerQueue(self._reconcile)

    def begin(self) -> None:
        for record in self._store.snapshot(POLICIES.name).with_prefix(""):
            self._queue.add(record.key)
        self._store.listen(self._on_change, POLICIES.name)

    async def run(self) -> None:
        await self._queue.run()

    def _on_change(self, change: ObjectChange) -> None:
        if not change.deleted:
            self._queue.add(change.record.key)

    async def _reconcile(self, name: str) -> None:
        await self._writes.edit(WriteTarget(POLICIES, "", name), self._settle)

    def _settle(self, policy: Object) -> None:
        generation = policy["metadata"].get("generation", 1)
        status = policy["status"]
        if status.get("observedGeneration") == generation:
            return
        warnings = expression_warnings(self._catalog, policy["spec"])
        status["observedGeneration"] = generation
        status["typeChecking"] = {"expressionWarnings": warnings} if warnings else {}


def expression_warnings(catalog: Catalog, spec: Part) -> list[dict[str, str]]:
    """Return an ExpressionWarning for each expression that does not fit one of the policy's types."""
    environments = [
        (f"{one.group}/{one.version}, Kind={one.kind}", _environment(catalog, spec, one))
        for one in types_to_check(catalog, spec)
    ]
    found = []
    for where, source in _expressions(spec):
        message = [f"{shown}: {text}\n" for shown, each in environments if (text := _complaint(each, source))]
        if message:
            found.append({"fieldRef": where, "warning": "\n".join(message)})
    return found


def types_to_check(catalog: Catalog, spec: Part) -> list[Resource]:
    """Return the served resources that a policy names without wildcards, by group, version and kind."""
    found: dict[tuple[str, str, str], Resource] = {}
    for rule in spec["matchConstraints"].get("resourceRules") or ():
        groups, versions = rule.get("apiGroups") or [], rule.get("apiVersions") or []
        if any("*" in text for text in (*groups, *versions)):
            continue
        plurals = [one for one in rule.get("resources") or () if "*" not in one and "/" not in one]
        named = ((g, v, p) for g in sorted(groups) for v in sorted(versions) for p in sorted(plurals))
        for group, version, plural in named:
            resource = catalog.find(group, version, plural)
            if resource is not None and len(found) < MAX_TYPES:
                found[group, version, resource.kind] = resource
    return [found[key] for key in sorted(found)]


def _expressions(spec: Part) -> Iterator[tuple[str, str]]:
    for index, validation in enumerate(spec.get("validations") or ()):
        for name in ("expression", "messageExpression"):
            if validation.get(name):
                yield f"spec.validations[{index}].{name}", validation[name]


def _environment(catalog: Catalog, spec: Part, resource: Resource) -> Environment:
    """Return the environment of a policy's expressions for objects of one resource, with its variables."""
    kind = spec.get("paramKind")
    known = None if kind is None else resource_of(catalog, kind)
    params = None if kind is None else ANY if known is None else declared(known)
    environment = Environment(obj=declared(resource), params=params, composed=True)
    for variable in spec.get("variables") or ():
        try:
            environment.define(variable["name"], variable["expression"])
        except ExpressionRejected:
            continue  # the variable counts as dyn, as in kube-apiserver, and its readers get no warning
    return environment


def _complaint(environment: Environment, source: str) -> str:
    try:
        environment.compile(source)
    except ExpressionRejected as error:
        return str(error).removeprefix("compilation failed: ")
    return ""


def declared(resource: Resource) -> types.Decl:
    """Return the type of a resource's objects; dyn if it has none."""
    if isinstance(resource.type, BuiltInType):
        return _of_struct(resource.type.shape)
    decl = declare(resource.schema or {})
    if decl is None or decl.type.kind is not types.TypeKind.OBJECT:
        return ANY
    text = types.Decl(types.STRING, MAX_REQUEST_BYTES)
    head = {"apiVersion": types.PropertyDecl("apiVersion", text), "kind": types.PropertyDecl("kind", text)}
    fields = {**(decl.type.fields or {}), **head, "metadata": types.PropertyDecl("metadata", _of_struct(OBJECT_META))}
    return types.Decl(types.CelType(types.TypeKind.OBJECT, resource.kind, (), fields))


def _of(shape: TypeDesc) -> types.Decl:
    match shape:
        case ScalarType(json="string", format="date-time"):
            return types.Decl(types.TIMESTAMP)
        case ScalarType(json=name) if name in _SCALARS:
            return types.Decl(_SCALARS[name], MAX_REQUEST_BYTES if name == "string" else 0)
        case ListType(item=item):
            element = _of(item)
            return types.Decl(types.list_of(element.type), MAX_REQUEST_BYTES, element=element)
        case MapType(value=value):
            inner = _of(value)
            return types.Decl(
                types.map_of(types.STRING, inner.type), MAX_REQUEST_BYTES, element=inner, key=types.Decl(types.STRING)
            )
        case StructType() if shape.later is None:
            return _of_struct(shape)
        case _:
            return ANY  # free-form, a quantity, or a type that contains itself


def _of_struct(shape: StructType) -> types.Decl:
    fields = {
        name: types.PropertyDecl(key, _of(member.shape))
        for key, member in shape.members().items()
        if (name := escape(key)) is not None
    }
    return types.Decl(types.CelType(types.TypeKind.OBJECT, shape.name, (), fields))
