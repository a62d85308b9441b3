"""A host that others have installed: the fields of its Machine that a claim changes, and their return. Pure.

The claim records them in an annotation of the Machine, in the write that changes them. Nothing else of the Machine
belongs to a claim of such a host: not its image, its profile, its configuration or its network.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from unbounded.api.container_cloud.host import BareMetalHost
from unbounded.api.container_cloud.names import (
    ANNOTATION_BEFORE_CLAIM,
    LABEL_CLAIM_CLUSTER,
    LABEL_CLAIM_ROLE,
    LABEL_UPGRADE_INDEX,
)
from unbounded.api.machine import Machine

CLAIM_LABELS: Final = (LABEL_CLAIM_CLUSTER, LABEL_CLAIM_ROLE, LABEL_UPGRADE_INDEX)


class AdoptionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The claim of an adopted Machine, and its fields before that.

    Args:
        claimant: NAMESPACE/NAME of the Machine of cluster.k8s.io.
        token: name of the bootstrap token.
    """

    claimant: str
    node_labels: dict[str, str] | None = None
    register_with_taints: tuple[str, ...] | None = None
    token: str | None = None


def leaves_as_is(host: BareMetalHost | None, machine: Machine | None) -> bool:
    """Return whether a claim leaves the host as it is: one that others have installed, also if it is gone since."""
    if host is not None:
        return host.spec.externally_provisioned
    return machine is not None and ANNOTATION_BEFORE_CLAIM in machine.metadata.annotations


def record_of(machine: Machine) -> AdoptionRecord:
    """Return the record of a Machine; that of its present fields where it has none, or one that cannot be read."""
    try:
        return msgspec.json.decode(machine.metadata.annotations.get(ANNOTATION_BEFORE_CLAIM, ""), type=AdoptionRecord)
    except msgspec.MsgspecError:
        pass
    kubernetes = machine.spec.kubernetes
    if kubernetes is None:
        return AdoptionRecord(claimant="")
    token = kubernetes.bootstrap_token_ref
    return AdoptionRecord(
        claimant="",
        node_labels=None if kubernetes.node_labels is None else dict(kubernetes.node_labels),
        register_with_taints=kubernetes.register_with_taints,
        token=None if token is None else token.name,
    )


def record_change(machine: Machine, claimant: str) -> dict[str, str]:
    """Return the annotation with the record of a claim; empty where the Machine has it."""
    record = replace(record_of(machine), claimant=claimant)
    text = msgspec.json.encode(record, order="deterministic").decode()
    return {} if machine.metadata.annotations.get(ANNOTATION_BEFORE_CLAIM) == text else {ANNOTATION_BEFORE_CLAIM: text}


def maintenance_reasons(claimant: str) -> tuple[str, str]:
    """Return the reasons of the maintenance that a Machine of cluster.k8s.io requests of its host."""
    return f"maintenance of {claimant}", f"deletion of {claimant}"


def claim_marks(machine: Machine | None) -> tuple[str, ...]:
    """Return the paths of the marks of a claim that are left on an adopted Machine."""
    if machine is None:
        return ()
    meta = machine.metadata
    labels = tuple(f"metadata.labels/{key}" for key in CLAIM_LABELS if key in meta.labels)
    is_recorded = ANNOTATION_BEFORE_CLAIM in meta.annotations
    return (*labels, *((f"metadata.annotations/{ANNOTATION_BEFORE_CLAIM}",) if is_recorded else ()))


def given_back(machine: Machine) -> dict[str, Any]:
    """Return the fields of an adopted Machine as they were before its claim, by path; the record goes with them.

    Labels and taints of the Node become empty where they were absent: an absent field would leave those of the claim.
    """
    fields: dict[str, Any] = dict.fromkeys(claim_marks(machine))
    if ANNOTATION_BEFORE_CLAIM not in machine.metadata.annotations:
        return fields
    record, kubernetes, maintenance = record_of(machine), machine.spec.kubernetes, machine.spec.maintenance
    if kubernetes is not None:
        known, labels = kubernetes.node_labels or {}, record.node_labels or {}
        token = kubernetes.bootstrap_token_ref
        if known != labels:
            fields["spec.kubernetes/nodeLabels"] = {key: None for key in known if key not in labels} | labels
        if (kubernetes.register_with_taints or ()) != (record.register_with_taints or ()):
            fields["spec.kubernetes/registerWithTaints"] = list(record.register_with_taints or ())
        if (None if token is None else token.name) != record.token:
            fields["spec.kubernetes/bootstrapTokenRef"] = None if record.token is None else {"name": record.token}
    is_ours = maintenance is not None and maintenance.reason in maintenance_reasons(record.claimant)
    if maintenance is not None and (is_ours or not maintenance.enabled):
        fields["spec/maintenance"] = None
    return fields
