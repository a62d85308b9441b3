"""Heads of requests that have been read before: clients send the same ones again and again, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qs

from aiohttp import web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EmptyStreamReader

from unbounded.apiserver.access.impersonation import is_meant

KNOWN_HEADS: Final = 1024
KNOWN_BYTES: Final = 2048  # of one head
HEAD_END: Final = b"\r\n\r\n"


class Said(NamedTuple):
    """What a head says, as far as answers depend on it."""

    path: str
    query: Mapping[str, list[str]]
    accept: str
    agent: str
    media: str  # of the body; '' where nothing is said of it
    length: int  # of the body; 0 where that is not known yet
    authorized: bool  # with a header of its own
    acting: bool  # as somebody else
    zips: bool
    expects: str  # before it sends the body

    @property
    def continues(self) -> bool:
        """Whether the client sends the body once it is told to."""
        return "100-continue" in {token.strip().lower() for token in self.expects.split(",")}

    @classmethod
    def by(cls, request: web.BaseRequest) -> Said:
        """What a request says; where its head is remembered, so is this."""
        message = request._message
        if not isinstance(message, Remembered):
            return cls._read(request)
        if message.said is None:
            message.said = cls._read(request)
        return message.said

    @classmethod
    def _read(cls, request: web.BaseRequest) -> Said:
        headers, query = request.headers, request.rel_url.raw_query_string
        return cls(
            path=request.rel_url.raw_path,
            query=parse_qs(query, keep_blank_values=True) if query else {},
            accept=headers.get("Accept", ""),
            agent=headers.get("User-Agent", ""),
            media=_media(headers.get("Content-Type", "")),
            length=request.content_length or 0,
            authorized="Authorization" in headers,
            acting=is_meant(headers),
            zips="gzip" in headers.get("Accept-Encoding", ""),
            expects=headers.get("Expect", ""),
        )


def _media(text: str) -> str:
    """A media type without its parameters, and an odd text as it is; the HTTP library fails on some of those."""
    return text.partition(";")[0].strip().lower() or text


class Remembered(RawRequestMessage):
    """A head as the HTTP library has it, with what was made of it since."""

    said: Said | None = None

    @classmethod
    def of(cls, head: RawRequestMessage) -> Remembered:
        return cls(
            head.method,
            head.path,
            head.version,
            head.headers,
            head.raw_headers,
            head.should_close,
            head.compression,
            head.upgrade,
            head.chunked,
            head.url,
        )


class Head(NamedTuple):
    """What the library has made of a head, and how long the body is that follows it."""

    message: RawRequestMessage
    length: int


class Heads:
    """What the HTTP library has made of heads, by their bytes."""

    def __init__(self, limit: int = KNOWN_HEADS) -> None:
        self._limit = limit
        self._known: dict[bytes, Head] = {}

    def find(self, head: bytes) -> Head | None:
        return self._known.get(head)

    def learn(self, head: bytes, message: RawRequestMessage) -> None:
        """Remember a head, if it says how long the request is."""
        if message.chunked or message.upgrade or message.compression or len(head) > KNOWN_BYTES:
            return
        if len(self._known) >= self._limit:
            self._known.clear()
        self._known[head] = Head(Remembered.of(message), int(message.headers.get("Content-Length", "0")))


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
