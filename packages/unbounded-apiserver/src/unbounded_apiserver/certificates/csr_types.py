"""CertificateSigningRequest: its shape, its columns, and the changes that its subresources allow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from unbounded_apiserver import metadata, name_validation, notation
from unbounded_apiserver.builtin import BuiltInType
from unbounded_apiserver.certificates import rules
from unbounded_apiserver.certificates.rules import APPROVED, DENIED, FAILED
from unbounded_apiserver.columns import AGE, NAME, duration
from unbounded_apiserver.types import Object, Resource, Subresource, TableColumn

GROUP: Final = "certificates.k8s.io"

_TYPES: Final = notation.read(
    """
CertificateSigningRequest: A request for an X.509 certificate, which is approved or denied, and then signed.
  spec CertificateSigningRequestSpec!  The request.
  status CertificateSigningRequestStatus!  Its result.
CertificateSigningRequestSpec: The request; it cannot change.
  request bytes!  The request (PKCS #10) in PEM, in base64.
  signerName string!  The signer, such as kubernetes.io/kube-apiserver-client.
  expirationSeconds int32*  The requested lifetime of the certificate; the signer may give less.
  usages [string]  The purposes of the key, such as digital signature and client auth.
  username string  The requester; set by the server.
  uid string  The UID of the requester; set by the server.
  groups [string]  The groups of the requester; set by the server.
  extra {[string]}  Further facts about the requester; set by the server.
CertificateSigningRequestStatus: The result of a request.
  conditions [CertificateSigningRequestCondition]+type  The decisions.
  certificate bytes  The certificate in PEM, in base64, once it is signed.
CertificateSigningRequestCondition: A decision about a request.
  type string!  Approved, Denied, Failed, or another one.
  status string!  True, False or Unknown; the three known types can only be True.
  reason string  One word for why.
  message string  A sentence for people.
  lastUpdateTime time!  When the condition was last written.
  lastTransitionTime time!  When the status last changed.
""",
    package="io.k8s.api.certificates.v1",
)
SHAPE: Final = notation.kind(_TYPES, "CertificateSigningRequest")

Conditions = list[Object]


def _decide(obj: Object, old: Object | None) -> None:
    """Keep the spec unchanged, and drop an approval that the client sent."""
    if old is None:
        obj["status"] = {}
    else:
        obj["spec"], obj["status"] = old["spec"], old["status"]


def _decide_status(obj: Object, old: Object, now: datetime) -> None:
    """Let conditions and the certificate change; decisions about approval stay."""
    obj["spec"] = old["spec"]
    found, before = _conditions(obj), _conditions(old)
    for kind in (APPROVED, DENIED):
        _preserve(found, before, kind)
    _date(found, before, now)


def _decide_approval(obj: Object, old: Object, now: datetime) -> None:
    """Let only conditions change."""
    found = _conditions(obj)
    _date(found, _conditions(old), now)
    obj["spec"] = old["spec"]
    obj["status"] = {k: v for k, v in old["status"].items() if k != "conditions"}
    if found:
        obj["status"]["conditions"] = found


def _conditions(obj: Object) -> Conditions:
    found: Conditions = obj["status"].get("conditions") or []
    return found


def _preserve(found: Conditions, before: Conditions, kind: str) -> None:
    """Restore the old conditions of a type; the rules reject added or removed ones."""
    kept = [condition for condition in before if condition["type"] == kind]
    places = [index for index, condition in enumerate(found) if condition["type"] == kind]
    if len(kept) == len(places):
        for index, condition in zip(places, kept, strict=True):
            found[index] = condition


def _date(found: Conditions, before: Conditions, now: datetime) -> None:
    """Fill in missing times in place; an unchanged status keeps its transition time."""
    moment = metadata.format_time(now)
    for condition in found:
        condition["lastUpdateTime"] = condition.get("lastUpdateTime") or moment
        if not condition.get("lastTransitionTime"):
            same = (b for b in before if all(b[key] == condition[key] for key in ("type", "status")))
            times = (b["lastTransitionTime"] for b in same if b.get("lastTransitionTime"))
            condition["lastTransitionTime"] = next(times, moment)


def with_condition(obj: Object, kind: str, reason: str, message: str, now: datetime) -> None:
    """Add a condition whose type a request has at most once, in place."""
    moment = metadata.format_time(now)
    times = {"lastUpdateTime": moment, "lastTransitionTime": moment}
    condition = {"type": kind, "status": "True", "reason": reason, "message": message, **times}
    obj["status"] = {**obj["status"], "conditions": [*_conditions(obj), condition]}


def types_of(obj: Mapping[str, Any]) -> set[str]:
    """Return the types of a request's conditions."""
    return {condition["type"] for condition in obj["status"].get("conditions") or ()}


def _condition_text(obj: Mapping[str, Any]) -> str:
    types = types_of(obj)
    words = ["Denied" if DENIED in types else "Approved" if APPROVED in types else "Pending"]
    if FAILED in types:
        words.append("Failed")
    if obj["status"].get("certificate"):
        words.append("Issued")
    return ",".join(words)


def _requested_duration(obj: Mapping[str, Any]) -> str:
    seconds = obj["spec"].get("expirationSeconds")
    return "<none>" if seconds is None else duration(seconds)


def _columns() -> Iterable[TableColumn]:
    yield NAME
    yield AGE
    yield TableColumn("SignerName", description="The signer.", cell=lambda o: o["spec"]["signerName"] or "<none>")
    yield TableColumn("Requestor", description="The requester.", cell=lambda o: o["spec"].get("username", ""))
    yield TableColumn("RequestedDuration", description="For how long.", cell=_requested_duration)
    yield TableColumn("Condition", description="Its result.", cell=_condition_text)


REQUESTS: Final = Resource(
    GROUP,
    "v1",
    "CertificateSigningRequest",
    "certificatesigningrequests",
    "certificatesigningrequest",
    False,
    # kube-apiserver records no owners here (tests/goldens/kube/10-core.json)
    BuiltInType(SHAPE, name_check=name_validation.path_segment, tracks_owners=False, decide=_decide, rules=rules.check),
    short_names=("csr",),
    subresources={
        "approval": Subresource(_decide_approval, rules=rules.check_removal),
        "status": Subresource(_decide_status, rules=rules.check_status),
    },
    selectable={"spec.signerName": "spec.signerName"},
    columns=tuple(_columns()),
)
