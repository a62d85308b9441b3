"""Fields of the host's Machine that a Machine of cluster.k8s.io decides, as far as they differ. Pure."""

from __future__ import annotations

from typing import Any, Final

from unbounded.api.container_cloud.machine import MachineExecution
from unbounded.api.container_cloud.names import LABEL_UPGRADE_INDEX
from unbounded.api.machine import Machine
from unbounded.containercloud.cluster_plan import claim_labels
from unbounded.containercloud.hosts.adoption import maintenance_reasons, record_change, record_of
from unbounded.containercloud.machines.model import MachineView
from unbounded.containercloud.releases import image_reference

CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"
CONTROL_PLANE_TAINT: Final = f"{CONTROL_PLANE}=:NoSchedule"


def image_of(view: MachineView) -> str | None:
    """Return the image of the Machine's distribution; None for a distribution that the release does not have."""
    found = None if view.release is None else view.release.distribution(view.machine.value.distribution or "")
    return None if found is None else image_reference(found)


def desired_labels(view: MachineView) -> dict[str, str]:
    """Return the labels of the Node: those of nodeLabels, and its role."""
    role = {CONTROL_PLANE: ""} if view.machine.is_manager else {}
    return {one.key: one.value for one in view.machine.value.node_labels} | role


def desired_taints(view: MachineView) -> tuple[str, ...] | None:
    """Return the taints of a manager's Node; None for a worker, whose taints others decide."""
    if not view.machine.is_manager or view.cluster is None:
        return None
    return (CONTROL_PLANE_TAINT,) if view.cluster.value.dedicated_control_plane else ()


def target_changes(view: MachineView, execution: MachineExecution) -> dict[str, Any]:
    """Return the patch of the target's spec with the fields of the claim that differ; empty if it has them all."""
    target = view.target
    if target is None or execution.host is None or view.cluster is None:
        return {}
    patch: dict[str, Any] = {}
    pxe = target.spec.pxe
    image = None if view.adopted else image_of(view)
    if image is not None and pxe is not None and pxe.image != image:
        patch["pxe"] = {"image": image}
    if view.handover:
        patch["pxe"] = {**patch.get("pxe", {}), **view.handover}
    if kubernetes := _kubernetes_changes(view, target):
        patch["kubernetes"] = kubernetes
    if maintenance := maintenance_change(view, target, enabled=view.machine.value.maintenance):
        patch["maintenance"] = maintenance
    return patch


def label_changes(view: MachineView, execution: MachineExecution) -> dict[str, str | None]:
    """Return the labels by which the Cluster selects the target, as far as it lacks them.

    A host that others have installed has no place in the order of updates.
    """
    target, index = view.target, view.upgrade_index
    if target is None or execution.host is None or view.cluster is None or index is None:
        return {}
    labels: dict[str, str | None] = {**claim_labels(view.machine, index)}
    if view.adopted:
        labels[LABEL_UPGRADE_INDEX] = None
    return {key: value for key, value in labels.items() if target.metadata.labels.get(key) != value}


def record_of_claim(view: MachineView) -> dict[str, str]:
    """Return the annotation of an adopted target with its fields before the claim, if it lacks that."""
    return record_change(view.target, view.full_name) if view.adopted and view.target is not None else {}


def _kubernetes_changes(view: MachineView, target: Machine) -> dict[str, Any]:
    kubernetes, labels, taints = target.spec.kubernetes, desired_labels(view), desired_taints(view)
    if view.adopted:  # beside its own
        own = record_of(target)
        labels = {**(own.node_labels or {}), **labels}
        more = tuple(one for one in taints or () if one not in (own.register_with_taints or ()))
        taints = (*(own.register_with_taints or ()), *more) if more else own.register_with_taints
    known = (kubernetes.node_labels if kubernetes is not None else None) or {}
    changes: dict[str, Any] = {}
    differing = {key: labels.get(key) for key in {*known, *labels} if known.get(key) != labels.get(key)}
    is_absent = kubernetes is None or (kubernetes.node_labels is None and not view.adopted)
    if is_absent or differing:
        changes["nodeLabels"] = dict(sorted(differing.items()))
    present = None if kubernetes is None else kubernetes.register_with_taints
    if present != taints:
        changes["registerWithTaints"] = None if taints is None else list(taints)
    token = view.host.bootstrap_token if view.host is not None else ""
    named = kubernetes.bootstrap_token_ref if kubernetes is not None else None
    if token and (named is None or named.name != token):
        changes["bootstrapTokenRef"] = {"name": token}
    return changes


def maintenance_change(
    view: MachineView, target: Machine, *, enabled: bool, purpose: str = "maintenance"
) -> dict[str, Any] | None:
    """Return the patch of the target's maintenance; None if it is as desired. Another's maintenance stays."""
    present = target.spec.maintenance
    is_enabled = present is not None and present.enabled
    if enabled:
        return None if is_enabled else {"enabled": True, "reason": f"{purpose} of {view.full_name}"}
    ours = set(maintenance_reasons(view.full_name))
    if view.adopted:  # one that an earlier claim has requested too late
        ours |= set(maintenance_reasons(record_of(target).claimant))
    is_ours = is_enabled and present is not None and present.reason in ours
    return {"enabled": False, "reason": None} if is_ours else None
