"""L2Template, Subnet and IpamHost: the network of hosts, from templates and shared ranges of addresses."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from unbounded.api.container_cloud.machine import InterfaceName, NoEffect, TemplateSelector
from unbounded.api.container_cloud.names import GROUP_IPAM, V1ALPHA1
from unbounded.api.fields import ApiStruct, Count, Field, MacAddress, Message, ObjectName
from unbounded.api.meta import Condition, Kind, Object

MAX_ALLOCATED: Final = 4096
MAX_TEMPLATE: Final = 65536
CIDR = Annotated[str, Field(min_length=1, max_length=49)]
Address = Annotated[str, Field(min_length=1, max_length=45)]
AddressRange = Annotated[str, Field(pattern=r"^[0-9A-Fa-f.:]+(-[0-9A-Fa-f.:]+)?$", min_length=1, max_length=91)]
NetplanTemplate = Annotated[str, Field(max_length=MAX_TEMPLATE)]


class L3Layout(ApiStruct, frozen=True, kw_only=True):
    """A Subnet that the template uses."""

    subnet_name: Annotated[ObjectName, Field("Name of the Subnet, as macros use it.")]
    scope: Annotated[
        str, Field("namespace: the Subnet is in the template's namespace.", enum=("namespace", "global", "cluster"))
    ] = "namespace"
    label_selector: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]], Field("Labels that the Subnet must have.", max_properties=16)
    ] = {}


class L2TemplateSpec(ApiStruct, frozen=True, kw_only=True):
    """The network of hosts. Exactly one of ifMapping and autoIfMappingPrio is set."""

    if_mapping: Annotated[
        tuple[InterfaceName, ...], Field("Names of the interfaces, by the number that macros use.", max_items=32)
    ] = ()
    auto_if_mapping_prio: Annotated[
        tuple[InterfaceName, ...],
        Field(
            "Prefixes of interface names, in order. The word provision is the place of the interface that boots.",
            max_items=32,
        ),
    ] = ()
    l3_layout: Annotated[
        tuple[L3Layout, ...], Field("Subnets that the template uses.", map_keys=("subnetName",), max_items=32)
    ] = ()
    np_template: Annotated[
        NetplanTemplate,
        Field(
            "netplan, with macros: nic, mac, ip, cidr_from_subnet, gateway_from_subnet, nameservers_from_subnet and "
            "cluster_api_lb_ip."
        ),
    ]
    cluster_ref: NoEffect = None


class L2TemplateStatus(ApiStruct, frozen=True, kw_only=True):
    """Observed state of a template."""

    state: Annotated[str | None, Field("OK or ERR.", max_length=1024)] = None
    reason: Annotated[Message | None, Field("Cause of the error, with the line.")] = None


class L2Template(Object, frozen=True, kw_only=True):
    """A network for hosts of a Cluster."""

    spec: Annotated[L2TemplateSpec, Field("Network of the hosts.")]
    status: Annotated[L2TemplateStatus, Field("Observed state of the template.")] = L2TemplateStatus()


class SubnetSpec(ApiStruct, frozen=True, kw_only=True):
    """A network, and those of its addresses that hosts may get."""

    cidr: Annotated[CIDR, Field("Network, such as 10.0.0.0/24.")]
    include_ranges: Annotated[
        tuple[AddressRange, ...],
        Field(
            "Addresses that hosts may get, such as 10.0.0.10-10.0.0.20. If absent, all of the network.", max_items=32
        ),
    ] = ()
    exclude_ranges: Annotated[tuple[AddressRange, ...], Field("Addresses that no host gets.", max_items=32)] = ()
    gateway: Annotated[Address | None, Field("Gateway of the network. No host gets it.")] = None
    nameservers: Annotated[tuple[Address, ...], Field("DNS servers.", max_items=16)] = ()
    use_whole_cidr: Annotated[bool, Field("Hosts may also get the first and the last address of the network.")] = False


class SubnetStatus(ApiStruct, frozen=True, kw_only=True):
    """The addresses in use. An address belongs to a host once it is here."""

    allocated_ips: Annotated[
        tuple[Annotated[str, Field(max_length=256)], ...],
        Field("Addresses in use, as IP:UID/INTERFACE, with the UID of the IpamHost.", max_items=MAX_ALLOCATED),
    ] = msgspec.field(default=(), name="allocatedIPs")
    capacity: Annotated[Count | None, Field("Number of addresses that hosts may get.")] = None
    allocatable: Annotated[Count | None, Field("Number of them that are free.")] = None
    state: Annotated[str | None, Field("OK, or ERR: and the cause.", max_length=1024)] = None


class Subnet(Object, frozen=True, kw_only=True):
    """A network whose addresses hosts get."""

    spec: Annotated[SubnetSpec, Field("Network, and its usable addresses.")]
    status: Annotated[SubnetStatus, Field("Addresses in use.")] = SubnetStatus()


class InterfaceMAC(ApiStruct, frozen=True, kw_only=True):
    """A network interface of a host."""

    name: Annotated[str, Field("Name of the interface.", min_length=1, max_length=256)]
    mac: Annotated[MacAddress, Field("Hardware address.")]
    primary: Annotated[bool, Field("True for the interface that boots.")] = False


class IpamHostSpec(ApiStruct, frozen=True, kw_only=True):
    """The template of the host's network. Changes count at the next install."""

    l2_template_selector: Annotated[TemplateSelector | None, Field("Template of the network.")] = None
    if_mapping_override: Annotated[
        tuple[InterfaceName, ...],
        Field("Names of all interfaces, by number, in place of the template's mapping.", max_items=32),
    ] = ()
    np_template_override: Annotated[NetplanTemplate | None, Field("netplan in place of the template's.")] = None
    nic_mac_map: Annotated[
        tuple[InterfaceMAC, ...], Field("Interfaces of the host, as it reported them.", max_items=64)
    ] = msgspec.field(default=(), name="nicMACmap")


