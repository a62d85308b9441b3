"""Answers to attestation requests of Machines with a requested boot; the caller identifies the Machine by the prefix.

A key is pinned, a boot is recorded as the reference, and `Attested` becomes True, only in the write that also announces
the token. A boot that deviates from the reference gets none where the PCR policy is Required. A request that is
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
from unbounded.api.machine_status import QuotedBoot
from unbounded.api.names import PCRPolicy
from unbounded.api.operation import MachineOperation
from unbounded.join.attestation import seal
from unbounded.join.bootstrap_tokens import MachineToken, TokenIssuer
from unbounded.join.cluster_facts import ClusterFacts
from unbounded.kube.api import AlreadyExists, Api, ApiError, Conflict, NotFound
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.events import EventRecorder, object_reference
from unbounded.kube.logs import Log
from unbounded.kube.status_writer import StatusWriter
from unbounded.metalman.attest import challenge
from unbounded.metalman.attest.quote import QUOTED, BadQuote, BootVerdict, judge, pcr_policy, quoted, verify_quote
from unbounded.metalman.attest.tpm import PublicArea, make_credential
from unbounded.metalman.attest.trust import EndorsementKeyRejected, TrustedEndorsementKey, TrustedRoots, trust
from unbounded.metalman.http.boot_service import ReportAnswer
from unbounded.operations.parameters import accepted_pcrs, requester

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
        pcr_policy: of Machines that name none.
    """

    def __init__(
        self,
        api: Api,
        facts: Callable[[], ClusterFacts | None],
        challenges: challenge.Challenges,
        *,
        roots: TrustedRoots | None = None,
        events: EventRecorder | None = None,
        proof_required: bool = True,
        pcr_policy: PCRPolicy = PCRPolicy.RECORDED,
        now: WallClock = utc_now,
    ) -> None:
        self._api = api
        self._writer = StatusWriter(api, MACHINES, fields=("conditions", "tpm"))
        self._facts = facts
        self._challenges = challenges
        self._roots = roots
        self._events = events
        self._proof_required = proof_required
        self._pcr_policy = pcr_policy
        self._now = now
        self._tokens = TokenIssuer(api, now=now)
        self._given: dict[str, _IssuedToken] = {}  # by UID of the Machine
        self._busy: set[str] = set()

    async def answer(
        self, machine: Machine, request: bytes, boot: str, operation: MachineOperation | None
    ) -> ReportAnswer:
        """Answer a request for this Machine: 200, 400, 403, 404, 500, or 503 with a Retry-After.

        Args:
            boot: as in status.netboot.boot.
            operation: the one that requests the boot; None for a counter.
        """
        try:
            parsed = challenge.parse_request(request)
        except challenge.InvalidAttestationRequest as error:
            return _error(400, str(error))
        facts = self._facts()
        if facts is None:
            return _error(503, "address and certificates of the cluster are not known yet", LATER_S)
        uid = machine.metadata.uid
        if uid in self._busy:
            return _error(503, "another request for this Machine is in progress", BUSY_S)
        self._busy.add(uid)
        try:
            return await self._answer(machine, parsed, facts, boot, operation)
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

    async def _answer(
        self,
        machine: Machine,
        request: challenge.AttestationRequest,
        facts: ClusterFacts,
        boot: str,
        operation: MachineOperation | None,
    ) -> ReportAnswer:
        raw = await self._api.get(MACHINES.raw(), machine.name)
        live = msgspec.convert(raw, Machine)
        if live.metadata.uid != machine.metadata.uid:
            return _error(404, "the Machine does not exist any more")
        try:
            trusted = trust(live, request, self._roots, self._now())
        except EndorsementKeyRejected as error:
            await self._refuse(live, error)
            return _error(403, str(error))
        ak = b"" if request.ak is None else request.ak.area
        about = challenge.ChallengeSubject(live.metadata.uid, request.ek.area, request.srk.area, ak, boot)
        if request.challenge:
            return self._challenge(request, about)
        if not request.nonce and self._proof_required:
            return _error(400, "a proof is required: request a challenge first (challenge: true)")
        try:
            if request.nonce:
                self._challenges.check(request.nonce, request.proof, about, self._now())
            if request.ak is not None:
                verify_quote(request.ak, request.nonce, request.quote, request.quote_signature, request.pcrs)
        except challenge.BadNonce as error:
            return _error(400, f"{error}; request another challenge")
        except challenge.BadProof as error:
            log.warning("wrong proof of a TPM", machine=live.name, key=trusted.fingerprint)
            return _error(403, str(error))
        except BadQuote as error:
            log.warning("wrong quote of a TPM", error=error, machine=live.name, key=trusted.fingerprint)
            return _error(400, str(error))
        verdict = self._verdict(live, request, boot, operation)
        if verdict.refused:
            if request.nonce:
                await self._refuse_boot(live, verdict)
            return _error(403, verdict.refused)
        token = await self._token(live, raw, request, trusted, verdict)
        return ReportAnswer(200, challenge.to_json(_sealed(request, token.text.reveal(), facts.ca_pem)))

    def _challenge(self, request: challenge.AttestationRequest, about: challenge.ChallengeSubject) -> ReportAnswer:
        made = self._challenges.make(about, self._now())
        answer: dict[str, Any] = {"nonce": made.nonce, **_wrapped(request, request.ak or request.srk, made.secret)}
        if request.ak is not None:
            answer["quotePCRs"] = list(QUOTED)
        return ReportAnswer(200, challenge.to_json(answer))

    def _verdict(
        self, live: Machine, request: challenge.AttestationRequest, boot: str, operation: MachineOperation | None
    ) -> BootVerdict:
        netboot = live.status.netboot
        digest = netboot.image_digest if netboot is not None and netboot.boot == boot else None
        return judge(
            quoted(request.pcrs, boot=boot, at=rfc3339(self._now()), image_digest=digest),
            live.status.tpm.reference if live.status.tpm else None,
            pcr_policy(live, self._pcr_policy),
            machine=live.name,
            accepted=frozenset() if operation is None else accepted_pcrs(operation),
            requested_by="" if operation is None else requester(operation),
        )

    async def _token(
        self,
        live: Machine,
        raw: Mapping[str, Any],
        request: challenge.AttestationRequest,
        trusted: TrustedEndorsementKey,
        verdict: BootVerdict,
    ) -> MachineToken:
        """Return the recently issued token, or issue a new one."""
        uid, at = live.metadata.uid, asyncio.get_running_loop().time()
        given = self._given.get(uid)
        status = self._status(live, raw, request, trusted, verdict)
        if (
            given is not None
            and (given.token.id, given.fingerprint) == (live.status.bootstrap_token_id, trusted.fingerprint)
            and at - given.at < SAME_TOKEN_S
            and not status
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
        self,
        live: Machine,
        raw: Mapping[str, Any],
        request: challenge.AttestationRequest,
        trusted: TrustedEndorsementKey,
        verdict: BootVerdict,
    ) -> dict[str, Any]:
        """Return the status to write with the id of the token; without a proof it does not mention the TPM."""
        tpm: dict[str, Any] = {"ekPublicKey": request.ek.pem} if trusted.first else {}
        conditions = None
        if request.nonce:
            tpm |= _tpm_status(live, verdict)
            text = f"the TPM proved its endorsement key {trusted.fingerprint}"
            text += f", certified by {trusted.maker}" if trusted.maker else ""
            conditions = self._conditions(raw, (ConditionStatus.TRUE, ConditionReason.SUCCEEDED, text), verdict)
        return {**({"tpm": tpm} if tpm else {}), **({} if conditions is None else {"conditions": conditions})}

    def _conditions(
        self,
        raw: Mapping[str, Any],
        attested: tuple[ConditionStatus, ConditionReason, str],
        verdict: BootVerdict | None = None,
    ) -> list[dict[str, Any]] | None:
        """Return the Machine's conditions with Attested and, for a verdict, BootChanged; None if they are set."""
        before, now = (raw.get("status") or {}).get("conditions") or [], rfc3339(self._now())
        first = set_condition(before, ConditionType.ATTESTED, *attested, now)
        if verdict is None:
            return first
        changed = (verdict.status, verdict.reason, verdict.message)
        return set_condition(before if first is None else first, ConditionType.BOOT_CHANGED, *changed, now) or first

    async def _refuse_boot(self, live: Machine, verdict: BootVerdict) -> None:
        """Record a boot that receives no token, and why."""
        log.warning("boot refused", reason=verdict.refused, machine=live.name, boot=verdict.quote.boot)
        self._emit_event(live, "Warning", REFUSED, verdict.refused)

        def change(raw: dict[str, Any]) -> dict[str, Any] | None:
            refused = (ConditionStatus.FALSE, verdict.reason, verdict.refused)
            conditions, tpm = self._conditions(raw, refused, verdict), _tpm_status(live, verdict)
            status = {**({"tpm": tpm} if tpm else {}), **({} if conditions is None else {"conditions": conditions})}
            return status or None

        await self._writer.update(live.name, change, uid=live.metadata.uid)

    async def _refuse(self, live: Machine, refusal: EndorsementKeyRejected) -> None:
        """Report a rejected key on the Machine; an unchanged condition is not written again."""
        log.warning("endorsement key rejected", error=refusal, machine=live.name)
        self._emit_event(live, "Warning", REFUSED, str(refusal))

        def change(raw: dict[str, Any]) -> dict[str, Any] | None:
            changed = self._conditions(raw, (ConditionStatus.FALSE, refusal.reason, str(refusal)))
            return None if changed is None else {"conditions": changed}

        with suppress(Conflict):
            await self._writer.update(live.name, change, uid=live.metadata.uid)

    def _emit_event(self, machine: Machine, kind: str, reason: str, text: str) -> None:
        if self._events is not None:
            self._events.event(object_reference(MACHINES, machine), kind, reason, text)


