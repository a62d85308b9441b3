"""Where booting machines reach this process: its address for DHCP, the interface of DHCP, and the URL of HTTP."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from unbounded.kube.process import CannotStart
from unbounded.metalman.dhcp.model import Mode, packed, shown
from unbounded.metalman.dhcp.server import interface_address
from unbounded.metalman.settings import EVERY_ADDRESS, DhcpMode, Netboot

ANYWHERE: Final = ("8.8.8.8", 80)  # nothing is sent there: the kernel only says which route it would take


class Links(Protocol):
    """What this machine's network looks like, now."""

    def addresses(self) -> Mapping[str, str]: ...  # {interface: its first IPv4 address}; those without are left out

    def interfaces(self) -> frozenset[str]: ...

    def outbound(self) -> str | None: ...  # the address of the default route, or None without one


@dataclass(frozen=True, slots=True)
class Reach:
    """How clients reach this process.

    Args:
        server: its address, four octets, as DHCP tells it and TFTP has it.
        mode: how DHCP is served; None for not at all.
        interface: the one that DHCP is served on; None behind relays.
        serve_url: of HTTP, without a slash at its end.
    """

    server: bytes
    mode: Mode | None
    interface: str | None
    serve_url: str


def reach(wanted: Netboot, links: Links) -> Reach:
    """Decide on it.

    Raises:
        CannotStart: the interface is not there or has no address, or there is no default route to go by.
    """
    interface = _interface(wanted, links)
    server = _server(wanted, links, interface)
    return Reach(
        server=packed(server),
        mode=_mode(wanted, interface),
        interface=interface,
        serve_url=wanted.serve_url or f"http://{server}:{wanted.http_port}",
    )


def _mode(wanted: Netboot, interface: str | None) -> Mode | None:
    match wanted.dhcp_mode:
        case DhcpMode.NONE:
            return None
        case DhcpMode.PROXY:
            return Mode.PROXY
        case _:
            return Mode.RELAY if interface is None else Mode.INTERFACE


def _interface(wanted: Netboot, links: Links) -> str | None:
    if wanted.auto_interface:
        address = _own(wanted, links)
        found = [name for name, has in links.addresses().items() if has == address]
        if not found:
            raise CannotStart(f"{wanted.flags.auto_interface}: no interface has the address {address}; name one")
        return found[0]
    if wanted.interface is not None and wanted.interface not in links.interfaces():
        there = ", ".join(sorted(links.interfaces() - {"lo"})) or "none"
        raise CannotStart(f"{wanted.flags.interface}: there is no interface {wanted.interface}; there is: {there}")
    return wanted.interface


def _server(wanted: Netboot, links: Links, interface: str | None) -> str:
    if interface is None:
        return _own(wanted, links)
    addresses = links.addresses()
    if interface not in addresses:
        raise CannotStart(
            f"{wanted.flags.interface}: {interface} has no IPv4 address: give it one of the machines' network,"
            f" such as `ip addr add 192.0.2.1/24 dev {interface}`"
        )
    return addresses[interface] if wanted.bind_address == EVERY_ADDRESS else wanted.bind_address


def _own(wanted: Netboot, links: Links) -> str:
    """The bind address when it is one, else that of the default route."""
    if wanted.bind_address != EVERY_ADDRESS:
        return wanted.bind_address
    found = links.outbound()
    if found is None:
        raise CannotStart(
            "this machine has no default route to tell its address by: "
            f"give {wanted.flags.bind_address} or {wanted.flags.interface}"
        )
    return found


class SystemLinks:
    """The network as the kernel has it."""

    def interfaces(self) -> frozenset[str]:
        return frozenset(name for _index, name in socket.if_nameindex())

    def addresses(self) -> Mapping[str, str]:
        found = {}
        for _index, name in socket.if_nameindex():
            try:
                found[name] = shown(interface_address(name))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.ENODEV):
                    raise
        return found

    def outbound(self) -> str | None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            try:
                sock.connect(ANYWHERE)
            except OSError:
                return None
            return str(sock.getsockname()[0])
