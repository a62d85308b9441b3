"""Authentication: identities with their keys and tokens, and the signature of each request.

Signatures are Oracle's version 1, after draft-cavage-http-signatures-08.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from unbounded_lab.cloud import jwt
from unbounded_lab.cloud.oci.errors import OciProblem
from unbounded_lab.http import LabRequest

KEY_BITS: Final = 2048
EXPONENT: Final = 65537

Claims = dict[str, Any]
SKEW_S: Final = 300.0
SIGNED: Final = frozenset({"date", "(request-target)", "host"})
SIGNED_WITH_BODY: Final = frozenset({"content-length", "content-type", "x-content-sha256"})
WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
FIELD: Final = re.compile(r'(\w+)="([^"]*)"')
TOKEN_PREFIX: Final = "ST$"  # noqa: S105 - what the key id of a token begins with
REFUSED: Final = "The required information to complete authentication was not provided or was incorrect."


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


def not_authenticated(why: str) -> OciProblem:
    """Return the 401; the real service gives a shorter reason."""
    return OciProblem("NotAuthenticated", f"{REFUSED} ({why})")


class OciAccess:
    """The accepted API keys and tokens."""

    def __init__(self, api_key: UserApiKey, issuer: Issuer) -> None:
        self.revoked = False
        self._api_key = api_key
        self._issuer = issuer

    def admit(self, request: LabRequest, now: float) -> None:
        """Check a request's signature.

        Raises:
            Problem: it is not signed, its key is unknown, or its signature is invalid.
        """
        fields = signature_fields(request)
        key = self._key(fields["keyId"], now)
        if key is None:
            raise not_authenticated("the key is not known, or the token has expired")
        check_signature(request, fields, key, now, needed=SIGNED)

    def _key(self, key_id: str, now: float) -> rsa.RSAPublicKey | None:
        if key_id.startswith(TOKEN_PREFIX):
            return self._issuer.bearer(key_id.removeprefix(TOKEN_PREFIX), now)
        if key_id != self._api_key.key_id or self.revoked:
            return None
        return self._api_key.key.public_key()


def signature_fields(request: LabRequest) -> dict[str, str]:
    """Return the fields of a request's signature.

    Raises:
        Problem: it has none, or lacks one of them.
    """
    scheme, _, rest = request.headers.get("authorization", "").partition(" ")
    fields = dict(FIELD.findall(rest))
    if scheme.lower() != "signature" or not fields.keys() >= {"keyId", "headers", "signature"}:
        raise not_authenticated("the request is not signed")
    if fields.get("algorithm") != "rsa-sha256" or fields.get("version", "1") != "1":
        raise not_authenticated("the signature is not rsa-sha256 in version 1")
    return fields


def check_signature(
    request: LabRequest, fields: dict[str, str], key: rsa.RSAPublicKey, now: float, *, needed: frozenset[str]
) -> None:
    """Check a signature with a key.

    Args:
        needed: the headers that must be signed, in addition to those of a body.

    Raises:
        Problem: a required header is not signed, the date or the body differs, or the signature is wrong.
    """
    names = fields["headers"].split()
    if request.method in WITH_BODY:
        needed = needed | SIGNED_WITH_BODY
    if not needed <= set(names):
        raise not_authenticated(f"not signed: {', '.join(sorted(needed - set(names)))}")
    _check_date(request, now)
    if "x-content-sha256" in names and request.headers.get("x-content-sha256") != _sha256(request.body):
        raise not_authenticated("x-content-sha256 is not that of the body")
    text = "\n".join(f"{name}: {_value(request, name)}" for name in names)
    try:
        key.verify(b64decode(fields["signature"]), text.encode(), PKCS1v15(), SHA256())
    except (InvalidSignature, ValueError) as error:
        raise not_authenticated("the signature is wrong") from error


def _check_date(request: LabRequest, now: float) -> None:
    try:
        date = parsedate_to_datetime(request.headers.get("date", "")).timestamp()
    except ValueError as error:
        raise not_authenticated("the date cannot be read") from error
    if abs(now - date) > SKEW_S:
        raise not_authenticated(f"the date is more than {SKEW_S:g} s from the service's clock")


def _value(request: LabRequest, name: str) -> str:
    if name == "(request-target)":
        query = f"?{request.query}" if request.query else ""
        return f"{request.method.lower()} {request.path}{query}"
    return request.headers.get(name, "")


def _sha256(body: bytes) -> str:
    return b64encode(hashlib.sha256(body).digest()).decode()
