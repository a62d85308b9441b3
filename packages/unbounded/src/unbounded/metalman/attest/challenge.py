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

With an attestation key the second step also has a quote of PCRs, which that key of the same TPM signs:

    → ekPub, srkPub, akPub, challenge: true
    ← nonce, credentialBlob, encryptedSecret      ActivateCredential with ekPub and akPub returns the proof
      quotePCRs                                   numbers of the PCRs, in the SHA-256 bank
    → ekPub, srkPub, akPub, nonce, proof
      quote, quoteSignature                       TPMS_ATTEST with the nonce's SHA-256 as extraData; TPMT_SIGNATURE
      pcrs                                        values of these PCRs, in their order
    ← as in one step

The seal prevents an attack by a relay: it could pass on a token beside its own authority, and the host would then send
that token to the relay's API server. Our clients reject a token without a seal; other clients may ignore the seal. With
the keys of any message, `ekCert` (DER) and `ekCertChain` (a list of DER) may prove the maker of the TPM.

Nonces prove themselves: a challenge is not stored until it is answered, and any replica can check it.

A challenge is a nonce and a secret, both derived from one key of all replicas. The secret is wrapped so that only the
TPM with the keys of the request can open it. A client that returns the nonce with the secret has proven that it has
these keys now.

nonce     version, 1 byte; milliseconds since 1970, 8 bytes; 16 random bytes; HMAC-SHA256 over these and its purpose
secret    HMAC-SHA256 over the nonce and its purpose, which are the Machine, its boot and the keys

A nonce is valid for a minute and once. Only the replica that accepted it remembers it: another replica accepts it again
within that minute. A replayed message gains nothing but a token that is wrapped for the same TPM.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from unbounded.metalman.attest.tpm import BadKey, PublicArea, parse_public

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
    ak_pub: bytes | None = msgspec.field(default=None, name="akPub")
    quote: bytes | None = None
    quote_signature: bytes | None = msgspec.field(default=None, name="quoteSignature")
    pcrs: list[bytes] | None = None


class AttestationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Message with parsed keys.

    Args:
        nonce, proof: both or neither.
        ak: None for a client that does not quote.
        quote, quote_signature, pcrs: with the nonce, if there is an attestation key.
    """

    ek: PublicArea
    srk: PublicArea
    certificate: bytes
    chain: tuple[bytes, ...]
    challenge: bool
    nonce: bytes
    proof: bytes
    ak: PublicArea | None = None
    quote: bytes = b""
    quote_signature: bytes = b""
    pcrs: tuple[bytes, ...] = ()


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
        ak = parse_public(body.ak_pub, "akPub", signs=True) if body.ak_pub else None
    except msgspec.DecodeError as error:
        raise InvalidAttestationRequest(f"not an attestation request: {error}") from None
    except BadKey as error:
        raise InvalidAttestationRequest(str(error)) from None
    if bool(body.nonce) != bool(body.proof):
        raise InvalidAttestationRequest("nonce and proof must be given together")
    if body.challenge and body.nonce:
        raise InvalidAttestationRequest("challenge and nonce exclude each other")
    quoted = [bool(part) for part in (body.quote, body.quote_signature, body.pcrs)]
    if any(quoted) != (ak is not None and bool(body.nonce)) or any(quoted) != all(quoted):
        raise InvalidAttestationRequest(
            "quote, quoteSignature and pcrs must be given together, with akPub and nonce, and akPub with them"
        )
    return AttestationRequest(
        ek=ek,
        srk=srk,
        certificate=body.ek_cert or b"",
        chain=tuple(body.ek_cert_chain or ()),
        challenge=body.challenge,
        nonce=body.nonce or b"",
        proof=body.proof or b"",
        ak=ak,
        quote=body.quote or b"",
        quote_signature=body.quote_signature or b"",
        pcrs=tuple(body.pcrs or ()),
    )


def to_json(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as plain JSON: bytes in base64."""
    built: dict[str, Any] = msgspec.to_builtins(message)
    return built


GOOD_FOR_MS: Final = 60_000
AHEAD_MS: Final = 5_000  # allowed difference between the replicas' clocks
REMEMBERED_NONCES: Final = 65_536
_VERSION: Final = b"\x01"
_HEAD_BYTES: Final = 1 + 8 + 16
NONCE_BYTES: Final = _HEAD_BYTES + 32


class BadNonce(ValueError):
    """The nonce is invalid; the client has to request another challenge."""


class BadProof(ValueError):
    """The nonce is valid, and the proof does not match it."""


@dataclass(frozen=True)
class ChallengeSubject:
    """Purpose of a challenge: a boot of a Machine, and the public areas of its keys; `ak` is empty without one."""

    machine_uid: str
    ek: bytes
    srk: bytes
    ak: bytes = b""
    boot: str = ""

    def digest(self) -> bytes:
        parts = (self.machine_uid.encode(), self.ek, self.srk, self.ak, self.boot.encode())
        return hashlib.sha256(b"".join(struct.pack(">I", len(part)) + part for part in parts)).digest()


@dataclass(frozen=True)
class TpmChallenge:
    nonce: bytes
    secret: bytes


class Challenges:
    """Maker and verifier of challenges.

    Args:
        key: at least 16 secret bytes that all replicas share.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) < 16:
            raise ValueError("the key must have at least 16 bytes")
        self._key = key
        self._used: OrderedDict[bytes, float] = OrderedDict()  # {nonce: time of its end in ms}

    def make(self, about: ChallengeSubject, now: datetime) -> TpmChallenge:
        head = _VERSION + struct.pack(">Q", _ms(now)) + secrets.token_bytes(16)
        nonce = head + self._mac(b"nonce", head, about)
        return TpmChallenge(nonce, self._mac(b"secret", nonce, about))

    def check(self, nonce: bytes, proof: bytes, about: ChallengeSubject, now: datetime) -> None:
        """Accept an answer, once.

        Raises:
            BadNonce: the nonce is unknown, expired or used.
            BadProof: the proof does not match the nonce.
        """
        head = nonce[:_HEAD_BYTES]
        if len(nonce) != NONCE_BYTES or not hmac.compare_digest(nonce[_HEAD_BYTES:], self._mac(b"nonce", head, about)):
            raise BadNonce("the nonce was not issued for this Machine and these keys")
        issued, at = struct.unpack(">Q", head[1:9])[0], _ms(now)
        if not issued - AHEAD_MS <= at < issued + GOOD_FOR_MS:
            raise BadNonce(f"the nonce is older than {GOOD_FOR_MS // 1000} s")
        if nonce in self._used:
            raise BadNonce("the nonce was used before")
        if not hmac.compare_digest(proof, self._mac(b"secret", nonce, about)):
            raise BadProof("the proof is not the value that was wrapped for this TPM")
        self._note(nonce, issued + GOOD_FOR_MS, at)

    def _note(self, nonce: bytes, until: float, at: float) -> None:
        while self._used and (len(self._used) >= REMEMBERED_NONCES or next(iter(self._used.values())) + AHEAD_MS < at):
            self._used.popitem(last=False)
        self._used[nonce] = until

    def _mac(self, what: bytes, content: bytes, about: ChallengeSubject) -> bytes:
        return hmac.new(self._key, what + b"\0" + content + about.digest(), hashlib.sha256).digest()


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
