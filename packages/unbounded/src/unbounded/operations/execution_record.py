"""The record of a running operation in `status`, which survives a crash, and the patches that write it.

An executed operation has one entry in `status.targets` with the public fields (stage, attempts, times);
`status.execution` has the fields that only an executor needs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import ceil
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from unbounded.api.conditions import commands_last
from unbounded.api.fields import ApiStruct, Cause, Evidence
from unbounded.api.machine_status import DiskErasureRecord
from unbounded.api.meta import Condition
from unbounded.api.operation import (
    MAX_LATE,
    CallAnswer,
    Execution,
    MachineOperation,
    MachineOperationStatus,
    OperationPhase,
    OperationsStatus,
    PendingCall,
    TargetStatus,
    Waiting,
)
from unbounded.api.run_history import RunHistory
from unbounded.operations import reasons
from unbounded.workflow import run_record

NOTHING: Final = MachineOperationStatus()
MAX_MESSAGE: Final = 4096


class Run(run_record.RunRecord, frozen=True):
    """The record of one operation from its claim on: its stage, its last call, its target and its process."""

    machine: str
    machine_uid: str
    executor: str
    target_digest: str
    started_at: str
    called_at: str | None = None
    next_target_digest: str | None = None
    generation: int | None = None
    counters: OperationsStatus | None = None
    erasures: tuple[DiskErasureRecord, ...] = ()


def run_of(operation: MachineOperation) -> Run | None:
    """Return the record in an operation's status; None before its claim."""
    execution, targets = operation.status.execution, operation.status.targets
    if execution is None or len(targets) != 1:
        return None
    target = targets[0]
    return Run(
        machine=target.machine_ref,
        machine_uid=execution.machine_uid,
        executor=execution.executor,
        epoch=execution.incarnation,
        target_digest=execution.binding,
        next_target_digest=execution.next_binding,
        stage=target.stage or "",
        started_at=target.started_at or "",
        action=execution.action,
        attempt=target.attempts or 0,
        called_at=target.last_attempt_at,
        boot_id=execution.boot_id,
        handle=execution.handle,
        answer=_answer_of(execution),
        late=tuple(run_record.LateCall(call.epoch, call.action, call.seconds) for call in execution.late),
        spent_s=execution.spent_seconds,
        stage_s=execution.stage_seconds,
        recorded_at=execution.recorded_at,
        generation=target.observed_generation,
        counters=target.target_operations,
        evidence=tuple(map(_in_present_words, operation.status.evidence)),
        erasures=operation.status.erasures,
        failing=_failing_of(execution),
        standing=execution.standing or "",
        fact=execution.fact or "",
        read_at=execution.read_at,
        history=operation.status.history or RunHistory(),
    )


_FORMER_WORDS: Final = {
    "the host was seen ": "the host was ",
    "the restart was seen": "the restart was observed",
    "the VM's model is kept": "the VM's model is stored",
    "the old VM is gone": "the old VM is deleted",
    "the new VM is there": "the new VM exists",
    "what is deleted with the VM is as it was": "the delete options of its resources are restored",
    "Azure is done with its extensions": "the creation of its extensions has ended",
    "the old OS disk is gone": "the old OS disk is deleted",
    "what is launched is kept": "the launch parameters are stored",
    "the old instance and its boot volume are gone": "the old instance and its boot volume are deleted",
}
"""Beginnings of the evidence of the former release, and those of this one: an operation continues over an upgrade."""
_FORMER_BEGINNINGS: Final = tuple(_FORMER_WORDS)


def _in_present_words(evidence: Evidence) -> Evidence:
    if not evidence.what.startswith(_FORMER_BEGINNINGS):
        return evidence
    former = next(one for one in _FORMER_WORDS if evidence.what.startswith(one))
    present = _FORMER_WORDS[former] + evidence.what.removeprefix(former)
    return Evidence(what=present, at=evidence.at, where=evidence.where)


def _failing_of(execution: Execution) -> run_record.PendingFailure | None:
    if execution.failing_reason is None:
        return None
    return run_record.PendingFailure(execution.failing_reason, execution.failing_message or "", execution.failing_cause)


def _answer_of(execution: Execution) -> run_record.Answer:
    stored = execution.answer
    if stored is None:
        return replace(run_record.NO_ANSWER, lost=execution.lost)
    reason, text = stored.reason or "", stored.message or ""
    return run_record.Answer(
        run_record.CallOutcome(stored.reply), reason, text, lost=execution.lost, cause=stored.cause
    )


def _stored(answer: run_record.Answer) -> CallAnswer | None:
    if answer.outcome not in run_record.STORED:
        return None
    reason, message = answer.reason[:256] or None, answer.text[:MAX_MESSAGE] or None
    return CallAnswer(reply=answer.outcome, reason=reason, message=message, cause=answer.cause)


def with_nulls(struct: ApiStruct) -> dict[str, Any]:
    """Return a Struct as JSON with null for absent fields, also of Structs in it, so that a merge patch clears them."""
    given: dict[str, Any] = msgspec.to_builtins(struct)
    fields = _fields(type(struct))
    for name, value in given.items():
        if isinstance(value, dict) and isinstance(part := getattr(struct, fields[name]), ApiStruct):
            given[name] = with_nulls(part)
    return dict.fromkeys(fields) | given


