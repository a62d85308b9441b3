"""Changes of a Machine's status for an operation: its lock, its conditions, and its entry in the history.

Each function returns the status fields to merge; a `StatusWriter` with `FIELDS` writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from unbounded.api.conditions import find_condition, remove_condition, set_condition
from unbounded.api.core import Node
from unbounded.api.machine import ActiveOperation, Machine, RecentOperation
from unbounded.api.machine_status import ErasureState
from unbounded.api.meta import Condition
from unbounded.api.operation import MachineOperation, OperationKind, OperationPhase, OperationsStatus
from unbounded.api.phase import machine_phase, operation_phase
from unbounded.operations.execution_record import with_nulls
from unbounded.operations.parameters import ALL_DISKS, DISKS
from unbounded.workflow.procedure import ConditionUpdate, Observation, Procedure

HISTORY: Final = 10
FIELDS: Final = (
    "activeOperation",
    "agent",
    "conditions",
    "configuration",
    "disruption",
    "operations",
    "recentOperations",
    "ssh",
)
PHASE_FIELDS: Final = ("message", "phase", "reason")

Raw = Mapping[str, Any]


def as_read(machine: Machine) -> Raw:
    """Return the part of a read Machine that taking the lock depends on: its version, and all its conditions."""
    conditions = [msgspec.to_builtins(condition) for condition in machine.status.conditions]
    version = {"name": machine.name, "resourceVersion": machine.metadata.resource_version}
    return {"metadata": version, "status": {"conditions": conditions}}


def at_version_of(known: Machine, raw: dict[str, Any]) -> dict[str, Any] | None:
    """Return an earlier reading of a Machine with the version of a later one; None where `FIELDS` differ.

    The lists of a reading are whole, with fields that this version of the program does not know.
    """
    machine = msgspec.convert(raw, Machine)
    if _owned(machine) != _owned(known):
        return None
    return {**raw, "metadata": {**raw["metadata"], "resourceVersion": known.metadata.resource_version}}


def _owned(machine: Machine) -> tuple[object, ...]:
    """Return the UID, and the values of those `FIELDS` that depend on their former ones."""
    status = machine.status
    lists = (status.conditions, status.recent_operations)
    return (machine.metadata.uid, status.active_operation, *lists, status.operations, status.ssh)


def take_change(
    machine: Raw, operation: MachineOperation, executor: str, updates: Iterable[ConditionUpdate | None], *, now: str
) -> dict[str, Any]:
    """Take the lock of a Machine as it was read, with the first conditions."""
    active = with_nulls(_lock_of(operation, executor, now))
    return {"activeOperation": active, **update_conditions(machine, updates, now=now)}


def _lock_of(operation: MachineOperation, executor: str, since: str) -> ActiveOperation:
    kind = operation.spec.operation_kind
    return ActiveOperation(uid=operation.metadata.uid, name=operation.name, kind=kind, executor=executor, since=since)


def taken_phase(machine: Machine, operation: MachineOperation, executor: str) -> dict[str, str | None]:
    """Return the fields of the phase that taking the lock changes; empty for an operation that does not change it."""
    phase = operation_phase(_lock_of(operation, executor, ""))
    return {} if phase is None else phase.change(machine.status)


def released_phase(machine: Machine, change: Raw, node: Node | None) -> dict[str, str | None]:
    """Return the fields of the phase that releasing the lock changes.

    They are empty for a Machine whose phase depends on SSH, or on a Node that the executor does not know: the
    component that owns the phase then writes it.

    Args:
        change: of the status, with the released lock.
        node: the Node of the Machine's name, where the executor knows one.
    """
    spec, status = machine.spec, machine.status
    if spec.ssh is not None or (spec.kubernetes is not None and node is None):
        return {}
    raw = change.get("conditions")
    conditions = status.conditions if raw is None else msgspec.convert(raw, tuple[Condition, ...])
    return machine_phase(spec, conditions=conditions, node=node, slot=None).change(status)


def lost_change(*, lost: bool = True) -> dict[str, Any]:
    """Mark the lock of an ended operation as lost until the machine is observed again; or reverse that."""
    return {"activeOperation": {"lost": lost, "lostSeconds": None}}


def count_change(seconds: int) -> dict[str, Any]:
    """Store the seconds since the lock's executor was lost, so that the next process continues the count."""
    return {"activeOperation": {"lostSeconds": seconds}}


def release_change(
    machine: Raw, operation: MachineOperation, procedure: Procedure | None, read: Observation | None = None, *, now: str
) -> dict[str, Any]:
    """Release the lock, add the operation's result to the history, and set the counters that it reaches.

    Args:
        read: an observation after the end of the operation; None where there was none.
    """
    updates = update_conditions(machine, _end_updates(operation, procedure, read, now), now=now)
    forgotten: dict[str, Any] = {"ssh": {"fingerprint": None}} if forgotten_key(machine, operation) else {}
    if has_erased_system(machine, operation):
        forgotten |= {"agent": None, "configuration": None}
    return {"activeOperation": None, **_result(machine, operation), **updates, **forgotten}


def has_erased_system(machine: Raw, operation: MachineOperation) -> bool:
    """Return whether a HostErase has begun the disk that the host was installed on, however it ended."""
    begun = [one for one in operation.status.erasures if one.state != ErasureState.UNTOUCHED]
    if operation.spec.operation_kind != OperationKind.HOST_ERASE or not begun:
        return False
    system = (machine.get("status", {}).get("netboot") or {}).get("targetDisk") or ""
    is_named = any(mark in system for one in begun for mark in (one.wwn, one.serial_number) if mark)
    return is_named or operation.spec.parameters.get(DISKS) == ALL_DISKS


