"""First bytes of an SSH server (RFC 4253, section 4.2): lines of its own choice, then "SSH-2.0-…"."""

from __future__ import annotations

from enum import Enum
from typing import Final

GREETING_BYTES: Final = 4096  # upper limit of what is parsed; some servers send a page of text before their version
_VERSIONS: Final = (b"SSH-2.0-", b"SSH-1.99-")
_TOO_MANY: Final = (b"Exceeded MaxStartups", b"Not allowed at this time")  # OpenSSH sends these instead of a version
_MAX_CHARACTERS: Final = 80


class Greeting(Enum):
    SSH = "it is an SSH server"
    TOO_MANY = "an SSH server that has too much to do"
    OTHER = "something else has answered"
    UNFINISHED = "more may come"


def greeting(said: bytes) -> Greeting:
    """Classify the first bytes of a server, at most GREETING_BYTES."""
    *lines, rest = said.split(b"\n")
    if any(line.startswith(_VERSIONS) for line in lines):
        return Greeting.SSH
    if any(line.startswith(_TOO_MANY) for line in (*lines, rest)):
        return Greeting.TOO_MANY
    if any(line.startswith((b"SSH-", b"HTTP/")) for line in lines) or len(said) >= GREETING_BYTES:
        return Greeting.OTHER
    return Greeting.UNFINISHED


def first_line(said: bytes) -> str:
    """Return the first line for a message: short and without control characters."""
    return printable(said.split(b"\n")[0])


def printable(text: bytes | str) -> str:
    """Sanitize text of another machine for a message: one short line of printable ASCII."""
    if isinstance(text, str):
        text = text.encode(errors="replace")
    shown = "".join(
        chr(byte) if 32 <= byte < 127 else " " if byte in b"\t\r\n" else "?" for byte in text[: 4 * _MAX_CHARACTERS]
    )
    shown = " ".join(shown.split())
    return shown if len(shown) <= _MAX_CHARACTERS else shown[: _MAX_CHARACTERS - 1] + "…"
