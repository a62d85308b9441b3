"""Trust in an endorsement key.

The key is enrolled in the Machine's spec, else pinned on first use. If required, a certificate of its maker proves it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from unbounded.api.conditions import ConditionReason
from unbounded.api.machine import Machine
from unbounded.metalman.attest.chain import NotTrusted, TrustedRoots
from unbounded.metalman.attest.messages import AttestationRequest
from unbounded.metalman.attest.public import Key


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
        Untrusted: the key is another one, or its maker is not trusted.
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
