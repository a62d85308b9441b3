"""The declared network of a host (`Machine.spec.network`): cloud-init's network configuration, and the installer's own
network. Pure.

Rules of the API check names, addresses and their form; the faults here need more than one element at a time, or
arithmetic. cloud-init passes version 2 to netplan as it is, so netplan's rules are those that count.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import yaml
from msgspec.structs import replace

from unbounded.api.hardware import NICFacts
from unbounded.api.machine import Machine
from unbounded.api.machine_spec import BootMode, DHCPLease
from unbounded.api.network import (
    BondInterface,
    BondParameters,
    BridgeInterface,
    BridgeParameters,
    EthernetInterface,
    Nameservers,
    NetworkInterface,
    NetworkRoute,
    NetworkSpec,
    VLANInterface,
)

FIELD: Final = "spec.network"
MII_MONITOR_MS: Final = 100  # without it a bond does not notice a cable that is pulled
SMALLEST_IPV6_MTU: Final = 1280  # RFC 8200 section 5
LISTED: Final = 8  # NICs in a message
_LACP: Final = ("802.3ad",)
_PRIMARY: Final = ("active-backup", "balance-tlb", "balance-alb")
# a parameter, and the modes that the kernel takes it for
_OF_MODES: Final[Mapping[str, tuple[str, ...]]] = {
    "lacp_rate": _LACP,
    "min_links": _LACP,
    "transmit_hash_policy": ("balance-xor", "802.3ad", "balance-tlb"),
    "fail_over_mac_policy": ("active-backup",),
    "primary": _PRIMARY,
    "primary_reselect_policy": _PRIMARY,
}

Labelled = tuple[str, str, NetworkInterface]  # the field, the name, the interface


def render_network(network: NetworkSpec) -> bytes:
    """Return cloud-init's `network-config`, version 2. The same network gives the same bytes."""
    body: dict[str, Any] = {"version": 2}
    body["ethernets"] = {each.name: _ethernet(each) for each in network.ethernets}
    if network.bonds:
        body["bonds"] = {each.name: _bond(each) for each in network.bonds}
    if network.vlans:
        body["vlans"] = {each.name: {"id": each.id, "link": each.link} | _common(each) for each in network.vlans}
    if network.bridges:
        body["bridges"] = {each.name: _bridge(each) for each in network.bridges}
    text: str = yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=120)
    return text.encode()


def _ethernet(ethernet: EthernetInterface) -> dict[str, Any]:
    named = {} if ethernet.set_name is None else {"set-name": ethernet.set_name}
    return {"match": {"macaddress": ethernet.mac.lower()}} | named | _common(ethernet)


def _bond(bond: BondInterface) -> dict[str, Any]:
    interval = bond.parameters.mii_monitor_interval
    parameters = _spelled(bond.parameters)
    parameters["mii-monitor-interval"] = MII_MONITOR_MS if interval is None else interval
    return {"interfaces": list(bond.interfaces), "parameters": parameters} | _common(bond)


def _bridge(bridge: BridgeInterface) -> dict[str, Any]:
    parameters = {} if bridge.parameters is None else _spelled(bridge.parameters)
    return (
        {"interfaces": list(bridge.interfaces)} | ({"parameters": parameters} if parameters else {}) | _common(bridge)
    )


def _spelled(parameters: BondParameters | BridgeParameters) -> dict[str, Any]:
    """Return the given parameters under netplan's names."""
    values = {field.replace("_", "-"): getattr(parameters, field) for field in parameters.__struct_fields__}
    return {name: value for name, value in values.items() if value is not None}


def _common(interface: NetworkInterface) -> dict[str, Any]:
    body: dict[str, Any] = {"dhcp4": interface.dhcp4, "dhcp6": interface.dhcp6}
    if interface.addresses:
        body["addresses"] = list(interface.addresses)
    if interface.routes:
        body["routes"] = [_route(each) for each in interface.routes]
    if interface.nameservers is not None:
        body["nameservers"] = _nameservers(interface.nameservers)
    return body if interface.mtu is None else body | {"mtu": interface.mtu}


def _route(route: NetworkRoute) -> dict[str, Any]:
    body: dict[str, Any] = {"to": _destination(route), "via": route.via}
    if route.metric is not None:
        body["metric"] = route.metric
    return body | {"on-link": True} if route.on_link else body


