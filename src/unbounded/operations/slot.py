"""The changes of a Machine's status that go with an operation: its slot, its marks, and the history that it leaves.

Each function returns the status fields to merge; a `StatusWriter` with `FIELDS` writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from unbounded.api.conditions import find_condition, remove_condition, set_condition
from unbounded.api.machine import ActiveOperation, Machine, RecentOperation
from unbounded.api.operation import MachineOperation, OperationKind, OperationPhase, OperationsStatus
from unbounded.operations.procedure import Mark, Procedure, Sight
from unbounded.operations.record import whole

KEPT: Final = 10
FIELDS: Final = ("activeOperation", "conditions", "operations", "recentOperations", "ssh")

Raw = Mapping[str, Any]


def as_read(machine: Machine) -> Raw:
    """What taking the slot rests on, from a Machine that was read before: its version, and its conditions whole."""
    conditions = [msgspec.to_builtins(condition) for condition in machine.status.conditions]
    version = {"name": machine.name, "resourceVersion": machine.metadata.resource_version}
    return {"metadata": version, "status": {"conditions": conditions}}


def take_change(
    machine: Raw, operation: MachineOperation, executor: str, marks: Iterable[Mark | None], *, now: str
) -> dict[str, Any]:
    """Take the slot of a Machine as it was read, with the first marks."""
    active = ActiveOperation(
        uid=operation.metadata.uid,
        name=operation.name,
        kind=operation.spec.operation_kind,
        executor=executor,
        since=now,
    )
    return {"activeOperation": whole(active), **marked(machine, marks, now=now)}


def lost_change(*, lost: bool = True) -> dict[str, Any]:
    """Keep the slot of an operation that ends, until the machine was looked at afresh; or take that back."""
    return {"activeOperation": {"lost": lost, "lostSeconds": None}}


def count_change(seconds: int) -> dict[str, Any]:
    """Store for how long the slot has been that of a lost executor, so that the next process counts on."""
    return {"activeOperation": {"lostSeconds": seconds}}


def release_change(
    machine: Raw, operation: MachineOperation, procedure: Procedure | None, read: Sight | None = None, *, now: str
) -> dict[str, Any]:
    """Give the slot back, leave the operation's result in the history, and move the counters it stood for.

    Args:
        read: what was seen after the end of the operation; None where that was not looked at again.
    """
    marks = marked(machine, _marks_at_end(operation, procedure, read, now), now=now)
    gone = {"ssh": {"fingerprint": None}} if forgotten_key(machine, operation) else {}
    return {"activeOperation": None, **_result(machine, operation), **marks, **gone}


def forgotten_key(machine: Raw, operation: MachineOperation) -> str | None:
    """The SSH host key that was trusted on first use, where the host is another one since the operation."""
    made_anew = operation.spec.operation_kind == OperationKind.HOST_REPLACE
    if not made_anew or operation.status.phase != OperationPhase.COMPLETE:
        return None
    key: str | None = (machine.get("status", {}).get("ssh") or {}).get("fingerprint")
    return key


def result_change(machine: Raw, operation: MachineOperation) -> dict[str, Any] | None:
    """Leave the result of an operation whose executor will not; None when it is there already."""
    history = machine.get("status", {}).get("recentOperations", ())
    if any(entry.get("uid") == operation.metadata.uid for entry in history):
        return None
    return _result(machine, operation)


def _result(machine: Raw, operation: MachineOperation) -> dict[str, Any]:
    """The history with the operation as its newest entry, and the counters that it stood for."""
    history = machine.get("status", {}).get("recentOperations", ())
    newest = msgspec.to_builtins(_recent(operation))
    return {"recentOperations": with_newest(history, newest), **_counters(machine, operation)}


def with_newest(history: Iterable[Raw], newest: Raw) -> list[Raw]:
    """The history with one more entry, and so many at most.

    The oldest one goes. What says how the host came to be what it is stays, however long ago that was: decisions rest
    on it for as long as there is nothing newer of its kind.
    """
    entries = [*(one for one in history if one.get("uid") != newest.get("uid")), newest]
    lasting = {one["kind"]: one for one in entries if _lasts(one)}
    spare = (one for one in entries if not any(one is other for other in lasting.values()))
    gone = [one for one, _ in zip(spare, range(len(entries) - KEPT), strict=False)]
    return [one for one in entries if not any(one is other for other in gone)]


def _lasts(entry: Raw) -> bool:
    return entry.get("kind") in _LASTING and entry.get("phase") == OperationPhase.COMPLETE


_LASTING: Final = frozenset({OperationKind.AGENT_RESET, OperationKind.HOST_REPLACE})


def marked(machine: Raw, marks: Iterable[Mark | None], *, now: str) -> dict[str, Any]:
    """The status fields that change when the marks are set; empty when all of them are there."""
    before = list(machine.get("status", {}).get("conditions", ()))
    conditions, changed = before, False
    for mark in marks:
        if mark is None or not _may_set(mark, conditions):
            continue
        if mark.status is None:
            after = remove_condition(conditions, mark.type)
        else:
            after = set_condition(conditions, mark.type, mark.status, mark.reason, mark.text, now)
        conditions, changed = (conditions, changed) if after is None else (after, True)
    return {"conditions": conditions} if changed else {}


def _may_set(mark: Mark, conditions: Sequence[Mapping[str, Any]]) -> bool:
    there = find_condition(conditions, mark.type)
    return mark.where is None or (there is not None and there.get("status") == mark.where)


def holds_slot(operation: MachineOperation, machine: Machine) -> bool:
    active = machine.status.active_operation
    return active is not None and active.uid == operation.metadata.uid


def _marks_at_end(
    operation: MachineOperation, procedure: Procedure | None, read: Sight | None, now: str
) -> tuple[Mark, ...]:
    if procedure is None:
        return ()
    shown = _read_mark(operation, procedure, read, now)
    marks = {mark.type: mark for mark in _outcome_marks(operation, procedure)}
    return tuple((marks if shown is None else marks | {shown.type: shown}).values())


def _read_mark(operation: MachineOperation, procedure: Procedure, read: Sight | None, now: str) -> Mark | None:
    """What the Machine shows of what was read last."""
    if read is not None:
        mark = procedure.read_marks.get(read.fact)
        return None if mark is None else replace(mark, text=f"{read.detail or read.fact}, read at {now}")
    execution = operation.status.execution
    mark = (
        None if execution is None or not execution.fact else procedure.read_marks.get(procedure.facts(execution.fact))
    )
    if execution is None or mark is None:
        return None
    return replace(mark, text=f"{execution.standing or execution.fact}, read at {execution.read_at}")


def _outcome_marks(operation: MachineOperation, procedure: Procedure) -> tuple[Mark, ...]:
    if operation.status.phase == OperationPhase.COMPLETE:
        return procedure.end_marks
    if procedure.failed_marks is not None:
        return procedure.failed_marks
    return tuple(
        {stage.mark.type: Mark(stage.mark.type, None) for stage in procedure.stages.values() if stage.mark}.values()
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
