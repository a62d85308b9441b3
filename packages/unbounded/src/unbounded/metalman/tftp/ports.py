"""Port of the TFTP server: the files of a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from unbounded.metalman.tftp.packet import ErrorCode


class TftpContent(Protocol):
    """Bytes of a file, which do not change during a transfer."""

    @property
    def size(self) -> int: ...

    def read(self, at: int, count: int) -> bytes: ...  # from memory or the page cache: does not block for long

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TftpRejection:
    """Error that a client gets instead of a file."""

    code: ErrorCode = ErrorCode.NOT_FOUND
    text: str = "File not found"


class TftpFiles(Protocol):
    """Source of files by the client's address and a normalized name (see `names.normalized_name`)."""

    async def find(self, client: str, name: str) -> TftpContent | TftpRejection: ...


@dataclass(frozen=True, slots=True)
class MemoryContent:
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
