"""Heads of requests: a cache of parsed ones, as clients send the same again and again, byte for byte.

`Framing` follows a connection's bytes: between two requests, in a body, or in a head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import parse_qs

from aiohttp import web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EmptyStreamReader

from unbounded_apiserver.access.impersonation import has_impersonation

KNOWN_HEADS: Final = 1024
KNOWN_BYTES: Final = 2048  # of one head
HEAD_END: Final = b"\r\n\r\n"
BLANK: Final = b"\r\n"  # allowed before a request


class RequestHead(NamedTuple):
    """The parts of a head that answers depend on."""

    path: str
    query: Mapping[str, list[str]]
    accept: str
    agent: str
    media: str  # of the body; '' if the head has no Content-Type
    length: int  # of the body; 0 if unknown
    authorized: bool  # has an Authorization header
    impersonates: bool  # has impersonation headers
    accepts_gzip: bool
    expects: str  # the Expect header

    @property
    def expects_continue(self) -> bool:
        """True if the client waits for 100 Continue before it sends the body."""
        return "100-continue" in {token.strip().lower() for token in self.expects.split(",")}

    @classmethod
    def of(cls, request: web.BaseRequest) -> RequestHead:
        """Return the fields of a request's head, cached with the head."""
        message = request._message
        if not isinstance(message, CachedMessage):
            return cls._read(request)
        if message.head is None:
            message.head = cls._read(request)
        return message.head

    @classmethod
    def _read(cls, request: web.BaseRequest) -> RequestHead:
        headers, query = request.headers, request.rel_url.raw_query_string
        return cls(
            path=request.rel_url.raw_path,
            query=parse_qs(query, keep_blank_values=True) if query else {},
            accept=headers.get("Accept", ""),
            agent=headers.get("User-Agent", ""),
            media=_media(headers.get("Content-Type", "")),
            length=request.content_length or 0,
            authorized="Authorization" in headers,
            impersonates=has_impersonation(headers),
            accepts_gzip="gzip" in headers.get("Accept-Encoding", ""),
            expects=headers.get("Expect", ""),
        )


def _media(text: str) -> str:
    """Return a media type without its parameters; malformed text is returned unchanged, as aiohttp fails on it."""
    return text.partition(";")[0].strip().lower() or text


class CachedMessage(RawRequestMessage):
    """A head as parsed by the HTTP library, with the fields that were derived from it."""

    head: RequestHead | None = None

    @classmethod
    def of(cls, head: RawRequestMessage) -> CachedMessage:
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


class CachedHead(NamedTuple):
    """A parsed head, and the length of the body that follows it."""

    message: RawRequestMessage
    length: int


class HeadCache:
    """Parsed heads by their bytes."""

    def __init__(self, limit: int = KNOWN_HEADS) -> None:
        self._limit = limit
        self._known: dict[bytes, CachedHead] = {}

    def find(self, head: bytes) -> CachedHead | None:
        return self._known.get(head)

    def add(self, head: bytes, message: RawRequestMessage) -> None:
        """Cache a head, if it has the length of the request."""
        if message.chunked or message.upgrade or message.compression or len(head) > KNOWN_BYTES:
            return
        if len(self._known) >= self._limit:
            self._known.clear()
        self._known[head] = CachedHead(CachedMessage.of(message), int(message.headers.get("Content-Length", "0")))


class CompleteBody(EmptyStreamReader):
    """A body that arrived with its head."""

    __slots__ = ("_body",)

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self._body = body

    def at_eof(self) -> bool:
        return not self._body

    def read_nowait(self, n: int = -1) -> bytes:  # noqa: ARG002 - as the library's
        """Return all of it, the first time."""
        body, self._body = self._body, b""
        return body

    async def readany(self) -> bytes:
        return self.read_nowait()


class Framing:
    """The position in the bytes of one connection.

    Attributes:
        missing: bytes of the present request that have not arrived; 0 between requests, None if only its end shows.
    """

    __slots__ = ("_in_head", "_tail", "missing")

    def __init__(self) -> None:
        self.missing: int | None = 0
        self._in_head = False
        self._tail = b""  # the last bytes, where `missing` is None

    def follow(self, data: bytes, messages: Sequence[RawRequestMessage], *, all_read: bool) -> None:
        """Count the bytes that the parser received.

        Args:
            messages: the requests whose heads end in `data`.
            all_read: whether the parser has buffered no bytes.
        """
        joined, at, in_head = self._tail + data, self.missing, self._in_head
        self.missing, self._in_head, self._tail = None, False, joined[-len(HEAD_END) :]
        if not all_read or (at is None and not in_head):
            return
        at = at or 0
        for message in messages:
            end = joined.find(HEAD_END, at if in_head else _past_blank(joined, at))
            if end < 0 or message.chunked or message.upgrade:  # a body in chunks ends like a head
                return
            in_head, at = False, end + len(HEAD_END) + int(message.headers.get("Content-Length", "0"))
        if in_head or _past_blank(joined, at) < len(joined):
            self._in_head = True
        else:
            self.missing, self._tail = max(at - len(joined), 0), b""

    def has_part_of_head(self) -> bool:
        """Return whether another request has begun behind those that were read completely and answered."""
        if self.missing is None:
            self._in_head = self._tail != HEAD_END
            if not self._in_head:
                self.missing, self._tail = 0, b""
        return self._in_head


def _past_blank(data: bytes, at: int) -> int:
    while data[at : at + 1] and data[at : at + 1] in BLANK:
        at += 1
    return at
