"""Answers to attestation requests of Machines with a requested boot; the caller identifies the Machine by the prefix.

A key is pinned, and `Attested` becomes True, only in the write that also announces the token. A request that is
repeated within ten minutes gets the same token, wrapped again: a lost or replayed message creates no second token.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType, set_condition
from unbounded.api.failures import Failure, Rejected
from unbounded.api.machine import MACHINES, Machine
from unbounded.join.attestation import seal
from unbounded.join.facts import ClusterFacts
from unbounded.join.tokens import MachineToken, TokenIssuer
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from unbounded.kube.events import EventRecorder, object_reference
from unbounded.kube.logs import Log
from unbounded.kube.port import Api
from unbounded.kube.status_writer import StatusWriter
from unbounded.metalman.attest.challenge import (
    AttestationRequest,
    BadNonce,
    BadProof,
    Challenges,
    ChallengeSubject,
    InvalidAttestationRequest,
    parse_request,
    to_json,
)
from unbounded.metalman.attest.tpm import make_credential
from unbounded.metalman.attest.trust import EndorsementKeyRejected, TrustedEndorsementKey, TrustedRoots, trust
from unbounded.metalman.http.ports import ReportAnswer

SAME_TOKEN_S: Final = 600.0  # a sixth of the token's lifetime
REMEMBERED_TOKENS: Final = 20_000
BUSY_S: Final = 1
LATER_S: Final = 5
KEY_BYTES: Final = 32
GCM_NONCE_BYTES: Final = 12
PINNED: Final = "EndorsementKeyPinned"
REFUSED: Final = "AttestationRefused"

log = Log("metalman.attest")


@dataclass(frozen=True)
class _IssuedToken:
    """Issued token, the fingerprint that it is for, and its time on the loop's clock."""

    token: MachineToken
    fingerprint: str
    at: float


