"""The scale subresource of custom resources: the replicas of an object, as a Scale of autoscaling/v1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from unbounded_apiserver import columns, field_errors, status, type_descriptor_parser
from unbounded_apiserver.builtin_resources import BuiltInType
from unbounded_apiserver.resource_model import Object, Resource, ScalePaths, TableColumn
from unbounded_apiserver.schema import FieldError

MAX_REPLICAS: Final = 2**31 - 1
_UNSET: Final = -(2**31)  # replicas of an object that has none: no client can ask for so few
_GO_TYPES: Final = {str: "string", bool: "bool", float: "float64", list: "[]interface {}", type(None): "<nil>"}

SCALES: Final = Resource(
    "autoscaling",
    "v1",
    "Scale",
    "scales",
    "scale",
    True,
    BuiltInType(
        type_descriptor_parser.kind(
            type_descriptor_parser.read(
                """
Scale: A request to scale a resource.
  spec ScaleSpec!  The desired number.
  status ScaleStatus!  The present number.
ScaleSpec: The desired number of instances.
  replicas int32  The desired number of instances.
ScaleStatus: The present number of instances.
  replicas int32!  The present number of instances.
  selector string  Selector of the instances' labels, as in a query.
""",
                package="io.k8s.api.autoscaling.v1",
            ),
            "Scale",
        )
    ),
    verbs=(),
    columns=(
        columns.NAME,
        TableColumn("Desired", "integer", description="Number of desired replicas", path=".spec.replicas"),
        TableColumn("Available", "integer", description="Number of actual replicas", path=".status.replicas"),
        columns.CUSTOM_AGE,
    ),
)


def scale_of(paths: ScalePaths, obj: Object) -> Object:
    """Return the Scale of an object. Raises StatusError (500) where it has no desired number."""
    scale = scale_to_change(paths, obj)
    if scale["spec"]["replicas"] == _UNSET:
        raise status.internal(f'the spec replicas field "{paths.spec}" does not exist')
    if scale["spec"]["replicas"] == 0:
        del scale["spec"]["replicas"]
    return scale


def scale_to_change(paths: ScalePaths, obj: Object) -> Object:
    """Return the Scale of an object for a patch, also of an object without a desired number."""
    meta, selector = obj["metadata"], _at(obj, paths.selector) if paths.selector else None
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": SCALES.kind,
        "apiVersion": SCALES.api_version,
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": _number(obj, paths.spec, _UNSET)},
        "status": {"replicas": _number(obj, paths.status, 0)} | ({"selector": selector} if selector else {}),
    }


def set_replicas(paths: ScalePaths, obj: Object, scale: Object) -> None:
    """Write the desired number of a Scale into its object. Raises StatusError (400) if it has none."""
    replicas = scale["spec"].get("replicas", 0)
    if replicas == _UNSET:
        raise status.bad_request(f'the spec replicas field "{paths.spec}" cannot be empty')
    *parents, last = _steps(paths.spec)
    for name in parents:
        below = obj.setdefault(name, {})
        if not isinstance(below, dict):
            raise status.bad_request(f"value cannot be set because {paths.spec} is not a map[string]interface{{}}")
        obj = below
    obj[last] = replicas


def owner_path(paths: ScalePaths) -> tuple[str, ...]:
    """Return the path of the desired number in managedFields."""
    return tuple(f"f:{name}" for name in _steps(paths.spec))


def errors(paths: ScalePaths, obj: Object) -> list[FieldError]:
    """Return the errors of an object in the fields of its Scale."""
    found = [*_number_errors(paths.spec, obj), *_number_errors(paths.status, obj)]
    selector = _at(obj, paths.selector, "") if paths.selector else ""
    if not isinstance(selector, str):
        found.append(field_errors.invalid(paths.selector, "", _accessor(paths.selector, selector, "string")))
    return found


def _number_errors(path: str, obj: Object) -> list[FieldError]:
    value = _at(obj, path, 0)
    if isinstance(value, bool) or not isinstance(value, int):
        return [field_errors.invalid(path, 0, _accessor(path, value, "int64"))]
    if value < 0:
        return [field_errors.invalid(path, value, "should be a non-negative integer")]
    if value > MAX_REPLICAS:
        return [field_errors.invalid(path, value, f"should be less than or equal to {MAX_REPLICAS}")]
    return []


def _accessor(path: str, value: Any, expected: str) -> str:
    kind = _GO_TYPES.get(type(value), "map[string]interface {}")
    return f"{path} accessor error: {field_errors.go_text(value)} is of the type {kind}, expected {expected}"


def _number(obj: Object, path: str, absent: int) -> int:
    value = _at(obj, path)
    return value if isinstance(value, int) and not isinstance(value, bool) else absent


def _at(obj: Object, path: str, absent: Any = None) -> Any:
    """Return the value at a path such as .spec.replicas."""
    value: Any = obj
    for name in _steps(path):
        if not isinstance(value, Mapping) or name not in value:
            return absent
        value = value[name]
    return value


def _steps(path: str) -> list[str]:
    return path.removeprefix(".").split(".")
