"""A complete answer, its bytes on the wire, and sending to clients that may read slowly, or not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from functools import cache
from http import HTTPStatus
from typing import Final
from wsgiref.handlers import format_date_time

import msgspec
from aiohttp import HttpVersion10, web
from multidict import CIMultiDict

UNKNOWN_STATUS: Final = "Unknown"
_dated: tuple[int, bytes] = (0, b"")
QUICK_BYTES: Final = 32 * 1024  # the buffers of a connection whose client reads take this many
PART_BYTES: Final = 256 * 1024
STALLED_S: Final = 60.0
SLOWEST_BYTES_S: Final = 64 * 1024
Part = bytes | memoryview


class HttpReply(msgspec.Struct):
    """Status, headers and body of an answer.

    Args:
        extra_headers: headers beside those of every answer; a name may occur twice.
        keep_alive: whether the connection stays open after the answer, unless the client closes it.
        more_body: the rest of the body, made while it is sent; None if `body` is complete.
    """

    body: bytes
    media: str
    status: int = 200
    extra_headers: list[tuple[str, str]] = []
    keep_alive: bool = True
    more_body: Iterator[bytes] | None = None
    cache_control: str = "no-cache, private"

    def complete(self) -> None:
        """Complete `body`."""
        if self.more_body is not None:
            rest, self.more_body = [*self.more_body], None
            self.body = b"".join([self.body, *rest]) if rest else self.body

    def headers(self) -> CIMultiDict[str]:
        """All headers but those that only the connection knows."""
        return CIMultiDict([("Content-Type", self.media), ("Cache-Control", self.cache_control), *self.extra_headers])

    def response(self) -> web.Response:
        """Return the answer as a response of the HTTP library."""
        return web.Response(body=self.body, status=self.status, headers=self.headers())

    def encode(self, request: web.BaseRequest) -> bytes:
        """Return the bytes to send; sets `keep_alive`."""
        self.keep_alive = keep_alive = self.keep_alive and request.keep_alive
        head = _head(self.status, self.media, self.cache_control)
        lines = (
            "".join([f"{name}: {_line(value)}\r\n" for name, value in self.extra_headers]) if self.extra_headers else ""
        )
        old = request.version <= HttpVersion10
        if keep_alive is old:
            lines += "Connection: keep-alive\r\n" if old else "Connection: close\r\n"
        body = b"" if request.method == "HEAD" else self.body
        return b"%b%bContent-Length: %d\r\nDate: %b\r\n\r\n%b" % (
            head, lines.encode(), len(self.body), _date(int(time.time())), body
        )  # fmt: skip


def _line(value: str) -> str:
    """Return a header value without line breaks, so that it cannot begin another header."""
    return value.replace("\r", " ").replace("\n", " ")


@cache
def _head(status: int, media: str, cache_control: str) -> bytes:
    """Return the first header lines of an answer, from a cache: there are few different ones."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = UNKNOWN_STATUS
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: {_line(media)}\r\nCache-Control: {cache_control}\r\n"
    return head.encode()


def _date(second: int) -> bytes:
    global _dated  # noqa: PLW0603  # one text for all answers of a second
    if _dated[0] != second:
        _dated = second, format_date_time(second).encode()
    return _dated[1]


async def send(request: web.BaseRequest, response: web.StreamResponse, data: bytes) -> None:
    """Write a part of a stream.

    Raises:
        ConnectionResetError: the client did not read in time; the connection is closed.
    """
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has gone")
    if len(data) + transport.get_write_buffer_size() <= QUICK_BYTES:
        await response.write(data)
        return
    end = asyncio.get_running_loop().time() + _time_limit_s(len(data))
    await _within(end, request, response.write(data))


async def finish(request: web.BaseRequest, reply: HttpReply) -> web.StreamResponse:
    """Send a long answer at once, so that a slow client cannot keep it in memory.

    Raises ConnectionResetError, as `send`.
    """
    sent = web.StreamResponse(status=reply.status, headers=reply.headers())
    if reply.more_body is None:
        sent.content_length = len(reply.body)
    else:
        sent.enable_chunked_encoding()
    await sent.prepare(request)
    if request.method != "HEAD":
        await _send_parts(request, sent, reply)
    await sent.write_eof()
    return sent


async def _send_parts(request: web.BaseRequest, sent: web.StreamResponse, reply: HttpReply) -> None:
    """Send the parts of an answer. Their time limit covers all parts so far, so that slow reading cannot extend it."""
    size, began = 0, asyncio.get_running_loop().time()
    for part in _parts(reply):
        size += len(part)
        await _within(began + _time_limit_s(size), request, sent.write(part))


async def _within(end: float, request: web.BaseRequest, sending: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout_at(end):
            await sending
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client does not read") from None


def _parts(reply: HttpReply) -> Iterator[Part]:
    """Yield the answer in parts, so that a long list neither blocks other requests nor is in memory three times."""
    body = memoryview(reply.body)
    for start in range(0, len(body), PART_BYTES):
        yield body[start : start + PART_BYTES]
    yield from reply.more_body or ()


def _time_limit_s(size: int) -> float:
    return STALLED_S + size / SLOWEST_BYTES_S
