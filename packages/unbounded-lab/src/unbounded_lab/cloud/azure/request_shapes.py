"""Shapes of requests for a virtual machine or an extension: names, types and enumerated values, level by level.

They are those of the models of the official SDK, from which `requests.json` is generated. All others are rejected, as
by the real service.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from unbounded_lab.cloud.azure.errors import AzureProblem

Shape = str | list[Any] | Mapping[str, Any]
"""A key of TYPES; `#Name` is a model or an enum; `[shape]` is a list of such; `{"*": shape}` has any names."""


class RequestShapes(msgspec.Struct, frozen=True, rename="camel"):
    """Shapes of all requests.

    Args:
        api_versions: by the type of a resource.
        expand: values of `$expand`, by the name of a call.
        models: `{name: shape}` of each model, and the values of each enum.
    """

    api_versions: Mapping[str, str]
    expand: Mapping[str, list[str]]
    models: Mapping[str, dict[str, Any] | list[str]]


KNOWN: Final = msgspec.json.decode(Path(__file__).with_name("requests.json").read_bytes(), type=RequestShapes)
TYPES: Final = {"str": str, "int": int, "float": float, "bool": bool, "any": object}
READ_ONLY: Final = "read"
VIRTUAL_MACHINE: Final = "#VirtualMachine"
EXTENSION: Final = "#VirtualMachineExtension"
REIMAGE: Final = "#VirtualMachineReimageParameters"


class _Misfit(Exception):
    def __init__(self, detail: str, path: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.path = path


def checked(value: Any, shape: Shape) -> Any:
    """Return a request without null and read-only properties, with enumerated values in their usual case.

    Raises:
        Problem: an unknown name, or an invalid value; names its path.
    """
    try:
        return _checked(value, shape, "")
    except _Misfit as misfit:
        # Compute parses `properties`; Resource Manager parses the rest, before that.
        if not misfit.path.startswith("properties"):
            raise AzureProblem("InvalidRequestContent", detail=misfit.detail) from misfit
        target = f"vm.{misfit.path}" if shape == VIRTUAL_MACHINE else None
        raise AzureProblem("BadRequest", detail=misfit.detail, target=target) from misfit


def _checked(value: Any, shape: Shape, path: str) -> Any:
    if isinstance(shape, list):
        parts = _a("list", list, value, path)
        return [_checked(each, shape[0], f"{path}[{index}]") for index, each in enumerate(parts)]
    kind = shape.removeprefix("#") if isinstance(shape, str) else ""
    if kind in TYPES:
        return _a(kind, TYPES[kind], value, path)
    known = shape if isinstance(shape, Mapping) else KNOWN.models[kind]
    if isinstance(known, list):
        return _one_of(known, kind, value, path)
    members = {name: each for name, each in _a("object", dict, value, path).items() if each is not None}
    shapes = {name: _member(known, name, path) for name in members}
    return {
        name: _checked(each, shapes[name], _below(path, name))
        for name, each in members.items()
        if shapes[name] != READ_ONLY
    }


def _member(known: Mapping[str, Any], name: str, path: str) -> Shape:
    found: Shape | None = known.get(name, known.get("*"))
    if found is None:
        where = _below(path, name)
        raise _Misfit(f"Could not find member '{name}' on object of type 'ResourceDefinition'. Path '{where}'", where)
    return found


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _one_of(values: list[str], kind: str, value: Any, path: str) -> str:
    for each in values:
        if isinstance(value, str) and value.lower() == each.lower():
            return each
    raise _not_converted(value, kind, path)


def _a(kind: str, requested: type, value: Any, path: str) -> Any:
    fits = isinstance(value, int | float if requested is float else requested)
    if not fits or (isinstance(value, bool) and requested in (int, float)):
        raise _not_converted(value, kind, path)
    return value


def _not_converted(value: Any, kind: str, path: str) -> _Misfit:
    shown = f'"{value}"' if isinstance(value, str) else msgspec.json.encode(value).decode()
    return _Misfit(f"Error converting value {shown} to type '{kind}'. Path '{path}'.", path)