def forgotten_key(machine: Raw, operation: MachineOperation) -> str | None:
    """Return the SSH host key that was trusted on first use, if the operation has replaced the host; else None."""
    made_anew = operation.spec.operation_kind == OperationKind.HOST_REPLACE
    if not made_anew or operation.status.phase != OperationPhase.COMPLETE:
        return None
    key: str | None = (machine.get("status", {}).get("ssh") or {}).get("fingerprint")
    return key


def result_change(machine: Raw, operation: MachineOperation) -> dict[str, Any] | None:
    """Add the result of an operation whose executor will not; None when the history has it already."""
    history = machine.get("status", {}).get("recentOperations", ())
    if any(entry.get("uid") == operation.metadata.uid for entry in history):
        return None
    return _result(machine, operation)


def _result(machine: Raw, operation: MachineOperation) -> dict[str, Any]:
    """Return the history with the operation as its newest entry, and the counters that the operation reaches."""
    history = machine.get("status", {}).get("recentOperations", ())
    newest = msgspec.to_builtins(_recent(operation))
    return {"recentOperations": with_newest(history, newest), **_counters(machine, operation)}


def with_newest(history: Iterable[Raw], newest: Raw) -> list[Raw]:
    """Return the history with one more entry, and KEPT entries at most.

    The oldest one is dropped. The newest entry of a kind that determines the state of the host stays at any age:
    decisions depend on it until a newer one of its kind exists.
    """
    entries = [*(one for one in history if one.get("uid") != newest.get("uid")), newest]
    lasting = {one["kind"]: one for one in entries if _lasts(one)}
    spare = (one for one in entries if not any(one is other for other in lasting.values()))
    oldest = [one for one, _ in zip(spare, range(len(entries) - HISTORY), strict=False)]
    return [one for one in entries if not any(one is other for other in oldest)]


def _lasts(entry: Raw) -> bool:
    return entry.get("kind") in _LASTING and entry.get("phase") == OperationPhase.COMPLETE


_LASTING: Final = frozenset({OperationKind.AGENT_RESET, OperationKind.HOST_REPLACE})


def update_conditions(machine: Raw, updates: Iterable[ConditionUpdate | None], *, now: str) -> dict[str, Any]:
    """Return the status fields that change when the conditions are updated; empty when all are up to date."""
    before = list(machine.get("status", {}).get("conditions", ()))
    conditions, changed = before, False
    for update in updates:
        if update is None or not _may_set(update, conditions):
            continue
        if update.status is None:
            after = remove_condition(conditions, update.type)
        else:
            after = set_condition(conditions, update.type, update.status, update.reason, update.text, now)
        conditions, changed = (conditions, changed) if after is None else (after, True)
    return {"conditions": conditions} if changed else {}


def _may_set(update: ConditionUpdate, conditions: Sequence[Mapping[str, Any]]) -> bool:
    present = find_condition(conditions, update.type)
    return update.where is None or (present is not None and present.get("status") == update.where)


def holds_lock(operation: MachineOperation, machine: Machine) -> bool:
    active = machine.status.active_operation
    return active is not None and active.uid == operation.metadata.uid


def _end_updates(
    operation: MachineOperation, procedure: Procedure | None, read: Observation | None, now: str
) -> tuple[ConditionUpdate, ...]:
    if procedure is None:
        return ()
    shown = _read_mark(operation, procedure, read, now)
    updates = {update.type: update for update in _outcome_updates(operation, procedure)}
    return tuple((updates if shown is None else updates | {shown.type: shown}).values())


def _read_mark(
    operation: MachineOperation, procedure: Procedure, read: Observation | None, now: str
) -> ConditionUpdate | None:
    """Return the condition of the Machine for the fact that was read last; None where a call may have changed it since.

    The recorded fact is of the last stage. A stage whose call has not had its effect yet may still see it.
    """
    if read is not None:
        update = procedure.fact_conditions.get(read.fact)
        return None if update is None else replace(update, text=f"{read.detail or read.fact}, observed at {now}")
    execution, is_complete = operation.status.execution, operation.status.phase == OperationPhase.COMPLETE
    if execution is None or not execution.fact or (execution.action is not None and not is_complete):
        return None
    update = procedure.fact_conditions.get(procedure.facts(execution.fact))
    if update is None:
        return None
    return replace(update, text=f"{execution.standing or execution.fact}, observed at {execution.read_at}")


def _outcome_updates(operation: MachineOperation, procedure: Procedure) -> tuple[ConditionUpdate, ...]:
    if operation.status.phase == OperationPhase.COMPLETE:
        return procedure.end_conditions
    if procedure.failure_conditions is not None:
        return procedure.failure_conditions
    return tuple(
        {
            stage.condition.type: ConditionUpdate(stage.condition.type, None)
            for stage in procedure.stages.values()
            if stage.condition
        }.values()
    )


def _counters(machine: Raw, operation: MachineOperation) -> dict[str, Any]:
    targets = operation.status.targets
    reached = targets[0].target_operations if targets else None
    if reached is None:
        return {}
    have = msgspec.convert(machine.get("status", {}).get("operations") or {}, OperationsStatus)
    return {
        "operations": {
            "rebootCounter": max(have.reboot_counter, reached.reboot_counter),
            "repaveCounter": max(have.repave_counter, reached.repave_counter),
        }
    }


def _recent(operation: MachineOperation) -> RecentOperation:
    status = operation.status
    return RecentOperation(
        name=operation.name,
        uid=operation.metadata.uid,
        kind=operation.spec.operation_kind,
        phase=status.phase or "",
        reason=status.reason,
        message=(status.message or "")[:512] or None,
        started_at=status.started_at,
        completed_at=status.completed_at,
        evidence=status.evidence,
    )
