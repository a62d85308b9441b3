"""TLS for clients and servers: small buffers, and contexts from material that is only in memory."""

from __future__ import annotations

import os
import ssl
import tempfile
from asyncio.sslproto import SSLProtocol
from dataclasses import dataclass
from typing import Final

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
    """The context of a client.

    Args:
        ca: PEM of the authorities to trust; None for those of the system.
        certificate: what the client shows.
        verify: False accepts any server, as kubeconfig's `insecure-skip-tls-verify` asks.
    """
    bound_buffers()
    context = ssl.create_default_context(cadata=ca.decode("ascii", "replace") if ca else None)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        load_certificate(context, certificate)
    return context


def load_certificate(context: ssl.SSLContext, certificate: ClientCertificate) -> None:
    """Give a context a certificate that is in memory; OpenSSL reads files only, so it passes through a private one."""
    descriptor, path = tempfile.mkstemp(prefix="unbounded-tls-")  # created with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(certificate.key.rstrip() + b"\n" + certificate.chain)
        context.load_cert_chain(path)
    finally:
        os.unlink(path)
