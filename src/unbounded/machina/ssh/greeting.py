"""What a server says first (RFC 4253, section 4.2): lines of its own choice, then "SSH-2.0-…"."""

from __future__ import annotations

from enum import Enum
from typing import Final

GREETING_BYTES: Final = 4096  # so much is looked at; some servers say a page before their version
_VERSIONS: Final = (b"SSH-2.0-", b"SSH-1.99-")
_TOO_MANY: Final = (b"Exceeded MaxStartups", b"Not allowed at this time")  # OpenSSH, in place of a version
_SHOWN: Final = 80


class Greeting(Enum):
    SSH = "it is an SSH server"
    TOO_MANY = "an SSH server that has too much to do"
    OTHER = "something else has answered"
    UNFINISHED = "more may come"


def greeting(said: bytes) -> Greeting:
    """What the first bytes of a server tell; they never come to more than GREETING_BYTES."""
    *lines, rest = said.split(b"\n")
    if any(line.startswith(_VERSIONS) for line in lines):
        return Greeting.SSH
    if any(line.startswith(_TOO_MANY) for line in (*lines, rest)):
        return Greeting.TOO_MANY
    if any(line.startswith((b"SSH-", b"HTTP/")) for line in lines) or len(said) >= GREETING_BYTES:
        return Greeting.OTHER
    return Greeting.UNFINISHED


def first_line(said: bytes) -> str:
    """For a message: without control characters, and short."""
    return plain(said.split(b"\n")[0])


def plain(text: bytes | str) -> str:
    """What somebody else's machine said, for a message: one short line of printable ASCII."""
    if isinstance(text, str):
        text = text.encode(errors="replace")
    shown = "".join(chr(byte) if 32 <= byte < 127 else " " if byte in b"\t\r\n" else "?" for byte in text[: 4 * _SHOWN])
    shown = " ".join(shown.split())
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"
