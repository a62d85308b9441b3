"""The two sides of a disruption: its holder, and the marks that it leaves on the Node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from unbounded.api.core import Node, NodeCondition
from unbounded.api.disruption import HOLD, MAINTENANCE, DisruptionHolder, DisruptionStage, DisruptionStatus
from unbounded.api.fields import Evidence
from unbounded.api.machine import NODE_RECREATION, Machine, NodeUpdatePhase
from unbounded.api.names import ANNOTATION_CORDONED_BY
from unbounded.api.operation import MachineOperation, OperationKind, OperationPhase
from unbounded.operations import reasons
from unbounded.operations.claim_gates import in_maintenance, starts_on

SILENCE_S: Final = 300.0  # until the second attempt; each later one waits twice as long
_S = DisruptionStage


class HolderState(StrEnum):
    """The state of the holder of a disruption."""

    OPEN = "Open"  # it has not started
    CLAIMED = "Claimed"
    ENDED = "Ended"


@dataclass(frozen=True)
class HolderView:
    """The holder of a disruption as it is now.

    Args:
        has_acted: it has started, and not only taken the lock; None where that is not known.
        reboots: its end proves that the Node has another boot ID.
        removes_node: its end proves that the host runs the Node no longer.
    """

    state: HolderState
    has_acted: bool | None = False
    reboots: bool = False
    removes_node: bool = False


@dataclass(frozen=True)
class Delay:
    """The reason why nothing is granted now."""

    reason: str
    text: str
    held_by: str


def is_cordoned_by_us(node: Node) -> bool:
    """Return whether a disruption cordoned the Node; a cordon without the annotation is that of others."""
    return ANNOTATION_CORDONED_BY in node.metadata.annotations


def is_cordoned_for(node: Node, holder: DisruptionHolder) -> bool:
    """Return whether nothing is left to do for the cordon: it is the holder's, or that of others."""
    by = node.metadata.annotations.get(ANNOTATION_CORDONED_BY)
    return node.spec.unschedulable and by in (None, holder.uid)


DRAIN_IN_PROGRESS: Final = "DrainInProgress"
DRAINED: Final = "Drained"
MAINTENANCE_IN_PROGRESS: Final = "MaintenanceInProgress"
NODE_CONDITIONS: Final = (DRAIN_IN_PROGRESS, DRAINED, MAINTENANCE_IN_PROGRESS)
OURS: Final = "Unbounded"  # begins the reasons of the conditions that this controller sets

_TRUE: Final[Mapping[str, frozenset[str]]] = {
    _S.GRANTED: frozenset({DRAIN_IN_PROGRESS}),
    _S.CORDONED: frozenset({DRAIN_IN_PROGRESS}),
    _S.DRAINING: frozenset({DRAIN_IN_PROGRESS}),
    _S.DRAINED: frozenset({DRAINED, MAINTENANCE_IN_PROGRESS}),
    _S.WORKING: frozenset({DRAINED, MAINTENANCE_IN_PROGRESS}),
    _S.RETURNING: frozenset({DRAINED, MAINTENANCE_IN_PROGRESS}),
}


def node_conditions(node: Node, status: DisruptionStatus | None) -> tuple[NodeCondition, ...]:
    """Return the conditions of a Node to set for a stage. Those that another controller has set to True stay."""
    present = {one.type: one for one in node.status.conditions}
    true = frozenset[str]() if status is None else _TRUE.get(status.stage, frozenset())
    if status is not None and status.stage == _S.RETURNING and not status.worked:
        true = frozenset()
    if not node.spec.unschedulable:
        true -= {DRAINED}  # it may have pods: nothing has drained it, or a user uncordoned it
    left = None if status is None or DRAINED not in true else status.drain
    changes = []
    for type_ in NODE_CONDITIONS:
        there = present.get(type_)
        is_ours = there is not None and (there.reason or "").startswith(OURS)
        if there is not None and there.status == "True" and not is_ours:
            continue
        if type_ in true and status is not None:
            reason, text, is_true = f"{OURS}{status.holder.kind}", str(status.holder), "True"
            if type_ == DRAINED and left is not None:
                is_true, text = "False", f"{pods_are_left(left.left)} as {text} starts"
            if there is None or (there.status, there.reason, there.message) != (is_true, reason, text):
                changes.append(NodeCondition(type=type_, status=is_true, reason=reason, message=text))
        elif there is not None and (there.status == "True" or (is_ours and there.message)):
            changes.append(NodeCondition(type=type_, status="False", reason=there.reason, message=""))
    return tuple(changes)


def pods_are_left(left: int) -> str:
    """Return a clause about the pods that are left on a Node.

    Args:
        left: their number; 0 where it is not known.
    """
    return "pods may be left" if not left else "1 pod is left" if left == 1 else f"{left} pods are left"


def foreign_maintenance(node: Node | None) -> Delay | None:
    """Return the delay by a maintenance or drain that another controller has announced on the Node."""
    for one in () if node is None else node.status.conditions:
        is_foreign = one.status == "True" and not (one.reason or "").startswith(OURS)
        if node is not None and one.type in NODE_CONDITIONS and is_foreign:
            name = node.metadata.name
            text = (
                f"another controller works on Node {name}: condition {one.type} is True ({one.reason}: {one.message})"
            )
            return Delay(reasons.FOREIGN_MAINTENANCE, text, f"condition {one.type} of Node {name}")
    return None


def hold_of(node: Node | None) -> Delay | None:
    """Return the delay by applications that hold the drain of the Node."""
    holds = () if node is None else sorted(one for one in node.metadata.annotations if one.startswith(HOLD))
    if node is None or not holds:
        return None
    name = node.metadata.name
    text = f"the drain of Node {name} waits until these annotations of it are removed: {', '.join(holds)}"
    return Delay(reasons.WAITING_FOR_HOLD, text, f"annotation {holds[0]} of Node {name}")


