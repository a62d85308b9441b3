"""The declared network of an installed system: `Machine.spec.network`, with netplan's words.

It becomes cloud-init's network configuration, version 2. Durations are in milliseconds, as netplan counts them.
"""

from __future__ import annotations

from typing import Annotated, Final

from unbounded.api.fields import ApiStruct, Count, Field, Int32, MacAddress

MAX_ETHERNETS: Final = 32
MAX_BONDS: Final = 16
MAX_VLANS: Final = 64
MAX_BRIDGES: Final = 16
# of the kernel: 15 characters; it becomes the name of a file, too
InterfaceName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", min_length=1, max_length=15)]
IPText = Annotated[str, Field(min_length=2, max_length=45)]
NetworkText = Annotated[str, Field(min_length=4, max_length=49)]
Domain = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?$", min_length=1, max_length=253)]
Milliseconds = Annotated[Int32, Field(minimum=0, maximum=600_000)]

BOND_MODES: Final = (
    "balance-rr",
    "active-backup",
    "balance-xor",
    "broadcast",
    "802.3ad",
    "balance-tlb",
    "balance-alb",
)
HASH_POLICIES: Final = ("layer2", "layer3+4", "layer2+3", "encap2+3", "encap3+4")


class Nameservers(ApiStruct, frozen=True, kw_only=True):
    """Name servers of an interface."""

    addresses: Annotated[tuple[IPText, ...], Field("IPv4 and IPv6 addresses of DNS servers.", max_items=8)] = ()
    search: Annotated[tuple[Domain, ...], Field("Search domains.", max_items=16)] = ()


class NetworkRoute(ApiStruct, frozen=True, kw_only=True):
    """A static route."""

    to: Annotated[str, Field("Destination as ADDRESS/PREFIX, or default.", min_length=4, max_length=49)]
    via: Annotated[IPText, Field("Address of the gateway.")]
    metric: Annotated[Int32 | None, Field("Metric; the lowest one wins.", minimum=0)] = None
    on_link: Annotated[bool, Field("The gateway is reachable although no address of the interface has its subnet.")] = (
        False
    )


class NetworkInterface(ApiStruct, frozen=True, kw_only=True):
    """The addresses of an interface. Without addresses and DHCP it is up and has none."""

    dhcp4: Annotated[bool, Field("Get an IPv4 address by DHCP.")] = False
    dhcp6: Annotated[bool, Field("Get an IPv6 address by DHCPv6.")] = False
    addresses: Annotated[
        tuple[NetworkText, ...], Field("Static addresses, as ADDRESS/PREFIX of IPv4 or IPv6.", max_items=16)
    ] = ()
    routes: Annotated[tuple[NetworkRoute, ...], Field("Static routes.", max_items=32)] = ()
    nameservers: Annotated[Nameservers | None, Field("Name servers.")] = None
    mtu: Annotated[Int32 | None, Field("Largest packet in bytes.", minimum=68, maximum=65535)] = None


class EthernetInterface(NetworkInterface, frozen=True, kw_only=True):
    """A network card, identified by its MAC address."""

    name: Annotated[InterfaceName, Field("Name that bonds, VLANs and bridges refer to.")]
    mac: Annotated[MacAddress, Field("Permanent MAC address of the card, matched without regard to case.")]
    set_name: Annotated[
        InterfaceName | None,
        Field("Name that the installed system gives the card. If absent, the system chooses one, such as eno1."),
    ] = None


class BondParameters(ApiStruct, frozen=True, kw_only=True):
    """Parameters of a bond, as netplan names them."""

    mode: Annotated[str, Field("Bonding mode.", enum=BOND_MODES)]
    lacp_rate: Annotated[str | None, Field("Rate of LACP packets, with mode 802.3ad.", enum=("slow", "fast"))] = None
    mii_monitor_interval: Annotated[
        Milliseconds | None, Field("Interval of the check of links; 0 switches it off. Defaults to 100.")
    ] = None
    min_links: Annotated[Count | None, Field("Links that must be up for the bond to be up.", maximum=32)] = None
    transmit_hash_policy: Annotated[
        str | None, Field("Selection of the card, with modes balance-xor, 802.3ad and balance-tlb.", enum=HASH_POLICIES)
    ] = None
    up_delay: Annotated[Milliseconds | None, Field("Delay until a link that came up is used.")] = None
    down_delay: Annotated[Milliseconds | None, Field("Delay until a link that went down is left.")] = None
    fail_over_mac_policy: Annotated[
        str | None,
        Field("Whether all cards have the same MAC, with mode active-backup.", enum=("none", "active", "follow")),
    ] = None
    primary: Annotated[
        InterfaceName | None,
        Field("Card that is used while it is up, with modes active-backup, balance-tlb and balance-alb."),
    ] = None
    primary_reselect_policy: Annotated[
        str | None, Field("Time of the return to the primary card.", enum=("always", "better", "failure"))
    ] = None


class BondInterface(NetworkInterface, frozen=True, kw_only=True):
    """Several network cards as one."""

    name: Annotated[InterfaceName, Field("Name of the bond, such as bond0.")]
    interfaces: Annotated[
        tuple[InterfaceName, ...], Field("Names of its ethernets.", min_items=1, max_items=MAX_ETHERNETS)
    ]
    parameters: Annotated[BondParameters, Field("Its mode, and how links are watched.")]


class VLANInterface(NetworkInterface, frozen=True, kw_only=True):
    """A tagged VLAN on another interface."""

    name: Annotated[InterfaceName, Field("Name of the VLAN, such as vlan10.")]
    id: Annotated[Int32, Field("VLAN ID.", minimum=1, maximum=4094)]
    link: Annotated[InterfaceName, Field("Name of the ethernet, bond or bridge that carries it.")]


class BridgeParameters(ApiStruct, frozen=True, kw_only=True):
    """Parameters of a bridge, as netplan names them."""

    stp: Annotated[bool | None, Field("Use the Spanning Tree Protocol. Defaults to true.")] = None
    forward_delay: Annotated[Int32 | None, Field("Forward delay in seconds.", minimum=0, maximum=30)] = None
    priority: Annotated[Int32 | None, Field("Bridge priority.", minimum=0, maximum=65535)] = None


class BridgeInterface(NetworkInterface, frozen=True, kw_only=True):
    """A bridge."""

    name: Annotated[InterfaceName, Field("Name of the bridge, such as br0.")]
    interfaces: Annotated[
        tuple[InterfaceName, ...], Field("Names of its ethernets, bonds and VLANs.", max_items=MAX_ETHERNETS)
    ] = ()
    parameters: Annotated[BridgeParameters | None, Field("Its parameters.")] = None


class NetworkSpec(ApiStruct, frozen=True, kw_only=True):
    """The network of the installed system. Cards that it does not name stay down."""

    ethernets: Annotated[
        tuple[EthernetInterface, ...],
        Field("Network cards.", map_keys=("name",), min_items=1, max_items=MAX_ETHERNETS),
    ]
    bonds: Annotated[tuple[BondInterface, ...], Field("Bonds.", map_keys=("name",), max_items=MAX_BONDS)] = ()
    vlans: Annotated[tuple[VLANInterface, ...], Field("VLANs.", map_keys=("name",), max_items=MAX_VLANS)] = ()
    bridges: Annotated[tuple[BridgeInterface, ...], Field("Bridges.", map_keys=("name",), max_items=MAX_BRIDGES)] = ()
