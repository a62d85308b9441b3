"""Signed tokens: JSON Web Tokens with ES256 (RFC 7515, 7518, 7519), and no other algorithm of these."""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from unbounded.kube.durable import write_durably

ALGORITHM: Final = "ES256"
NUMBER_BYTES: Final = 32
TOKEN_CHARACTERS: Final = 16 * 1024


class BadToken(Exception):
    """A token that this key has not signed."""


class TokenKey:
    """The key that signs tokens: `sa.key` (0600) in the directory, made on first use."""

    def __init__(self, directory: Path) -> None:
        path = directory / "sa.key"
        if not path.exists():
            write_durably(path, _pem(ec.generate_private_key(ec.SECP256R1())))
        loaded = serialization.load_pem_private_key(path.read_bytes(), None)
        self._key = cast("ec.EllipticCurvePrivateKey", loaded)
        self._public = self._key.public_key()
        encoded = self._public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        self.id = _encode(hashlib.sha256(encoded).digest())

    def sign(self, claims: dict[str, Any]) -> str:
        header = msgspec.json.encode({"alg": ALGORITHM, "kid": self.id})
        signed = f"{_encode(header)}.{_encode(msgspec.json.encode(claims))}"
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_encode(r.to_bytes(NUMBER_BYTES) + s.to_bytes(NUMBER_BYTES))}"

    def verify(self, token: str) -> dict[str, Any]:
        """Return the claims of a token of this key; the caller checks their validity. Raises BadToken."""
        if len(token) > TOKEN_CHARACTERS or token.count(".") != 2:
            raise BadToken("not a token")
        signed, _, signature = token.rpartition(".")
        header, _, claims = signed.partition(".")
        found = _object(header)
        if found.get("alg") != ALGORITHM or found.get("kid") != self.id or "crit" in found:
            raise BadToken("signed with another key")
        raw = _decode(signature)
        if len(raw) != 2 * NUMBER_BYTES:
            raise BadToken("the signature has the wrong length")
        numbers = (int.from_bytes(raw[:NUMBER_BYTES]), int.from_bytes(raw[NUMBER_BYTES:]))
        try:
            self._public.verify(encode_dss_signature(*numbers), signed.encode(), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise BadToken("the signature is wrong") from None
        return _object(claims)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise BadToken("not base64url") from None


def _object(part: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(_decode(part), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadToken("not a JSON object") from None


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
