"""IPv4 and UDP headers (RFC 791, RFC 768) for a client that has no address yet, and so cannot answer ARP."""

from __future__ import annotations

import struct
from typing import Final

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
