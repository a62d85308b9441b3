"""The certificate of a TLS listener: read from its files, again when they change, and its expiry as a metric."""

from __future__ import annotations

import asyncio
import math
import ssl
from pathlib import Path
from typing import Final

from cryptography import x509
from prometheus_client import CollectorRegistry, Gauge

from unbounded.kube.logs import Log

RENEWAL_S: Final = 15.0

log = Log(__name__)


def certificate_expiry(registry: CollectorRegistry) -> Gauge:
    """Return the gauge of the times at which the certificates of a process expire."""
    return Gauge(
        "unbounded_certificate_expiry_timestamp_seconds",
        "Time at which a certificate of this process expires, by its purpose.",
        ("certificate",),
        registry=registry,
    )


class ServingCertificate:
    """The TLS context of a listener, with the certificate of its files. New files are used for new connections.

    Args:
        certificate, key: files in PEM, a chain and its key.
        purpose: of the certificate, in logs and in the metric.
        expiry: the gauge of `certificate_expiry`; None for no metric.
        renewal_s: seconds between two readings of the files.
    """

    def __init__(
        self, certificate: Path, key: Path, purpose: str, expiry: Gauge | None = None, *, renewal_s: float = RENEWAL_S
    ) -> None:
        self._files = certificate, key
        self._purpose = purpose
        self._expiry = expiry
        self._renewal_s = renewal_s
        self._context: ssl.SSLContext | None = None
        self._content: tuple[bytes, ...] | None = None  # that was loaded last, or could not be used

    def load(self) -> ssl.SSLContext:
        """Read the files, and return the context. Each call returns the same one.

        Raises:
            OSError: a file cannot be read; ssl.SSLError, which is one, where they do not belong together.
        """
        self._content = self._read()
        fresh = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        fresh.minimum_version = ssl.TLSVersion.TLSv1_2
        fresh.load_cert_chain(*self._files)
        if self._context is None:
            self._context = fresh
        else:
            self._context.load_cert_chain(*self._files)  # only now: files that cannot be used would spoil it
        if self._expiry is not None and self._content is not None:
            self._expiry.labels(self._purpose).set(_expiry_timestamp(self._content[0]))
        return self._context

    async def wait_usable(self) -> ssl.SSLContext:
        """Wait until the files exist and belong together; return the context."""
        await self._renew()
        if self._content is None:
            log.warning(
                "the certificate is awaited: a file cannot be read", certificate=self._purpose, files=self._names()
            )
        while self._context is None:
            await asyncio.sleep(self._renewal_s)
            await self._renew()
        return self._context

    def missing(self) -> str | None:
        """Return which files are awaited, as a readiness check; None once there was a usable certificate."""
        return None if self._context is not None else f"awaited from {self._names()}"

    async def follow(self) -> None:
        """Load new files until cancelled; keep the former certificate until both belong together."""
        while True:
            await asyncio.sleep(self._renewal_s)
            await self._renew()

    async def _renew(self) -> None:
        found = await asyncio.to_thread(self._read)
        if found is None or found == self._content:
            return
        try:
            self.load()
        except OSError as error:
            log.warning("cannot use the certificate", certificate=self._purpose, error=error)
        else:
            log.info("certificate loaded", certificate=self._purpose)

    def _names(self) -> str:
        return ", ".join(map(str, self._files))

    def _read(self) -> tuple[bytes, ...] | None:
        """Return the content of both files; None while one of them cannot be read."""
        try:
            return tuple(file.read_bytes() for file in self._files)
        except OSError:
            return None


def _expiry_timestamp(pem: bytes) -> float:
    """Return the end of validity of the first certificate of a chain in PEM; NaN where there is none."""
    try:
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    except ValueError:
        return math.nan
