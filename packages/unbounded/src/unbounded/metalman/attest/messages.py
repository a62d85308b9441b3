"""Messages between a host and metalman at POST …/attest: JSON, with bytes in base64.

In one step, as the public project's agent does it:

    → ekPub, srkPub                       TPM2B_PUBLIC of the endorsement key and of the storage root key
    ← credentialBlob, encryptedSecret     TPM2_ActivateCredential with these two keys returns the key of the token
      encryptedToken, gcmNonce            the bootstrap token, AES-256-GCM without additional data, and its nonce
      clusterCA                           PEM
      clusterCASeal                       HMAC-SHA256 by the key of the token: "clusterCA", a zero byte, clusterCA

In two steps, in which the host first proves that it has the TPM now:

    → ekPub, srkPub, challenge: true
    ← nonce, credentialBlob, encryptedSecret      ActivateCredential returns the proof
    → ekPub, srkPub, nonce, proof
    ← as in one step

The seal prevents an attack by a relay: it could pass on a token beside its own authority, and the host would then send
that token to the relay's API server. Our clients reject a token without a seal; other clients may ignore the seal. With
the keys of any message, `ekCert` (DER) and `ekCertChain` (a list of DER) may prove the maker of the TPM.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unbounded.metalman.attest.public import BadKey, PublicArea, parse_public

LARGEST: Final = 1 << 20


class InvalidAttestationRequest(ValueError):
    """The message is invalid; the text names the field."""


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    ek_pub: bytes = msgspec.field(name="ekPub")
    srk_pub: bytes = msgspec.field(name="srkPub")
    ek_cert: bytes | None = msgspec.field(default=None, name="ekCert")
    ek_cert_chain: list[bytes] | None = msgspec.field(default=None, name="ekCertChain")
    challenge: bool = False
    nonce: bytes | None = None
    proof: bytes | None = None


class AttestationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Message with parsed keys.

    Args:
        nonce, proof: both or neither.
    """

    ek: PublicArea
    srk: PublicArea
    certificate: bytes
    chain: tuple[bytes, ...]
    challenge: bool
    nonce: bytes
    proof: bytes


def parse_request(content: bytes) -> AttestationRequest:
    """Parse a message.

    Raises:
        InvalidAttestationRequest: the message is invalid.
    """
    if len(content) > LARGEST:
        raise InvalidAttestationRequest(f"{len(content)} bytes; the limit is {LARGEST}")
    try:
        body = msgspec.json.decode(content, type=_Body)
        ek, srk = parse_public(body.ek_pub, "ekPub"), parse_public(body.srk_pub, "srkPub")
    except msgspec.DecodeError as error:
        raise InvalidAttestationRequest(f"not an attestation request: {error}") from None
    except BadKey as error:
        raise InvalidAttestationRequest(str(error)) from None
    if bool(body.nonce) != bool(body.proof):
        raise InvalidAttestationRequest("nonce and proof must be given together")
    if body.challenge and body.nonce:
        raise InvalidAttestationRequest("challenge and nonce exclude each other")
    return AttestationRequest(
        ek=ek,
        srk=srk,
        certificate=body.ek_cert or b"",
        chain=tuple(body.ek_cert_chain or ()),
        challenge=body.challenge,
        nonce=body.nonce or b"",
        proof=body.proof or b"",
    )


def to_json(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as plain JSON: bytes in base64."""
    built: dict[str, Any] = msgspec.to_builtins(message)
    return built
