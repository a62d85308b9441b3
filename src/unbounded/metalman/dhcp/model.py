"""What reaches a DHCP server, what it needs to know, and what it may answer, as frozen data."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Final, Protocol

from unbounded.metalman.dhcp.packet import NOWHERE, Packet

LEASE_S: Final = 86400  # 24 h
REMEMBERED: Final = 64  # addresses of servers and relays, which are few and stand in every reply


class Loader(Enum):
    """A boot file that an image can have for a kind of client (its `metadata.yaml`, `bootFiles`)."""

    BIOS = "bios"
    X64 = "x64"  # `dhcpBootImageName`, which is also for clients that do not tell their architecture
    ARM64 = "arm64"
    HTTP = "http"  # x64 over UEFI HTTP boot; left out, it is the file for x64
    IPXE = "ipxe"  # a script, for clients that are iPXE already


@dataclass(frozen=True, slots=True)
class Lease:
    """A static lease; addresses are the four octets of the wire."""

    address: bytes
    mask: bytes
    gateway: bytes | None = None
    dns: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, address: str, mask: str, gateway: str | None = None, dns: Iterable[str] = ()) -> Lease:
        """From texts as a Machine has them.

        Raises:
            ValueError: one is no address, the mask has gaps, or the gateway is out of the lease's network.
        """
        network = ipaddress.IPv4Network((address, mask), strict=False)
        if ipaddress.IPv4Address(mask) != network.netmask:  # 0.0.0.255 is read as a host mask
            raise ValueError(f"{mask} is no subnet mask")
        if gateway is not None and ipaddress.IPv4Address(gateway) not in network:
            raise ValueError(f"gateway {gateway} is not in {network}")
        return cls(
            address=packed(address),
            mask=network.netmask.packed,
            gateway=None if gateway is None else packed(gateway),
            dns=tuple(packed(one) for one in dns),
        )


@dataclass(frozen=True, slots=True)
class Boot:
    """A boot that is wanted now: the files there are, and the URL they lie under."""

    files: Mapping[Loader, str]
    serve_url: str

    def url(self, file: str) -> str:
        return f"{self.serve_url.rstrip('/')}/{file.lstrip('/')}"


@dataclass(frozen=True, slots=True)
class Client:
    """A Machine's lease, and the boot that is wanted of it; None while it is to start from its disk."""

    machine: str
    lease: Lease
    boot: Boot | None = None


@dataclass(frozen=True, slots=True)
class Withheld:
    """A known MAC that is not served; `why` names the other Machine or the mistake."""

    machine: str
    why: str


class Book(Protocol):
    """What a server knows, at this moment."""

    @property
    def server(self) -> bytes: ...  # its own address, as clients reach it

    def client(self, mac: str) -> Client | Withheld | None: ...  # the MAC in lower case, with colons


class Listener(Protocol):
    """A follower of packets; a book may be one."""

    def heard(self, packet: Packet, arrival: Arrival) -> None: ...  # before it is decided upon

    def answered(self, packet: Packet, reply: Reply) -> None: ...


class Mode(Enum):
    """How a server stands in its network."""

    INTERFACE = "interface"  # on the segment of its clients
    RELAY = "relay"  # reached through relays only
    PROXY = "proxy"  # on the segment, beside a DHCP server that gives the addresses


@dataclass(frozen=True, slots=True)
class Relays:
    """Networks in which the addresses of the site's DHCP relays lie; empty where none are configured."""

    networks: tuple[ipaddress.IPv4Network, ...] = ()

    def __contains__(self, address: bytes) -> bool:
        return any(ipaddress.IPv4Address(address) in network for network in self.networks)


NO_RELAYS: Final = Relays()


@dataclass(frozen=True, slots=True)
class Arrival:
    """How a packet came."""

    mode: Mode = Mode.INTERFACE
    source: bytes = NOWHERE
    boot_port: bool = False  # it came to port 4011, where PXE clients ask a proxy for their file
    relays: Relays = NO_RELAYS

    def is_refused(self, packet: Packet) -> bool:
        """Whether a relay passed it on that is none of those that are configured."""
        return bool(self.relays.networks) and packet.giaddr != NOWHERE and packet.giaddr not in self.relays

    def is_of_segment(self, packet: Packet) -> bool:
        """Whether it came from where a lease of this server is offered, so that it may count against a boot.

        A client without an address sends from 0.0.0.0, which no router passes on. What a relay passed on counts from
        configured relays alone: giaddr is a field that any sender fills in.
        """
        if packet.giaddr != NOWHERE:
            return packet.giaddr in self.relays and (self.source == packet.giaddr or self.source in self.relays)
        return self.mode is not Mode.RELAY and self.source == NOWHERE and not self.boot_port


class Via(Enum):
    """How a reply finds its client (RFC 2131 section 4.1)."""

    RELAY = "to the relay at the address"
    UNICAST = "to the address"
    BROADCAST = "to everybody on the segment"
    HARDWARE = "to the address at the client's MAC, as it cannot answer ARP yet"
    BACK = "to where it came from"


class Reason(Enum):
    """Why a packet got no answer; each is counted."""

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
    NO_BOOT_WANTED = "no boot wanted"
    NO_BOOT_FILE = "no boot file"
    REPLY_TOO_LONG = "reply too long"


class Trouble(Enum):
    """Something that a person should see, on the Machine or on the site."""

    NO_BOOT_FILE = "NoBootFile"
    FOREIGN_SERVER = "ForeignDHCPServer"
    ADDRESS_IN_USE = "AddressInUse"
    DUPLICATE_LEASE = "DuplicateLease"
    INVALID_LEASE = "InvalidLease"


@dataclass(frozen=True, slots=True)
class Finding:
    """Trouble that was seen; `machine` is empty where it concerns none of ours."""

    trouble: Trouble
    machine: str
    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; `address` is where it goes, unless it is broadcast or goes back."""

    packet: Packet
    payload: bytes
    via: Via
    address: bytes = NOWHERE
    findings: tuple[Finding, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer, and why."""

    reason: Reason
    findings: tuple[Finding, ...] = ()


Answer = Reply | Silence


def packed(address: str) -> bytes:
    """The four octets of an address, which raises ValueError for what is none."""
    return ipaddress.IPv4Address(address).packed


@lru_cache(REMEMBERED)
def shown(address: bytes) -> str:
    """Four octets as people write them."""
    return ".".join(map(str, address))
