"""CertificateSigningRequest: its shape, its columns, its validation worded as by Kubernetes.

Its subresources allow some changes of its conditions and its certificate.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from cryptography import x509

from unbounded_apiserver import field_errors, metadata, name_validation, type_descriptor_parser
from unbounded_apiserver.builtin_resources import BuiltInType
from unbounded_apiserver.certificates import csr, signers
from unbounded_apiserver.columns import AGE, NAME, duration
from unbounded_apiserver.resource_model import Object, Resource, Subresource, TableColumn
from unbounded_apiserver.schema import FieldError

APPROVED: Final = "Approved"
DENIED: Final = "Denied"
FAILED: Final = "Failed"
SHORTEST_S: Final = 600
DOMAIN_BYTES: Final = 253
SIGNER_BYTES: Final = 571
_ONLY_TRUE: Final = frozenset({APPROVED, DENIED, FAILED})
_CONDITIONS: Final = "status.conditions"
USAGES: Final = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
]
GROUP: Final = "certificates.k8s.io"
_TYPES: Final = type_descriptor_parser.read(
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
  certificate bytes  The signed certificate: PEM in base64.
CertificateSigningRequestCondition: A decision about a request.
  type string!  Approved, Denied, Failed, or another one.
  status string!  True, False or Unknown; the three known types can only be True.
  reason string  One word for why.
  message string  Message for users.
  lastUpdateTime time!  Time of the last write of the condition.
  lastTransitionTime time!  Time of the last change of the status.
""",
    package="io.k8s.api.certificates.v1",
)
SHAPE: Final = type_descriptor_parser.kind(_TYPES, "CertificateSigningRequest")
Conditions = list[Object]


def check(obj: Object, old: Object | None) -> list[FieldError]:
    """Return the errors of any write. The spec cannot change, so that only a creation checks it."""
    errors = list(_check_spec(obj["spec"])) if old is None else []
    return [*errors, *_check_conditions(obj["status"].get("conditions") or ())]


def check_removal(obj: Object, old: Object) -> list[FieldError]:
    """Reject the removal of decisions."""
    return [
        field_errors.forbidden(_CONDITIONS, f'updates may not remove a condition of type "{kind}"')
        for kind in (APPROVED, DENIED, FAILED)
        if _count(obj, kind) < _count(old, kind)
    ]


def check_status(obj: Object, old: Object) -> list[FieldError]:
    """Reject a signer's approval, and changes of an issued certificate."""
    given, before = obj["status"].get("certificate", ""), old["status"].get("certificate", "")
    errors = []
    if given and given != before and (why := _wrong_certificate(base64.b64decode(given))):
        errors.append(field_errors.invalid("status.certificate", "<certificate data>", why))
    errors += check_removal(obj, old)
    errors += [
        field_errors.forbidden(_CONDITIONS, f'updates may not add a condition of type "{kind}"')
        for kind in (APPROVED, DENIED)
        if _count(obj, kind) > _count(old, kind)
    ]
    if before and given != before:
        errors.append(
            field_errors.forbidden("status.certificate", "updates may not modify existing certificate content")
        )
    return errors


def _count(obj: Object, kind: str) -> int:
    return sum(condition["type"] == kind for condition in obj["status"].get("conditions") or ())


def _check_spec(spec: Object) -> Iterator[FieldError]:
    try:
        csr.parse_csr(base64.b64decode(spec["request"] or ""))
    except csr.MalformedCsr as error:
        yield field_errors.invalid("spec.request", spec["request"], str(error))
    usages = spec.get("usages") or []
    if not usages:
        yield field_errors.required("spec.usages")
    for index, usage in enumerate(usages):
        if usage not in USAGES:
            yield field_errors.unsupported(f"spec.usages[{index}]", usage, USAGES)
    for index, usage in enumerate(usages):
        if usage in usages[:index]:
            yield field_errors.duplicate(f"spec.usages[{index}]", usage)
    yield from _check_signer(spec["signerName"])
    seconds = spec.get("expirationSeconds")
    if seconds is not None and seconds < SHORTEST_S:
        why = "may not specify a duration less than 600 seconds (10 minutes)"
        yield field_errors.invalid("spec.expirationSeconds", seconds, why)


