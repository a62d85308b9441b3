"""The netplan of one host: an L2Template, rendered with its network cards and its addresses. Pure.

The macros are functions of a Go template. A rendering that needs an address which is not allocated yet names it, and
one that needs network cards which the host has not reported yet says so; both have no result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import yaml

from unbounded.api.container_cloud.names import LABEL_LCM_SUBNET
from unbounded.api.container_cloud.network import ServiceAddress
from unbounded.api.hardware import NICFacts
from unbounded.containercloud.network.subnets import AddressPool, interface_key
from unbounded.gotemplate import Template, TemplateError, TemplateLimits
from unbounded.gotemplate.types import INT, STRING, CallFailed, Signature

PROVISION: Final = "provision"  # in autoIfMappingPrio: the place of the card that boots
SERVICE: Final = "ipam/SVC-"
LARGEST_BYTES: Final = 64 << 10  # of a network configuration that metalman serves
LONGEST_NAME: Final = 15  # of an interface, of the kernel
LISTED: Final = 8  # network cards in a message
DEEPEST: Final = 16  # nesting of a netplan; far deeper text could end the process in libyaml
MACROS: Final = (
    "cidr_from_subnet",
    "cluster_api_lb_ip",
    "gateway_from_subnet",
    "ip",
    "mac",
    "nameservers_from_subnet",
    "nic",
)
_LIMITS: Final = TemplateLimits(steps=20_000, letters=4 * LARGEST_BYTES)
_VIRTUAL: Final = ("bonds", "bridges", "vlans", "tunnels", "vrfs", "dummy-devices")
_SECTIONS: Final = ("ethernets", "wifis", "modems", *_VIRTUAL)
_NAME: Final = re.compile(r"([A-Za-z]+)(\d+)(?:[A-Za-z]+(\d+))?.*")
_PCI: Final = re.compile(r"([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)


class NetworkReason(StrEnum):
    """Causes for which a host has no network configuration yet."""

    NO_TEMPLATE = "NoTemplate"
    TEMPLATE_AMBIGUOUS = "TemplateAmbiguous"
    TEMPLATE_INVALID = "TemplateInvalid"
    SUBNET_MISSING = "SubnetMissing"
    SUBNET_INVALID = "SubnetInvalid"
    SUBNET_FULL = "SubnetFull"
    CARD_MISSING = "CardMissing"
    NO_LEASE = "NoLease"
    MACHINE_HAS_NETWORK = "MachineHasNetwork"
    NOT_CLAIMED = "NotClaimed"
    HOST_DIRTY = "HostDirty"


class TemplateNetworkFault(Exception):
    """A network that cannot be rendered: the cause for programs, and a text that names what to correct."""

    def __init__(self, reason: NetworkReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class NetworkCard:
    """A network card of the host.

    Args:
        boots: the host boots from it.
        aliases: further names that templates may use for it.
    """

    name: str
    mac: str
    boots: bool = False
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class TemplateSubnet:
    """A Subnet under the name that a template uses.

    Args:
        name: NAMESPACE/NAME of the Subnet.
        addresses: those that the host has, by the key of the interface.
    """

    name: str
    pool: AddressPool
    labels: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_lcm(self) -> bool:
        return LABEL_LCM_SUBNET in self.labels


@dataclass(frozen=True)
class NetworkInputs:
    """All that the network of a host is rendered from.

    Args:
        template: NAMESPACE/NAME of the L2Template, for messages.
        if_mapping: names of the network cards by number; empty for the automatic mapping.
        priorities: prefixes of names for the automatic mapping, in order.
        cards: network cards of the host; None before an installer has reported them.
        subnets: by the names that the template uses.
        load_balancer: address of the Cluster's load balancer; empty if it has none.
    """

    template: str
    text: str
    if_mapping: Sequence[str]
    priorities: Sequence[str]
    cards: Sequence[NetworkCard] | None
    subnets: Mapping[str, TemplateSubnet]
    load_balancer: str = ""


@dataclass(frozen=True)
class UsedAddress:
    """An address of the host: the interface that has it, and the Subnet under the name that the template uses."""

    interface: str
    subnet: str
    address: str


@dataclass(frozen=True)
class RenderedNetwork:
    """The network of a host, or what it needs first.

    Args:
        config: cloud-init's network configuration, version 2; empty while something is missing.
        missing: Subnets under the names of the template, and the keys of interfaces that need an address there.
        uses_cards: the result depends on the network cards.
        awaits_cards: the host has to report its network cards first.
    """

    config: str = ""
    used: tuple[UsedAddress, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    uses_cards: bool = False
    awaits_cards: bool = False

    @property
    def netplan(self) -> str:
        """The same as a file below /etc/netplan."""
        return "network:\n" + "".join(f"  {line}\n" if line.strip() else "\n" for line in self.config.splitlines())


def services(network: NetworkInputs, used: Sequence[UsedAddress]) -> dict[str, tuple[ServiceAddress, ...]]:
    """Return the addresses of a host by the services of their Subnets."""
    found: dict[str, list[ServiceAddress]] = {}
    for one in used:
        for label in sorted(network.subnets[one.subnet].labels):
            if label.startswith(SERVICE):
                found.setdefault(label, []).append(ServiceAddress(if_name=one.interface, ip_address=one.address))
    return {label: tuple(addresses) for label, addresses in found.items()}


def render_network(network: NetworkInputs) -> RenderedNetwork:
    """Render the network of a host.

    Raises:
        TemplateNetworkFault: something has to be corrected.
    """
    macros = _Macros(network)
    try:
        text = _template(network.text, macros.functions()).render(None)
    except TemplateError as error:
        raise TemplateNetworkFault(macros.reason, f"L2Template {network.template}: {error}") from error
    rendered = RenderedNetwork("", tuple(macros.used), tuple(macros.missing), macros.uses_cards, macros.awaits_cards)
    if rendered.missing or rendered.awaits_cards:
        return rendered
    _check_netplan(network.template, text, [one.interface for one in macros.used if one.interface in macros.virtual])
    lcm = [one for one in macros.used if network.subnets[one.subnet].is_lcm]
    if len(lcm) != 1:
        found = ", ".join(f"{one.address} of {one.interface}" for one in lcm) or "none"
        raise TemplateNetworkFault(
            NetworkReason.TEMPLATE_INVALID,
            f"L2Template {network.template}: a host has exactly one address of a Subnet with the label "
            f"{LABEL_LCM_SUBNET}, and this has {found}",
        )
    return replace(rendered, config=text)


def check_template(name: str, text: str) -> None:
    """Check the syntax of a template, and the names of its macros.

    Raises:
        TemplateNetworkFault: it is not a template; the text has the line.
    """
    _Macros(NetworkInputs(name, text, (), (), None, {})).check()


def _template(text: str, functions: Mapping[str, Signature]) -> Template:
    return Template("npTemplate", text, functions, limits=_LIMITS)


def map_cards(network: NetworkInputs) -> tuple[str, ...] | None:
    """Return the names of the network cards by the number that macros use; None while they are not known."""
    if network.if_mapping:
        return tuple(network.if_mapping)
    if network.cards is None:
        return None
    scored = [found for card in network.cards if (found := _score(card, network.priorities)) is not None]
    return tuple(name for _, name in sorted(scored))


def _score(card: NetworkCard, priorities: Sequence[str]) -> tuple[tuple[int, int, int], str] | None:
    """Return the order of a card and the name by which it is used; None if it is not used.

    The order is the place of the name's prefix, then bus and slot in the name. An installer knows a card by a name of
    its kernel, so that of systemd counts where the other has no place.
    """
    if card.boots and PROVISION in priorities:
        return (priorities.index(PROVISION), 0, 0), card.name
    for name in (card.name, *card.aliases):
        found = _NAME.fullmatch(name)
        prefix, bus, slot = (found[1], int(found[2]), int(found[3] or 0)) if found else (name, 0, 0)
        if prefix in priorities:
            return (priorities.index(prefix), bus, slot), name
    return None


def systemd_names(card: NICFacts) -> tuple[str, ...]:
    """Return the names that systemd may give a network card, in its order: eno1 by the number that the firmware gives
    a card of the board; enp3s0 by the PCI address, and enp3s0f1 for a function.
    """
    onboard = () if card.onboard_index is None else (f"eno{card.onboard_index}",)
    return (*onboard, *_pci_names(card.pci_address))


def _pci_names(address: str | None) -> tuple[str, ...]:
    found = _PCI.fullmatch(address or "")
    if found is None:
        return ()
    domain, bus, slot, function = (int(part, 16) for part in found.groups())
    name = f"en{f'P{domain}' if domain else ''}p{bus}s{slot}"
    return (name, f"{name}f0") if not function else (f"{name}f{function}",)


class _Macros:
    """The functions of a template, and what the calls of one rendering used."""

    def __init__(self, network: NetworkInputs) -> None:
        self._network = network
        self._mapping = map_cards(network)
        self.used: list[UsedAddress] = []
        self.virtual: set[str] = set()
        self.missing: list[tuple[str, str]] = []
        self.uses_cards = False
        self.awaits_cards = False
        self.reason = NetworkReason.TEMPLATE_INVALID  # of an error of the template

    def functions(self) -> dict[str, Signature]:
        taking: dict[str, tuple[tuple[Any, ...], Callable[..., str]]] = {
            "nic": ((INT,), self._nic),
            "mac": ((INT,), self._mac),
            "ip": ((STRING,), self._ip),
            "cidr_from_subnet": ((STRING,), lambda name: str(self._subnet(name).pool.network)),
            "gateway_from_subnet": ((STRING,), self._gateway),
            "nameservers_from_subnet": ((STRING,), self._nameservers),
            "cluster_api_lb_ip": ((), self._load_balancer),
        }
        return {name: Signature(parameters, STRING, call) for name, (parameters, call) in taking.items()}

    def check(self) -> None:
        try:
            _template(self._network.text, self.functions())
        except TemplateError as error:
            text = f"L2Template {self._network.template}: {error}; macros: {', '.join(MACROS)}"
            raise TemplateNetworkFault(NetworkReason.TEMPLATE_INVALID, text) from error

    def _refuse(self, reason: NetworkReason, text: str) -> CallFailed:
        """Return the error of a call, and keep its cause, which the template's error does not carry."""
        self.reason = reason
        return CallFailed(text)

    def _nic(self, number: int) -> str:
        if self._mapping is None:
            return self._awaited(number)
        self.uses_cards = self.uses_cards or not self._network.if_mapping
        if not 0 <= number < len(self._mapping):
            listed = ", ".join(self._mapping) or "none"
            raise self._refuse(
                NetworkReason.CARD_MISSING,
                f"nic {number}: the mapping has {len(self._mapping)} network cards, counted from 0: {listed}",
            )
        return self._mapping[number]

    def _mac(self, number: int) -> str:
        name, cards = self._nic(number), self._network.cards
        if cards is None:
            return self._awaited(number)
        self.uses_cards = True
        found = [card for card in cards if name == card.name] or [card for card in cards if name in card.aliases]
        if not found:
            there = [f"{card.name} ({card.mac})" for card in cards]
            more = f" and {len(there) - LISTED} more" if len(there) > LISTED else ""
            raise self._refuse(
                NetworkReason.CARD_MISSING,
                f"nic {number}: the host has no network card {name}; its cards: {', '.join(there[:LISTED]) or 'none'}"
                f"{more}. Correct the mapping, or give a card that name in spec.nicMACmap of the IpamHost",
            )
        return found[0].mac.lower()

    def _awaited(self, number: int) -> str:
        """Note that the network cards are needed; the text is never in a result."""
        self.awaits_cards = True
        return f"nic{number}"

    def _ip(self, place: str) -> str:
        interface, separator, name = place.partition(":")
        if not separator or not interface or not name:
            raise self._refuse(
                NetworkReason.TEMPLATE_INVALID, f'ip "{place}": must be "NUMBER:SUBNET" or "INTERFACE:SUBNET"'
            )
        subnet = self._subnet(name)
        shown = key = interface
        if interface.isdecimal():
            shown, key = self._nic(int(interface)), interface_key(self._mac(int(interface)))
            if self._network.cards is None:
                return subnet.pool.with_prefix(str(subnet.pool.first))  # never in a result
        else:
            self.virtual.add(interface)
        address = subnet.addresses.get(key)
        if address is None:
            if (name, key) not in self.missing:
                self.missing.append((name, key))
            return subnet.pool.with_prefix(str(subnet.pool.first))  # never in a result
        used = UsedAddress(shown, name, subnet.pool.with_prefix(address))
        if used not in self.used:
            self.used.append(used)
        return used.address

    def _subnet(self, name: str) -> TemplateSubnet:
        subnet = self._network.subnets.get(name)
        if subnet is None:
            listed = ", ".join(sorted(self._network.subnets)) or "none"
            raise self._refuse(
                NetworkReason.SUBNET_MISSING, f"subnet {name} is not in spec.l3Layout, which has: {listed}"
            )
        return subnet

    def _gateway(self, name: str) -> str:
        gateway = self._subnet(name).pool.gateway
        if gateway is None:
            raise self._refuse(
                NetworkReason.SUBNET_INVALID, f"Subnet {self._subnet(name).name} has no spec.gateway, which it needs"
            )
        return str(gateway)

    def _nameservers(self, name: str) -> str:
        return f"[{', '.join(map(str, self._subnet(name).pool.nameservers))}]"

    def _load_balancer(self) -> str:
        if not self._network.load_balancer:
            raise self._refuse(
                NetworkReason.SUBNET_MISSING,
                "cluster_api_lb_ip: no Subnet of the Cluster has the label ipam/SVC-LBhost",
            )
        return self._network.load_balancer


