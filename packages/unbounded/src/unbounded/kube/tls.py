"""TLS for clients and servers: small buffers, and contexts from material that is only in memory."""

from __future__ import annotations

import os
import ssl
import tempfile
from asyncio.sslproto import SSLProtocol
from dataclasses import dataclass
from typing import Final

# Bundles of the authorities that a host trusts, in the folders of several distributions. The OpenSSL of a packaged
# program searches only the folders of the system on which it was built.
SYSTEM_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL, Azure Linux
    "/etc/ssl/ca-bundle.pem",  # SUSE
)
BUFFER_BYTES: Final = 16 * 1024  # one TLS record; asyncio's own 256 KiB for each connection serve bulk transfers


@dataclass(frozen=True)
class ClientCertificate:
    """A certificate chain and its private key, in PEM."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return "ClientCertificate(…)"


def bound_buffers() -> None:
    """Let a TLS connection of this process take 48 KiB instead of 288; for connections that are made after the call."""
    SSLProtocol.max_size = BUFFER_BYTES


def client_context(
    *, ca: bytes | None = None, certificate: ClientCertificate | None = None, verify: bool = True
) -> ssl.SSLContext:
    """Return the TLS context of a client.

    Args:
        ca: PEM of the authorities to trust; None for those of the system.
        certificate: the client's certificate.
        verify: False accepts any server, as kubeconfig's `insecure-skip-tls-verify` does.
    """
    bound_buffers()
    context = ssl.create_default_context(cadata=ca.decode("ascii", "replace") if ca else None)
    if not ca:
        _trust_system(context)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        load_certificate(context, certificate)
    return context


def _trust_system(context: ssl.SSLContext) -> None:
    """Find the host's authorities where OpenSSL's own places do not exist."""
    places = ssl.get_default_verify_paths()
    if places.cafile or places.capath:
        return
    for bundle in SYSTEM_BUNDLES:
        if os.path.exists(bundle):
            context.load_verify_locations(cafile=bundle)
            return


def load_certificate(context: ssl.SSLContext, certificate: ClientCertificate) -> None:
    """Give a context a certificate that is in memory; OpenSSL reads files only, so it passes through a private one."""
    descriptor, path = tempfile.mkstemp(prefix="unbounded-tls-")  # created with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(certificate.key.rstrip() + b"\n" + certificate.chain)
        context.load_cert_chain(path)
    finally:
        os.unlink(path)