def maintenance_holder(machine: Machine) -> DisruptionHolder:
    return DisruptionHolder(kind=MAINTENANCE, name=machine.name, uid=machine.metadata.uid)


def update_holder(machine: Machine) -> DisruptionHolder | None:
    """Return the rolling update of a Machine's Node that wants the Node to be drained; None where none does."""
    update = machine.status.node_update
    if update is None or update.phase != NodeUpdatePhase.DRAINING or machine.metadata.deletion_timestamp is not None:
        return None
    return DisruptionHolder(kind=NODE_RECREATION, name=update.version, uid=update.uid)


def holder_of(operation: MachineOperation) -> DisruptionHolder:
    kind = operation.spec.operation_kind
    return DisruptionHolder(kind=kind, name=operation.name, uid=operation.metadata.uid)


_REBOOTS: Final = frozenset({OperationKind.HOST_REBOOT, OperationKind.HOST_REPLACE, OperationKind.NODE_REBOOT})
_REMOVES_NODE: Final = frozenset({OperationKind.AGENT_RESET, OperationKind.HOST_ERASE})


def view_holder(holder: DisruptionHolder, machine: Machine, operation: MachineOperation | None) -> HolderView:
    """Return the state of the holder.

    Args:
        operation: the holder, unless it is maintenance or an update; None where the object is gone.
    """
    if holder.kind == NODE_RECREATION:
        return _view_update(holder, machine)
    if holder.kind == MAINTENANCE:
        return HolderView(HolderState.OPEN if in_maintenance(machine) else HolderState.ENDED, has_acted=False)
    known = next((one for one in machine.status.recent_operations if one.uid == holder.uid), None)
    if operation is None:
        return _view_ended(holder.kind, None if known is None else known.phase, acted=None)
    active = machine.status.active_operation
    has_lock = active is not None and active.uid == holder.uid
    if operation.terminal:
        return _view_ended(holder.kind, operation.status.phase, acted=operation.status.execution is not None)
    if operation.claimed or has_lock:
        return HolderView(HolderState.CLAIMED, has_acted=operation.claimed)
    if known is not None:  # the watch of operations is late
        return _view_ended(holder.kind, known.phase, acted=None)
    return HolderView(HolderState.OPEN) if starts_on(operation, machine) else HolderView(HolderState.ENDED)


def _view_ended(kind: str, phase: str | None, *, acted: bool | None) -> HolderView:
    complete = phase == OperationPhase.COMPLETE
    return HolderView(HolderState.ENDED, acted, complete and kind in _REBOOTS, complete and kind in _REMOVES_NODE)


_UPDATES: Final[Mapping[str, HolderState]] = {
    NodeUpdatePhase.DRAINING: HolderState.OPEN,
    NodeUpdatePhase.RECREATING: HolderState.CLAIMED,
}


def _view_update(holder: DisruptionHolder, machine: Machine) -> HolderView:
    update = machine.status.node_update
    if update is None or update.uid != holder.uid:
        return HolderView(HolderState.ENDED, has_acted=None)
    return HolderView(_UPDATES.get(update.phase, HolderState.ENDED), has_acted=update.node_uid is not None)


def started_change(machine: Machine, uid: str, now: str) -> dict[str, Any]:
    """Return the status fields with which the holder of a drained Node starts its work; empty for any other one.

    Whoever starts writes them with what makes the start known, so that they cost no write of their own.
    """
    record = machine.status.disruption
    if record is None or record.holder.uid != uid or record.stage != _S.DRAINED:
        return {}
    return {"disruption": {"stage": _S.WORKING, "since": now}}


def drain_failure(operation: MachineOperation, machine: Machine) -> str | None:
    """Return the message with which an operation fails whose drain has timed out; None where none has."""
    record = machine.status.disruption
    if record is None or record.holder.uid != operation.metadata.uid or record.reason != reasons.DRAIN_TIMED_OUT:
        return None
    return record.message or "the drain of the Node timed out"


def override_text(operation: MachineOperation, record: DisruptionStatus) -> str:
    """Return a clause about the budgets over which an operation was granted."""
    return f"granted over MachineDisruptionBudget {', '.join(record.budgets)}: {operation.spec.override}"


def override_evidence(operation: MachineOperation, machine: Machine, at: str) -> tuple[Evidence, ...]:
    """Return the evidence that the operation was granted over a disruption budget; empty where it was not."""
    record = machine.status.disruption
    if record is None or record.holder.uid != operation.metadata.uid or not record.overridden:
        return ()
    return (Evidence(what=override_text(operation, record), at=at, where=f"Machine {machine.name} status.disruption"),)


def pause_s(silences: int) -> float:
    """Return the seconds until the next drain after one without a claim.

    Args:
        silences: drains without a claim before that one.
    """
    return SILENCE_S * 2.0 ** min(silences, 10)


def silent_s(operation: MachineOperation, machine: Machine, stage_s: float) -> float | None:
    """Return the seconds of the start deadline that pauses after drains without a claim have used; None without a
    disruption of the operation.

    Args:
        stage_s: since the disruption entered its stage.
    """
    record = machine.status.disruption
    if record is None or record.holder.uid != operation.metadata.uid:
        return None
    pauses = [pause_s(number) for number in range(record.silences)]
    if pauses and record.reason == reasons.EXECUTOR_SILENT:
        return sum(pauses[:-1]) + min(stage_s, pauses[-1])
    return sum(pauses)