class AttestationService:
    """Attestation service.

    Args:
        facts: of the cluster; returns None while they are unknown.
        roots: makers of TPMs; None if keys are trusted on first use without a certificate.
        challenges: with a key that all replicas share.
        proof_required: reject requests in one step, which only show that the sender knows two public keys.
    """

    def __init__(
        self,
        api: Api,
        facts: Callable[[], ClusterFacts | None],
        challenges: Challenges,
        *,
        roots: TrustedRoots | None = None,
        events: EventRecorder | None = None,
        proof_required: bool = True,
        now: WallClock = utc_now,
    ) -> None:
        self._api = api
        self._writer = StatusWriter(api, MACHINES, fields=("conditions",))
        self._facts = facts
        self._challenges = challenges
        self._roots = roots
        self._events = events
        self._proof_required = proof_required
        self._now = now
        self._tokens = TokenIssuer(api, now=now)
        self._given: dict[str, _IssuedToken] = {}  # by UID of the Machine
        self._busy: set[str] = set()

    async def answer(self, machine: Machine, request: bytes) -> ReportAnswer:
        """Answer a request for this Machine: 200, 400, 403, 404, 500, or 503 with a Retry-After."""
        try:
            parsed = parse_request(request)
        except InvalidAttestationRequest as error:
            return _error(400, str(error))
        facts = self._facts()
        if facts is None:
            return _error(503, "address and certificates of the cluster are not known yet", LATER_S)
        uid = machine.metadata.uid
        if uid in self._busy:
            return _error(503, "another request for this Machine is in progress", BUSY_S)
        self._busy.add(uid)
        try:
            return await self._answer(machine, parsed, facts)
        except NotFound:
            return _error(404, "the Machine does not exist any more")
        except (Conflict, AlreadyExists):  # the Machine has changed, or two tokens had the same id: retry
            return _error(503, "the Machine has changed in the meantime", BUSY_S)
        except ApiError as error:
            return self._failed(machine, error)
        finally:
            self._busy.discard(uid)

    def _failed(self, machine: Machine, error: Failure) -> ReportAnswer:
        if isinstance(error, Rejected):  # the API server denies access: an administrator has to check our permissions
            log.error("cannot answer attestation", machine=machine.name, error=str(error))
            return _error(500, "metalman cannot create a token; its log has the cause")
        log.warning("cannot answer attestation", error=error, machine=machine.name)
        return _error(503, "the API server does not answer", LATER_S)

    async def _answer(self, machine: Machine, request: AttestationRequest, facts: ClusterFacts) -> ReportAnswer:
        raw = await self._api.get(MACHINES.raw(), machine.name)
        live = msgspec.convert(raw, Machine)
        if live.metadata.uid != machine.metadata.uid:
            return _error(404, "the Machine does not exist any more")
        try:
            trusted = trust(live, request, self._roots, self._now())
        except EndorsementKeyRejected as error:
            await self._refuse(live, error)
            return _error(403, str(error))
        about = ChallengeSubject(live.metadata.uid, request.ek.area, request.srk.area)
        if request.challenge:
            made = self._challenges.make(about, self._now())
            return ReportAnswer(200, to_json({"nonce": made.nonce, **_wrapped(request, made.secret)}))
        if not request.nonce and self._proof_required:
            return _error(400, "a proof is required: request a challenge first (challenge: true)")
        try:
            if request.nonce:
                self._challenges.check(request.nonce, request.proof, about, self._now())
        except BadNonce as error:
            return _error(400, f"{error}; request another challenge")
        except BadProof as error:
            log.warning("wrong proof of a TPM", machine=live.name, key=trusted.fingerprint)
            return _error(403, str(error))
        token = await self._token(live, raw, request, trusted)
        return ReportAnswer(200, to_json(_sealed(request, token.text.reveal(), facts.ca_pem)))

    async def _token(
        self, live: Machine, raw: Mapping[str, Any], request: AttestationRequest, trusted: TrustedEndorsementKey
    ) -> MachineToken:
        """Return the recently issued token, or issue a new one."""
        uid, at = live.metadata.uid, asyncio.get_running_loop().time()
        given = self._given.get(uid)
        status = self._status(raw, request, trusted)
        if (
            given is not None
            and (given.token.id, given.fingerprint) == (live.status.bootstrap_token_id, trusted.fingerprint)
            and at - given.at < SAME_TOKEN_S
            and "conditions" not in status
        ):
            return given.token
        token, _ = await self._tokens.issue(live, status)
        self._given.pop(uid, None)
        while len(self._given) >= REMEMBERED_TOKENS:
            self._given.pop(next(iter(self._given)))
        self._given[uid] = _IssuedToken(token, trusted.fingerprint, at)
        log.info("machine attested", machine=live.name, key=trusted.fingerprint, proven=bool(request.nonce))
        if trusted.first:
            self._emit_event(
                live, "Normal", PINNED, f"metalman trusts endorsement key {trusted.fingerprint} from now on"
            )
        return token

    def _status(
        self, raw: Mapping[str, Any], request: AttestationRequest, trusted: TrustedEndorsementKey
    ) -> dict[str, Any]:
        """Return the status to write with the id of the token; without a proof it does not mention the TPM."""
        status: dict[str, Any] = {"tpm": {"ekPublicKey": request.ek.pem}} if trusted.first else {}
        if request.nonce:
            text = f"the TPM proved its endorsement key {trusted.fingerprint}"
            text += f", certified by {trusted.maker}" if trusted.maker else ""
            changed = self._condition(raw, ConditionStatus.TRUE, ConditionReason.SUCCEEDED, text)
            status |= {"conditions": changed} if changed is not None else {}
        return status

    def _condition(
        self, raw: Mapping[str, Any], status: ConditionStatus, reason: ConditionReason, text: str
    ) -> list[dict[str, Any]] | None:
        conditions = (raw.get("status") or {}).get("conditions") or []
        return set_condition(conditions, ConditionType.ATTESTED, status, reason, text, rfc3339(self._now()))

    async def _refuse(self, live: Machine, refusal: EndorsementKeyRejected) -> None:
        """Report a rejected key on the Machine; an unchanged condition is not written again."""
        log.warning("endorsement key rejected", error=refusal, machine=live.name)
        self._emit_event(live, "Warning", REFUSED, str(refusal))

        def change(raw: dict[str, Any]) -> dict[str, Any] | None:
            changed = self._condition(raw, ConditionStatus.FALSE, refusal.reason, str(refusal))
            return None if changed is None else {"conditions": changed}

        with suppress(Conflict):
            await self._writer.update(live.name, change, uid=live.metadata.uid)

    def _emit_event(self, machine: Machine, kind: str, reason: str, text: str) -> None:
        if self._events is not None:
            self._events.event(object_reference(MACHINES, machine), kind, reason, text)


def _error(code: int, text: str, retry_after_s: int | None = None) -> ReportAnswer:
    return ReportAnswer(code, {"error": text}, retry_after_s)


def _wrapped(request: AttestationRequest, secret: bytes) -> dict[str, bytes]:
    credential = make_credential(request.ek, request.srk.name, secret)
    return {"credentialBlob": credential.blob, "encryptedSecret": credential.secret}


def _sealed(request: AttestationRequest, token: str, authority: str) -> dict[str, bytes | str]:
    """Encrypt the token with a new key, seal the authority with that key, and wrap the key for the TPM."""
    key, nonce = os.urandom(KEY_BYTES), os.urandom(GCM_NONCE_BYTES)
    sealed = AESGCM(key).encrypt(nonce, token.encode(), None)
    return {
        **_wrapped(request, key),
        "encryptedToken": sealed,
        "gcmNonce": nonce,
        "clusterCA": authority,
        "clusterCASeal": seal(key, authority),
    }