def _error(code: int, text: str, retry_after_s: int | None = None) -> ReportAnswer:
    return ReportAnswer(code, {"error": text}, retry_after_s)


def _tpm_status(live: Machine, verdict: BootVerdict) -> dict[str, Any]:
    """Return the changed parts of status.tpm; the time of an equal quote of the same boot stays."""
    before = live.status.tpm
    parts = {"quote": verdict.quote, "reference": verdict.reference}
    known = {"quote": before.quote if before else None, "reference": before.reference if before else None}
    return {
        name: {"imageDigest": None, "acceptedBy": None, "pcrs": [], **msgspec.to_builtins(boot)}
        for name, boot in parts.items()
        if boot is not None and not _is_same_boot(boot, known[name])
    }


def _is_same_boot(boot: QuotedBoot, known: QuotedBoot | None) -> bool:
    return known is not None and msgspec.structs.replace(boot, at=known.at) == known


def _wrapped(request: challenge.AttestationRequest, key: PublicArea, secret: bytes) -> dict[str, bytes]:
    credential = make_credential(request.ek, key.name, secret)
    return {"credentialBlob": credential.blob, "encryptedSecret": credential.secret}


def _sealed(request: challenge.AttestationRequest, token: str, authority: str) -> dict[str, bytes | str]:
    """Encrypt the token with a new key, seal the authority with that key, and wrap the key for the TPM."""
    key, nonce = os.urandom(KEY_BYTES), os.urandom(GCM_NONCE_BYTES)
    sealed = AESGCM(key).encrypt(nonce, token.encode(), None)
    return {
        **_wrapped(request, request.srk, key),
        "encryptedToken": sealed,
        "gcmNonce": nonce,
        "clusterCA": authority,
        "clusterCASeal": seal(key, authority),
    }
