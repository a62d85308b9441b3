"""Identities: keys, and the tokens that stand for them."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from unbounded_lab.cloud import jwt

KEY_BITS: Final = 2048
EXPONENT: Final = 65537

Claims = dict[str, Any]


@cache
def rsa_key(_text: str) -> rsa.RSAPrivateKey:
    """Return a key for a text: the same one as long as the process lives."""
    return rsa.generate_private_key(EXPONENT, KEY_BITS)


def private_pem(key: rsa.RSAPrivateKey, passphrase: str | None = None) -> str:
    locked = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase.encode())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked).decode()


def fingerprint(key: rsa.RSAPublicKey) -> str:
    """Return the fingerprint in Oracle's form for API keys: MD5 of the public key, colon-separated."""
    encoded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.md5(encoded, usedforsecurity=False).digest().hex(":")


@dataclass(frozen=True, slots=True)
class UserApiKey:
    """A user with an API key, with the fields of a client configuration."""

    tenancy: str
    user: str
    key: rsa.RSAPrivateKey

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key.public_key())

    @property
    def key_id(self) -> str:
        return f"{self.tenancy}/{self.user}/{self.fingerprint}"


class Issuer:
    """Issuer and verifier of security tokens (JWT, RS256), each bound to the key that its bearer signs with."""

    def __init__(self, text: str) -> None:
        self._text = text

    @property
    def _key(self) -> rsa.RSAPrivateKey:
        return rsa_key(f"{self._text}/issuer")

    def token(self, bearer: rsa.RSAPublicKey, claims: Claims, *, now: float, lifetime_s: float) -> str:
        times = {"iat": int(now), "exp": int(now + lifetime_s)}
        return jwt.signed({**claims, **times, "jwk": _jwk(bearer)}, self._key)

    def bearer(self, token: str, now: float) -> rsa.RSAPublicKey | None:
        """Return the key that a token is bound to; None when it is foreign, damaged or expired."""
        try:
            claims = jwt.claims(token, self._key.public_key())
        except jwt.InvalidToken:
            return None
        return _public(claims["jwk"]) if now < claims["exp"] else None


def _jwk(key: rsa.RSAPublicKey) -> str:
    numbers = key.public_numbers()
    fields = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "session"}
    return msgspec.json.encode(fields | {"n": _number(numbers.n), "e": _number(numbers.e)}).decode()


def _public(jwk: str) -> rsa.RSAPublicKey:
    fields = msgspec.json.decode(jwk, type=dict[str, str])
    n, e = (int.from_bytes(urlsafe_b64decode(f"{fields[name]}=="), "big") for name in ("n", "e"))
    return rsa.RSAPublicNumbers(e, n).public_key()


def _number(value: int) -> str:
    return urlsafe_b64encode(value.to_bytes((value.bit_length() + 7) // 8, "big")).rstrip(b"=").decode()
