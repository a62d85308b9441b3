"""Bytes and keys derived from a text: the same on every start, and therefore no secrets."""

from __future__ import annotations

import hashlib
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

P256_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def derived(text: str) -> bytes:
    """Derive 32 bytes."""
    return hashlib.sha256(text.encode()).digest()


def derived_key(text: str) -> ec.EllipticCurvePrivateKey:
    number = int.from_bytes(derived(text), "big")
    return ec.derive_private_key(number % (P256_ORDER - 1) + 1, ec.SECP256R1())
