"""Validation of CertificateSigningRequests, worded as by Kubernetes."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any, Final

from cryptography import x509

from unbounded_apiserver import field_errors, name_validation
from unbounded_apiserver.certificates import csr, pem, signers
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.types import Object

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
    found: list[Any] = list(pem.blocks(text))
    for block in found:
        if block.kind != pem.CERTIFICATE:
            return f'only CERTIFICATE PEM blocks are allowed, found "{block.kind}"'
        if block.headers:
            return "no PEM block headers are permitted"
        try:
            x509.load_der_x509_certificate(block.data)
        except (ValueError, x509.InvalidVersion):
            return "x509: malformed certificate"
    return "" if found else "must contain at least one CERTIFICATE PEM block"