def _destination(route: NetworkRoute) -> str:
    """Return the destination; a default route as a network, which every netplan knows."""
    if route.to != "default":
        return route.to
    return "::/0" if ":" in route.via else "0.0.0.0/0"


def _nameservers(nameservers: Nameservers) -> dict[str, Any]:
    body = {"addresses": list(nameservers.addresses), "search": list(nameservers.search)}
    return {name: value for name, value in body.items() if value}


def network_faults(network: NetworkSpec) -> tuple[str, ...]:
    """Return what is wrong with a network that the API has admitted; each fault names its field."""
    return tuple(_faults(network))


def _faults(network: NetworkSpec) -> Iterator[str]:
    yield from _shared_members(network)
    yield from _loops(network)
    for label, _, interface in _interfaces(network):
        yield from _address_faults(label, interface)
    for bond in network.bonds:
        yield from _bond_faults(f"{FIELD}.bonds[{bond.name}]", bond)
    for what, values in (
        ("ethernets: setName", [each.set_name for each in network.ethernets if each.set_name is not None]),
        ("vlans: id on the same link", [f"{each.id} on {each.link}" for each in network.vlans]),
    ):
        for value in _repeated(values):
            yield f"{FIELD}.{what} {value} occurs twice"
    taken = {name for _, name, _ in _interfaces(network)} - {each.name for each in network.ethernets}
    for ethernet in network.ethernets:
        if ethernet.set_name in taken:
            yield f"{FIELD}.ethernets[{ethernet.name}].setName: {ethernet.set_name} is the name of another interface"


def _interfaces(network: NetworkSpec) -> Iterator[Labelled]:
    for each in network.ethernets:
        yield f"{FIELD}.ethernets[{each.name}]", each.name, each
    for bond in network.bonds:
        yield f"{FIELD}.bonds[{bond.name}]", bond.name, bond
    for vlan in network.vlans:
        yield f"{FIELD}.vlans[{vlan.name}]", vlan.name, vlan
    for bridge in network.bridges:
        yield f"{FIELD}.bridges[{bridge.name}]", bridge.name, bridge


def _shared_members(network: NetworkSpec) -> Iterator[str]:
    """Yield interfaces in two bonds or bridges, and those that have addresses of their own beside that."""
    members = [name for bond in network.bonds for name in bond.interfaces]
    members += [name for bridge in network.bridges for name in bridge.interfaces]
    for name in _repeated(members):
        yield f"{FIELD}: {name} is in interfaces of bonds or bridges twice"
    for label, name, interface in _interfaces(network):
        configured = interface.dhcp4 or interface.dhcp6 or interface.addresses or interface.routes
        if name in members and configured:
            yield f"{label} belongs to a bond or bridge, which has the addresses and routes in its place"
    bonded = {name for bond in network.bonds for name in bond.interfaces}
    for vlan in network.vlans:
        if vlan.link in bonded:
            yield f"{FIELD}.vlans[{vlan.name}].link: {vlan.link} belongs to a bond: name the bond"


def _loops(network: NetworkSpec) -> Iterator[str]:
    """Yield bridges that contain a VLAN on themselves, also by other bridges."""
    below = _below(network)
    for bridge in network.bridges:
        if bridge.name in _reached(bridge.interfaces, below):
            yield f"{FIELD}.bridges[{bridge.name}].interfaces: the bridge contains itself, by a VLAN on it"


def _below(network: NetworkSpec) -> Mapping[str, tuple[str, ...]]:
    """Return the names that each bond, bridge and VLAN is made of."""
    below = {bond.name: bond.interfaces for bond in network.bonds}
    below |= {bridge.name: bridge.interfaces for bridge in network.bridges}
    return below | {vlan.name: (vlan.link,) for vlan in network.vlans}


def _reached(names: Iterable[str], below: Mapping[str, tuple[str, ...]]) -> Mapping[str, None]:
    """Return interfaces and all that these are made of, in this order."""
    reached: dict[str, None] = {}
    pending = list(names)
    while pending:
        name = pending.pop(0)
        if name not in reached:
            reached[name] = None
            pending += below.get(name, ())
    return reached


