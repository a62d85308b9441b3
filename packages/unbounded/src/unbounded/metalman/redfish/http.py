"""One HTTP request to one BMC: pinned, limited in time and size, with transport errors mapped to failures."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

import aiohttp
import msgspec

from unbounded.api.failures import Failure, Rejected
from unbounded.kube.http_pool import HttpAddress, HttpPool, HttpResponse, NotConnected
from unbounded.kube.logs import Log
from unbounded.kube.tracing import OpenSpan, SpanKind, span
from unbounded.metalman.redfish import bmc_interface
from unbounded.metalman.redfish.endpoint import BmcEndpoint, Tls, fingerprint_of, handshake_context

log = Log(__name__)

BODY_BYTES: Final = 4 * 1024 * 1024
REDIRECTS: Final = 3
# below the 5 s after which small web servers drop a connection, so that no POST meets a closed one
KEEPALIVE_S: Final = 4.0
# of a stream: probes after a minute without a byte, and its end after three of them
KEEPALIVE_OPTIONS: Final = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 20, socket.TCP_KEEPCNT: 3}
HEARTBEAT_S: Final = 30.0  # between the pings of a web socket, which ends without an answer
MESSAGE_BYTES: Final = 1024 * 1024  # of one message of a web socket
HEADERS: Final = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "OData-Version": "4.0",
    "User-Agent": "unbounded-metalman",
}
_REDIRECT: Final = frozenset({301, 302, 303, 307, 308})
_REPEATED_AS_IS: Final = frozenset({307, 308})


@dataclass(frozen=True, slots=True)
class BmcResponse:
    """Answer of a BMC. The body may be cut off: the status line alone shows whether a request was accepted."""

    status: int
    headers: Mapping[str, str]  # case-insensitive
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def document(self) -> Mapping[str, Any]:
        """Return the body as a JSON object, regardless of its Content-Type.

        Raises:
            Garbled: cut off, or not a JSON object.
        """
        try:
            found = msgspec.json.decode(self.body)
        except (ValueError, RecursionError) as error:  # DecodeError is a ValueError; nesting has a limit
            raise bmc_interface.Garbled(f"the answer is not complete JSON ({len(self.body)} bytes)") from error
        if not isinstance(found, dict):
            raise bmc_interface.Garbled("the answer is not a JSON object")
        return found

    def hints(self) -> Mapping[str, Any]:
        """Return the body if it is readable, else an empty mapping, for callers that can do without it."""
        try:
            return self.document()
        except bmc_interface.Garbled:
            return {}

    @property
    def retry_after_s(self) -> float | None:
        """Retry-After in seconds; dates are ignored, as BMC clocks are wrong."""
        try:
            seconds = float(self.headers.get("Retry-After", ""))
        except ValueError:
            return None
        return seconds if 0 <= seconds <= 3600 else None


class BmcConnections:
    """Connections to all BMCs of a process: those of requests and streams in a pool, web sockets in a session of
    aiohttp.
    """

    def __init__(self) -> None:
        self.pool = HttpPool(keepalive_s=KEEPALIVE_S)
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=30),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=HEADERS,
            trust_env=False,
            auto_decompress=True,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all of them."""
        await self.pool.close()
        await self.session.close()


