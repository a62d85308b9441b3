"""Addresses at which booting machines reach this process: DHCP's own address and interface, and the URL of HTTP."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from unbounded.kube.process import StartupError
from unbounded.metalman.dhcp.model import DhcpServerMode, address_octets, format_address
from unbounded.metalman.dhcp.server import interface_address
from unbounded.metalman.settings import EVERY_ADDRESS, DhcpMode, NetbootSettings

ROUTE_PROBE: Final = ("8.8.8.8", 80)  # nothing is sent there: the kernel only returns the route that it would take


class HostNetwork(Protocol):
    """Present network configuration of this host."""

    # {interface: its first IPv4 address}; interfaces without one are left out
    def addresses(self) -> Mapping[str, str]: ...

    def interfaces(self) -> frozenset[str]: ...

    def outbound(self) -> str | None: ...  # source address of the default route; None without a route


@dataclass(frozen=True, slots=True)
class Reachability:
    """Reachability of this process for clients.

    Args:
        server: its address, four octets, in DHCP answers and of TFTP.
        mode: mode of the DHCP server; None for no DHCP server.
        interface: interface of the DHCP server; None behind relays.
        serve_url: URL of HTTP, without a slash at its end.
    """

    server: bytes
    mode: DhcpServerMode | None
    interface: str | None
    serve_url: str


def reach(desired: NetbootSettings, links: HostNetwork) -> Reachability:
    """Determine the reachability from settings and network configuration.

    Raises:
        StartupError: the interface is missing or has no address, or no default route determines the address.
    """
    interface = _interface(desired, links)
    server = _server(desired, links, interface)
    return Reachability(
        server=address_octets(server),
        mode=_mode(desired, interface),
        interface=interface,
        serve_url=desired.serve_url or f"http://{server}:{desired.http_port}",
    )


def _mode(desired: NetbootSettings, interface: str | None) -> DhcpServerMode | None:
    match desired.dhcp_mode:
        case DhcpMode.NONE:
            return None
        case DhcpMode.PROXY:
            return DhcpServerMode.PROXY
        case _:
            return DhcpServerMode.RELAY if interface is None else DhcpServerMode.INTERFACE


def _interface(desired: NetbootSettings, links: HostNetwork) -> str | None:
    if desired.auto_interface:
        address = _own_address(desired, links)
        found = [name for name, has in links.addresses().items() if has == address]
        if not found:
            raise StartupError(f"{desired.flags.auto_interface}: no interface has the address {address}; name one")
        return found[0]
    if desired.interface is not None and desired.interface not in links.interfaces():
        there = ", ".join(sorted(links.interfaces() - {"lo"})) or "none"
        raise StartupError(
            f"{desired.flags.interface}: interface {desired.interface} does not exist; available: {there}"
        )
    return desired.interface


def _server(desired: NetbootSettings, links: HostNetwork, interface: str | None) -> str:
    if interface is None:
        return _own_address(desired, links)
    addresses = links.addresses()
    if interface not in addresses:
        raise StartupError(
            f"{desired.flags.interface}: {interface} has no IPv4 address: assign one of the machines' network, "
            f"such as `ip addr add 192.0.2.1/24 dev {interface}`"
        )
    return addresses[interface] if desired.bind_address == EVERY_ADDRESS else desired.bind_address


def _own_address(desired: NetbootSettings, links: HostNetwork) -> str:
    """Return the bind address if it is a specific one, else the source address of the default route."""
    if desired.bind_address != EVERY_ADDRESS:
        return desired.bind_address
    found = links.outbound()
    if found is None:
        raise StartupError(
            "cannot determine the address of this machine without a default route: set "
            f"{desired.flags.bind_address} or {desired.flags.interface}"
        )
    return found


class KernelNetwork:
    """Network configuration from the kernel."""

    def interfaces(self) -> frozenset[str]:
        return frozenset(name for _index, name in socket.if_nameindex())

    def addresses(self) -> Mapping[str, str]:
        found = {}
        for _index, name in socket.if_nameindex():
            try:
                found[name] = format_address(interface_address(name))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.ENODEV):
                    raise
        return found

    def outbound(self) -> str | None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            try:
                sock.connect(ROUTE_PROBE)
            except OSError:
                return None
            return str(sock.getsockname()[0])
