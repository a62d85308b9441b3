"""Input, knowledge and answers of a DHCP server, as frozen data."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Final, Protocol

from unbounded.metalman.dhcp.packet import NOWHERE, Packet

LEASE_S: Final = 86400  # 24 h
CACHED_ADDRESSES: Final = 64  # addresses of servers and relays, which are few and occur in every reply


class Loader(Enum):
    """Boot file that an image can have for a kind of client (`bootFiles` in its `metadata.yaml`)."""

    BIOS = "bios"
    X64 = "x64"  # `dhcpBootImageName`; also for clients that do not send their architecture
    ARM64 = "arm64"
    HTTP = "http"  # x64 over UEFI HTTP boot; defaults to the file for x64
    IPXE = "ipxe"  # a script, for clients that already run iPXE


@dataclass(frozen=True, slots=True)
class StaticLease:
    """Static lease; addresses are the four octets of the wire."""

    address: bytes
    mask: bytes
    gateway: bytes | None = None
    dns: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, address: str, mask: str, gateway: str | None = None, dns: Iterable[str] = ()) -> StaticLease:
        """Parse a lease from the texts of a Machine.

        Raises:
            ValueError: a text is not an address, the mask has gaps, or the gateway is outside of the lease's network.
        """
        network = ipaddress.IPv4Network((address, mask), strict=False)
        if ipaddress.IPv4Address(mask) != network.netmask:  # 0.0.0.255 is read as a host mask
            raise ValueError(f"{mask} is not a subnet mask")
        if gateway is not None and ipaddress.IPv4Address(gateway) not in network:
            raise ValueError(f"gateway {gateway} is not in {network}")
        return cls(
            address=address_octets(address),
            mask=network.netmask.packed,
            gateway=None if gateway is None else address_octets(gateway),
            dns=tuple(address_octets(one) for one in dns),
        )


@dataclass(frozen=True, slots=True)
class OfferedBoot:
    """Netboot that the Machine needs now: its boot files, and the URL that serves them."""

    files: Mapping[Loader, str]
    serve_url: str

    def url(self, file: str) -> str:
        return f"{self.serve_url.rstrip('/')}/{file.lstrip('/')}"


@dataclass(frozen=True, slots=True)
class DhcpClient:
    """Machine's lease and its requested netboot; `boot` is None if the Machine is to boot from its disk."""

    machine: str
    lease: StaticLease
    boot: OfferedBoot | None = None


@dataclass(frozen=True, slots=True)
class WithheldReservation:
    """Known MAC that is not served; `why` names the conflicting Machine or the mistake."""

    machine: str
    why: str


class ReservationSource(Protocol):
    """Current knowledge of a server."""

    @property
    def server(self) -> bytes: ...  # the server's own address, as clients reach it

    def client(self, mac: str) -> DhcpClient | WithheldReservation | None: ...  # `mac` is in lower case, with colons


class PacketObserver(Protocol):
    """Observer of packets; a `ReservationSource` may implement it, too."""

    def packet_received(
        self, packet: Packet, arrival: Arrival
    ) -> None: ...  # called before the server decides on the packet

    def reply_sent(self, packet: Packet, reply: DhcpReply) -> None: ...


class DhcpServerMode(Enum):
    """Position of a server in its network."""

    INTERFACE = "interface"  # on the segment of its clients
    RELAY = "relay"  # reachable through relays only
    PROXY = "proxy"  # on the segment, beside a DHCP server that leases the addresses


@dataclass(frozen=True, slots=True)
class Relays:
    """Networks of the site's DHCP relays; empty if none are configured."""

    networks: tuple[ipaddress.IPv4Network, ...] = ()

    def __contains__(self, address: bytes) -> bool:
        return any(ipaddress.IPv4Address(address) in network for network in self.networks)


NO_RELAYS: Final = Relays()


@dataclass(frozen=True, slots=True)
class Arrival:
    """Circumstances in which a packet arrived."""

    mode: DhcpServerMode = DhcpServerMode.INTERFACE
    source: bytes = NOWHERE
    boot_port: bool = False  # the packet came to port 4011, where PXE clients request their file from a proxy
    relays: Relays = NO_RELAYS

    def is_from_unknown_relay(self, packet: Packet) -> bool:
        """Return whether a relay that is not among the configured ones passed the packet on."""
        return bool(self.relays.networks) and packet.giaddr != NOWHERE and packet.giaddr not in self.relays

    def is_from_own_network(self, packet: Packet) -> bool:
        """Return whether the packet came from a network that this server leases to, so that it may count against a
        boot.

        A client without an address sends from 0.0.0.0, which no router passes on. A relayed packet counts only if it
        came from a configured relay: any sender can fill in giaddr.
        """
        if packet.giaddr != NOWHERE:
            return packet.giaddr in self.relays and (self.source == packet.giaddr or self.source in self.relays)
        return self.mode is not DhcpServerMode.RELAY and self.source == NOWHERE and not self.boot_port


class ReplyRoute(Enum):
    """Route of a reply to its client (RFC 2131 section 4.1)."""

    RELAY = "to the relay at the address"
    UNICAST = "to the address"
    BROADCAST = "to everybody on the segment"
    HARDWARE = "to the address at the client's MAC, as it cannot answer ARP yet"
    BACK = "to where it came from"


class NoReplyReason(Enum):
    """Reason why a packet got no answer; the server counts each of them."""

    MALFORMED = "malformed"
    NOT_A_REQUEST = "not a request"
    NOT_ETHERNET = "not Ethernet"
    UNSERVED_TYPE = "unserved type"
    UNKNOWN_MAC = "unknown MAC"
    WITHHELD = "withheld"
    NOT_RELAYED = "not relayed"
    UNKNOWN_RELAY = "unknown relay"
    OTHER_SERVER_CHOSEN = "other server chosen"
    REQUEST_WITHOUT_ADDRESS = "request without address"
    RELEASED = "released"
    DECLINED = "declined"
    NOT_FOR_A_PROXY = "not for a proxy"
    NO_BOOT_REQUESTED = "no boot wanted"
    NO_BOOT_FILE = "no boot file"
    REPLY_TOO_LONG = "reply too long"


class DhcpFindingKind(Enum):
    """Network problem that the user should see, on the Machine or on the site."""

    NO_BOOT_FILE = "NoBootFile"
    FOREIGN_SERVER = "ForeignDHCPServer"
    ADDRESS_IN_USE = "AddressInUse"
    DUPLICATE_LEASE = "DuplicateLease"
    INVALID_LEASE = "InvalidLease"


@dataclass(frozen=True, slots=True)
class DhcpFinding:
    """Observed problem; `machine` is empty if the problem concerns no Machine of the site."""

    kind: DhcpFindingKind
    machine: str
    text: str


@dataclass(frozen=True, slots=True)
class DhcpReply:
    """Answer to send; `address` is its destination unless `via` is a broadcast or the packet's source."""

    packet: Packet
    payload: bytes
    via: ReplyRoute
    address: bytes = NOWHERE
    findings: tuple[DhcpFinding, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class NoReply:
    """Decision to send no answer, with its reason."""

    reason: NoReplyReason
    findings: tuple[DhcpFinding, ...] = ()


DhcpAnswer = DhcpReply | NoReply


def address_octets(address: str) -> bytes:
    """Return the four octets of an address.

    Raises:
        ValueError: the text is not an address.
    """
    return ipaddress.IPv4Address(address).packed


@lru_cache(CACHED_ADDRESSES)
def format_address(address: bytes) -> str:
    """Format four octets in dotted decimal."""
    return ".".join(map(str, address))