class NetconfigFile(ApiStruct, frozen=True, kw_only=True):
    """A file of the host."""

    path: Annotated[str, Field("Path of the file.", min_length=1, max_length=1024)]
    content: Annotated[str, Field("Content, in base64.", max_length=262144)]


class ServiceAddress(ApiStruct, frozen=True, kw_only=True):
    """The address of a service on the host."""

    if_name: Annotated[str | None, Field("Interface.", max_length=64)] = None
    ip_address: Annotated[str | None, Field("Address with its prefix.", max_length=49)] = None


class IpamHostStatus(ApiStruct, frozen=True, kw_only=True):
    """The network of the host, with its addresses."""

    netconfig_files: Annotated[tuple[NetconfigFile, ...], Field("Network configuration.", max_items=8)] = ()
    state: Annotated[str | None, Field("OK, or ERR: and the cause.", max_length=1024)] = None
    service_map: Annotated[
        dict[str, Annotated[tuple[ServiceAddress, ...], Field(max_items=16)]],
        Field("Addresses by service: the labels ipam/SVC-… of their Subnets.", max_properties=16),
    ] = {}
    l2_template_ref: Annotated[
        str | None, Field("NAMESPACE/NAME of the template, and its resourceVersion.", max_length=512)
    ] = None
    conditions: Annotated[
        tuple[Condition, ...], Field("Conditions of the network.", map_keys=("type",), max_items=8)
    ] = ()


class IpamHost(Object, frozen=True, kw_only=True):
    """The network of one Machine, of the same name and namespace."""

    spec: Annotated[IpamHostSpec, Field("Template of the network.", defaulted=True)] = IpamHostSpec()
    status: Annotated[IpamHostStatus, Field("Network, with addresses.")] = IpamHostStatus()


L2_TEMPLATES: Final = Kind(GROUP_IPAM, V1ALPHA1, "L2Template", "l2templates", L2Template, namespaced=True)
SUBNETS: Final = Kind(GROUP_IPAM, V1ALPHA1, "Subnet", "subnets", Subnet, namespaced=True)
IPAM_HOSTS: Final = Kind(GROUP_IPAM, V1ALPHA1, "IpamHost", "ipamhosts", IpamHost, namespaced=True)
