"""HTTP/1.1 requests over kept connections, with aiohttp's protocol and parser, but without its `ClientSession`.

The session carries cookies, redirects, proxies and tracing through each request, which costs more than the request.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, Self
from urllib.parse import urlsplit

import aiohttp
from aiohappyeyeballs import AddrInfoType, start_connection
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader

CONNECT_S: Final = 10.0
NEXT_ADDRESS_S: Final = 0.25  # until the next address of a host is tried as well (RFC 8305)
KEEPALIVE_S: Final = 15.0  # for which an unused connection is kept
CLEANUP_S: Final = 1.0  # between two searches for connections that were unused for too long
READ_BYTES: Final = 64 * 1024  # of a body that are buffered before the reader takes them
IDEMPOTENT: Final = frozenset({"GET", "DELETE"})

Headers = Iterable[tuple[str, str]]


class NotConnected(OSError):
    """No connection was made, so nothing was sent."""

    def __init__(self, address: HttpAddress, cause: Exception) -> None:
        super().__init__(f"no connection to {address.host}:{address.port}: {cause}")
        self.address = address
        self.cause = cause


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """The server that a connection leads to.

    Args:
        tls: None for plain HTTP.
        server_name: expected in the certificate, in place of the host.
        pin: SHA-256 of the only certificate to which anything is sent.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    pin: bytes | None = None

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host.rstrip(".")
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


@lru_cache(maxsize=64)
def split_server(url: str) -> tuple[str, int, str]:
    """Return host, port and path of a server's URL; the path without a slash at its end."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80), parts.path.rstrip("/")


class _Connection(ResponseHandler):
    """aiohttp's protocol; its own leaves the reader of a body waiting if the framing breaks, or in an abort."""

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        super().set_exception(exc, exc_cause or exc)
        is_known = isinstance(exc, aiohttp.ClientError)
        self._end_body(exc if is_known else aiohttp.ClientPayloadError("the rest of the answer is not HTTP"))

    def abort(self) -> None:
        self._end_body(aiohttp.ClientConnectionError("the connection was closed"))
        super().abort()

    def _end_body(self, error: BaseException) -> None:
        body = self._payload
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(error)


