"""Authentication: each request is signed (Oracle's signature version 1, after draft-cavage-http-signatures-08)."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from email.utils import parsedate_to_datetime
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256

from unbounded_lab.cloud.oci.errors import OciProblem
from unbounded_lab.cloud.oci.identity import Issuer, UserApiKey
from unbounded_lab.http import LabRequest

SKEW_S: Final = 300.0
SIGNED: Final = frozenset({"date", "(request-target)", "host"})
SIGNED_WITH_BODY: Final = frozenset({"content-length", "content-type", "x-content-sha256"})
WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
FIELD: Final = re.compile(r'(\w+)="([^"]*)"')
TOKEN_PREFIX: Final = "ST$"  # noqa: S105 - what the key id of a token begins with
REFUSED: Final = "The required information to complete authentication was not provided or was incorrect."


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
