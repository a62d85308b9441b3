"""DHCP packets and their options, from and to bytes.

Packets are those of RFC 2131 section 2, with the option overload of RFC 2132 section 9.3. Options are those of RFC
2132, with the long options of RFC 3396, as `{code: value}`. `datagram` adds IPv4 and UDP headers for a client that has
no address yet, and so cannot answer ARP.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import msgspec

HEADER: Final = struct.Struct("!4BIHH4s4s4s4s16s64s128s4s")
COOKIE: Final = b"\x63\x82\x53\x63"
NOWHERE: Final = bytes(4)
REQUEST_OP: Final = 1
REPLY_OP: Final = 2
ETHERNET: Final = 1
MAC_BYTES: Final = 6
BROADCAST_FLAG: Final = 0x8000
IP_AND_UDP_BYTES: Final = 28
LEAST_MESSAGE_BYTES: Final = 576  # accepted by every client (RFC 2131 section 2); IP and UDP headers included
LEAST_PAYLOAD_BYTES: Final = 300  # BOOTP relays drop shorter ones (RFC 1542 section 2.1)
IN_FILE, IN_SNAME = 1, 2
OVERLOAD_OPTION_BYTES: Final = 3


class MessageType(IntEnum):
    """DHCP message type (option 53)."""

    DISCOVER = 1
    OFFER = 2
    REQUEST = 3
    DECLINE = 4
    ACK = 5
    NAK = 6
    RELEASE = 7
    INFORM = 8


TYPES: Final = {bytes((kind,)): kind for kind in MessageType}


class Packet(msgspec.Struct, frozen=True, kw_only=True):
    """DHCP packet; addresses are the four octets of the wire, and `file` and `sname` end before their first zero."""

    op: int = REQUEST_OP
    hardware_type: int = ETHERNET
    hardware: bytes = bytes(MAC_BYTES)
    hops: int = 0
    xid: int = 0
    secs: int = 0
    flags: int = 0
    ciaddr: bytes = NOWHERE
    yiaddr: bytes = NOWHERE
    siaddr: bytes = NOWHERE
    giaddr: bytes = NOWHERE
    sname: bytes = b""
    file: bytes = b""
    options: dict[int, bytes] = {}

    @property
    def type(self) -> MessageType | None:
        """Message type; None for plain BOOTP and for types outside of RFC 2131."""
        return TYPES.get(self.options.get(MESSAGE_TYPE, b""))

    @property
    def mac(self) -> str | None:
        """Client's MAC in lower case, with colons; None unless it is an Ethernet address."""
        if self.hardware_type != ETHERNET or len(self.hardware) != MAC_BYTES:
            return None
        return self.hardware.hex(":")


def decode(data: bytes) -> Packet:
    """Parse a packet; options in `file` and `sname` are merged into `options`.

    Raises:
        MalformedDhcpPacket: the bytes are not a DHCP packet.
    """
    if len(data) < HEADER.size:
        raise MalformedDhcpPacket("shorter than a header")
    op, kind, length, hops, xid, secs, flags, ci, yi, si, gi, chaddr, sname, file, cookie = HEADER.unpack_from(data)
    if cookie != COOKIE:
        raise MalformedDhcpPacket("no magic cookie")
    if length > len(chaddr):
        raise MalformedDhcpPacket("a hardware address of more than 16 bytes")
    options: dict[int, bytes] = {}
    parse_options(options, data[HEADER.size :])
    if OVERLOAD in options:  # in this order: file, then sname (RFC 3396 section 5)
        overload = options.pop(OVERLOAD)
        used = overload[0] if len(overload) == 1 else 0
        if used & IN_FILE:
            parse_options(options, file)
            file = b""
        if used & IN_SNAME:
            parse_options(options, sname)
            sname = b""
        options.pop(OVERLOAD, None)  # valid only in the main options area (RFC 2132 section 9.3)
    return Packet(
        op=op,
        hardware_type=kind,
        hardware=chaddr[:length],
        hops=hops,
        xid=xid,
        secs=secs,
        flags=flags,
        ciaddr=ci,
        yiaddr=yi,
        siaddr=si,
        giaddr=gi,
        sname=sname.partition(b"\0")[0],
        file=file.partition(b"\0")[0],
        options=options,
    )


def encode(packet: Packet, largest_message: int = LEAST_MESSAGE_BYTES) -> bytes:
    """Encode the packet for a client that accepts IP packets of `largest_message` bytes.

    Options that do not fit into the options area continue in `file` and `sname` if these are free.

    Raises:
        MalformedDhcpPacket: not all options fit, or a field is too long.
    """
    room = max(largest_message, LEAST_MESSAGE_BYTES) - IP_AND_UDP_BYTES - HEADER.size
    sname, file = packet.sname, packet.file
    parts = encode_options(packet.options)
    area = b"".join(parts)
    if len(area) + 1 > room:
        area, file, sname = _overloaded(parts, room, file, sname)
    if len(sname) > 64 or len(file) > 128 or len(packet.hardware) > 16:
        raise MalformedDhcpPacket("a field is too long")
    header = HEADER.pack(
        packet.op,
        packet.hardware_type,
        len(packet.hardware),
        packet.hops,
        packet.xid,
        packet.secs,
        packet.flags,
        packet.ciaddr,
        packet.yiaddr,
        packet.siaddr,
        packet.giaddr,
        packet.hardware,
        sname,
        file,
        COOKIE,
    )
    return (header + area + b"\xff").ljust(LEAST_PAYLOAD_BYTES, b"\0")


