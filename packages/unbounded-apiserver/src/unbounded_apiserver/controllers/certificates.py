"""Controllers of certificates: sign requests, delete old ones, and publish the server's CA.

Pods find the CA in ConfigMap `kube-root-ca.crt` of each namespace. ConfigMap kube-public/cluster-info is signed with
bootstrap tokens, so that a host with a token can verify it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography import x509

from unbounded.kube import cluster_info
from unbounded.kube.cluster_info import KUBECONFIG, SIGNATURE
from unbounded_apiserver import metadata
from unbounded_apiserver.access import tokens
from unbounded_apiserver.auth import AuthAttributes, Authorizer, User
from unbounded_apiserver.builtin_resources import CONFIG_MAPS, NAMESPACES, SECRETS
from unbounded_apiserver.certificates import csr, csr_types, signers
from unbounded_apiserver.certificates.csr import MalformedCsr, ParsedCsr
from unbounded_apiserver.certificates.signers import KUBELET_CLIENT, SIGNERS
from unbounded_apiserver.collection import ObjectChange
from unbounded_apiserver.controllers.work_queue import ControllerQueue, delete_expired
from unbounded_apiserver.decoding import normalize
from unbounded_apiserver.deletes import Deletes
from unbounded_apiserver.options import WriteOptions
from unbounded_apiserver.pki import CertificateAuthority
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store
from unbounded_apiserver.workloads.pod_admission import ROOT_CA
from unbounded_apiserver.writes import Writes, WriteTarget

_DESCRIPTION: Final = "kubernetes.io/description"
_WORDS: Final = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes "
    "clusters."
)
_INFO: Final = WriteTarget(CONFIG_MAPS, cluster_info.NAMESPACE, cluster_info.NAME)
_TOKENS: Final = SECRETS.key(tokens.NAMESPACE, tokens.PREFIX)


class RootCaPublisher:
    """The controller that publishes `certificate`, which is set before it begins."""

    def __init__(self, store: Store, writes: Writes) -> None:
        self._store = store
        self._writes = writes
        self.certificate = ""
        self._queue: ControllerQueue[str] = ControllerQueue(self.ensure)

    def begin(self) -> None:
        for key in self._store.snapshot(NAMESPACES.name).keys:
            self._queue.add(key)
        self._store.listen(self._on_namespace, NAMESPACES.name)
        self._store.listen(self._on_config_map, CONFIG_MAPS.name)

    async def run(self) -> None:
        await self._queue.run()

    def _on_namespace(self, change: ObjectChange) -> None:
        if change.previous is None:
            self._queue.add(change.record.key)

    def _on_config_map(self, change: ObjectChange) -> None:
        """Queue the namespace of a ConfigMap that another client changed or deleted."""
        if change.record.name == ROOT_CA and (change.deleted or change.previous is not None):
            self._queue.add(change.record.namespace)

    async def ensure(self, namespace: str) -> None:
        """Create or correct the ConfigMap of a namespace that is not being deleted."""
        if (holder := self._store.get(NAMESPACES.name, namespace)) is None or b'"deletionTimestamp"' in holder.bare:
            return
        if self._store.get(CONFIG_MAPS.name, f"{namespace}/{ROOT_CA}") is not None:
            await self._writes.edit(WriteTarget(CONFIG_MAPS, namespace, ROOT_CA), self._correct)
            return
        obj: Object = {"metadata": {"name": ROOT_CA}}
        self._correct(obj)
        normalize(CONFIG_MAPS, obj)
        try:
            await self._writes.create_object(CONFIG_MAPS, namespace, obj, WriteOptions())
        except StatusError as error:
            if error.code not in {403, 404, 409}:  # created meanwhile, or the namespace is being deleted
                raise

    def _correct(self, obj: Object) -> None:
        obj["data"] = {"ca.crt": self.certificate}
        if not obj["metadata"].get("annotations", {}).get(_DESCRIPTION):
            obj["metadata"].setdefault("annotations", {})[_DESCRIPTION] = _WORDS


class ClusterInfoSigner:
    """The controller that signs the ConfigMap; without the ConfigMap it is idle. `TokenExpiry` deletes old tokens."""

    def __init__(self, store: Store, writes: Writes, now: Callable[[], datetime]) -> None:
        self._store = store
        self._writes = writes
        self._now = now
        self._queue: ControllerQueue[str] = ControllerQueue(self._sign)

    def begin(self) -> None:
        self._queue.add(_INFO.key)
        self._store.listen(self._on_change, CONFIG_MAPS.name)
        self._store.listen(self._on_change, SECRETS.name)

    async def run(self) -> None:
        await self._queue.run()

    def _on_change(self, change: ObjectChange) -> None:
        if change.record.key == _INFO.key or change.record.key.startswith(_TOKENS):
            self._queue.add(_INFO.key)

    async def _sign(self, _: str) -> None:
        await self._writes.edit(_INFO, self._signed)

    def _signed(self, obj: Object) -> None:
        data = obj.get("data") or {}
        kept = {key: value for key, value in data.items() if not key.startswith(SIGNATURE)}
        text = kept.get(KUBECONFIG)
        if text is not None:
            for identity, secret in self._signing_tokens():
                kept[SIGNATURE + identity] = cluster_info.signed(text, identity, secret)
        if kept != data:
            obj["data"] = kept

    def _signing_tokens(self) -> Iterator[tuple[str, str]]:
        """Yield the ids and secrets of the tokens that may sign now."""
        for record in self._store.snapshot(SECRETS.name).with_prefix(_TOKENS):
            obj = record.decode()
            if (token := tokens.token_of(obj, "usage-bootstrap-signing", self._now())) is not None:
                yield token.id, token.secret


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
