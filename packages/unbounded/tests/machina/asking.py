"""Requests for certificates, as agents and kubelets make them and as attackers do."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from unbounded.api.core import CertificateRequest
from unbounded.api.machine import Machine
from unbounded.api.names import GROUP_AGENTS, GROUP_BOOTSTRAP, GROUP_NODES, SIGNER_AGENT, SIGNER_KUBELET
from unbounded.join.bootstrap_tokens import machine_group

USAGES = ("client auth", "digital signature")
JOINERS = ("system:bootstrappers", "system:authenticated", GROUP_BOOTSTRAP)
KEY = ec.generate_private_key(ec.SECP256R1())
SIGNERS = {"agent": (SIGNER_AGENT, GROUP_AGENTS), "kubelet": (SIGNER_KUBELET, GROUP_NODES)}


def pem(
    *names: str,
    organizations: Sequence[str] = (),
    alternative: Sequence[x509.GeneralName] = (),
    unit: str = "",
    more: Sequence[x509.ExtensionType] = (),
    key: ec.EllipticCurvePrivateKey = KEY,
) -> bytes:
    """A request for a certificate, with these common names."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, one) for one in organizations]
    attributes += [x509.NameAttribute(NameOID.COMMON_NAME, one) for one in names]
    attributes += [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)] if unit else []
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(attributes))
    if alternative:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternative), critical=False)
    for extension in more:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def asked_for(machine: str, purpose: str = "agent", *, key: ec.EllipticCurvePrivateKey = KEY) -> bytes:
    return pem(f"system:node:{machine}", organizations=(SIGNERS[purpose][1],), key=key)


def body(name: str, text: bytes, purpose: str = "agent", *, usages: Sequence[str] = USAGES) -> dict[str, Any]:
    """A CertificateSigningRequest, as a client sends it."""
    spec = {"request": base64.b64encode(text).decode(), "signerName": SIGNERS[purpose][0], "usages": list(usages)}
    return {"metadata": {"name": name}, "spec": spec}


def request_of(
    text: bytes | None = None,
    purpose: str = "agent",
    *,
    machine: str = "m1",
    name: str = "csr-1",
    user: str = "system:bootstrap:abcdef",
    groups: Sequence[str] = JOINERS,
    usages: Sequence[str] = USAGES,
    **more: Any,
) -> CertificateRequest:
    """A request as the server keeps it."""
    made = body(name, asked_for(machine, purpose) if text is None else text, purpose, usages=usages)
    made["metadata"]["uid"] = f"uid-{name}"
    made["spec"] |= {"username": user, "groups": list(groups), **more.get("spec", {})}
    made["status"] = more.get("status", {})
    return msgspec.convert(made, CertificateRequest)


def token_of(*uids: str) -> tuple[str, ...]:
    """The groups of a token that was made for these Machines."""
    return (*JOINERS, *map(machine_group, uids))


def machine_of(name: str = "m1", *, uid: str = "", metadata: Any = None, status: Any = None, **spec: Any) -> Machine:
    meta = {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": "1", **(metadata or {})}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status or {}}, Machine)


def use(cause: str, purpose: str = "agent", request: str = "uid-before") -> dict[str, str]:
    return {"purpose": purpose, "cause": cause, "request": request, "at": "2030-01-01T00:00:00Z"}


def used(*uses: dict[str, str]) -> dict[str, Any]:
    return {"join": {"used": list(uses)}}


def recent(kind: str, uid: str, phase: str = "Complete", *seen: str, reason: str | None = None) -> dict[str, Any]:
    evidence = [{"what": what, "at": "2030-01-01T00:00:00Z", "where": "somewhere"} for what in seen]
    return {"name": uid, "uid": uid, "kind": kind, "phase": phase, "reason": reason, "evidence": evidence}


def active(kind: str, uid: str, executor: str = "metalman/lab") -> dict[str, str]:
    return {"name": uid, "uid": uid, "kind": kind, "executor": executor, "since": "2030-01-01T00:00:00Z"}
