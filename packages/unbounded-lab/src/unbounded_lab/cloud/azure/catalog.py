"""Catalog of the simulated Azure: zones, sizes and images, versions of the APIs, and the shapes of requests.

The shapes of requests for a virtual machine or an extension are names, types and enumerated values, level by level.
They are those of the models of the official SDK, from which `requests.json` is generated. All others are rejected, as
by the real service.

The maximum of data disks for a size is in Azure's pages of the sizes, and in a table of Kubernetes' driver for Azure's
disks (kubernetes-sigs/azuredisk-csi-driver, azure_dd_max_disk_count.go).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from unbounded_lab.cloud.azure.errors import AzureProblem
from unbounded_lab.cloud.azure.model import COMPUTE, NETWORK

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

ZONES: Final[Mapping[str, tuple[str, ...]]] = {
    "westeurope": ("1", "2", "3"),
    "northeurope": ("1", "2", "3"),
    "uksouth": ("1", "2", "3"),
    "eastus": ("1", "2", "3"),
    "eastus2": ("1", "2", "3"),
    "southeastasia": ("1", "2", "3"),
    "northcentralus": (),
    "westcentralus": (),
}
"""Zones of each location."""

API_VERSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    **{f"{COMPUTE}/{name}": (version,) for name, version in KNOWN.api_versions.items()},
    f"{COMPUTE}/locations/operations": tuple(sorted(set(KNOWN.api_versions.values()))),
    f"{NETWORK}/networkInterfaces": ("2024-05-01",),
    "Microsoft.Resources/resourceGroups": ("2024-11-01",),
}
"""Supported versions by the type of a resource."""
OLDER: Final = ("2024-07-01", "2024-11-01")
"""Versions of Compute in a cloud that is behind."""

EXACT_VERSION: Final = "24.04.202505010"
VERSIONS: Final = (EXACT_VERSION, "24.04.202502210")
"""Versions of every offered image; `latest` is the first."""
IMAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "canonical:ubuntu-24_04-lts:server": VERSIONS,
    "almalinux:almalinux-x86_64:server": VERSIONS,
}
"""Versions of images by publisher, offer and SKU in lower case."""

_USUAL: Final = {2: 4, 4: 8, 8: 16, 16: 32, 32: 32, 48: 32, 64: 32}  # {cores: maximum of data disks}
_SIXTH: Final = {2: 8, 4: 12, 8: 24, 16: 48, 32: 64, 48: 64, 64: 64, 96: 64}
_SERIES: Final[Mapping[str, Mapping[int, int]]] = {
    "B{}s": {1: 2, 2: 4},
    "B{}ms": {1: 2, 2: 4, 4: 8, 8: 16, 12: 16, 16: 32, 20: 32},
    **{f"B{{}}{kind}_v2": {2: 4, 4: 8, 8: 16, 16: 32} for kind in ("s", "as", "ls", "als", "ps", "pls")},
    **{f"D{{}}{kind}_v3": _USUAL for kind in ("", "s")},
    **{f"D{{}}{kind}_v4": _USUAL for kind in ("", "s", "d", "ds", "a", "as")},
    **{f"D{{}}{kind}_v5": _USUAL | {96: 32} for kind in ("", "s", "d", "ds", "as", "ads", "ls", "lds")},
    **{f"D{{}}{kind}_v5": _USUAL for kind in ("ps", "pds", "pls", "plds")},
    **{f"D{{}}{kind}_v6": _SIXTH for kind in ("s", "ds", "ls", "lds", "ps", "pds", "pls", "plds")},
    **{f"D{{}}{kind}_v6": _USUAL | {96: 32} for kind in ("as", "ads", "als", "alds")},
    **{f"E{{}}{kind}_v3": _USUAL | {20: 32} for kind in ("", "s")},
    **{f"E{{}}{kind}_v4": _USUAL | {20: 32} for kind in ("", "s", "d", "ds", "a", "as")},
    **{f"E{{}}{kind}_v5": _USUAL | {20: 32, 96: 32} for kind in ("", "s", "d", "ds", "as", "ads")},
    **{f"E{{}}{kind}_v6": _SIXTH for kind in ("s", "ds", "ps", "pds")},
    "F{}s_v2": _USUAL | {72: 32},
    **{f"F{{}}{kind}_v6": _USUAL for kind in ("as", "als", "ams")},
    **{f"L{{}}{kind}_v3": {8: 16, 16: 32, 32: 32, 48: 32, 64: 32, 80: 32} for kind in ("s", "as")},
    "NC{}as_T4_v3": {4: 8, 8: 16, 16: 32, 64: 32},
}


class _Misfit(Exception):
    def __init__(self, detail: str, path: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.path = path


def checked(value: Any, shape: Shape) -> Any:
    """Return a request without null and read-only properties, with enumerated values in their usual case.

    Raises:
        AzureProblem: an unknown name, or an invalid value; names its path.
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


@dataclass(frozen=True, slots=True)
class VmSize:
    name: str
    cores: int
    data_disks: int


def _sizes() -> Iterator[VmSize]:
    for series, ladder in _SERIES.items():
        for cores, data_disks in ladder.items():
            yield VmSize(f"Standard_{series.format(cores)}", cores, data_disks)


SIZES: Final[Mapping[str, VmSize]] = {size.name.lower(): size for size in _sizes()}
"""Sizes with a known maximum of data disks, by their names in lower case."""
_NAMED: Final = re.compile(
    r"(Standard|Basic)_(?P<family>[ABDEFGHLMN][A-Z]{0,2})(?P<cores>\d{1,4})(-(?P<fewer>[1-9]\d{0,2}))?(?P<features>[a-z]{0,6})"
    r"(_[A-Z0-9]{1,10}){0,2}?(_v[1-9]\d?)?(_Promo)?",
    re.IGNORECASE,
)
"""learn.microsoft.com, "Azure VM sizes naming conventions": family, vCPUs, fewer of them, features, and so on."""
MOST_DATA_DISKS: Final = 64


def size_of(name: str) -> VmSize | None:
    """Return a size by its name; an unknown one, as new sizes appear each month, is derived from its name."""
    known = SIZES.get(name.lower())
    if known is not None:
        return known
    found = _NAMED.fullmatch(name)
    if found is None:
        return None
    cores = int(found["cores"]) or 1  # A0 has a part of a core
    return VmSize(name, int(found["fewer"] or cores), min(2 * cores, MOST_DATA_DISKS))


def plain(location: str) -> str:
    """Return a location in the form of replies; requests may have its display name, `West Europe`."""
    return location.replace(" ", "").lower()
