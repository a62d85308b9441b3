"""Trust in an endorsement key.

The key is enrolled in the Machine's spec, else pinned on first use. If required, a certificate of its maker proves it:
the TPM's maker signs it, and its chain ends in a certificate that the operator trusts.

TCG EK Credential Profile 2.x. These certificates name no host and mostly no subject, so verifiers for TLS reject them.
Revocation is not checked, as TPM makers hardly publish it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtensionOID, NameOID

from unbounded.api.conditions import ConditionReason
from unbounded.api.failures import Rejected
from unbounded.api.machine import Machine
from unbounded.metalman.attest.challenge import AttestationRequest
from unbounded.metalman.attest.tpm import Key


class EndorsementKeyRejected(Exception):
    """The key is not trusted; `reason` is that of the condition, the message is for the operator."""

    def __init__(self, reason: ConditionReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class TrustedEndorsementKey:
    """Trusted key.

    Args:
        first: the key is not pinned yet.
        maker: subject of the certificate that proves the key; empty if none is required.
    """

    first: bool
    fingerprint: str
    maker: str = ""


def trust(
    machine: Machine, request: AttestationRequest, roots: TrustedRoots | None, at: datetime
) -> TrustedEndorsementKey:
    """Decide about the endorsement key of a request.

    Raises:
        EndorsementKeyRejected: the key is another one, or its maker is not trusted.
    """
    pinned = machine.status.tpm.ek_public_key if machine.status.tpm else None
    known = None if pinned is None else _fingerprint_of_pem(pinned)
    seen, enrolled = fingerprint(request.ek.key), _enrolled(machine)
    if enrolled and enrolled != seen:
        raise EndorsementKeyRejected(
            ConditionReason.FOREIGN_EK,
            f"the TPM's endorsement key is {seen}, but spec.pxe.attestation.ekPublicKeySHA256 names {enrolled}",
        )
    if not enrolled and known not in (None, seen):
        raise EndorsementKeyRejected(
            ConditionReason.FOREIGN_EK,
            f"the TPM's endorsement key is {seen}, but status.tpm.ekPublicKey pins "
            f"{known or 'an unreadable key'}; if the TPM was exchanged on purpose, remove that field",
        )
    return TrustedEndorsementKey(first=known != seen, fingerprint=seen, maker=_maker(request, roots, at))


def _enrolled(machine: Machine) -> str:
    """Return the fingerprint of the key that the user enrolled in the spec; empty if there is none."""
    desired = machine.spec.pxe.attestation if machine.spec.pxe else None
    digest = desired.ek_public_key_sha256 if desired else None
    return f"SHA256:{digest.lower()}" if digest else ""


def _maker(request: AttestationRequest, roots: TrustedRoots | None, at: datetime) -> str:
    if roots is None:
        return ""
    if not request.certificate:
        text = "the request has no ekCert, but --ek-ca requires the certificate of the TPM's maker"
        raise EndorsementKeyRejected(ConditionReason.EK_NOT_TRUSTED, text)
    try:
        return roots.vouch(request.certificate, request.chain, request.ek.key, at)
    except NotTrusted as error:
        raise EndorsementKeyRejected(ConditionReason.EK_NOT_TRUSTED, str(error)) from error


def fingerprint(key: Key) -> str:
    """Return the SHA-256 of a key, as SHA256: and hexadecimal digits."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return f"SHA256:{hashlib.sha256(der).hexdigest()}"


def _fingerprint_of_pem(pem: str) -> str:
    """Return the fingerprint of a pinned key, independent of its PEM layout; empty if the PEM is invalid."""
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        return ""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return f"SHA256:{hashlib.sha256(der).hexdigest()}"


MOST_GIVEN: Final = 8
DEEPEST: Final = 6
EK_CERTIFICATE: Final = x509.ObjectIdentifier("2.23.133.8.1")  # tcg-kp-EKCertificate
_UNDERSTOOD: Final = frozenset(
    {
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,  # maker, model and version of the TPM
        ExtensionOID.BASIC_CONSTRAINTS,
        ExtensionOID.KEY_USAGE,
        ExtensionOID.EXTENDED_KEY_USAGE,
        ExtensionOID.CERTIFICATE_POLICIES,
    }
)


# Errors that the library raises for invalid certificates.
_UNREADABLE: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
T = TypeVar("T", bound=x509.ExtensionType)


class NotTrusted(ValueError):
    """The certificate does not prove the key; the message has the reason."""


