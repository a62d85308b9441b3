"""What machina changes on the Node of a Machine, and on the Machine for it. Pure.

A Node gets the labels and taints that its Machine wants by kubelet, which registers it, and by the agent, which
follows. machina sees to the same, for the labels that neither of them may set, and for Nodes whose agent is away. All
decide by `join.node_marks`, so none takes back what another has done.

Labels are kept as they are wanted. Taints follow what is written and nothing else: one that somebody has taken off, as
its reason is over, is not put back. What goes is what machina has noted on the Node as its own; all else stays.
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
from unbounded.join.node_marks import (
    Marks,
    bound_version,
    label_changes,
    taint_key,
    taints_after,
    wanted_marks,
)
from unbounded.machina.machines.model import Action, SetNodeRef, UpdateNode
from unbounded.operations.gates import paused


class _Applied(msgspec.Struct, frozen=True):
    labels: dict[str, str] = {}
    taints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Configured:
    """The template that a Machine is bound to.

    Args:
        known: False where it names a configuration or a version that is not there.
    """

    template: MachineConfigurationTemplate | None = None
    known: bool = True


def configured(machine: Machine, versions: Iterable[MachineConfigurationVersion]) -> Configured:
    """What the configuration of a Machine says, from all versions of it: as the agent takes it, the version of its
    number, else the newest, and not the one that the Node was made from."""
    if machine.spec.configuration_ref is None:
        return Configured()
    version = bound_version(machine, versions)
    return Configured(known=False) if version is None else Configured(version.spec.template)


def node_actions(
    machine: Machine, node: Node, template: MachineConfigurationTemplate | None, pause: ConfigMap | None = None
) -> tuple[Action, ...]:
    """What to write for the Node of a Machine, which is to be one.

    A Node under another name, which only its label binds to the Machine, gets nothing of it: who registers a Node may
    write that label, and is not to get the labels of another Machine by it.

    Args:
        template: of the version that the Machine is bound to; None for one that is bound to none, or to what is not
            there: that leaves the Node as it is.
        pause: the ConfigMap that pauses all, or None.
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
        return actions  # it may be about to make another Node
    change = node_change(machine, node, template)
    return (*actions, UpdateNode(node.metadata.name, change)) if change else actions


def is_its(machine: Machine, node: Node) -> bool:
    """Whether a Node is that of the Machine: by its label, and without one by its name."""
    return node.metadata.labels.get(LABEL_MACHINE, node.metadata.name) == machine.name


def node_change(machine: Machine, node: Node, template: MachineConfigurationTemplate | None) -> dict[str, Any]:
    """The merge patch that brings a Node to what is wanted; empty when it is there. It rests on the version that was
    read, so that a change in between is a Conflict."""
    applied = _applied(node)
    before = applied or _Applied()
    wanted = wanted_marks(machine, template, Marks(before.labels, before.taints))
    labels = label_changes(node.metadata.labels, before.labels, wanted.labels or {})
    change: dict[str, Any] = {"metadata": {"labels": labels}} if labels else {}
    taints = _taints(node, applied, wanted.taints or ())
    if taints is not None:
        change["spec"] = {"taints": taints}
    now = _Applied(dict(wanted.labels or {}), wanted.taints or ())
    if now != applied:
        note = msgspec.json.encode(now, order="sorted").decode()
        change.setdefault("metadata", {})["annotations"] = {ANNOTATION_NODE_APPLIED: note}
    if change:
        change.setdefault("metadata", {})["resourceVersion"] = node.metadata.resource_version
    return change


def _taints(node: Node, applied: _Applied | None, wanted: tuple[str, ...]) -> list[Mapping[str, Any]] | None:
    """The taints as they are to be, or None where they are so. A Node that is new has those that it registered with,
    without those that were taken off since."""
    if applied is None:
        return None
    changed = tuple(taint for taint in wanted if taint not in applied.taints)
    gone = {taint_key(taint) for taint in applied.taints} - {taint_key(taint) for taint in wanted}
    there: list[Mapping[str, Any]] = [msgspec.to_builtins(taint) for taint in node.spec.taints]
    after = taints_after(there, tuple(taint for taint in applied.taints if taint_key(taint) in gone), changed)
    return None if after == there else after


def _applied(node: Node) -> _Applied | None:
    """What machina has noted on a Node as its own; None for one that it has not seen, or whose note is not one."""
    text = node.metadata.annotations.get(ANNOTATION_NODE_APPLIED)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=_Applied)
    except msgspec.DecodeError:
        return None
