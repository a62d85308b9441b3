"""A complete answer, and its bytes on the wire."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from http import HTTPStatus
from typing import Final
from wsgiref.handlers import format_date_time

import msgspec
from aiohttp import HttpVersion10, web
from multidict import CIMultiDict

UNKNOWN_STATUS: Final = "Unknown"


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

    def complete(self) -> None:
        """Complete `body`."""
        if self.more_body is not None:
            rest, self.more_body = [*self.more_body], None
            self.body = b"".join([self.body, *rest]) if rest else self.body

    def headers(self) -> CIMultiDict[str]:
        """All headers but those that only the connection knows."""
        return CIMultiDict([("Content-Type", self.media), ("Cache-Control", "no-cache, private"), *self.extra_headers])

    def response(self) -> web.Response:
        """Return the answer as a response of the HTTP library."""
        return web.Response(body=self.body, status=self.status, headers=self.headers())

    def encode(self, request: web.BaseRequest) -> bytes:
        """Return the bytes to send; sets `keep_alive`."""
        self.keep_alive = keep_alive = self.keep_alive and request.keep_alive
        head = _head(self.status, self.media)
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
def _head(status: int, media: str) -> bytes:
    """Return the first header lines of an answer, from a cache: there are few different ones."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = UNKNOWN_STATUS
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: {_line(media)}\r\nCache-Control: no-cache, private\r\n"
    return head.encode()


_dated: tuple[int, bytes] = (0, b"")


def _date(second: int) -> bytes:
    global _dated  # noqa: PLW0603  # one text for all answers of a second
    if _dated[0] != second:
        _dated = second, format_date_time(second).encode()
    return _dated[1]