def _address_faults(label: str, interface: NetworkInterface) -> Iterator[str]:
    for route in interface.routes:
        if route.to != "default" and (":" in route.to) != (":" in route.via):
            yield f"{label}.routes: to {route.to} and via {route.via} are of different IP versions"
        elif route.to != "default" and not _is_network(route.to):
            yield f"{label}.routes: to {route.to} has bits right of its prefix"
        if not route.on_link and not _reaches(interface, route.via):
            yield f"{label}.routes: via {route.via} is in no subnet of its addresses; correct it, or set onLink"
    for address in _repeated(interface.addresses):
        yield f"{label}.addresses: {address} occurs twice"
    is_ipv6 = interface.dhcp6 or any(":" in each for each in interface.addresses)
    if interface.mtu is not None and is_ipv6 and interface.mtu < SMALLEST_IPV6_MTU:
        yield f"{label}.mtu: IPv6 needs at least {SMALLEST_IPV6_MTU}"


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def _reaches(interface: NetworkInterface, gateway: str) -> bool:
    """Return whether a gateway is in a subnet of an interface; True where DHCP or IPv6 itself may bring the subnet."""
    address = ipaddress.ip_address(gateway)
    if address.is_link_local or (interface.dhcp6 if address.version == 6 else interface.dhcp4):
        return True
    return any(address in ipaddress.ip_interface(each).network for each in interface.addresses)


def _bond_faults(label: str, bond: BondInterface) -> Iterator[str]:
    parameters = bond.parameters
    for field, modes in _OF_MODES.items():
        if getattr(parameters, field) is not None and parameters.mode not in modes:
            name = "".join(word.title() if i else word for i, word in enumerate(field.split("_")))
            yield f"{label}.parameters.{name}: needs mode {' or '.join(modes)}, not {parameters.mode}"
    if parameters.primary is not None and parameters.primary not in bond.interfaces:
        yield f"{label}.parameters.primary: {parameters.primary} is not in interfaces"
    if parameters.mii_monitor_interval == 0 and (parameters.up_delay or parameters.down_delay):
        yield f"{label}.parameters.miiMonitorInterval: upDelay and downDelay need one above 0"


def _repeated(values: Iterable[str]) -> list[str]:
    return [value for value, count in Counter(values).items() if count > 1]


def missing_nics(network: NetworkSpec, nics: Sequence[NICFacts]) -> str:
    """Return which network cards of a network are not among those of an inspection, and its cards; empty if none."""
    present = {nic.mac.lower(): nic for nic in nics if nic.mac}
    absent = [each for each in network.ethernets if each.mac.lower() not in present]
    if not absent:
        return ""
    names = ", ".join(f"{each.name} ({each.mac.lower()})" for each in absent)
    there = [f"{mac} ({nic.name})" if nic.name else mac for mac, nic in present.items()]
    listed = ", ".join(there[:LISTED]) + (f" and {len(there) - LISTED} more" if len(there) > LISTED else "")
    return f"{FIELD}.ethernets: the machine has no network card {names}; its cards: {listed or 'none'}"


def installer_leases(machine: Machine) -> tuple[DHCPLease, ...]:
    """Return the addresses of the installer: those of spec.pxe.dhcpLeases.

    A Machine that boots by virtual media without leases has those of its declared network: the static IPv4 addresses.
    """
    pxe, network = machine.spec.pxe, machine.spec.network
    if pxe is None or pxe.dhcp_leases or pxe.boot_mode != BootMode.VIRTUAL_MEDIA or network is None:
        return () if pxe is None else pxe.dhcp_leases
    below = _below(network)
    macs = {each.name: each.mac for each in network.ethernets}
    found = [
        lease
        for _, name, interface in _interfaces(network)
        for card in _reached([name], below)
        if card in macs
        for lease in _static_leases(interface, macs[card])
    ]
    return tuple(found)


def with_installer_leases(machine: Machine) -> Machine:
    """Return the Machine with the addresses of the installer as its leases."""
    pxe, leases = machine.spec.pxe, installer_leases(machine)
    if pxe is None or leases == pxe.dhcp_leases:
        return machine
    return replace(machine, spec=replace(machine.spec, pxe=replace(pxe, dhcp_leases=leases)))


