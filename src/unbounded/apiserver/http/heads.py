"""Heads of requests that have been read before: clients send the same ones again and again, byte for byte."""

from __future__ import annotations

from typing import Final, NamedTuple

from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EmptyStreamReader

KNOWN_HEADS: Final = 1024
KNOWN_BYTES: Final = 2048  # of one head
HEAD_END: Final = b"\r\n\r\n"


class Head(NamedTuple):
    """What a head says, and how long the body is that follows it."""

    message: RawRequestMessage
    length: int


class Heads:
    """What the HTTP library has made of heads, by their bytes."""

    def __init__(self, limit: int = KNOWN_HEADS) -> None:
        self._limit = limit
        self._known: dict[bytes, Head] = {}

    def find(self, head: bytes) -> Head | None:
        return self._known.get(head)

    def learn(self, head: bytes, message: RawRequestMessage) -> Head | None:
        """Remember a head, if it may be; None where it alone does not say how long the request is."""
        if message.chunked or message.upgrade or message.compression:
            return None
        found = Head(message, int(message.headers.get("Content-Length", "0")))
        if len(head) <= KNOWN_BYTES:
            if len(self._known) >= self._limit:
                self._known.clear()
            self._known[head] = found
        return found


class Whole(EmptyStreamReader):
    """A body that came with its head."""

    __slots__ = ("_body",)

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self._body = body

    def at_eof(self) -> bool:
        return not self._body

    def read_nowait(self, n: int = -1) -> bytes:  # noqa: ARG002 - as the library's
        """All of it, the first time."""
        body, self._body = self._body, b""
        return body

    async def readany(self) -> bytes:
        return self.read_nowait()