def _check_signer(name: str) -> Iterator[FieldError]:
    where = "spec.signerName"
    if not name:
        yield field_errors.required(where)
        return
    if name == signers.LEGACY:
        yield field_errors.invalid(where, name, "the legacy signerName is not allowed via this API version")
        return
    if name.count("/") != 1:
        why = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        yield field_errors.invalid(where, name, why)
        return
    domain, _, path = name.partition("/")
    if len(domain.encode()) > DOMAIN_BYTES:
        yield field_errors.too_long(where, DOMAIN_BYTES)
    labels = domain.split(".")
    yield from _check_labels(where, domain, labels, name_validation.label_1123)
    if len(labels) < 2:
        yield field_errors.invalid(where, domain, "should be a domain with at least two segments separated by dots")
    yield from _check_labels(where, path, path.split("."), name_validation.subdomain)
    if len(name.encode()) > SIGNER_BYTES:
        yield field_errors.too_long(where, SIGNER_BYTES)


def _check_labels(
    where: str, whole: str, labels: Sequence[str], well_formed: name_validation.Check
) -> Iterator[FieldError]:
    """Yield the error of the first malformed label."""
    for label in labels:
        if wrong := well_formed(label):
            for why in wrong:
                yield field_errors.invalid(where, whole, f"validating label {field_errors.quoted(label)}: {why}")
            return


def _check_conditions(conditions: Sequence[Object]) -> Iterator[FieldError]:
    seen: list[str] = []
    for index, condition in enumerate(conditions):
        kind, status = condition["type"], condition["status"]
        if not kind:
            yield field_errors.required(f"{_CONDITIONS}[{index}].type")
        allowed = ["True"] if kind in _ONLY_TRUE else ["False", "True", "Unknown"]
        if not status:
            yield field_errors.required(f"{_CONDITIONS}[{index}].status")
        elif status not in allowed:
            yield field_errors.unsupported(f"{_CONDITIONS}[{index}].status", status, allowed)
        if {APPROVED: DENIED, DENIED: APPROVED}.get(kind) in seen:
            yield field_errors.invalid(_CONDITIONS, kind, "Approved and Denied conditions are mutually exclusive")
        if kind in seen:
            yield field_errors.duplicate(f"{_CONDITIONS}[{index}].type", kind)
        seen.append(kind)


def _wrong_certificate(text: bytes) -> str:
    """Return the reason why these are not certificates in PEM, '' if they are."""
    found: list[Any] = list(csr.pem_blocks(text))
    for block in found:
        if block.kind != csr.CERTIFICATE:
            return f'only CERTIFICATE PEM blocks are allowed, found "{block.kind}"'
        if block.headers:
            return "no PEM block headers are permitted"
        try:
            x509.load_der_x509_certificate(block.data)
        except (ValueError, x509.InvalidVersion):
            return "x509: malformed certificate"
    return "" if found else "must contain at least one CERTIFICATE PEM block"


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
    preserved = [condition for condition in before if condition["type"] == kind]
    places = [index for index, condition in enumerate(found) if condition["type"] == kind]
    if len(preserved) == len(places):
        for index, condition in zip(places, preserved, strict=True):
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
    BuiltInType(SHAPE, name_check=name_validation.path_segment, tracks_owners=False, decide=_decide, rules=check),
    short_names=("csr",),
    subresources={
        "approval": Subresource(_decide_approval, rules=check_removal),
        "status": Subresource(_decide_status, rules=check_status),
    },
    selectable={"spec.signerName": "spec.signerName"},
    columns=tuple(_columns()),
)
