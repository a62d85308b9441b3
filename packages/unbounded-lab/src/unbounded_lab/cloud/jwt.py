"""JSON Web Tokens for simulated clouds: HS256 for their own, RS256 for those of clients."""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256


class InvalidToken(Exception):
    """Not a token, or not one signed with this key."""


def signed_by_secret(claims: Mapping[str, Any], secret: bytes) -> str:
    head = _head_and_claims("HS256", claims)
    return f"{head}.{_encoded(hmac.digest(secret, head.encode(), hashlib.sha256))}"


def signed(claims: Mapping[str, Any], key: RSAPrivateKey) -> str:
    head = _head_and_claims("RS256", claims)
    return f"{head}.{_encoded(key.sign(head.encode(), PKCS1v15(), SHA256()))}"


def claims_by_secret(token: str, secret: bytes) -> dict[str, Any]:
    """Return the claims of a token of the cloud itself.

    Raises:
        InvalidToken: it is none.
    """
    head, claims, signature = _parts(token, "HS256")
    if not hmac.compare_digest(signature, hmac.digest(secret, head, hashlib.sha256)):
        raise InvalidToken("signed with another key")
    return claims


def claims(token: str, key: RSAPublicKey) -> dict[str, Any]:
    """Return the claims of a token that the owner of a key signed.

    Raises:
        InvalidToken: it is none.
    """
    head, claims, signature = _parts(token, "RS256")
    try:
        key.verify(signature, head, PKCS1v15(), SHA256())
    except InvalidSignature as error:
        raise InvalidToken("signed with another key") from error
    return claims


def _head_and_claims(algorithm: str, claims: Mapping[str, Any]) -> str:
    head = msgspec.json.encode({"alg": algorithm, "typ": "JWT"})
    return f"{_encoded(head)}.{_encoded(msgspec.json.encode(claims))}"


def _parts(token: str, algorithm: str) -> tuple[bytes, dict[str, Any], bytes]:
    try:
        head, claims, signature = token.split(".")
        header = msgspec.json.decode(_decoded(head), type=dict[str, Any])
        decoded = msgspec.json.decode(_decoded(claims), type=dict[str, Any])
        raw = _decoded(signature)
    except (ValueError, msgspec.MsgspecError) as error:
        raise InvalidToken("not a token") from error
    if header.get("alg") != algorithm:
        raise InvalidToken(f"not signed with {algorithm}")
    return f"{head}.{claims}".encode(), decoded, raw


def _encoded(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
