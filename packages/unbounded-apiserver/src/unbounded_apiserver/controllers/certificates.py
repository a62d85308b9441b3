"""Sign approved requests, approve those that a node's role permits, and delete old requests."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography import x509

from unbounded_apiserver import metadata
from unbounded_apiserver.api_resources import Object
from unbounded_apiserver.auth import AuthAttributes, Authorizer, User
from unbounded_apiserver.certificates import csr, csr_types, signers
from unbounded_apiserver.certificates.csr import MalformedCsr, ParsedCsr
from unbounded_apiserver.certificates.signers import KUBELET_CLIENT, SIGNERS
from unbounded_apiserver.collection import ObjectChange
from unbounded_apiserver.controllers.work_queue import ControllerQueue, delete_expired
from unbounded_apiserver.deletes import Deletes
from unbounded_apiserver.pki import CertificateAuthority
from unbounded_apiserver.store import Store
from unbounded_apiserver.writes import Writes, WriteTarget

DECIDED: Final = timedelta(hours=1)  # retention after a certificate was issued, or the request was denied or failed
WAITING: Final = timedelta(hours=24)  # retention of a request without a result
INVALID: Final = "SignerValidationFailure"
AUTO_APPROVED: Final = "AutoApproved"


class CertificateController:
    """The controller of CertificateSigningRequests; it signs once `authority` is set."""

    def __init__(
        self, store: Store, writes: Writes, deletes: Deletes, rights: Authorizer, now: Callable[[], datetime]
    ) -> None:
        self._store = store
        self._writes = writes
        self._deletes = deletes
        self._rights = rights
        self._now = now
        self.authority: CertificateAuthority | None = None
        self._queue: ControllerQueue[str] = ControllerQueue(self._reconcile)

    def begin(self) -> None:
        for key in self._store.snapshot(csr_types.REQUESTS.name).keys:
            self._queue.add(key)
        self._store.listen(self._on_change, csr_types.REQUESTS.name)

    async def run(self) -> None:
        await self._queue.run()

    def _on_change(self, change: ObjectChange) -> None:
        self._queue.cancel(change.record.key)
        if not change.deleted:
            self._queue.add(change.record.key)

    async def _reconcile(self, name: str) -> None:
        record = self._store.get(csr_types.REQUESTS.name, name)
        if record is None:
            return
        request = record.decode()
        wait = (removal_time(request) - self._now()).total_seconds()
        if wait <= 0:
            await delete_expired(self._deletes, WriteTarget(csr_types.REQUESTS, "", name), request["metadata"]["uid"])
            return
        self._queue.add_after(name, wait)
        await self._writes.edit(WriteTarget(csr_types.REQUESTS, "", name), self._decide)

    def _decide(self, obj: Object) -> None:
        types = csr_types.types_of(obj)
        if obj["status"].get("certificate") or {csr_types.DENIED, csr_types.FAILED} & types:
            return
        if csr_types.APPROVED not in types:
            self._approve(obj)
        if csr_types.APPROVED in csr_types.types_of(obj):
            self._sign(obj)

    def _approve(self, obj: Object) -> None:
        """Approve a kubelet's client certificate if a role of the requesting user permits it."""
        request, why_not = _parsed_request(obj)
        if request is None or why_not or obj["spec"]["signerName"] != KUBELET_CLIENT:
            return
        own = obj["spec"].get("username") == request.common_name
        for applies, subresource, which in ((own, "selfnodeclient", "self "), (True, "nodeclient", "")):
            attributes = AuthAttributes("create", csr_types.GROUP, csr_types.REQUESTS.plural, subresource)
            if applies and self._rights.decide(_requesting_user(obj["spec"]), attributes).allowed:
                words = f"Auto approving {which}kubelet client certificate after SubjectAccessReview."
                csr_types.with_condition(obj, csr_types.APPROVED, AUTO_APPROVED, words, self._now())
                return

    def _sign(self, obj: Object) -> None:
        if obj["spec"]["signerName"] not in SIGNERS or self.authority is None:
            return  # another signer signs it
        request, why_not = _parsed_request(obj)
        if request is None or why_not:
            csr_types.with_condition(obj, csr_types.FAILED, INVALID, why_not, self._now())
            return
        spec = obj["spec"]
        begin, end = signers.validity(self._now(), spec.get("expirationSeconds"), self.authority.expires)
        try:
            certificate = self.authority.sign(request, spec["usages"], begin, end)
        except ValueError as error:  # a parsed request should always encode; an exception fails the request once
            csr_types.with_condition(
                obj, csr_types.FAILED, INVALID, f"the request cannot be signed: {error}", self._now()
            )
            return
        obj["status"] = {**obj["status"], "certificate": base64.b64encode(certificate).decode()}


def _parsed_request(obj: Object) -> tuple[ParsedCsr | None, str]:
    """Return the parsed request and the reason why its signer rejects it, '' if it does not."""
    spec = obj["spec"]
    try:
        request = csr.parse_csr(base64.b64decode(spec["request"]))
    except MalformedCsr as error:
        return None, str(error)
    check = SIGNERS.get(spec["signerName"])
    return request, "" if check is None else check(request, spec["usages"])


def _requesting_user(spec: Mapping[str, Any]) -> User:
    return User(spec.get("username", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""), spec.get("extra") or {})


def removal_time(request: Mapping[str, Any]) -> datetime:
    """Return the time to delete a request: an hour after its result, or a day after its last step without one."""
    created = metadata.parse_time(request["metadata"]["creationTimestamp"]) or datetime.fromtimestamp(0, UTC)
    status = request["status"]
    certificate = status.get("certificate", "")
    ends = [expiry] if certificate and (expiry := _expiry(certificate)) is not None else []
    for condition in status.get("conditions") or ():
        moment = metadata.parse_time(condition.get("lastUpdateTime")) or created
        match condition["type"]:
            case "Denied" | "Failed":
                ends.append(moment + DECIDED)
            case "Approved":
                ends.append(moment + (DECIDED if certificate else WAITING))
    return min(ends, default=created + WAITING)


def _expiry(certificate: str) -> datetime | None:
    try:
        return x509.load_pem_x509_certificate(base64.b64decode(certificate)).not_valid_after_utc
    except (ValueError, x509.InvalidVersion):
        return None
