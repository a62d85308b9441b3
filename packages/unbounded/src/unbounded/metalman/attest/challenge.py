"""Self-proving nonces: a challenge is not stored until it is answered, and any replica can check it.

A challenge is a nonce and a secret, both derived from one key of all replicas. The secret is wrapped so that only the
TPM with the two keys of the request can open it. A client that returns the nonce with the secret has proven that it has
these keys now.

nonce     version, 1 byte; milliseconds since 1970, 8 bytes; 16 random bytes; HMAC-SHA256 over these and its purpose
secret    HMAC-SHA256 over the nonce and its purpose, which are the Machine and the two keys

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
from typing import Final

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
    """Purpose of a challenge: a Machine, and the public areas of two keys."""

    machine_uid: str
    ek: bytes
    srk: bytes

    def digest(self) -> bytes:
        parts = (self.machine_uid.encode(), self.ek, self.srk)
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