class HttpResponse:
    """The head of an answer, whose body is read afterwards. It is released or closed once.

    Args:
        headers: their names are case-insensitive.
    """

    __slots__ = ("_body", "_connection", "_pool", "headers", "status")

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str],
        body: StreamReader,
        connection: _Connection,
        pool: HttpPool,
    ) -> None:
        self.status = status
        self.headers = headers
        self._body = body
        self._connection = connection
        self._pool = pool

    @property
    def media_type(self) -> str:
        """The Content-Type without its parameters, in lower case; empty for none."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def socket(self) -> socket.socket | None:
        """The connection's socket; None once it is closed."""
        transport = self._connection.transport
        found: socket.socket | None = None if transport is None else transport.get_extra_info("socket")
        return found

    async def read(self) -> bytes:
        """Return the whole body."""
        return await self._body.read()

    async def read_start(self, size: int) -> bytes:
        """Return the beginning of the body: up to `size` bytes, as they come first."""
        return await self._body.read(size)

    def parts(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        return self._body.iter_any()

    def release(self) -> None:
        """Keep the connection for the next request, if the body was read to its end."""
        self._pool.keep(self._connection)

    def close(self) -> None:
        """Close the connection."""
        self._pool.drop(self._connection)


class HttpPool:
    """Connections to any number of servers.

    Args:
        keepalive_s: for which an unused connection is kept; it is closed up to CLEANUP_S later.
    """

    def __init__(self, *, keepalive_s: float = KEEPALIVE_S) -> None:
        self._keepalive_s = keepalive_s
        self._kept: dict[HttpAddress, list[tuple[float, _Connection]]] = {}
        self._open: dict[_Connection, HttpAddress] = {}
        self._cleanup: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections, also those in use."""
        if self._cleanup is not None:
            self._cleanup.cancel()
        for connection in self._open:
            connection.abort()
        self._open.clear()
        self._kept.clear()
        await asyncio.sleep(0)  # the transports close in the loop's next turn

    async def request(
        self,
        address: HttpAddress,
        method: str,
        target: str,
        headers: Headers,
        body: bytes | None = None,
        *,
        silence_s: float | None = None,
        connect_s: float = CONNECT_S,
        on_send: Callable[[], None] | None = None,
    ) -> HttpResponse:
        """Send a request, and return the head of the answer; the caller limits the time.

        A server may close a kept connection at the moment of its next request: an idempotent one is then sent again.

        Args:
            target: path and query, encoded.
            silence_s: limit between two parts of the answer; aiohttp.SocketTimeoutError after it.
            on_send: called before the first byte leaves. Without a call, nothing was sent, however the request ended.

        Raises:
            NotConnected, aiohttp.ServerFingerprintMismatch: nothing was sent.
            aiohttp.ClientError, OSError: the answer is lost.
            ValueError: a header has a line break.
        """
        head = _head(address, method, target, headers, body)
        while True:
            connection = self._take_kept(address)
            is_new = connection is None
            if connection is None:
                connection = await self._connect(address, connect_s)
            try:
                return await self._exchange(connection, head, silence_s, on_send)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                is_open = connection in self._open  # or the pool was closed
                self.drop(connection)
                if is_new or not is_open or method not in IDEMPOTENT:
                    raise
            except BaseException:
                self.drop(connection)
                raise

    async def _exchange(
        self, connection: _Connection, request: bytes, silence_s: float | None, on_send: Callable[[], None] | None
    ) -> HttpResponse:
        connection.set_response_params(read_until_eof=True, read_timeout=silence_s, read_bufsize=READ_BYTES)
        transport = connection.transport
        if transport is None:
            raise aiohttp.ServerDisconnectedError
        if on_send is not None:
            on_send()
        transport.write(request)
        if silence_s is not None:
            connection.start_timeout()
        try:
            message, body = await connection.read()
            while 100 <= message.code < 200:
                message, body = await connection.read()
        except HttpProcessingError as error:
            raise aiohttp.ClientPayloadError(f"the answer is not HTTP: {error.message}") from error
        return HttpResponse(message.code, message.headers, body, connection, self)

    async def _connect(self, address: HttpAddress, connect_s: float) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(connect_s):
                found = _literal(address.host, address.port) or await loop.getaddrinfo(
                    address.host, address.port, type=socket.SOCK_STREAM
                )
                sock = await start_connection(found, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1)
                _, connection = await loop.create_connection(
                    partial(_Connection, loop),
                    sock=sock,
                    ssl=address.tls,
                    server_hostname=(address.server_name or address.host).rstrip(".") if address.tls else None,
                )
        except (OSError, UnicodeError) as error:  # TimeoutError and SSLError are OSErrors
            raise NotConnected(address, error) from error
        self._open[connection] = address
        try:
            _check_pin(address, connection.transport)
        except aiohttp.ServerFingerprintMismatch:
            self.drop(connection)
            raise
        return connection

    def _take_kept(self, address: HttpAddress) -> _Connection | None:
        """Return the connection that was used last, if it is still good."""
        kept = self._kept.get(address, [])
        oldest = asyncio.get_running_loop().time() - self._keepalive_s
        while kept:
            since, connection = kept.pop()
            if since > oldest and connection.is_connected() and not connection.should_close:
                return connection
            self.drop(connection)
        return None

    def keep(self, connection: _Connection) -> None:
        """Keep a connection for the next request to its server, if its last answer was read to the end.

        A server may answer before it has read the request, and read the rest of it never.
        """
        address = self._open.get(connection)
        transport = connection.transport
        is_idle = transport is not None and not transport.is_closing() and not transport.get_write_buffer_size()
        if address is None or connection.should_close or not is_idle:
            self.drop(connection)
            return
        loop = asyncio.get_running_loop()
        self._kept.setdefault(address, []).append((loop.time(), connection))
        if self._cleanup is None:
            self._cleanup = loop.call_later(self._keepalive_s, self._drop_unused)

    def drop(self, connection: _Connection) -> None:
        """Close a connection."""
        self._open.pop(connection, None)
        connection.abort()

    def _drop_unused(self) -> None:
        """Close the connections that were unused for too long; come back as long as there are others."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._keepalive_s
        for address, kept in list(self._kept.items()):
            for since, connection in kept:
                if since <= oldest:
                    self.drop(connection)
            kept[:] = [one for one in kept if one[0] > oldest]
            if not kept:
                del self._kept[address]
        first = min((kept[0][0] for kept in self._kept.values()), default=None)
        due = None if first is None else max(first + self._keepalive_s, loop.time() + CLEANUP_S)
        self._cleanup = None if due is None else loop.call_at(due, self._drop_unused)


def _literal(host: str, port: int) -> list[AddrInfoType]:
    """Return the address that an IP address means without a look-up, which takes a thread; [] for a name."""
    for family, rest in ((socket.AF_INET, ()), (socket.AF_INET6, (0, 0))):
        with suppress(OSError):
            socket.inet_pton(family, host)
            return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port, *rest))]
    return []


def _check_pin(address: HttpAddress, transport: asyncio.BaseTransport | None) -> None:
    if address.pin is None or transport is None:
        return
    got = hashlib.sha256(transport.get_extra_info("ssl_object").getpeercert(binary_form=True)).digest()
    if got != address.pin:
        raise aiohttp.ServerFingerprintMismatch(address.pin, got, address.host, address.port)


def _head(address: HttpAddress, method: str, target: str, headers: Headers, body: bytes | None) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {address.authority}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
        raise ValueError("a header of a request has a line break")
    return f"{head}\r\n\r\n".encode() + (body or b"")
