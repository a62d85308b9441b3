"""A key that signs releases, another one, and what they sign."""

from __future__ import annotations

import base64
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

KEY: Final = ec.generate_private_key(ec.SECP256R1())
ANOTHER: Final = ec.generate_private_key(ec.SECP256R1())


def word_of(key: ec.EllipticCurvePrivateKey) -> str:
    """Its public key as settings have it."""
    return base64.b64encode(key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()


def pem_of(key: ec.EllipticCurvePrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def signature(content: bytes, key: ec.EllipticCurvePrivateKey = KEY) -> bytes:
    return key.sign(content, ec.ECDSA(hashes.SHA256()))


PUBLIC_KEY: Final = word_of(KEY)