def _static_leases(interface: NetworkInterface, mac: str) -> Iterator[DHCPLease]:
    """Yield the first IPv4 address of an interface as a lease; nothing if it has none."""
    for address in (ipaddress.ip_interface(each) for each in interface.addresses):
        if isinstance(address, ipaddress.IPv4Interface):
            names = () if interface.nameservers is None else interface.nameservers.addresses
            routes = [each.via for each in interface.routes if _destination(each) == "0.0.0.0/0"]
            yield DHCPLease(
                ipv4=str(address.ip),
                mac=mac,
                subnet_mask=str(address.netmask),
                gateway=routes[0] if routes else "",
                dns=tuple(each for each in names if ":" not in each),
            )
            return


def installer_fault(machine: Machine) -> str:
    """Return why the installer would have no address; empty if it has one, or gets it by DHCP."""
    if machine.spec.network is None or installer_leases(machine):
        return ""
    return (
        f"{FIELD} has no address for the installer of bootMode VirtualMedia: give one of its interfaces a static IPv4 "
        "address, or set spec.pxe.dhcpLeases"
    )


def static_addresses(network: NetworkSpec) -> frozenset[str]:
    """Return the static addresses of a network, each in its shortest form and without its prefix."""
    texts = (text for _, _, interface in _interfaces(network) for text in interface.addresses)
    return frozenset(str(ipaddress.ip_interface(text).ip) for text in texts)


# ---- the installer's own network


def installer_network(leases: Sequence[DHCPLease], network: NetworkSpec | None) -> str:
    """Return the arguments of the installer's kernel command line that describe its network.

    A lease of a card in a bond applies to the bond. It applies to a VLAN if that VLAN has a static address in the
    lease's subnet. Only bonds and VLANs that a lease needs are in the result.
    """
    links = _InstallerLinks(network or NetworkSpec(ethernets=()))
    words = [word for lease in leases for word in links.lease_words(lease)]
    return " ".join(dict.fromkeys([*links.words, *words]))


class _InstallerLinks:
    """Bonds and VLANs of the installer, under its own names: a name of the spec could be that of a card."""

    def __init__(self, network: NetworkSpec) -> None:
        self._network = network
        self._macs = {each.name: each.mac for each in network.ethernets}
        self._names: dict[str, str] = {}  # of the installer, by those of the spec
        self.words: list[str] = []

    def lease_words(self, lease: DHCPLease) -> list[str]:
        link = self._link(lease)
        words = [f"unbounded.lease={link},{lease.ipv4},{lease.subnet_mask},{lease.gateway}"]
        return words + [f"unbounded.dns={each}" for each in lease.dns]

    def _link(self, lease: DHCPLease) -> str:
        """Return the link that gets the lease's address: a MAC, or the installer's name of a bond or VLAN."""
        names = [name for name, mac in self._macs.items() if mac.lower() == lease.mac.lower()]
        if not names:
            return lease.mac
        bonds = [bond for bond in self._network.bonds if names[0] in bond.interfaces]
        base = self._bond(bonds[0]) if bonds else lease.mac
        lowest = bonds[0].name if bonds else names[0]
        over = {lowest, *(each.name for each in self._network.bridges if lowest in each.interfaces)}
        subnet = ipaddress.ip_network(f"{lease.ipv4}/{lease.subnet_mask}", strict=False)
        for vlan in self._network.vlans:
            if vlan.link in over and any(ipaddress.ip_interface(each).ip in subnet for each in self._addresses(vlan)):
                return self._named(vlan.name, "vlan", f"{base},{vlan.id}")
        return base

    def _addresses(self, vlan: VLANInterface) -> Iterator[str]:
        """Yield the static addresses of a VLAN, also those of a bridge that contains it."""
        yield from vlan.addresses
        for bridge in self._network.bridges:
            if vlan.name in bridge.interfaces:
                yield from bridge.addresses

    def _bond(self, bond: BondInterface) -> str:
        macs = ",".join(self._macs[name].lower() for name in bond.interfaces)
        policy = bond.parameters.fail_over_mac_policy or "none"
        return self._named(bond.name, "bond", f"{bond.parameters.mode},{policy},{macs}")

    def _named(self, name: str, kind: str, settings: str) -> str:
        if name not in self._names:
            self._names[name] = f"{kind}{sum(each.startswith(kind) for each in self._names.values())}"
            self.words.append(f"unbounded.{kind}={self._names[name]},{settings}")
        return self._names[name]
