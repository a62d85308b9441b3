"""Schema of requests to Azure's Compute provider for the simulated Azure, from the models of the official SDK."""

from __future__ import annotations

import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec
from azure.mgmt.compute import models
from azure.mgmt.compute._utils.model_base import Model
from azure.mgmt.compute._version import VERSION
from azure.mgmt.compute.operations import _operations as operations

PATH: Final = "packages/unbounded-lab/src/unbounded_lab/cloud/azure/requests.json"
WRITTEN: Final = (models.VirtualMachine, models.VirtualMachineExtension, models.VirtualMachineReimageParameters)
OPEN: Final = frozenset({"VirtualMachineSizeTypes"})
"""Enums of which the SDK lacks values: its list of sizes is closed and lacks newer ones, such as D2s_v5."""
READS: Final[Mapping[str, Callable[..., Any]]] = {
    "VirtualMachines.Get": operations.build_virtual_machines_get_request,
    "VirtualMachines.List": operations.build_virtual_machines_list_request,
    "VirtualMachines.ListAll": operations.build_virtual_machines_list_all_request,
}
TYPES: Final[Mapping[str, Callable[..., Any]]] = {
    "virtualMachines": operations.build_virtual_machines_get_request,
    "virtualMachineScaleSets": operations.build_virtual_machine_scale_sets_get_request,
    "virtualMachineScaleSets/virtualMachines": operations.build_virtual_machine_scale_set_vms_get_request,
    "virtualMachines/extensions": operations.build_virtual_machine_extensions_get_request,
    "disks": operations.build_disks_get_request,
    "availabilitySets": operations.build_availability_sets_get_request,
    "images": operations.build_images_get_request,
    "galleries/images/versions": operations.build_gallery_image_versions_get_request,
    "locations/publishers": operations.build_virtual_machine_images_get_request,
    "locations/communityGalleries": operations.build_community_gallery_image_versions_get_request,
    "locations/sharedGalleries": operations.build_shared_gallery_image_versions_get_request,
}
PLAIN: Final = {str: "str", int: "int", float: "float", bool: "bool", datetime: "str", Any: "any"}

Fields = Mapping[str, tuple[Any, bool]]


def files() -> dict[str, str]:
    """Return the file by its path."""
    content = {
        "from": f"azure-mgmt-compute {VERSION}; written by python -m scripts.generate",
        "apiVersions": {name: _api_version(build) for name, build in TYPES.items()},
        "expand": {name: _values(inspect.signature(build).parameters["expand"]) for name, build in READS.items()},
        "models": dict(sorted(_closure())),
    }
    return {PATH: msgspec.json.format(msgspec.json.encode(content), indent=1).decode() + "\n"}


@cache
def fields_of(kind: Any) -> Fields | None:
    """Return the fields of one of the SDK's models, `{name on the wire: (annotation, is required)}`."""
    if not (isinstance(kind, type) and issubclass(kind, Model)):
        return None
    known: dict[str, Any] = _rest_fields(kind)
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        scope = {**vars(sys.modules[base.__module__]), "_models": models}
        for name, annotation in vars(base).get("__annotations__", {}).items():
            if name in known:
                hints[name] = _resolved(annotation, scope)
    return {
        each._rest_name: (hints[name], type(None) not in typing.get_args(hints[name])) for name, each in known.items()
    }


def _rest_fields(kind: type[Model]) -> dict[str, Any]:
    made: Any = kind.__new__(kind)  # __new__ of the first instance computes the fields
    found: dict[str, Any] = made._attr_to_rest_field
    return found


def _resolved(annotation: Any, scope: dict[str, Any]) -> Any:
    """Resolve an annotation; a union with an enum of OPEN is reduced to `str`."""
    holder = type("Holder", (), {"__annotations__": {"it": annotation}})
    kind = typing.get_type_hints(holder, scope)["it"]
    closed = tuple(each for each in typing.get_args(kind) if getattr(each, "__name__", "") not in OPEN)
    return typing.Union[closed] if typing.get_origin(kind) is typing.Union else kind  # noqa: UP007 - of a tuple


def _closure() -> Iterator[tuple[str, Any]]:
    """Yield all models and enums that the written ones contain, by name; skip those of read-only fields."""
    left, visited = list[Any](WRITTEN), set[str]()
    while left:
        kind = left.pop()
        if kind.__name__ in visited:
            continue
        visited.add(kind.__name__)
        if is_enum(kind):
            yield kind.__name__, [each.value for each in kind]
            continue
        shape: dict[str, Any] = {}
        read_only = {each._rest_name for each in _rest_fields(kind).values() if each._visibility == ["read"]}
        for name, (annotation, _) in (fields_of(kind) or {}).items():
            shape[name] = "read" if name in read_only else _shape(annotation, left)
        yield kind.__name__, shape


def _shape(annotation: Any, found: list[Any]) -> Any:
    """Return an annotation in the form of the file; add the models and enums that it names to those found."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        of_interest = [each for each in arguments if each is not type(None)]
        enums = [each for each in of_interest if is_enum(each)]
        return _shape((enums or of_interest)[0], found)
    if origin is list:
        return [_shape(arguments[0], found)]
    if origin is dict:
        return {"*": _shape(arguments[1], found)}
    if annotation in PLAIN:
        return PLAIN[annotation]
    found.append(annotation)
    return f"#{annotation.__name__}"


def is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def _values(parameter: inspect.Parameter) -> list[str]:
    return [each.value for kind in typing.get_args(parameter.annotation) if is_enum(kind) for each in kind]


def _api_version(build: Callable[..., Any]) -> str:
    needed = [each for each in inspect.signature(build).parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
    request = build(*("x" for each in needed if each.default is each.empty))
    return parse_qs(urlsplit(str(request.url)).query)["api-version"][0]