class TrustedRoots:
    """Certificates that the operator trusts: a chain may end at any of them, a root or a maker's intermediate."""

    def __init__(self, certificates: Sequence[x509.Certificate]) -> None:
        self._certificates = tuple(certificates)

    @classmethod
    def load(cls, path: Path) -> TrustedRoots:
        """Load the certificates of a PEM file.

        Raises:
            Rejected: the file cannot be read, or contains no certificate.
        """
        try:
            return cls(x509.load_pem_x509_certificates(path.read_bytes()))
        except OSError as error:
            raise Rejected(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise Rejected(f"{path}: must contain PEM certificates of TPM makers: {error}") from error

    def vouch(self, certificate: bytes, given: Sequence[bytes], key: Key, at: datetime) -> str:
        """Verify the certificate of an endorsement key; return the name of the trusted certificate that it leads to.

        Args:
            certificate: DER, as in a TPM's memory, with any filling after it.
            given: DER certificates that may connect it to a trusted one.
        Raises:
            NotTrusted: the certificate does not prove the key.
        """
        try:
            return self._vouch(certificate, given, key, at)
        except NotTrusted:
            raise
        except _UNREADABLE as error:  # the library parses names and extensions at their first use
            raise NotTrusted("cannot read ekCert, or a certificate of ekCertChain") from error

    def _vouch(self, certificate: bytes, given: Sequence[bytes], key: Key, at: datetime) -> str:
        if len(given) > MOST_GIVEN:
            raise NotTrusted(f"ekCertChain has {len(given)} certificates; the limit is {MOST_GIVEN}")
        leaf = _parsed(certificate, "ekCert")
        between = [_parsed(one, f"ekCertChain[{number}]") for number, one in enumerate(given)]
        _check_leaf(leaf, key)
        _check_common(leaf, "ekCert", at)
        end = next(self._ends(leaf, between, at, 0), None)
        if end is None:
            raise NotTrusted(
                f"ekCert was issued by {_name_text(leaf.issuer)}, and does not chain to a certificate of --ek-ca"
            )
        return _name_text(end.subject)

    def _ends(
        self, below: x509.Certificate, between: Sequence[x509.Certificate], at: datetime, depth: int
    ) -> Iterator[x509.Certificate]:
        """Yield the trusted certificates that a chain from here can end at; `depth` is the number of authorities so
        far.
        """
        for issuer in self._certificates:
            if _issued(below, issuer, at, depth):
                yield issuer
        if depth >= DEEPEST:
            return
        for number, issuer in enumerate(between):
            if _issued(below, issuer, at, depth):
                yield from self._ends(issuer, [*between[:number], *between[number + 1 :]], at, depth + 1)


def _parsed(der: bytes, what: str) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(_strip_filling(der))
    except _UNREADABLE as error:
        raise NotTrusted(f"{what} is not a DER certificate") from error


def _strip_filling(der: bytes) -> bytes:
    """Remove the filling after a certificate, as a TPM's memory may be larger than the certificate in it."""
    if len(der) < 4 or der[0] != 0x30 or der[1] not in (0x81, 0x82):
        return der
    octets = der[1] & 0x7F
    end = 2 + octets + int.from_bytes(der[2 : 2 + octets], "big")
    return der if der[end:].strip(b"\x00\xff") else der[:end]


def _check_leaf(leaf: x509.Certificate, key: Key) -> None:
    try:
        its = leaf.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    except _UNREADABLE as error:
        raise NotTrusted("cannot read the key in ekCert") from error
    if its != key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo):
        raise NotTrusted("ekCert is for a key other than ekPub")
    usage = _extension(leaf, x509.ExtendedKeyUsage)
    if usage is not None and EK_CERTIFICATE not in usage:
        raise NotTrusted(
            f"ekCert is not for endorsement keys: its extended key usage lacks {EK_CERTIFICATE.dotted_string}"
        )
    constraints = _extension(leaf, x509.BasicConstraints)
    if constraints is not None and constraints.ca:
        raise NotTrusted("ekCert is the certificate of an authority")


def _check_common(certificate: x509.Certificate, what: str, at: datetime) -> None:
    if not certificate.not_valid_before_utc <= at <= certificate.not_valid_after_utc:
        until = f"{certificate.not_valid_before_utc:%Y-%m-%d} to {certificate.not_valid_after_utc:%Y-%m-%d}"
        raise NotTrusted(f"{what} is valid from {until} only")
    strange = [one.oid.dotted_string for one in certificate.extensions if one.critical and one.oid not in _UNDERSTOOD]
    if strange:
        raise NotTrusted(f"{what} has unknown critical extensions: {', '.join(strange)}")


def _issued(below: x509.Certificate, issuer: x509.Certificate, at: datetime, depth: int) -> bool:
    """Return whether this is an authority, valid now, that has signed the certificate."""
    if issuer.subject != below.issuer:
        return False
    try:
        below.verify_directly_issued_by(issuer)
        _check_common(issuer, "an authority", at)
        constraints, usage = _extension(issuer, x509.BasicConstraints), _extension(issuer, x509.KeyUsage)
    except (*_UNREADABLE, TypeError, InvalidSignature):
        return False
    if constraints is None or not constraints.ca or (usage is not None and not usage.key_cert_sign):
        return False
    return constraints.path_length is None or constraints.path_length >= depth


def _extension(certificate: x509.Certificate, kind: type[T]) -> T | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _name_text(name: x509.Name) -> str:
    common = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return repr(str(common[0].value)) if common else repr(name.rfc4514_string() or "nobody")
