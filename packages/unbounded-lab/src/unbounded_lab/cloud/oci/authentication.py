"""Authentication: identities with their keys and tokens, and the signature of each request.

Signatures are Oracle's version 1, after draft-cavage-http-signatures-08. Clients without an API key get tokens:
instances present the certificate from the metadata service, and workloads the token of their service account.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache, cached_property
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA1, SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
)
from cryptography.x509.oid import NameOID
from msgspec import Struct

from unbounded_lab.cloud import jwt
from unbounded_lab.cloud.oci.errors import OciProblem
from unbounded_lab.cloud.oci.model import REGION_KEY, ocid
from unbounded_lab.cloud.oci.reads import json_reply
from unbounded_lab.http import LabReply, LabRequest

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
            OciProblem: it is not signed, its key is unknown, or its signature is invalid.
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
        OciProblem: it has none, or lacks one of them.
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
        OciProblem: a required header is not signed, the date or the body differs, or the signature is wrong.
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


VALID_FROM: Final = datetime(2024, 1, 1, tzinfo=UTC)
VALID_TO: Final = datetime(2054, 1, 1, tzinfo=UTC)
TOKEN_S: Final = 1200.0
METADATA: Final = "/opc/v2"
SIGNED_BY_CERTIFICATES: Final = frozenset({"date", "(request-target)"})


class FederationRequest(Struct, rename="camel"):
    """Request to the federation endpoint: certificates and a key as base64, without the PEM lines around it."""

    certificate: str
    public_key: str
    intermediate_certificates: list[str] = []


class PodKey(Struct, rename="camel"):
    """Request to the cluster's proxy: the key with which a workload will sign."""

    pod_key: str


class Workload:
    """A service account of a cluster with access to the cloud (OKE workload identity).

    Args:
        service_account_token: its credential.
    """

    def __init__(self, service_account_token: str, claims: Claims, issuer: Issuer) -> None:
        self.service_account_token = service_account_token
        self._claims = claims
        self._issuer = issuer

    def token_for(self, key: rsa.RSAPublicKey, *, now: float, lifetime_s: float = TOKEN_S) -> str:
        """Return a resource principal session token for the owner of this key."""
        return self._issuer.token(key, self._claims, now=now, lifetime_s=lifetime_s)

    def token(self, request: LabRequest, now: float) -> LabReply:
        """Answer as the proxy of the cluster: the token, as JSON in Base64.

        Raises:
            OciProblem: the service account is another, or the key cannot be read.
        """
        if request.headers.get("authorization") != f"Bearer {self.service_account_token}":
            raise not_authenticated("the service account is not known")
        try:
            key = _bearer_key(msgspec.json.decode(request.body, type=PodKey).pod_key)
        except ValueError as error:
            raise not_authenticated("the key cannot be read") from error
        given = msgspec.json.encode({"token": f"{TOKEN_PREFIX}{self.token_for(key, now=now)}"})
        return LabReply(200, b64encode(given), {"content-type": "application/json"})


def _bearer_key(encoded: str) -> rsa.RSAPublicKey:
    """Return the key for which a token is requested.

    Raises:
        ValueError: it is none, or another kind of key.
    """
    key = load_der_public_key(b64decode(encoded))
    if not isinstance(key, rsa.RSAPublicKey):
        raise ValueError("the key is not RSA")  # noqa: TRY004 - all that is wrong with it is one failure
    return key


class InstancePrincipal:
    """One instance with its own identity: its certificate, and the services that accept it."""

    def __init__(self, seed: str, tenancy_id: str, compartment_id: str, issuer: Issuer) -> None:
        self._seed = seed
        self._tenancy_id = tenancy_id
        self._compartment_id = compartment_id
        self._issuer = issuer

    @cached_property
    def _key(self) -> rsa.RSAPrivateKey:
        return rsa_key(f"{self._seed}/instance")

    @cached_property
    def _authority_key(self) -> rsa.RSAPrivateKey:
        return rsa_key(f"{self._seed}/instances")

    @cached_property
    def _intermediate(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "PKISVC Identity Intermediate lab")])
        return self._signed(name, name, self._authority_key, 1)

    @cached_property
    def _leaf(self) -> x509.Certificate:
        subject = [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, text)
            for text in (
                "opc-certtype:instance",
                f"opc-compartment:{self._compartment_id}",
                f"opc-instance:{ocid('instance', self._seed, 'principal')}",
                f"opc-tenant:{self._tenancy_id}",
            )
        ]
        return self._signed(x509.Name(subject), self._intermediate.subject, self._key, 2)

    def _signed(self, subject: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey, serial: int) -> x509.Certificate:
        builder = x509.CertificateBuilder(issuer, subject, key.public_key(), serial, VALID_FROM, VALID_TO)
        return builder.sign(self._authority_key, SHA256())

    def metadata(self, request: LabRequest) -> LabReply:
        """Answer as the metadata service, for the requests of the SDK's signer for instance principals."""
        if request.headers.get("authorization") != "Bearer Oracle":
            return LabReply(403)
        text = self._text(request.path.removeprefix(METADATA))
        return LabReply(404) if text is None else LabReply(200, text, {"content-type": "text/plain"})

    def _text(self, path: str) -> bytes | None:
        match path:
            case "/instance/region":
                return REGION_KEY.encode()
            case "/identity/cert.pem":
                return self._leaf.public_bytes(Encoding.PEM)
            case "/identity/key.pem":
                return private_pem(self._key).encode()
            case "/identity/intermediate.pem":
                return self._intermediate.public_bytes(Encoding.PEM)
        return None

    def token(self, request: LabRequest, now: float) -> LabReply:
        """Issue a token for the key that the bearer of this instance's certificate sends.

        Raises:
            OciProblem: the certificate is not of this instance, or the request is not signed with its key.
        """
        fields = signature_fields(request)
        key_id = f"{self._tenancy_id}/fed-x509/{self._leaf.fingerprint(SHA1()).hex(':').upper()}"  # noqa: S303
        if fields["keyId"] != key_id:
            raise not_authenticated("the certificate is not known")
        check_signature(request, fields, self._key.public_key(), now, needed=SIGNED_BY_CERTIFICATES)
        try:
            given = msgspec.json.decode(request.body, type=FederationRequest)
            self._check_chain(given)
            bearer = _bearer_key(given.public_key)
        except (ValueError, InvalidSignature) as error:
            raise not_authenticated("the certificates or the key cannot be read") from error
        claims = {"sub": ocid("instance", self._seed, "principal"), "ptype": "instance", "tenant": self._tenancy_id}
        return json_reply({"token": self._issuer.token(bearer, claims, now=now, lifetime_s=TOKEN_S)})

    def _check_chain(self, given: FederationRequest) -> None:
        if b64decode(given.certificate) != self._leaf.public_bytes(Encoding.DER):
            raise not_authenticated("the certificate is not that of the signature")
        for encoded in given.intermediate_certificates:
            self._leaf.verify_directly_issued_by(x509.load_der_x509_certificate(b64decode(encoded)))
