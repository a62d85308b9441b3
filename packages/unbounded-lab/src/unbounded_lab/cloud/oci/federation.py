"""Tokens for clients without an API key: instances and workloads of a cluster.

Instances present the certificate from the metadata service, and workloads the token of their service account.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA1, SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_der_public_key
from cryptography.x509.oid import NameOID
from msgspec import Struct

from unbounded_lab.cloud.oci import request_signatures
from unbounded_lab.cloud.oci.model import REGION_KEY, ocid
from unbounded_lab.cloud.oci.reads import json_reply
from unbounded_lab.http import LabReply, LabRequest

VALID_FROM: Final = datetime(2024, 1, 1, tzinfo=UTC)
VALID_TO: Final = datetime(2054, 1, 1, tzinfo=UTC)
TOKEN_S: Final = 1200.0
METADATA: Final = "/opc/v2"
SIGNED: Final = frozenset({"date", "(request-target)"})


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

    def __init__(
        self, service_account_token: str, claims: request_signatures.Claims, issuer: request_signatures.Issuer
    ) -> None:
        self.service_account_token = service_account_token
        self._claims = claims
        self._issuer = issuer

    def token_for(self, key: rsa.RSAPublicKey, *, now: float, lifetime_s: float = TOKEN_S) -> str:
        """Return a resource principal session token for the owner of this key."""
        return self._issuer.token(key, self._claims, now=now, lifetime_s=lifetime_s)

    def token(self, request: LabRequest, now: float) -> LabReply:
        """Answer as the proxy of the cluster: the token, as JSON in Base64.

        Raises:
            Problem: the service account is another, or the key cannot be read.
        """
        if request.headers.get("authorization") != f"Bearer {self.service_account_token}":
            raise request_signatures.not_authenticated("the service account is not known")
        try:
            key = _bearer_key(msgspec.json.decode(request.body, type=PodKey).pod_key)
        except ValueError as error:
            raise request_signatures.not_authenticated("the key cannot be read") from error
        given = msgspec.json.encode({"token": f"{request_signatures.TOKEN_PREFIX}{self.token_for(key, now=now)}"})
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

    def __init__(self, seed: str, tenancy_id: str, compartment_id: str, issuer: request_signatures.Issuer) -> None:
        self._seed = seed
        self._tenancy_id = tenancy_id
        self._compartment_id = compartment_id
        self._issuer = issuer

    @cached_property
    def _key(self) -> rsa.RSAPrivateKey:
        return request_signatures.rsa_key(f"{self._seed}/instance")

    @cached_property
    def _authority_key(self) -> rsa.RSAPrivateKey:
        return request_signatures.rsa_key(f"{self._seed}/instances")

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
                return request_signatures.private_pem(self._key).encode()
            case "/identity/intermediate.pem":
                return self._intermediate.public_bytes(Encoding.PEM)
        return None

    def token(self, request: LabRequest, now: float) -> LabReply:
        """Issue a token for the key that the bearer of this instance's certificate sends.

        Raises:
            Problem: the certificate is not of this instance, or the request is not signed with its key.
        """
        fields = request_signatures.signature_fields(request)
        key_id = f"{self._tenancy_id}/fed-x509/{self._leaf.fingerprint(SHA1()).hex(':').upper()}"  # noqa: S303
        if fields["keyId"] != key_id:
            raise request_signatures.not_authenticated("the certificate is not known")
        request_signatures.check_signature(request, fields, self._key.public_key(), now, needed=SIGNED)
        try:
            given = msgspec.json.decode(request.body, type=FederationRequest)
            self._check_chain(given)
            bearer = _bearer_key(given.public_key)
        except (ValueError, InvalidSignature) as error:
            raise request_signatures.not_authenticated("the certificates or the key cannot be read") from error
        claims = {"sub": ocid("instance", self._seed, "principal"), "ptype": "instance", "tenant": self._tenancy_id}
        return json_reply({"token": self._issuer.token(bearer, claims, now=now, lifetime_s=TOKEN_S)})

    def _check_chain(self, given: FederationRequest) -> None:
        if b64decode(given.certificate) != self._leaf.public_bytes(Encoding.DER):
            raise request_signatures.not_authenticated("the certificate is not that of the signature")
        for encoded in given.intermediate_certificates:
            self._leaf.verify_directly_issued_by(x509.load_der_x509_certificate(b64decode(encoded)))
