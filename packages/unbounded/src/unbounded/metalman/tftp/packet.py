"""TFTP packets, from and to bytes (RFC 1350 section 5; options: RFC 2347), and requested file names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

LONGEST_REQUEST_BYTES: Final = 512  # RFC 2347
WRAP: Final = 65536


class ErrorCode(IntEnum):
    """Error codes."""

    UNDEFINED = 0
    NOT_FOUND = 1
    ACCESS = 2
    ILLEGAL = 4
    OPTIONS = 8


class MalformedTftpPacket(Exception):
    """Bytes that are not a TFTP packet of a client; the message has the reason."""


@dataclass(frozen=True, slots=True)
class TftpRequest:
    """Request to read or write a file; mode and option names are in lower case."""

    write: bool
    name: str
    mode: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledgement of all blocks up to `number`, which is the wire's number and wraps."""

    number: int


@dataclass(frozen=True, slots=True)
class ErrorPacket:
    """Error packet, by which the other side ends the transfer."""

    code: int
    text: str


def decode(data: bytes) -> TftpRequest | Ack | ErrorPacket:
    """Parse a packet of a client.

    Raises:
        Malformed: the bytes are not a request, an acknowledgement or an error.
    """
    kind = int.from_bytes(data[:2], "big")
    if len(data) < 4:
        raise MalformedTftpPacket("shorter than any packet")
    match kind:
        case 1 | 2:
            return _request(data)
        case 4:
            return Ack(int.from_bytes(data[2:4], "big"))
        case 5:
            return ErrorPacket(int.from_bytes(data[2:4], "big"), data[4:].partition(b"\0")[0].decode(errors="replace"))
    raise MalformedTftpPacket(f"packet of kind {kind}")


def _request(data: bytes) -> TftpRequest:
    if len(data) > LONGEST_REQUEST_BYTES:
        raise MalformedTftpPacket("a request of more than 512 bytes")
    *words, rest = data[2:].split(b"\0")
    if rest or len(words) < 2:
        raise MalformedTftpPacket("a request that does not end with a zero byte")
    texts = [word.decode(errors="replace") for word in words]
    options: dict[str, str] = {}
    for name, value in zip(texts[2::2], texts[3::2], strict=False):
        options.setdefault(name.lower(), value)
    return TftpRequest(write=data[1] == WRQ, name=texts[0], mode=texts[1].lower(), options=options)


def encode_data(block: int, content: bytes) -> bytes:
    """Encode a DATA packet; `block` may exceed the wire's number, which wraps."""
    return b"\0\x03" + (block % WRAP).to_bytes(2, "big") + content


def encode_options(agreed: Mapping[str, str]) -> bytes:
    """Encode an OACK packet."""
    return b"\0\x06" + b"".join(f"{name}\0{value}\0".encode() for name, value in agreed.items())


def encode_error(code: ErrorCode, text: str) -> bytes:
    """Encode an ERROR packet."""
    return b"\0\x05" + code.to_bytes(2, "big") + text.encode() + b"\0"


LONGEST_NAME: Final = 400


def normalized_name(name: str) -> str | None:
    r"""Return the name without leading, double and back slashes and without `.`; None if it points out of its folder.

    Firmware requests `/x`, shim `//x`, and some loaders `\x`.
    """
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or ".." in parts or len(name) > LONGEST_NAME or not name.isprintable():
        return None
    return "/".join(parts)


RRQ, WRQ, DATA, ACK, ERROR, OACK = range(1, 7)
