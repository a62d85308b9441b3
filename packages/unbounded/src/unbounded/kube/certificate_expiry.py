"""The metric of the times at which the certificates of a process expire."""

from __future__ import annotations

import math

from cryptography import x509
from prometheus_client import CollectorRegistry, Gauge


def certificate_expiry(registry: CollectorRegistry) -> Gauge:
    """Return the gauge. Its samples are timestamps, as `expiry_timestamp` returns them."""
    return Gauge(
        "unbounded_certificate_expiry_timestamp_seconds",
        "Time at which a certificate of this process expires, by its purpose.",
        ("certificate",),
        registry=registry,
    )


def expiry_timestamp(pem: bytes) -> float:
    """Return the end of validity of the first certificate of a chain in PEM; NaN where there is none."""
    try:
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    except ValueError:
        return math.nan
