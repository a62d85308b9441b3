"""Parsing of a certificate request (PKCS #10, RFC 2986), the check of its signature, and PEM as Go parses it."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

REQUEST: Final = "CERTIFICATE REQUEST"
CERTIFICATE: Final = "CERTIFICATE"
_BEGIN: Final = re.compile(rb"^-----BEGIN ([^\n]*?)-----[ \t]*\r?\n", re.MULTILINE)
_HEADER: Final = re.compile(rb"[^:\n]*:[^\n]*\n")
PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
_WEAK: Final = (hashes.MD5, hashes.SHA1)
_UNKNOWN_KEY: Final = "x509: cannot verify signature: algorithm unimplemented"
_REFUSED: Final[dict[type, str]] = {
    rsa.RSAPublicKey: "crypto/rsa: verification error",
    ec.EllipticCurvePublicKey: "x509: ECDSA verification failure",
    ed25519.Ed25519PublicKey: "x509: Ed25519 verification failure",
}
_UNREADABLE: Final = (
    *(TypeError, ValueError),
    *(x509.DuplicateExtension, x509.InvalidVersion, x509.UnsupportedGeneralNameType),
)
_NAME_KINDS: Final = (x509.DNSName, x509.IPAddress, x509.RFC822Name, x509.UniformResourceIdentifier)


@dataclass(frozen=True)
class PemBlock:
    """A block between BEGIN and END."""

    kind: str
    data: bytes
    headers: bool = False


def pem_blocks(text: bytes) -> Iterator[PemBlock]:
    """Yield the blocks that can be parsed; others are skipped."""
    at = 0
    while (begin := _BEGIN.search(text, at)) is not None:
        at = begin.end()
        end = text.find(b"-----END " + begin[1] + b"-----", at)
        if end < 0:
            continue
        body, headers = at, False
        while (header := _HEADER.match(text, body, end)) is not None:
            body, headers = header.end(), True
        try:
            data = base64.b64decode(b"".join(text[body:end].split()), validate=True)
        except binascii.Error:
            continue
        at = end
        yield PemBlock(begin[1].decode("latin-1"), data, headers)


class MalformedCsr(Exception):
    """Not a certificate request; the message is Go's, as far as it can be the same."""


@dataclass(frozen=True)
class ParsedCsr:
    """The content of a request whose signature is valid."""

    subject: x509.Name
    key: PublicKey
    common_name: str  # the last one if there are several; becomes the user
    organizations: tuple[str, ...]
    names: tuple[x509.GeneralName, ...]  # the subject alternative names of the types that certificates get

    @property
    def dns(self) -> list[x509.GeneralName]:
        return self._of(x509.DNSName)

    @property
    def addresses(self) -> list[x509.GeneralName]:
        return self._of(x509.IPAddress)

    @property
    def emails(self) -> list[x509.GeneralName]:
        return self._of(x509.RFC822Name)

    @property
    def uris(self) -> list[x509.GeneralName]:
        return self._of(x509.UniformResourceIdentifier)

    def _of(self, kind: type[x509.GeneralName]) -> list[x509.GeneralName]:
        return [name for name in self.names if isinstance(name, kind)]


def parse_csr(text: bytes) -> ParsedCsr:
    """Parse the request in the first PEM block. Raises MalformedCsr."""
    block = next(pem_blocks(text), None)
    if block is None or block.kind != REQUEST:
        raise MalformedCsr(f"PEM block type must be {REQUEST}")
    try:
        return _read(x509.load_der_x509_csr(block.data))
    except UnsupportedAlgorithm:
        raise MalformedCsr(_UNKNOWN_KEY) from None
    except _UNREADABLE as error:
        raise MalformedCsr("asn1: structure error: not a certificate request") from error


def _read(found: x509.CertificateSigningRequest) -> ParsedCsr:
    key = found.public_key()
    if not isinstance(key, PublicKey):
        raise MalformedCsr(_UNKNOWN_KEY)
    if isinstance(found.signature_hash_algorithm, _WEAK):
        shown = found.signature_hash_algorithm.name.upper()
        raise MalformedCsr(f"x509: cannot verify signature: insecure algorithm {shown}")
    if not found.is_signature_valid:
        raise MalformedCsr(next(words for kind, words in _REFUSED.items() if isinstance(key, kind)))
    common = _of_subject(found.subject, NameOID.COMMON_NAME)
    return ParsedCsr(
        found.subject,
        key,
        common[-1] if common else "",
        _of_subject(found.subject, NameOID.ORGANIZATION_NAME),
        tuple(name for name in _alternative_names(found) if isinstance(name, _NAME_KINDS)),
    )


def _alternative_names(found: x509.CertificateSigningRequest) -> Iterable[x509.GeneralName]:
    extensions = (extension.value for extension in found.extensions)
    return next((value for value in extensions if isinstance(value, x509.SubjectAlternativeName)), ())


def _of_subject(subject: x509.Name, oid: x509.ObjectIdentifier) -> tuple[str, ...]:
    return tuple(str(attribute.value) for attribute in subject.get_attributes_for_oid(oid))