def _overloaded(parts: list[bytes], room: int, file: bytes, sname: bytes) -> tuple[bytes, bytes, bytes]:
    used = (0 if file else IN_FILE) | (0 if sname else IN_SNAME)
    end = bytes((END,))
    area = bytes((OVERLOAD, 1, used)) + fill(parts, room - OVERLOAD_OPTION_BYTES - 1)
    if used & IN_FILE:
        file = fill(parts, 127) + end
    if used & IN_SNAME:
        sname = fill(parts, 63) + end
    if parts:
        raise MalformedDhcpPacket("the options do not fit")
    return area, file, sname


IPV4: Final = struct.Struct("!BBHHHBBH4s4s")
UDP: Final = struct.Struct("!4H")
UDP_PROTOCOL: Final = 17
TIME_TO_LIVE: Final = 64


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def datagram(payload: bytes, source: tuple[bytes, int], target: tuple[bytes, int]) -> bytes:
    """Return an IP packet with the payload; both ends are (four octets, port)."""
    length = UDP.size + len(payload)
    udp = UDP.pack(source[1], target[1], length, 0)
    pseudo = source[0] + target[0] + struct.pack("!BBH", 0, UDP_PROTOCOL, length)
    udp = UDP.pack(source[1], target[1], length, checksum(pseudo + udp + payload) or 0xFFFF)

    def header(check: int) -> bytes:
        total = IPV4.size + length
        return IPV4.pack(0x45, 0, total, 0, 0, TIME_TO_LIVE, UDP_PROTOCOL, check, source[0], target[0])

    return header(checksum(header(0))) + udp + payload


PAD: Final = 0
SUBNET_MASK: Final = 1
ROUTER: Final = 3
DNS_SERVERS: Final = 6
VENDOR_OPTIONS: Final = 43
REQUESTED_ADDRESS: Final = 50
LEASE_SECONDS: Final = 51
OVERLOAD: Final = 52
MESSAGE_TYPE: Final = 53
SERVER_ID: Final = 54
MESSAGE: Final = 56
MAX_MESSAGE_BYTES: Final = 57
VENDOR_CLASS: Final = 60
CLIENT_ID: Final = 61
TFTP_SERVER: Final = 66
BOOT_FILE: Final = 67
USER_CLASS: Final = 77
RELAY_AGENT: Final = 82
ARCHITECTURE: Final = 93
MACHINE_ID: Final = 97
IPXE: Final = 175
END: Final = 255

LONGEST: Final = 255  # value bytes of one option on the wire; longer values are split (RFC 3396)


class MalformedDhcpPacket(Exception):
    """Bytes that are not a DHCP packet; the message has the reason."""


def parse_options(found: dict[int, bytes], area: bytes) -> None:
    """Add the options of one area of a packet; the parts of a split value are joined (RFC 3396, section 7).

    A missing end option is accepted, as some boot ROMs leave it out.

    Raises:
        MalformedDhcpPacket: an option is cut off.
    """
    at, size = 0, len(area)
    while at < size:
        code = area[at]
        if code == END:
            return
        if code == PAD:
            at += 1
            continue
        start = at + 2
        if start > size:
            raise MalformedDhcpPacket(f"option {code} has no length")
        at = start + area[start - 1]
        if at > size:
            raise MalformedDhcpPacket(f"option {code} is truncated")
        value = area[start:at]
        found[code] = found[code] + value if code in found else value


def encode_options(options: Mapping[int, bytes]) -> list[bytes]:
    """Encode the options in their order, each piece with at most 255 bytes of value."""
    parts: list[bytes] = []
    for code, value in options.items():
        if len(value) <= LONGEST:
            parts.append(b"%c%c%b" % (code, len(value), value))
            continue
        for start in range(0, len(value), LONGEST):
            part = value[start : start + LONGEST]
            parts.append(bytes((code, len(part))) + part)
    return parts


def fill(parts: list[bytes], room: int) -> bytes:
    """Take options from the front of `parts` until `room` bytes are full; the last option may be cut in two."""
    taken = bytearray()
    while parts and room - len(taken) > 2:
        part = parts[0]
        left = room - len(taken)
        if len(part) <= left:
            taken += part
            parts.pop(0)
            continue
        taken += bytes((part[0], left - 2)) + part[2:left]
        parts[0] = bytes((part[0], len(part) - left)) + part[left:]
    return bytes(taken)
