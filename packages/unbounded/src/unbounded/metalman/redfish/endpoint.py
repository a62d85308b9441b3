"""Address of a BMC and proof of its identity, parsed once; invalid input is rejected here."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import ssl
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final
from urllib.parse import quote, urlsplit

from aiohttp import Fingerprint
from yarl import URL

from unbounded.api.failures import Rejected
from unbounded.metalman.redfish.bmc_interface import BmcAccount, CertificateUntrusted, InvalidBmcUrl

SERVICE_ROOT: Final = "/redfish/v1"
BMC_URLS: Final = 4096  # that are parsed once: each request needs its endpoint several times
_SAFE_IN_PATH: Final = "/:?&=%#@$,;~+!*'()-._"
_WANTED: Final = "expected https://HOST[:PORT] with a port up to 65535 (or http://, which is not encrypted)"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")

# Argument `ssl=` of aiohttp: a pin, a context that verifies, or False for plain HTTP (where it has no effect).
Tls = Fingerprint | ssl.SSLContext | bool


def fingerprint_of(certificate: bytes) -> str:
    """Return the SHA-256 of a DER certificate as colon-separated lower hex."""
    return hashlib.sha256(certificate).digest().hex(":")


def pinned_digest(fingerprint: str) -> bytes:
    """Return the 32 bytes of a fingerprint; colons, case and a leading `sha256:` are ignored."""
    text = fingerprint.strip().lower().removeprefix("sha256:").replace(":", "")
    if not _DIGEST.fullmatch(text):
        raise Rejected(f"{fingerprint[:100]!r} is not the SHA-256 fingerprint of a certificate")
    return bytes.fromhex(text)


@dataclass(frozen=True, slots=True)
class BmcEndpoint:
    """Scheme, host and port of a BMC, and the path of its service if that is not the root."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @property
    def encrypted(self) -> bool:
        return self.scheme == "https"

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def url(self, reference: str) -> URL:
        """Return the URL of a BMC's reference; see `target`."""
        return URL(self.origin + self.target(reference), encoded=True)

    def target(self, reference: str) -> str:
        """Return the encoded path and query of a BMC's reference. No other part counts: none leads to another host.

        Absolute Locations often name an inner host or port, such as behind a port forward.
        """
        try:
            return _target(self.prefix, reference)
        except ValueError as error:
            raise Rejected(f"{self.origin} refers to an invalid address") from error

    def leads_here(self, location: str) -> bool:
        """Return whether a redirect stays on this scheme, host and port."""
        try:
            parts = urlsplit(location)
            scheme = parts.scheme or self.scheme
            port = parts.port or (443 if scheme == "https" else 80)
        except ValueError:
            return False
        if not parts.netloc:
            return not parts.scheme
        return (scheme, parts.hostname, port) == (self.scheme, self.host, self.port)


@lru_cache(maxsize=BMC_URLS)  # most requests read a system again
def _target(prefix: str, reference: str) -> str:
    parts = urlsplit(reference)
    path = "/" + parts.path.lstrip("/")
    if prefix and path != prefix and not path.startswith(prefix + "/"):
        path = prefix + path
    query = f"?{parts.query}" if parts.query else ""
    return quote(path + query, safe=_SAFE_IN_PATH)


@lru_cache(maxsize=BMC_URLS)
def endpoint_of(url: str) -> BmcEndpoint:
    """Parse `spec.pxe.redfish.url`.

    Raises:
        InvalidBmcUrl: not an http or https URL of a host, or a URL with a password.
    """
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidBmcUrl(f"spec.pxe.redfish.url is invalid: {_WANTED}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidBmcUrl(f"spec.pxe.redfish.url is invalid: {_WANTED}")
    if parts.username is not None or parts.password is not None:
        raise InvalidBmcUrl("spec.pxe.redfish.url contains credentials; use username and passwordRef instead")
    prefix = parts.path.rstrip("/")
    for tail in (SERVICE_ROOT, "/redfish"):
        prefix = prefix.removesuffix(tail)
    return BmcEndpoint(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), prefix)


def tls_of(endpoint: BmcEndpoint, access: BmcAccount) -> Tls:
    """Return the check of every new connection before a byte of HTTP is sent.

    Raises:
        CertificateUntrusted: https with neither a pin nor a CA bundle, or the bundle is invalid.
        Rejected: the pin is invalid.
    """
    if not endpoint.encrypted:
        return False
    if access.ca_bundle:
        return _verifying(access.ca_bundle)
    if not access.cert_fingerprint:
        raise CertificateUntrusted(f"{endpoint.origin}: no certificate is pinned yet, and there is no CA bundle")
    return Fingerprint(pinned_digest(access.cert_fingerprint))


def _verifying(bundle: str) -> ssl.SSLContext:
    pem = bundle
    try:
        if "-----BEGIN" not in bundle:
            pem = base64.b64decode(bundle, validate=False).decode("ascii")
        context = ssl.create_default_context(cadata=pem)
    except (ValueError, binascii.Error, ssl.SSLError) as error:
        raise CertificateUntrusted("the CA bundle contains no PEM certificates") from error
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a bundle may hold the BMC's own self-signed certificate
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # BMCs generate certificates without key identifiers
    return context


@cache
def handshake_context() -> ssl.SSLContext:
    """Return a context without verification: nothing is sent before the certificate is compared with its pin.

    It is shared, and does not load the system's certificates: that takes 30 ms, and nothing uses them.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
