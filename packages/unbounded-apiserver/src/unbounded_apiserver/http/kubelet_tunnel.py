"""A tunnel of two connections: bytes that arrive at either end leave at the other, unchanged.

For nodes/proxy: the headers of a forwarded request, and of its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from multidict import CIMultiDict, CIMultiDictProxy

# A kubelet never gets a client's credentials; these headers describe the request.
_ASKED: Final = (
    "Accept",
    "Accept-Encoding",
    "Content-Type",
    "If-Modified-Since",
    "If-None-Match",
    "Range",
    "User-Agent",
)
_OF_CONNECTION: Final = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-connection", "trailer", "transfer-encoding", "upgrade"}
)


class TunnelEnd(asyncio.Protocol):
    """One end of a tunnel. It reads no bytes while the other end accepts none.

    Args:
        transport: of a connection that the HTTP library has served so far.
        library: the HTTP library's protocol of that connection.
        hand_over: makes the library pass the bytes that arrived since the upgrade to a parser.
    """

    def __init__(
        self, transport: asyncio.Transport, library: asyncio.BaseProtocol, hand_over: Callable[[Any], None]
    ) -> None:
        self._transport = transport
        self._library = library
        self._hand_over = hand_over
        self._other: TunnelEnd | None = None
        self._over: asyncio.Future[None] | None = None
        self._lost: list[Exception | None] = []

    def begin(self, other: TunnelEnd, over: asyncio.Future[None]) -> None:
        """Take the connection from the HTTP library; `over` gets its result when either end is closed."""
        self._other, self._over = other, over
        self._hand_over(self)
        self._transport.set_protocol(self)

    def release(self) -> None:
        """Let the HTTP library close the connection."""
        self._transport.set_protocol(self._library)
        for error in self._lost:
            asyncio.get_running_loop().call_soon(self._library.connection_lost, error)

    # Of the HTTP library's parsers

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data_received(data)
        return False, b""

    def feed_eof(self) -> None:
        self._end()

    # Of asyncio's protocols

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._other._transport.write(data)

    def pause_writing(self) -> None:
        if self._other is not None and not self._other._lost:
            self._other._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and not self._other._lost:
            self._other._transport.resume_reading()

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.append(exc)
        self._end()

    def _end(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


async def join(first: TunnelEnd, second: TunnelEnd) -> None:
    """Forward bytes both ways until either end is closed; the caller closes the other one."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ends = (first, second), (second, first)
    for end, other in ends:
        end.begin(other, over)
    try:
        await over
    finally:
        first.release()
        second.release()


def request_headers(headers: Mapping[str, str], remote: str | None) -> dict[str, str]:
    """Return the headers of a request for the kubelet."""
    passed = {name: headers[name] for name in _ASKED if name in headers}
    return passed | ({"X-Forwarded-For": remote} if remote else {})


def answer_headers(headers: CIMultiDictProxy[str], prefix: str) -> CIMultiDict[str]:
    """Return the headers of a kubelet's answer for the client.

    Args:
        prefix: the path of the kubelet's root; redirects to a path of the kubelet are moved below it.
    """
    passed = CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _OF_CONNECTION)
    passed.setdefault("Cache-Control", "no-cache, private")
    where = headers.get("Location", "")
    if where.startswith("/") and not where.startswith("//"):
        passed["Location"] = prefix + where
    return passed
