"""Connections to kubelets, with the API server's client certificate.

The address is that of a Pod's Node. Errors are worded as by kube-apiserver.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

import aiohttp
from yarl import URL

from unbounded.kube.tls import ClientCertificate, client_context
from unbounded_apiserver.pki import KUBELET_CLIENT, RENEW_BEFORE, CertificateAuthority, IssuedCertificate
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.status import StatusError, bad_request
from unbounded_apiserver.workloads.defaults import containers

# IP addresses first, as in kubeadm: node names need not resolve where the API server runs. kube-apiserver's own default
# begins with Hostname, and answers 500 if it does not resolve.
ADDRESS_TYPES: Final = ("InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS", "Hostname")
_NAME: Final = re.compile(r"[0-9A-Za-z._-]+", re.ASCII)
_BROADCAST: Final = IPv4Address("255.255.255.255")
KUBELET_PORT: Final = 10250  # if the Node names none
_RESOURCE: Final = "pods/log"
_MESSAGES: Final = {
    401: ("Unauthorized", "the server has asked for the client to provide credentials"),
    403: ("Forbidden", ""),
    404: ("NotFound", "the server could not find the requested resource"),
    405: ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
    406: ("NotAcceptable", ""),
    409: ("Conflict", "the server reported a conflict"),
    415: ("UnsupportedMediaType", ""),
    422: ("Invalid", "the server rejected our request due to an error in our request"),
    429: ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: (
        "Timeout",
        "the server was unable to return a response in the time allotted, but may still be processing the request",
    ),
}  # without a message of its own: the kubelet's
CONNECT_S: Final = 10.0  # for TCP and TLS together
HEAD_S: Final = 60.0  # for the head of an answer that the kubelet can give at once
_PLAIN: Final = ("Accept", "Accept-Encoding", "Content-Type")  # headers that the HTTP library would add


@dataclass(frozen=True)
class KubeletEndpoint:
    """The address of a kubelet."""

    host: str
    port: int

    @property
    def is_host(self) -> bool:
        """Return whether `host` is an IP address or a name.

        A node writes its own addresses: one with a path in it would send the API server's certificate elsewhere.
        """
        if ":" not in self.host:
            return _NAME.fullmatch(self.host) is not None
        try:
            return IPv6Address(self.host).scope_id is None
        except ValueError:
            return False

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def url(self, path: str, query: str) -> str:
        return f"https://{self.address}{path}{'?' if query else ''}{query}"


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


def endpoint_of(node: Object) -> KubeletEndpoint:
    """Return the address of a Node's kubelet. Raises StatusError (500)."""
    status = node.get("status") or {}
    addresses = status.get("addresses") or []
    for desired in ADDRESS_TYPES:
        for one in addresses:
            if one.get("type") == desired and one.get("address"):
                port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port") or 0
                return KubeletEndpoint(one["address"], port if port > 0 else KUBELET_PORT)
    known = " ".join(f"{{{one.get('type', '')} {one.get('address', '')}}}" for one in addresses)
    raise StatusError(500, "", f"no preferred addresses found; known addresses: [{known}]")


async def check_proxy_target(endpoint: KubeletEndpoint) -> None:
    """Reject the host of no other machine: clients could send any request to services of this machine.

    Raises:
        StatusError (400)
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(endpoint.host, None) if endpoint.is_host else []
    except OSError:
        found = []
    if not found:
        raise bad_request(f"lookup {endpoint.host}: no such host")
    if not all(is_global(str(sockaddr[0])) for *_, sockaddr in found):
        raise bad_request("address not allowed")


def is_global(address: str) -> bool:
    """Return whether an IP address belongs to one machine beyond this one and its links (Go: IsGlobalUnicast)."""
    ip = ip_address(address)
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    special = ip.is_unspecified or ip.is_loopback or ip.is_multicast or ip.is_link_local
    return not special and ip != _BROADCAST


def container_of(pod: Object, desired: str) -> str:
    """Return the requested container, or the only one if the request names none. Raises StatusError (400)."""
    name, names = pod["metadata"]["name"], [container["name"] for container in containers(pod["spec"])]
    if desired:
        if desired not in names:
            raise bad_request(f"container {desired} is not valid for pod {name}")
        return desired
    ordinary = pod["spec"].get("containers") or []
    if len(ordinary) == 1:
        only: str = ordinary[0]["name"]
        return only
    raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{' '.join(names)}]")


def node_of(pod: Object) -> str:
    """Return the node that a Pod is bound to, '' for none."""
    node: str = pod["spec"].get("nodeName") or ""
    return node


def log_error(code: int, text: str, pod: str) -> StatusError:
    """Return the client's error for a kubelet's answer to a request for logs."""
    if code == 400:
        return bad_request(text)
    if code == 500:
        message = f"Internal error occurred: {text}"
        return StatusError(500, "InternalError", message, details={"causes": [{"message": text}]})
    reason, message = _MESSAGES.get(code, ("", ""))
    if not reason and code > 500:
        reason, message = (
            "InternalError",
            f'an error on the server ("{text}") has prevented the request from succeeding',
        )
    elif not reason:
        message = f"the server responded with the status code {code} but did not return more information"
    shown = f"{message or text} ( {_RESOURCE} {pod})"
    return StatusError(code, reason, shown, details={"name": pod, "kind": _RESOURCE})


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
