"""Identity of a BMC: name, address, and the credentials, identifiers and certificate that a seed and a name give.

The same seed gives the same BMC, so that a fleet keeps its passwords and certificates over a restart without a file.
Derivable keys protect nothing: these BMCs listen on loopback only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Final
from uuid import NAMESPACE_DNS, uuid5

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from unbounded_lab.keys import derived, derived_key
from unbounded_lab.listener import HOST

USERNAME: Final = "admin"
VALID_FROM: Final = datetime(2024, 1, 1, tzinfo=UTC)
VALID_TO: Final = datetime(2054, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Certificate:
    pem: bytes  # certificate and private key
    fingerprint: str  # SHA-256 of the certificate, colon-separated lower hex


@dataclass(frozen=True, slots=True)
class BmcIdentity:
    name: str
    seed: int = 0
    address: str = HOST

    @property
    def username(self) -> str:
        return USERNAME

    @property
    def password(self) -> str:
        return self._derived("password").hex()[:20]

    @property
    def uuid(self) -> str:
        return str(uuid5(NAMESPACE_DNS, f"{self.seed}.{self.name}.bmc.lab"))

    def system_uuid(self, index: int) -> str:
        return str(uuid5(NAMESPACE_DNS, f"{self.seed}.{index}.{self.name}.lab"))

    def mac(self, index: int) -> str:
        """Return a locally administered address."""
        return ":".join(f"{byte:02x}" for byte in (0x02, *self._derived(f"mac {index}")[:5]))

    def serial_number(self, part: str) -> str:
        """Return the serial number of a part: 12 hexadecimal digits."""
        return self._derived(f"part {part}").hex()[:12].upper()

    def certificate(self, generation: int = 0) -> Certificate:
        """Return the self-signed certificate; each generation has another key."""
        key = derived_key(f"{self.seed}/{self.name}/key {generation}")
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        addresses = [x509.IPAddress(ip_address(self.address)), x509.DNSName("localhost"), x509.DNSName(self.name)]
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key())
            .serial_number(int.from_bytes(self._derived(f"serial {generation}")[:16], "big") | 1)
            .not_valid_before(VALID_FROM)
            .not_valid_after(VALID_TO)
            .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, SHA256(), ecdsa_deterministic=True)
        )
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        digest = hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
        return Certificate(certificate.public_bytes(Encoding.PEM) + private, _colons(digest))

    def _derived(self, what: str) -> bytes:
        return derived(f"{self.seed}/{self.name}/{what}")


def _colons(digest: str) -> str:
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))
