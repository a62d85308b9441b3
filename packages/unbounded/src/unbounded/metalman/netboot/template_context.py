"""Data for the templates of a netboot image: the Machine and its context, under Go's names.

The types follow from those in `api/`: `spec.pxe.dhcpLeases` is `.Spec.PXE.DHCPLeases`. An optional struct is a pointer,
as are an optional bool and an optional integer of a spec; an absent text is an empty string.
"""

from __future__ import annotations

import types as python_types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from unbounded.api.machine import Machine
from unbounded.api.machine_spec import BootMode, PXESpec
from unbounded.api.meta import ObjectMeta
from unbounded.gotemplate import types as go
from unbounded.gotemplate.types import GoField, GoKind, GoType, Method, Signature, Value
from unbounded.metalman.host_network import installer_network

_WORDS: Final[Mapping[str, str]] = {
    word.lower(): word
    for word in ("API", "CA", "CNI", "DHCP", "DNS", "EK", "ID", "IPv4", "MAC", "PXE", "SSH", "TPM", "UID", "URL")
}
_NAMES: Final[Mapping[str, str]] = {
    "ConfigurationRef": "MachineConfigurationRef",
    "OperationsStatus": "OperationsSpec",
    "SecretReference": "NamespacedSecretReference",
}
_META: Final = "unbounded.api.meta"  # types that Kubernetes defines, in its package v1
_PLAIN: Final[Mapping[object, GoType]] = {str: go.STRING, int: go.INT64, bool: go.BOOL, float: go.FLOAT64}


class TemplateContext(msgspec.Struct, frozen=True, kw_only=True):
    """Values that a template gets besides the Machine."""

    apiserver_url: str
    serve_url: str
    kubernetes_version: str
    cluster_dns: str
    agent_config_json: str


def template_data(machine: Machine, around: TemplateContext) -> Value:
    """Return the dot of a netboot template. `.Machine.UID` is the UID in the marks on the Machine's disks."""
    marked = replace(machine, metadata=replace(machine.metadata, uid=machine.lasting_uid))
    return Value(_DATA, (marked, around))


def go_name(field: str) -> str:
    """Return the Go name of a field: `dhcp_leases` is `DHCPLeases`."""
    return "".join(_WORDS.get(word, word.title()) for word in field.split("_"))


@cache
def struct_type(struct: type[msgspec.Struct]) -> GoType:
    """Return the Go type of an API type."""
    package = "v1" if struct.__module__ == _META else "v1alpha3"
    fields: dict[str, GoField] = {}
    methods = _METHODS.get(struct, {})
    hints = typing.get_type_hints(struct)
    names = {name: go_name(name) for name in struct.__struct_fields__}
    for name, shown in names.items():
        type_ = _type(hints[name])
        fields[shown] = GoField(shown, type_, _getter(name, type_))
    name = _NAMES.get(struct.__name__, struct.__name__)
    return GoType(GoKind.STRUCT, f"{package}.{name}", named=True, fields=fields, own=tuple(fields), methods=methods)


def _type(hint: Any) -> GoType:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return struct_type(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple or origin is list:
        return go.slice_of(_type(args[0]))
    if origin is dict:
        return go.map_of(_type(args[0]), _type(args[1]))
    if origin in (typing.Union, python_types.UnionType):
        (held,) = (_type(each) for each in args if each is not type(None))
        return held if held.kind is GoKind.STRING else go.pointer_to(held)
    raise TypeError(f"{hint} has no type in Go")


def _getter(name: str, type_: GoType) -> Callable[[Any], Any]:
    read = attrgetter(name)
    if type_.kind is not GoKind.STRING:
        return read
    return lambda struct: read(struct) or ""


def _machine_type() -> GoType:
    """Return the type of Machine, which embeds ObjectMeta: `.Machine.Name` is `.Machine.ObjectMeta.Name`."""
    plain, meta = struct_type(Machine), struct_type(ObjectMeta)
    metadata = GoField("ObjectMeta", meta, attrgetter("metadata"))
    promoted = {name: GoField(name, field.type, _through(field.get)) for name, field in meta.fields.items()}
    own = {name: field for name, field in plain.fields.items() if name != "Metadata"}
    fields = {**promoted, "ObjectMeta": metadata, **own}
    return GoType(
        GoKind.STRUCT,
        "v1alpha3.Machine",
        named=True,
        fields=fields,
        own=("Kind", "APIVersion", "ObjectMeta", "Spec", "Status"),
    )


def _through(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda machine: get(machine.metadata)


def _of_pxe(read: Callable[[PXESpec], str], default: str) -> Method:
    """Return a method of *PXESpec that may be called on nil, which results in the default."""
    return Method(
        Signature((), go.STRING, lambda pxe: (pxe is not None and read(pxe)) or default),
        pointer=True,
    )


def _boot_protocol(pxe: PXESpec) -> str:
    return "HTTP" if pxe.boot_mode == BootMode.UEFI_HTTP else pxe.boot_protocol


_METHODS: Final[Mapping[type, Mapping[str, Method]]] = {
    PXESpec: {
        "TargetArchitecture": _of_pxe(attrgetter("architecture"), "amd64"),
        "TargetBootProtocol": _of_pxe(_boot_protocol, "PXE"),
    }
}


def _around(name: str) -> Callable[[Any], Any]:
    read = attrgetter(name)
    return lambda data: read(data[1])


def _installer_network(machine: Machine) -> str:
    leases = machine.spec.pxe.dhcp_leases if machine.spec.pxe is not None else ()
    return installer_network(leases, machine.spec.network)


_FIELDS: Final[Mapping[str, GoField]] = {
    "Machine": GoField("Machine", go.pointer_to(_machine_type()), lambda data: data[0]),
    "ApiserverURL": GoField("ApiserverURL", go.STRING, _around("apiserver_url")),
    "ServeURL": GoField("ServeURL", go.STRING, _around("serve_url")),
    "KubernetesVersion": GoField("KubernetesVersion", go.STRING, _around("kubernetes_version")),
    "ClusterDNS": GoField("ClusterDNS", go.STRING, _around("cluster_dns")),
    "AgentConfigJSON": GoField("AgentConfigJSON", go.STRING, _around("agent_config_json")),
    "InstallerNetwork": GoField("InstallerNetwork", go.STRING, lambda data: _installer_network(data[0])),
}
_DATA: Final = GoType(GoKind.STRUCT, "netboot.TemplateData", named=True, fields=_FIELDS, own=tuple(_FIELDS))
