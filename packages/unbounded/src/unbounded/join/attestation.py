"""The machine's side of attestation: the messages to POST …/attest, and the processing of the answers.

Only the standard library is used: images of machines contain a copy of this file and of tpm.py. The messages are
documented in `metalman/attest/challenge.py`. The caller sends the bytes and waits.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from typing import Protocol

TRIES = 5
LARGEST = 1 << 20
LONGEST_WAIT_S = 30.0
_FIRST_WAIT_S = 1.0

LONGEST_SELECTION = 24  # the PCRs of a TPM
Open = Callable[[bytes, bytes, bytes], bytes]  # AES-256-GCM: key, nonce, ciphertext with its tag; the plain text


class PCRQuote(Protocol):
    """A signed quote of PCRs, and their values in the order of their numbers."""

    attest: bytes
    signature: bytes
    values: list[bytes]


class AttestationKeys(Protocol):
    """The keys of a TPM, as `tpm.Keys` has them."""

    ek_public: bytes
    srk_public: bytes
    ak_public: bytes

    def activate(self, blob: bytes, secret: bytes) -> bytes: ...

    def activate_ak(self, blob: bytes, secret: bytes) -> bytes: ...

    def quote(self, nonce: bytes, pcrs: Sequence[int]) -> PCRQuote: ...


class AttestationFailed(Exception):
    """Attestation cannot succeed like this; the message names the cause."""


class TryAgain(Exception):
    """The server requests a retry; `after_s` is its Retry-After, else None."""

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class AttestedToken:
    """`text` is a bootstrap token, `authority` the cluster's CA as PEM, or empty."""

    def __init__(self, text: str, authority: str) -> None:
        self.text, self.authority = text, authority


class Exchange:
    """One attempt. Send `message` and pass the answer to `take`, until it returns a token.

    Args:
        certificate: of the endorsement key, DER; empty without one.
    """

    def __init__(self, keys: AttestationKeys, certificate: bytes, open_sealed: Open) -> None:
        self._tpm = keys
        self._keys = {"ekPub": _text(keys.ek_public), "srkPub": _text(keys.srk_public)}
        if certificate:
            self._keys["ekCert"] = _text(certificate)
        self._open = open_sealed
        self._challenged = False
        self.message = json.dumps({**self._keys, "akPub": _text(keys.ak_public), "challenge": True}).encode()

    def take(self, status: int, retry_after: str, content: bytes) -> AttestedToken | None:
        """Return the token, or None when there is another message to send.

        Args:
            retry_after: the header, or empty.
        Raises:
            TryAgain: the server requests a retry.
            AttestationFailed
        """
        if status == 503:
            raise TryAgain(_why(status, content), _seconds(retry_after))
        if status != 200:
            raise AttestationFailed(_why(status, content))
        body = _object(content)
        if "encryptedToken" in body:
            return self._token(body)
        if "nonce" not in body or self._challenged:
            raise AttestationFailed("the server answers with neither a token nor a challenge")
        self._challenged = True
        self.message = json.dumps({**self._keys, **self._proof(body)}).encode()
        return None

    def _proof(self, body: dict[str, object]) -> dict[str, object]:
        """Return the fields of a proof, with a quote if the server requests one: an older server does not."""
        nonce, wrapped = _bytes(body, "nonce"), (_bytes(body, "credentialBlob"), _bytes(body, "encryptedSecret"))
        if "quotePCRs" not in body:
            return {"nonce": _text(nonce), "proof": _text(self._tpm.activate(*wrapped))}
        proof = self._tpm.activate_ak(*wrapped)
        quote = self._tpm.quote(quote_nonce(nonce), _pcrs(body["quotePCRs"]))
        return {
            "akPub": _text(self._tpm.ak_public),
            "nonce": _text(nonce),
            "proof": _text(proof),
            "quote": _text(quote.attest),
            "quoteSignature": _text(quote.signature),
            "pcrs": [_text(value) for value in quote.values],
        }

    def _token(self, body: dict[str, object]) -> AttestedToken:
        key = self._tpm.activate(_bytes(body, "credentialBlob"), _bytes(body, "encryptedSecret"))
        token = self._open(key, _bytes(body, "gcmNonce"), _bytes(body, "encryptedToken"))
        given = body.get("clusterCA")
        authority = given if isinstance(given, str) else ""
        if not hmac.compare_digest(_bytes(body, "clusterCASeal"), seal(key, authority)):
            raise AttestationFailed(
                "the cluster's authority was modified on its way to this TPM; the token is not used"
            )
        try:
            return AttestedToken(token.decode("ascii"), authority)
        except UnicodeDecodeError:
            raise AttestationFailed("the value that was wrapped for this TPM is not a token") from None


def seal(key: bytes, authority: str) -> bytes:
    """Return the seal that binds the cluster's CA to a token: only the creator and the recipient of the token's key can
    compute it.
    """
    return hmac.new(key, b"clusterCA\0" + authority.encode(), hashlib.sha256).digest()


def quote_nonce(nonce: bytes) -> bytes:
    """Return the extraData of a quote for the nonce of a challenge: a TPM accepts no more than a digest."""
    return hashlib.sha256(nonce).digest()


def wait_s(attempt: int, asked_s: float | None) -> float:
    """Return the seconds to wait after an attempt, counted from 1: as requested, else 1, 2, 4 … seconds; at most 30."""
    return min(LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (attempt - 1) if asked_s is None else max(asked_s, 0.0))


def attest_url(url: str) -> str:
    """Return the URL of attestation requests; `url` is Attest.URL of the agent's configuration."""
    return f"{url.rstrip('/')}/attest"


def _object(content: bytes) -> dict[str, object]:
    if len(content) > LARGEST:
        raise AttestationFailed(f"the server's answer exceeds {LARGEST} bytes")
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise AttestationFailed("the server's answer is not a JSON object")
    return body


def _bytes(body: dict[str, object], name: str) -> bytes:
    value = body.get(name)
    try:
        return base64.b64decode(value if isinstance(value, str) else "!", validate=True)
    except (binascii.Error, ValueError):
        raise AttestationFailed(f"the server's answer lacks {name}, or it is not base64") from None


def _pcrs(value: object) -> list[int]:
    """Return the numbers of the PCRs that the server requests."""
    numbers = value if isinstance(value, list) and len(value) <= LONGEST_SELECTION else []
    if not numbers or not all(type(one) is int and 0 <= one < LONGEST_SELECTION for one in numbers):
        raise AttestationFailed("the server's answer has quotePCRs that are not numbers of PCRs")
    return numbers


def _why(status: int, content: bytes) -> str:
    try:
        error = _object(content).get("error")
    except AttestationFailed:
        error = None
    return f"{status}: {error}" if isinstance(error, str) else f"the server answers {status}"


def _seconds(header: str) -> float | None:
    return float(header) if header.isascii() and header.isdigit() else None


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