class Http:
    """Requests to one endpoint. Credentials are arguments, as header fields."""

    def __init__(
        self, connections: BmcConnections, endpoint: BmcEndpoint, tls: Tls, limits: bmc_interface.BmcLimits
    ) -> None:
        self._pool = connections.pool
        self._session = connections.session
        self.endpoint = endpoint
        self._tls = tls
        self._address = _address_of(endpoint, tls)
        self._limits = limits
        if not endpoint.encrypted:
            log.warning("BMC connection is not encrypted", bmc=endpoint.origin)

    async def send(
        self,
        method: str,
        reference: str,
        *,
        within_s: float,
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        changes: bool = False,
    ) -> BmcResponse:
        """Send a request and read the whole answer; redirects are followed on the same host only.

        Args:
            changes: the request changes something, so a lost answer leaves its result in doubt.
        Raises:
            BmcAnswerLost: `changes` is set, and the request may have been executed.
            BmcUnreachable: no answer, and nothing changed.
            CertificateUntrusted: the connection was closed before anything was sent on it.
        """
        data = None if body is None else msgspec.json.encode(body)
        sent = dict(headers or {})
        if data is not None:
            sent["Content-Type"] = "application/json"
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        for _ in range(REDIRECTS + 1):
            left_s = max(deadline - loop.time(), 0.001)
            with self._span(method, reference) as traced:
                answer = await self._send_once(method, reference, sent, data, left_s, changes=changes)
                traced.attributes["http.response.status_code"] = answer.status
            if answer.status not in _REDIRECT:
                return answer
            reference = self._redirected(method, answer)
        raise Rejected(f"{self.endpoint.origin} redirects in a loop")

    def _span(self, method: str, reference: str) -> AbstractContextManager[OpenSpan]:
        """Return the span of a request; it has no credentials, as those are in the header."""
        endpoint = self.endpoint
        path = endpoint.target(reference).partition("?")[0]
        return span(
            f"{method} {path}",
            kind=SpanKind.CLIENT,
            http_request_method=method,
            url_path=path,
            server_address=endpoint.host,
            server_port=endpoint.port,
        )

    async def _send_once(
        self,
        method: str,
        reference: str,
        headers: Mapping[str, str],
        data: bytes | None,
        left_s: float,
        *,
        changes: bool,
    ) -> BmcResponse:
        status, got, sent = 0, b"", asyncio.Event()
        answered: Mapping[str, str] = {}
        target = self.endpoint.target(reference)
        try:
            async with asyncio.timeout(left_s):
                response = await self._pool.request(
                    self._address,
                    method,
                    target,
                    [*HEADERS.items(), *headers.items()],
                    data,
                    connect_s=self._limits.connect_s,
                    on_send=sent.set,
                )
                status, answered = response.status, response.headers
                try:
                    got = await _body(response)
                finally:
                    response.release()
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError and SSLError are OSErrors
            if 200 <= status < 300 and changes:  # accepted; only the body is missing
                return BmcResponse(status, answered, b"")
            raise self._failure(error, changes=changes and sent.is_set()) from error
        return BmcResponse(status, answered, got)

    @asynccontextmanager
    async def stream(self, reference: str, headers: Mapping[str, str]) -> AsyncIterator[HttpResponse]:
        """Open an answer that does not end.

        Raises:
            BmcUnreachable: no answer, or its connection broke.
        """
        try:
            response = await self._pool.request(
                self._address,
                "GET",
                self.endpoint.target(reference),
                {**HEADERS, **headers}.items(),
                silence_s=self._limits.silence_s,
                connect_s=self._limits.connect_s,
            )
            try:
                _keep_alive(response)
                yield response
            finally:
                response.close()
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError and SSLError are OSErrors
            raise self._failure(error, changes=False) from error

    async def websocket(
        self, reference: str, headers: Mapping[str, str]
    ) -> aiohttp.ClientWebSocketResponse | BmcResponse:
        """Open a web socket; return the BMC's answer if it refuses one.

        Raises:
            BmcUnreachable: no answer.
        """
        try:
            return await self._session.ws_connect(
                self.endpoint.url(reference),
                headers=headers,
                ssl=self._tls,
                heartbeat=HEARTBEAT_S,
                max_msg_size=MESSAGE_BYTES,
                compress=0,
            )
        except aiohttp.WSServerHandshakeError as error:
            return BmcResponse(error.status, error.headers or {}, b"")
        except (aiohttp.ClientError, ssl.SSLError, OSError) as error:  # TimeoutError is an OSError
            raise self._failure(error, changes=False) from error

    def _failure(self, error: Exception, *, changes: bool) -> Failure:
        """Classify a transport error; `changes` matters only if the request may have been sent."""
        where = self.endpoint.origin
        match error:
            case aiohttp.ServerFingerprintMismatch():
                pinned, seen = error.expected.hex(":"), error.got.hex(":")
                return bmc_interface.CertificateChanged(
                    f"{where} presents the certificate {seen}, pinned is {pinned}; no password was sent",
                    pinned=pinned,
                    seen=seen,
                )
            case NotConnected(cause=ssl.SSLCertVerificationError() as cause):
                return self._untrusted(cause)
            case aiohttp.ClientConnectorCertificateError():
                return self._untrusted(error.certificate_error)
            case aiohttp.InvalidURL() | NotConnected(cause=UnicodeError()):
                return Rejected(f"{where}: the BMC's URL is not valid")
            case NotConnected() | aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
                return bmc_interface.BmcUnreachable(f"{where}: {_why(error)}")
            case _ if changes:
                return bmc_interface.BmcAnswerLost(
                    f"{where}: the request was sent, and the answer was lost: {_why(error)}"
                )
            case _:
                return bmc_interface.BmcUnreachable(f"{where}: {_why(error)}")

    def _untrusted(self, error: Exception) -> bmc_interface.CertificateUntrusted:
        why = bmc_interface.clean(str(error))
        return bmc_interface.CertificateUntrusted(
            f"{self.endpoint.origin}: its certificate does not chain to the CA bundle: {why}"
        )

    def _redirected(self, method: str, answer: BmcResponse) -> str:
        location = answer.headers.get("Location", "")
        if location and self.endpoint.leads_here(location) and (method == "GET" or answer.status in _REPEATED_AS_IS):
            return location
        to = bmc_interface.clean(location.partition("?")[0])[:200] or "nowhere"
        raise Rejected(
            f"{self.endpoint.origin} redirects to {to}, which metalman does not follow; if the redirect is "
            "right, set it as url"
        )

    async def certificate(self) -> str:
        """Return the fingerprint of the BMC's present certificate. Only a TLS handshake is sent."""
        where = self.endpoint.origin
        if not self.endpoint.encrypted:
            raise Rejected(f"{where} has no certificate: it uses plain http")
        try:
            async with asyncio.timeout(self._limits.connect_s):
                return await _leaf(self.endpoint)
        except (OSError, ssl.SSLError) as error:
            raise bmc_interface.BmcUnreachable(f"{where}: {_why(error)}") from error


