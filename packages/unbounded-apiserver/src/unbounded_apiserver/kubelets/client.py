"""Connections to kubelets, with the API server's client certificate."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

import aiohttp
from yarl import URL

from unbounded.kube.tls import ClientCertificate, client_context
from unbounded_apiserver.kubelets.location import KubeletEndpoint
from unbounded_apiserver.pki import KUBELET_CLIENT, RENEW_BEFORE, CertificateAuthority, IssuedCertificate

CONNECT_S: Final = 10.0  # for TCP and TLS together
HEAD_S: Final = 60.0  # for the head of an answer that the kubelet can give at once
_PLAIN: Final = ("Accept", "Accept-Encoding", "Content-Type")  # headers that the HTTP library would add


class KubeletUnreachable(Exception):
    """A kubelet that did not answer; the message is worded as Go's."""


class KubeletClient:
    """A client of kubelets. Each request has its own connection, which ends with the answer.

    Args:
        authority: signs the client certificate, and the serving certificates of kubelets that are verified.
        verify: whether a kubelet needs a serving certificate of the authority that names its address. If not, any
            certificate is accepted, as by a kube-apiserver without --kubelet-certificate-authority.
    """

    def __init__(
        self,
        authority: CertificateAuthority,
        now: Callable[[], datetime],
        *,
        verify: bool,
        connect_s: float = CONNECT_S,
    ) -> None:
        self._authority = authority
        self._now = now
        self._verify = verify
        self._identity: IssuedCertificate | None = None
        self._contexts: dict[bool, ssl.SSLContext] = {}
        connector = aiohttp.TCPConnector(limit=0, force_close=True, use_dns_cache=False)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def open(
        self,
        method: str,
        endpoint: KubeletEndpoint,
        target: str,
        headers: Mapping[str, str],
        *,
        body: bytes | None = None,
        verifies: bool = True,
        head_within_s: float | None = HEAD_S,
    ) -> aiohttp.ClientResponse:
        """Send a request; return the answer once its head has arrived. The caller closes it.

        Args:
            target: path and query, encoded.
            verifies: False accepts any serving certificate, whatever `verify` is.
            head_within_s: None for no limit.

        Raises:
            KubeletUnreachable
        """
        if not endpoint.is_host:
            raise KubeletUnreachable(_no_such_host(endpoint))
        try:
            async with asyncio.timeout(head_within_s):
                return await self._session.request(
                    method,
                    URL(f"https://{endpoint.address}{target}", encoded=True),
                    headers=headers,
                    data=body,
                    ssl=self._context(verify=self._verify and verifies),
                    allow_redirects=False,
                    skip_auto_headers=_PLAIN,
                )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise KubeletUnreachable(_cause(error, endpoint)) from error

    def _context(self, *, verify: bool) -> ssl.SSLContext:
        if self._identity is None or self._identity.expires - self._now() < RENEW_BEFORE:
            self._identity = self._authority.issue_client(KUBELET_CLIENT)
            self._contexts.clear()
        context = self._contexts.get(verify)
        if context is None:
            shown = ClientCertificate(self._identity.certificate, self._identity.key)
            context = client_context(ca=self._authority.certificate, certificate=shown, verify=verify)
            self._contexts[verify] = context
        return context


def _no_such_host(endpoint: KubeletEndpoint) -> str:
    return f"dial tcp: lookup {endpoint.host}: no such host"


def _tls_cause(error: ssl.SSLError) -> str:
    words = (error.reason or str(error)).replace("_", " ").lower()
    _, alert, what = words.partition(" alert ")
    return f"remote error: tls: {what}" if alert else f"tls: {words}"


def _cause(error: Exception, endpoint: KubeletEndpoint) -> str:
    """Return the reason of a missing answer, worded as by Go."""
    dial = f"dial tcp {endpoint.address}"
    match error:
        case aiohttp.ConnectionTimeoutError():
            return f"{dial}: i/o timeout"
        case TimeoutError():
            return "net/http: timeout awaiting response headers"
        case aiohttp.ClientConnectorDNSError():
            return _no_such_host(endpoint)
        case aiohttp.ClientConnectorCertificateError(certificate_error=ssl.SSLCertVerificationError() as wrong):
            return f"tls: failed to verify certificate: {wrong.verify_message}"
        case aiohttp.ClientConnectorSSLError(os_error=ssl.SSLError() as wrong):
            return _tls_cause(wrong)
        case aiohttp.ClientConnectorError(os_error=OSError(errno=int() as number)) if number:
            return f"{dial}: connect: {os.strerror(number).lower()}"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientConnectorError() | ConnectionResetError():
            return "EOF"
    return str(error) or type(error).__name__
