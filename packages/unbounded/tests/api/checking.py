"""The schemas as the embedded API server runs them, and the questions that the tests of rules put to them."""

import copy
from typing import Any

import yaml

from unbounded.api.crd import container_cloud_definitions, custom_resource_definitions
from unbounded.api.names import GROUP
from unbounded_apiserver.schema import FieldError, Schema, compile_schema

Object = dict[str, Any]


def kind_key(crd: Object) -> str:
    """The kind of a definition, with its group where that is not ours: Machine, Machine.cluster.k8s.io."""
    kind, group = crd["spec"]["names"]["kind"], crd["spec"]["group"]
    return str(kind) if group == GROUP else f"{kind}.{group}"


CRDS: dict[str, Object] = {
    kind_key(crd): crd for crd in (*custom_resource_definitions(), *container_cloud_definitions())
}
SCHEMAS: dict[str, Schema] = {
    name: compile_schema(
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], path="spec.validation.openAPIV3Schema"
    )
    for name, crd in CRDS.items()
}


def made(kind: str, spec: str, *, name: str = "w", status: Object | None = None, **changes: Any) -> Object:
    """An object as the server would store it: with defaults; `changes` replace at paths such as pxe__image."""
    written: Object = {"metadata": {"name": name}, "spec": yaml.load(spec, Loader=yaml.CSafeLoader)}
    if status is not None:
        written["status"] = copy.deepcopy(status)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place: Any = written["spec"]
        for parent in parents:
            place = place[int(parent)] if parent.isdigit() else place.setdefault(parent, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    SCHEMAS[kind].default(written)
    return written


def causes(kind: str, new: Object, old: Object | None = None) -> list[FieldError]:
    """Return the errors of an object, without the note that its rules were skipped because of them."""
    return [cause for cause in SCHEMAS[kind].validate(new, old) if "rules were not checked" not in cause.message]


def refusals(kind: str, new: Object, old: Object | None = None) -> list[str]:
    return [f"{cause.field}: {cause.message}" for cause in causes(kind, new, old)]


def assert_refused(kind: str, new: Object, old: Object | None, field: str, words: str) -> None:
    (cause,) = causes(kind, new, old)
    assert (cause.field, words in cause.message) == (field, True), cause