def _check_netplan(template: str, text: str, virtual: Sequence[str]) -> None:
    """Check that cloud-init takes a text as a network configuration, and the interfaces that got addresses.

    Raises:
        TemplateNetworkFault: it would be ignored or misread.
    """
    for fault in _netplan_faults(text, virtual):
        raise TemplateNetworkFault(NetworkReason.TEMPLATE_INVALID, f"L2Template {template}: rendered: {fault}")


def _netplan_faults(text: str, virtual: Sequence[str]) -> Iterator[str]:
    if len(text.encode()) > LARGEST_BYTES:
        yield f"{len(text.encode())} bytes; the limit is {LARGEST_BYTES}"
        return
    try:
        _check_depth(text)
        body = yaml.load(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date, for example
        yield f"not YAML: {' '.join(str(error).split())[:300]}"
        return
    if not isinstance(body, dict):
        yield "must be a mapping with version: 2, as netplan reads it below network"
        return
    if "network" in body:
        yield "remove network: and indent the rest less: version stands at the top"
    if body.get("version") != 2:
        yield "version must be 2"
    defined: set[str] = set()
    for section in _SECTIONS:
        entries = body.get(section) or {}
        if not isinstance(entries, dict):
            yield f"{section} must be a mapping of interfaces"
            return
        for name in entries:
            if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
                yield f"{section}: {name!r} is no name of an interface, which has 1 to {LONGEST_NAME} characters"
            elif section in _VIRTUAL:
                defined.add(name)
    for name in virtual:
        if name not in defined:
            yield f'ip "{name}:…": it defines no bond, bridge or VLAN {name}'


def _check_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"nested more than {DEEPEST} deep")
