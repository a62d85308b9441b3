"""What the TFTP server needs from outside: the files of a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from unbounded.metalman.tftp.packet import Code


class Content(Protocol):
    """A file's bytes, which stay as they are while it is sent."""

    @property
    def size(self) -> int: ...

    def read(self, at: int, count: int) -> bytes: ...  # from memory or the page cache: it does not wait for long

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a client does not get a file."""

    code: Code = Code.NOT_FOUND
    text: str = "File not found"


class Files(Protocol):
    """Finds files by the address of who asks and a plain name (see `names.plain`)."""

    async def find(self, client: str, name: str) -> Content | Refusal: ...


@dataclass(frozen=True, slots=True)
class Held:
    """Content in memory."""

    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)

    def read(self, at: int, count: int) -> bytes:
        return self.content[at : at + count]

    def close(self) -> None:
        """Nothing to give back."""


def netascii(content: bytes) -> bytes:
    """Text for the mode `netascii`: lines end with CR LF, and a lone CR is CR NUL (RFC 764)."""
    return content.replace(b"\r", b"\r\0").replace(b"\n", b"\r\n")