def _keep_alive(response: HttpResponse) -> None:
    """Let the kernel find out when the other end of a silent connection is gone."""
    sock = response.socket
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE_OPTIONS.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _address_of(endpoint: BmcEndpoint, tls: Tls) -> HttpAddress:
    if isinstance(tls, ssl.SSLContext):
        return HttpAddress(endpoint.host, endpoint.port, tls)
    if isinstance(tls, aiohttp.Fingerprint):
        return HttpAddress(endpoint.host, endpoint.port, handshake_context(), pin=tls.fingerprint)
    return HttpAddress(endpoint.host, endpoint.port)


async def _body(response: HttpResponse) -> bytes:
    """Read the whole body. A body above the limit is unusable, so its connection is closed."""
    parts: list[bytes] = []
    left = BODY_BYTES
    async for part in response.parts():
        left -= len(part)
        if left < 0:
            response.close()
            raise aiohttp.ClientPayloadError(f"more than {BODY_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


async def _leaf(endpoint: BmcEndpoint) -> str:
    _, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=handshake_context())
    try:
        tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    if certificate is None:
        raise ssl.SSLError("the BMC presented no certificate")
    return fingerprint_of(certificate)


def _why(error: Exception) -> str:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    cause = cause.cause if isinstance(cause, NotConnected) else cause
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    if isinstance(cause, aiohttp.ServerDisconnectedError):
        return "the connection was closed without an answer"
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    return bmc_interface.clean(getattr(cause, "strerror", None) or str(cause) or type(cause).__name__)[:200]
