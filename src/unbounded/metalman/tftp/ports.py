"""Port of the TFTP server: the files of a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from unbounded.metalman.tftp.packet import Code


class Content(Protocol):
    """Bytes of a file, which do not change during a transfer."""

    @property
    def size(self) -> int: ...

    def read(self, at: int, count: int) -> bytes: ...  # from memory or the page cache: does not block for long

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """Error that a client gets instead of a file."""

    code: Code = Code.NOT_FOUND
    text: str = "File not found"


class Files(Protocol):
    """Source of files by the client's address and a normalized name (see `names.plain`)."""

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
        """Do nothing: there is no resource to release."""


def netascii(content: bytes) -> bytes:
    """Convert text to the mode `netascii`: lines end with CR LF, and a lone CR becomes CR NUL (RFC 764)."""
    return content.replace(b"\r", b"\r\0").replace(b"\n", b"\r\n")
