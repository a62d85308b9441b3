"""Observations of the network of one host, and the decisions on it. Pure data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from unbounded.api.container_cloud.host import BareMetalHost
from unbounded.api.container_cloud.machine import ContainerCloudMachine
from unbounded.api.container_cloud.network import (
    IpamHost,
    L2Template,
    NetconfigFile,
    ServiceAddress,
    Subnet,
)
from unbounded.api.core import ConfigMap
from unbounded.api.machine import Machine

CONFIG_KEY: Final = "network-config"
CONFIG_PREFIX: Final = "container-cloud-network-"  # of the names of ConfigMaps; the UID of an IpamHost follows
NETPLAN_PATH: Final = "/etc/netplan/60-kaas-lcm-netplan.yaml"
ADDRESSES: Final = "AddressesAllocated"
RENDERED: Final = "Rendered"
RESTART_NEEDED: Final = "RestartNeeded"
DIRTY: Final = "Dirty"  # a condition of BareMetalHost: it may still run
MAX_CARDS: Final = 64


@dataclass(frozen=True)
class NetworkView:
    """All that a plan depends on.

    Args:
        host: the BareMetalHost that the Machine has claimed, or that the IpamHost names.
        target: the Machine of unbounded-cloud.io of that host.
        templates: L2Templates of the namespace.
        subnets: those of the namespace, those of the global one, and all that the IpamHost has addresses of.
        config: the ConfigMap with the configuration.
    """

    name: str
    namespace: str
    machine: ContainerCloudMachine | None
    ipam: IpamHost | None = None
    host: BareMetalHost | None = None
    target: Machine | None = None
    templates: Sequence[L2Template] = ()
    subnets: Sequence[Subnet] = ()
    config: ConfigMap | None = None


@dataclass(frozen=True)
class CreateIpamHost:
    """Create the IpamHost of a Machine."""

    body: Mapping[str, Any]


@dataclass(frozen=True)
class PatchIpamHost:
    """Change metadata or spec of an IpamHost."""

    patch: Mapping[str, Any]


@dataclass(frozen=True)
class Allocate:
    """Give an IpamHost addresses of a Subnet, each for the key of an interface."""

    subnet: Subnet
    interfaces: tuple[str, ...]


@dataclass(frozen=True)
class ReleaseAddresses:
    """Take the addresses of a Subnet from an IpamHost."""

    subnet: Subnet


@dataclass(frozen=True)
class WriteConfig:
    """Write the network configuration, which metalman serves to the installer."""

    text: str
    boot: str | None = None  # whose report it was made from


@dataclass(frozen=True)
class DeleteConfig:
    """Delete the network configuration: an install waits until there is another."""


@dataclass(frozen=True)
class PatchTarget:
    """Change `spec.pxe` of the Machine of the host."""

    pxe: Mapping[str, Any]


NetworkAction = CreateIpamHost | PatchIpamHost | Allocate | ReleaseAddresses | WriteConfig | DeleteConfig | PatchTarget


@dataclass(frozen=True)
class IpamReport:
    """Content of the status of an IpamHost.

    Args:
        reason: NetworkReason, or Allocated, Rendered and AwaitingHardware.
        allocated: the installer can start: it has its address, and what is still missing comes from its report.
        outdated: the host was installed with another configuration.
    """

    reason: str
    message: str
    allocated: bool = False
    rendered: bool = False
    outdated: bool = False
    state: str | None = None
    template: str | None = None
    files: tuple[NetconfigFile, ...] = ()
    services: Mapping[str, tuple[ServiceAddress, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class NetworkPlan:
    """The next step: actions in their order, and the status that is true after them.

    With actions of allocation the plan is made anew after them, and the status stays as it is.

    Args:
        handover: change of `spec.pxe` of the host's Machine that the next install needs. Whoever plans the install
            writes it, together with the image.
    """

    actions: tuple[NetworkAction, ...] = ()
    report: IpamReport | None = None
    handover: Mapping[str, Any] = field(default_factory=dict)
