"""Reservations of DHCP clients and packets as clients send them, for tests of the DHCP server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from unbounded.metalman.dhcp import packet as opt
from unbounded.metalman.dhcp.model import (
    DhcpClient,
    Loader,
    OfferedBoot,
    StaticLease,
    WithheldReservation,
    address_octets,
)
from unbounded.metalman.dhcp.packet import MessageType, Packet

MAC: Final = "52:54:00:00:00:01"
HARDWARE: Final = bytes.fromhex("525400000001")
SERVER: Final = address_octets("10.0.0.1")
ADDRESS: Final = address_octets("10.0.0.50")
OTHER: Final = address_octets("10.0.0.99")
FOREIGN: Final = address_octets("10.0.0.2")
RELAY: Final = address_octets("10.9.0.1")
FILES: Final = {
    Loader.BIOS: "undionly.kpxe",
    Loader.X64: "shimx64.efi",
    Loader.ARM64: "shimaa64.efi",
    Loader.HTTP: "ipxe.efi",
    Loader.IPXE: "boot.ipxe",
}
URL: Final = "http://10.0.0.1:8880/b/s3cret"
LEASE: Final = StaticLease.of("10.0.0.50", "255.255.255.0", "10.0.0.1", ["10.0.0.53", "1.1.1.1"])


@dataclass
class FixedReservations:
    """Clients by MAC."""

    clients: dict[str, DhcpClient | WithheldReservation] = field(default_factory=dict)
    server: bytes = SERVER

    def client(self, mac: str) -> DhcpClient | WithheldReservation | None:
        return self.clients.get(mac)


def reservations(*, files: Mapping[Loader, str] | None = None) -> FixedReservations:
    """Return the reservations of m1 alone, with a requested boot when `files` are given."""
    return FixedReservations({MAC: DhcpClient("m1", LEASE, None if files is None else OfferedBoot(files, URL))})


def asked(kind: MessageType, options: Mapping[int, bytes] | None = None, **fields: Any) -> Packet:
    """A packet of m1."""
    said = {opt.MESSAGE_TYPE: bytes((kind,))} | dict(options or {})
    told: dict[str, Any] = {"hardware": HARDWARE, "xid": 7, "options": said} | fields
    return Packet(**told)


def pxe(architecture: int, kind: bytes = b"PXEClient") -> dict[int, bytes]:
    """Return the options by which firmware identifies itself."""
    named = kind + f":Arch:{architecture:05}:UNDI:003016".encode()
    return {opt.VENDOR_CLASS: named, opt.ARCHITECTURE: architecture.to_bytes(2, "big")}
