"""Negotiation of a transfer's options: block size, timeout, size and window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

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
