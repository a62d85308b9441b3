"""Changes on the Node of a Machine, and on the Machine because of its Node. Pure.

A Node gets the labels and taints of its Machine from kubelet at its registration, and later from the agent. machina
adds the labels that neither of them may set, and acts for Nodes whose agent is missing. All three decide by
`join.labels_and_taints`, so none reverts the change of another.

Labels are reconciled. A taint follows only changes of its source: a taint that another actor removed, as its reason is
over, is not set again. machina removes only what an annotation of the Node records as its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from unbounded.api.configuration import MachineConfigurationTemplate, MachineConfigurationVersion
from unbounded.api.core import ConfigMap, Node
from unbounded.api.machine import Machine
from unbounded.api.names import ANNOTATION_NODE_APPLIED, LABEL_MACHINE
from unbounded.join import labels_and_taints
from unbounded.machina.machines.model import Action, SetNodeRef, UpdateNode
from unbounded.operations.claim_gates import paused


class _Applied(msgspec.Struct, frozen=True):
    labels: dict[str, str] = {}
    taints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Configured:
    """Template that a Machine is bound to.

    Args:
        known: False if the Machine names a configuration or a version that does not exist.
    """

    template: MachineConfigurationTemplate | None = None
    known: bool = True


def configured(machine: Machine, versions: Iterable[MachineConfigurationVersion]) -> Configured:
    """Return the template of a Machine from all versions of its configuration.

    As for the agent: the version of the named number, else the newest one, and not the one of the current Node.
    """
    if machine.spec.configuration_ref is None:
        return Configured()
    version = labels_and_taints.bound_version(machine, versions)
    return Configured(known=False) if version is None else Configured(version.spec.template)


def node_actions(
    machine: Machine, node: Node, template: MachineConfigurationTemplate | None, pause: ConfigMap | None = None
) -> tuple[Action, ...]:
    """Return the writes for the Node of a Machine with `spec.kubernetes`.

    A Node under another name, which only its label binds to the Machine, gets nothing: a client that registers a
    Node may write that label and must not obtain another Machine's labels by it.

    Args:
        template: of the version that the Machine is bound to; None without a binding. A binding to a missing version
            leaves the Node unchanged.
        pause: the ConfigMap that pauses all Machines, or None.
    """
    if machine.spec.kubernetes is None or not is_its(machine, node):
        return ()
    ref = machine.spec.kubernetes.node_ref
    actions: tuple[Action, ...] = ()
    if ref is None or ref.name != node.metadata.name:
        actions = (SetNodeRef(node.metadata.name),)
    unknown = machine.spec.configuration_ref is not None and template is None
    if unknown or node.metadata.name != machine.name or node.metadata.deletion_timestamp:
        return actions
    if paused(machine, pause) is not None:
        return actions
    if machine.status.active_operation is not None and not machine.status.active_operation.lost:
        return actions  # the agent may be about to recreate the Node
    change = node_change(machine, node, template)
    return (*actions, UpdateNode(node.metadata.name, change)) if change else actions


def is_its(machine: Machine, node: Node) -> bool:
    """Return whether a Node belongs to the Machine: by its label, or without a label by its name."""
    return node.metadata.labels.get(LABEL_MACHINE, node.metadata.name) == machine.name


def node_change(machine: Machine, node: Node, template: MachineConfigurationTemplate | None) -> dict[str, Any]:
    """Return the merge patch that brings a Node to the desired labels and taints; empty if none is needed.

    The patch names the version that was read, so that a change in between is a Conflict.
    """
    applied = _applied(node)
    before = applied or _Applied()
    desired = labels_and_taints.desired_marks(
        machine, template, labels_and_taints.LabelsAndTaints(before.labels, before.taints)
    )
    labels = labels_and_taints.label_changes(node.metadata.labels, before.labels, desired.labels or {})
    change: dict[str, Any] = {"metadata": {"labels": labels}} if labels else {}
    taints = _taints(node, applied, desired.taints or ())
    if taints is not None:
        change["spec"] = {"taints": taints}
    now = _Applied(dict(desired.labels or {}), desired.taints or ())
    if now != applied:
        note = msgspec.json.encode(now, order="sorted").decode()
        change.setdefault("metadata", {})["annotations"] = {ANNOTATION_NODE_APPLIED: note}
    if change:
        change.setdefault("metadata", {})["resourceVersion"] = node.metadata.resource_version
    return change


def _taints(node: Node, applied: _Applied | None, desired: tuple[str, ...]) -> list[Mapping[str, Any]] | None:
    """Return the taints to write, or None if they need no change.

    A new Node keeps the taints of its registration, without those that were removed since.
    """
    if applied is None:
        return None
    changed = tuple(taint for taint in desired if taint not in applied.taints)
    removed = {labels_and_taints.taint_key(taint) for taint in applied.taints} - {
        labels_and_taints.taint_key(taint) for taint in desired
    }
    there: list[Mapping[str, Any]] = [msgspec.to_builtins(taint) for taint in node.spec.taints]
    after = labels_and_taints.taints_after(
        there, tuple(taint for taint in applied.taints if labels_and_taints.taint_key(taint) in removed), changed
    )
    return None if after == there else after


def _applied(node: Node) -> _Applied | None:
    """Return what a Node's annotation records as set by machina; None without a valid annotation."""
    text = node.metadata.annotations.get(ANNOTATION_NODE_APPLIED)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=_Applied)
    except msgspec.DecodeError:
        return None
