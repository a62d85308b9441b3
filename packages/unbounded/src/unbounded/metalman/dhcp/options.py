"""DHCP options as bytes (RFC 2132), with the long options of RFC 3396: `{code: value}` and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
        Malformed: an option is cut off.
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
