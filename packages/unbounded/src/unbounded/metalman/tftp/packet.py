"""TFTP packets, from and to bytes (RFC 1350 section 5), requested file names, and options (RFC 2347).

The negotiated options are block size, timeout, size and window.
"""

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

DEFAULT_BLOCK_BYTES: Final = 512
LEAST_BLOCK_BYTES: Final = 8
LARGEST_BLOCK_BYTES: Final = 65464
LARGEST_WINDOW: Final = 64  # blocks; larger ones overrun the receive buffers of boot firmware
DEFAULT_TIMEOUT_S: Final = 1


@dataclass(frozen=True, slots=True)
class NegotiatedOptions:
    """Negotiated options of a transfer; `acknowledged` are those of the OACK, which is left out if there are none."""

    block_bytes: int = DEFAULT_BLOCK_BYTES
    window: int = 1
    timeout_s: int = DEFAULT_TIMEOUT_S
    acknowledged: Mapping[str, str] = field(default_factory=dict)


def negotiate(requested: Mapping[str, str], size: int) -> NegotiatedOptions:
    """Negotiate the options for a file of `size` bytes. Options that are unknown or out of range are ignored.

    Block size and window may be smaller than requested (RFC 2348, RFC 7440); the timeout may not (RFC 2349).
    """
    message: dict[str, str] = {}
    block = _number(requested.get("blksize"))
    if block is not None and block >= LEAST_BLOCK_BYTES:
        message["blksize"] = str(min(block, LARGEST_BLOCK_BYTES))
    timeout = _number(requested.get("timeout"))
    if timeout is not None and 1 <= timeout <= 255:
        message["timeout"] = str(timeout)
    if _number(requested.get("tsize")) is not None:
        message["tsize"] = str(size)
    window = _number(requested.get("windowsize"))
    if window is not None and 1 <= window <= 65535:
        message["windowsize"] = str(min(window, LARGEST_WINDOW))
    return NegotiatedOptions(
        block_bytes=int(message.get("blksize", DEFAULT_BLOCK_BYTES)),
        window=int(message.get("windowsize", 1)),
        timeout_s=int(message.get("timeout", DEFAULT_TIMEOUT_S)),
        acknowledged={name: message[name] for name in requested if name in message},
    )


def _number(text: str | None) -> int | None:
    """Parse a decimal number of at most ten digits; None for any other text."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 10:
        return None
    return int(text)
