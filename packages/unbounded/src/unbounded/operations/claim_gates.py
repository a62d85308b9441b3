"""Gates of a claim: pause, older operations, the Machine's lock, its drain. The closed gate is the wait reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from unbounded.api.conditions import ConditionType
from unbounded.api.core import ConfigMap
from unbounded.api.disruption import DisruptionStage, DrainMode
from unbounded.api.machine import NODE_RECREATION, ActiveOperation, Machine
from unbounded.api.names import (
    ANNOTATION_MACHINE_UID,
    ANNOTATION_PAUSED,
    CONFIGMAP_OPERATIONS,
    FINALIZER_RESET,
    LEASE_DISRUPTION,
)
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.operations import reasons
from unbounded.operations.executor_selection import ExecutorKind, bmc_of, executor_of

NO_PROGRESS_S: Final = 60.0
_HOST_KINDS: Final = frozenset(kind for kind in OperationKind if kind.is_out_of_band)


@dataclass(frozen=True)
class Gate:
    """A closed gate: reason, message and holder."""

    reason: str
    text: str
    held_by: str


def order(operation: MachineOperation) -> tuple[str, str]:
    """Return the sort key of fairness: creation time, then name."""
    return (operation.metadata.creation_timestamp or "", operation.name)


def is_host(operation: MachineOperation) -> bool:
    return OperationKind(operation.spec.operation_kind).is_out_of_band


def overtakes(operation: MachineOperation, older: MachineOperation) -> bool:
    """Return whether an operation overtakes an older one: a host operation overtakes an unclaimed agent operation."""
    return is_host(operation) and not is_host(older) and not older.claimed


def closed_gate(
    operation: MachineOperation,
    machine: Machine,
    others: Iterable[MachineOperation],
    pause: ConfigMap | None,
    sharing: Iterable[Machine] = (),
) -> Gate | None:
    """Return the first gate that blocks the operation; None when it may be claimed.

    Args:
        others: the operations on the same Machine.
        pause: ConfigMap `unbounded-operations`, when there is one.
        sharing: other Machines with the same BMC and system.
    """
    return grant_gate(operation, machine, others, pause, sharing) or disruption_gate(operation, machine)


def grant_gate(
    operation: MachineOperation,
    machine: Machine,
    others: Iterable[MachineOperation],
    pause: ConfigMap | None,
    sharing: Iterable[Machine] = (),
) -> Gate | None:
    """Return the first gate that blocks the operation beside that of its disruption, which is granted after it."""
    return (
        paused(machine, pause)
        or _older(operation, machine, others)
        or _lock_held(operation, machine, others)
        or target_in_use(operation, machine, sharing)
    )


def needs_grant(operation: MachineOperation, machine: Machine) -> bool:
    """Return whether the operation starts only once the disruption controller lets it."""
    if not OperationKind(operation.spec.operation_kind).is_disruptive:
        return False
    if machine.status.disruption_budgets:
        return True
    mode = DrainMode.AUTO if operation.spec.drain is None else operation.spec.drain.mode
    return mode == DrainMode.ALWAYS or (mode == DrainMode.AUTO and in_maintenance(machine))


def ignores_grants(operation: MachineOperation, machine: Machine) -> str | None:
    """Return the message for an operation whose agent starts it without the grant or the drain that it needs, as an
    earlier version does; None where the agent waits.

    The reset of a Machine that is being deleted does not wait for an upgrade, nor does an override without a drain.
    """
    kind, agent = OperationKind(operation.spec.operation_kind), machine.status.agent
    if agent is None or not agent.version or agent.waits_for_grants or not needs_grant(operation, machine):
        return None
    if executor_of(kind, machine) is not ExecutorKind.AGENT or machine.metadata.deletion_timestamp:
        return None
    drains = operation.spec.drain is not None and operation.spec.drain.mode == DrainMode.ALWAYS
    if operation.spec.override is not None and not drains:
        return None
    return (
        f"the agent of Machine {machine.name} has version {agent.version}, which starts {kind} without waiting for its "
        "grant or drain: upgrade the agent first"
    )


def in_maintenance(machine: Machine) -> bool:
    return machine.spec.maintenance is not None and machine.spec.maintenance.enabled


def disruption_gate(operation: MachineOperation, machine: Machine) -> Gate | None:
    """Return the gate of an operation that needs a drained Node; it depends on the Machine alone.

    Within the maintenance of its Machine, an operation needs no grant of its own.
    """
    if not needs_grant(operation, machine):
        return None
    disruption = machine.status.disruption
    if disruption is None:
        budgets = ", ".join(machine.status.disruption_budgets)
        grants = f" with a grant of MachineDisruptionBudget {budgets}" if budgets else " once its Node is drained"
        text = f"it starts{grants}; machina has not handled it yet"
        return Gate(reasons.WAITING_FOR_DRAIN, text, f"Lease {LEASE_DISRUPTION}")
    is_own = disruption.holder.uid == operation.metadata.uid
    if is_own and disruption.stage in (DisruptionStage.DRAINED, DisruptionStage.WORKING):  # it has the lock already
        return None
    if disruption.holder.uid == machine.metadata.uid and disruption.stage == DisruptionStage.DRAINED:
        return None
    text = disruption.message or f"{disruption.holder} is in stage {disruption.stage}"
    return Gate(disruption.reason or reasons.WAITING_FOR_DRAIN, text, disruption.held_by or f"Node {machine.name}")


def rests_deadline(gate: Gate, machine: Machine) -> bool:
    """Return whether startDeadlineSeconds rests behind the gate: a drain has a limit of its own, and what waits for the
    older operation that drains waits for that.
    """
    record = machine.status.disruption
    if gate.reason != reasons.WAITING_FOR_OLDER or record is None:
        return gate.reason in RESTING
    return record.stage in DRAINS or (record.stage == DisruptionStage.WAITING and record.reason in RESTING)


DRAINS: Final = frozenset({DisruptionStage.GRANTED, DisruptionStage.CORDONED, DisruptionStage.DRAINING})


RESTING: Final = frozenset(
    {
        reasons.FOREIGN_MAINTENANCE,
        reasons.WAITING_FOR_BUDGET,
        reasons.WAITING_FOR_DRAIN,
        reasons.WAITING_FOR_HOLD,
    }
)


def starts_on(operation: MachineOperation, machine: Machine) -> bool:
    """Return whether an operation may start on the Machine; one that is being deleted admits only the reset it waits
    for.
    """
    if not machine.metadata.deletion_timestamp:
        return True
    return FINALIZER_RESET in machine.metadata.finalizers and operation.spec.operation_kind == OperationKind.AGENT_RESET


def paused(machine: Machine, pause: ConfigMap | None) -> Gate | None:
    """Return the gate of a pause, of the Machine or of all operations; None where nothing is paused."""
    if is_paused(machine.metadata.annotations):
        holder = f"Machine {machine.name}"
        return Gate(reasons.PAUSED, f"paused by annotation {ANNOTATION_PAUSED} on {holder}", holder)
    if pause is not None and is_paused(pause.metadata.annotations):
        holder = f"ConfigMap {CONFIGMAP_OPERATIONS}"
        return Gate(reasons.PAUSED, f"all operations are paused by annotation {ANNOTATION_PAUSED} on {holder}", holder)
    return None


def is_paused(annotations: dict[str, str]) -> bool:
    """Return whether the annotation pauses: any value except `false` does."""
    return annotations.get(ANNOTATION_PAUSED, "false").lower() != "false"


def is_meant_for(operation: MachineOperation, machine: Machine) -> bool:
    """Return whether the operation may act on this Machine: its UID annotation, if it has one, matches.

    A mismatch names an earlier Machine of the same name.
    """
    return operation.metadata.annotations.get(ANNOTATION_MACHINE_UID, machine.metadata.uid) == machine.metadata.uid


def _older(operation: MachineOperation, machine: Machine, others: Iterable[MachineOperation]) -> Gate | None:
    """Return the gate of an older operation; None where none blocks.

    An operation that holds the lock already does not wait for unclaimed ones: those wait for the lock.
    """
    holder = machine.status.active_operation
    has_lock = holder is not None and holder.uid == operation.metadata.uid
    older = [
        other
        for other in others
        if order(other) < order(operation)
        and not other.terminal
        and other.metadata.uid != operation.metadata.uid
        and (other.claimed or (not has_lock and not other.metadata.deletion_timestamp and starts_on(other, machine)))
        and not overtakes(operation, other)
    ]
    if not older:
        return None
    first = min(older, key=order)
    kind, phase = first.spec.operation_kind, first.status.phase or "Pending"
    return Gate(reasons.WAITING_FOR_OLDER, f"waiting for the older {kind} {first.name} ({phase})", first.name)


def _lock_held(operation: MachineOperation, machine: Machine, others: Iterable[MachineOperation]) -> Gate | None:
    holder = machine.status.active_operation
    if holder is None or holder.uid == operation.metadata.uid:
        return None
    if not holder.lost and any(other.metadata.uid == holder.uid and other.terminal for other in others):
        return None
    gate = lock_gate(machine, holder)
    if not is_recreation(holder) or not is_host(operation):
        return gate
    return replace(gate, text=f"{gate.text}; the holder gives way after {NO_PROGRESS_S:.0f} s without progress")


def gives_way(gate: Gate, operation: MachineOperation, machine: Machine) -> bool:
    """Return whether the gate is a lock that only a claim can open: its holder is lost, or may hang."""
    holder = machine.status.active_operation
    if gate.reason != reasons.SLOT_HELD or holder is None:
        return False
    return holder.lost or (is_recreation(holder) and is_host(operation))


def lock_gate(machine: Machine, holder: ActiveOperation) -> Gate:
    """Return the gate of a lock that another holder has."""
    lost = "; its executor is lost, so the next executor observes the host before it acts" if holder.lost else ""
    text = (
        f"{holder.kind} {holder.name} ({holder.executor}) holds the lock of Machine {machine.name} since "
        f"{holder.since}{lost}"
    )
    return Gate(reasons.SLOT_HELD, text, holder.name)


def target_in_use(operation: MachineOperation, machine: Machine, sharing: Iterable[Machine]) -> Gate | None:
    """Return the gate of a host operation in progress on another Machine with the same BMC and system.

    A lost operation does not block: its executor no longer acts, and the next one reads the BMC before it acts.
    """
    if not is_host(operation):
        return None
    for other in sharing:
        holder = other.status.active_operation
        if holder is None or holder.lost or holder.kind not in _HOST_KINDS:
            continue
        text = (
            f"{holder.kind} {holder.name} ({holder.executor}) holds the lock of Machine {other.name} since "
            f"{holder.since}"
        )
        return Gate(
            reasons.TARGET_IN_USE,
            f"{text}; both it and Machine {machine.name} name the same BMC and device: {bmc_of(machine)}",
            holder.name,
        )
    return None


def is_recreation(holder: ActiveOperation) -> bool:
    """Return whether an agent that recreates its node holds the lock.

    No MachineOperation has that name, and the agent releases the lock.
    """
    return holder.kind == NODE_RECREATION


def recreation_state(machine: Machine) -> object:
    """Return a value that changes whenever the recreation that holds the lock makes progress."""
    updated = [one for one in machine.status.conditions if one.type == ConditionType.NODE_UPDATED]
    return (machine.status.active_operation, [(one.status, one.reason, one.message) for one in updated])