@functools.cache
def _fields(struct: type[ApiStruct]) -> dict[str, str]:
    """Return the names of a Struct's fields by those on the wire."""
    return {field.encode_name: field.name for field in msgspec.structs.fields(struct)}


def wait_message(text: str, waiting: Waiting | None) -> str:
    """Return the message of a wait with its holder, begin and end."""
    if waiting is None:
        return commands_last(text)
    times = f"since {waiting.since}" + (f", until {waiting.until}" if waiting.until else "")
    return commands_last(f"{text} [{waiting.held_by}, {times}]" if waiting.held_by else f"{text} [{times}]")


def _change(before: Cause | None, now: Cause | None) -> dict[str, Any] | None:
    """Return the merge patch of a cause, which removes the keys of an earlier one."""
    if now is None:
        return None
    gone = dict.fromkeys(before.about if before is not None else ())
    return {"code": now.code, "about": {**gone, **now.about}}


def running_patch(
    run: Run,
    *,
    message: str,
    waiting: Waiting | None,
    conditions: list[dict[str, Any]],
    cause: Cause | None = None,
    before: MachineOperationStatus = NOTHING,
) -> dict[str, Any]:
    """Return the status of an operation in progress.

    Args:
        before: the status that is patched.
    """
    return {
        **_common(run, OperationPhase.IN_PROGRESS, reasons.IN_PROGRESS, message, conditions, cause, before),
        "waiting": with_nulls(waiting) if waiting else None,
    }


def terminal_patch(
    run: Run,
    phase: OperationPhase,
    reason: str,
    message: str,
    *,
    now: str,
    conditions: list[dict[str, Any]],
    cause: Cause | None = None,
    before: MachineOperationStatus = NOTHING,
) -> dict[str, Any]:
    """Return the terminal status of an operation that was executed.

    Args:
        before: the status that is patched.
    """
    status = _common(run, phase, reason, message, conditions, cause, before, completed_at=now)
    return {**status, "completedAt": now, "waiting": None}


def _common(
    run: Run,
    phase: OperationPhase,
    reason: str,
    message: str,
    conditions: list[dict[str, Any]],
    cause: Cause | None,
    before: MachineOperationStatus,
    completed_at: str | None = None,
) -> dict[str, Any]:
    text = message[:MAX_MESSAGE]
    target = TargetStatus(
        machine_ref=run.machine,
        phase=phase,
        stage=run.stage,
        message=text,
        reason=reason,
        started_at=run.started_at,
        completed_at=completed_at,
        observed_generation=run.generation,
        target_operations=run.counters,
        attempts=run.attempt,
        last_attempt_at=run.called_at,
    )
    failing = run.failing.cause if run.failing else None
    failing_before = before.execution.failing_cause if before.execution else None
    return {
        "phase": str(phase),
        "reason": reason,
        "message": text,
        "cause": _change(before.cause, cause),
        "startedAt": run.started_at,
        "observedMachineGeneration": run.generation,
        "targets": [msgspec.to_builtins(target)],
        "evidence": [msgspec.to_builtins(evidence) for evidence in run.evidence],
        **({"erasures": [msgspec.to_builtins(one) for one in run.erasures]} if run.erasures else {}),
        "execution": {**with_nulls(_execution_of(run)), "failingCause": _change(failing_before, failing)},
        **({} if run.history == (before.history or RunHistory()) else {"history": with_nulls(run.history)}),
        "conditions": conditions,
    }


def _execution_of(run: Run) -> Execution:
    """Return the fields that only an executor needs."""
    return Execution(
        executor=run.executor,
        incarnation=run.epoch,
        machine_uid=run.machine_uid,
        binding=run.target_digest,
        next_binding=run.next_target_digest,
        action=run.action,
        boot_id=run.boot_id,
        handle=run.handle,
        answer=_stored(run.answer),
        lost=run.answer.lost,
        late=tuple(
            PendingCall(epoch=one.epoch, action=one.action, seconds=ceil(one.left_s))
            for one in run_record.longest(run.late)[:MAX_LATE]
        ),
        spent_seconds=run.spent_s,
        stage_seconds=run.stage_s,
        recorded_at=run.recorded_at,
        failing_reason=run.failing.reason if run.failing else None,
        failing_message=run.failing.text[:MAX_MESSAGE] if run.failing else None,
        standing=run.standing[:MAX_MESSAGE] or None,
        fact=run.fact or None,
        read_at=run.read_at,
    )


def completed_condition(
    old: Sequence[Condition], *, status: str, reason: str, message: str, now: str
) -> list[dict[str, Any]]:
    """Return the conditions with `Completed` set; lastTransitionTime changes only with the status."""
    before = next((condition for condition in old if condition.type == "Completed"), None)
    since = before.last_transition_time if before is not None and before.status == status else now
    completed = Condition(
        type="Completed", status=status, reason=reason, message=message[:MAX_MESSAGE], last_transition_time=since
    )
    others = [condition for condition in old if condition.type != "Completed"]
    return [msgspec.to_builtins(condition) for condition in (*others, completed)]
