"""The certificate authority of a simulated cloud, and the certificate of its endpoint.

Keys are derived from a seed and a name, so that a cloud keeps its certificates over a restart without a file. Derivable
keys protect nothing: these clouds listen on loopback only.
"""

from __future__ import annotations

from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from unbounded_lab.keys import derived, derived_key
from unbounded_lab.listener import HOST

VALID_FROM: Final = datetime(2024, 1, 1, tzinfo=UTC)
VALID_TO: Final = datetime(2054, 1, 1, tzinfo=UTC)


class LabAuthority:
    def __init__(self, name: str, seed: int) -> None:
        self._seed = f"{seed}/{name}"
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} lab authority")])
        self._key = derived_key(f"{self._seed}/authority")
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        self._certificate = self._signed(
            self._unsigned(self._name, self._key, "authority")
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )

    @property
    def pem(self) -> bytes:
        """The authority's certificate, for clients to trust."""
        return self._certificate.public_bytes(Encoding.PEM)

    def server(self, *names: str) -> bytes:
        """Return certificate and key of the endpoint, in PEM; valid for loopback and for these host names."""
        key = derived_key(f"{self._seed}/server")
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
        addresses = [x509.IPAddress(ip_address(HOST)), *(x509.DNSName(name) for name in ("localhost", *names))]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = self._signed(
            self._unsigned(subject, key, "server")
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(issuer, critical=False)
        )
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return certificate.public_bytes(Encoding.PEM) + private

    def _unsigned(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, what: str) -> x509.CertificateBuilder:
        serial = int.from_bytes(derived(f"{self._seed}/{what} serial")[:16], "big") | 1
        return (
            x509.CertificateBuilder(self._name, subject, key.public_key())
            .serial_number(serial)
            .not_valid_before(VALID_FROM)
            .not_valid_after(VALID_TO)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )

    def _signed(self, builder: x509.CertificateBuilder) -> x509.Certificate:
        return builder.sign(self._key, SHA256(), ecdsa_deterministic=True)
