"""The view of one operation: its state, stages with their times and limits, attempts, evidence and targets."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from unbounded.api.machine import Machine, RecentOperation
from unbounded.api.operation import MachineOperation, OperationPhase, TargetStatus
from unbounded.console import urls
from unbounded.console.models.parts import (
    FactList,
    StageStep,
    StageTimeline,
    Tone,
    ViewData,
    ViewSection,
    ViewTable,
    ViewText,
    blockers,
    duration,
    facts,
    phase,
    size,
    words,
)
from unbounded.explain.results import Explanation
from unbounded.explain.timeline import OperationTimeline, StageState, TimelineAttempt, TimelineStage, timeline_of
from unbounded.kube.clock import parsed_time, shown_seconds
from unbounded.kube.selectors import selector_text
from unbounded.operations.deadline import deadline_s
from unbounded.operations.parameters import requester
from unbounded.workflow.procedure import Procedure

LONGEST_PARAMETER: Final = 200


def operation_view(
    operation: MachineOperation,
    procedure: Procedure | None,
    explanation: Explanation | None,
    now: datetime,
    machine: Machine | None = None,
) -> ViewData:
    """Return the view of an operation.

    Args:
        procedure: of its executor; None for one that is not part of this program.
        explanation: of the operation; None until it is known.
        machine: of the operation; None for several, and for one that cannot be read.
    """
    sections: list[ViewSection] = [_state(operation, now)]
    if not operation.terminal:
        sections.append(blockers(explanation))
    sections += _timeline(timeline_of(operation, procedure, now))
    sections += _call(operation)
    sections += _targets(operation, now)
    sections.append(_evidence(operation))
    sections += _losses(operation)
    sections += _earlier(operation, machine)
    status = operation.status.phase or OperationPhase.PENDING.value
    return ViewData(
        f"{operation.spec.operation_kind} {operation.name}",
        phase(status),
        tuple(sections),
        runs=not operation.terminal and _is_worked_on(operation),
    )


def _is_worked_on(operation: MachineOperation) -> bool:
    """Return whether an executor has the operation, or that of one of its Machines."""
    status = operation.status
    return status.execution is not None or any(one.started_at and not one.completed_at for one in status.targets)


def _state(operation: MachineOperation, now: datetime) -> FactList:
    spec, status, execution = operation.spec, operation.status, operation.status.execution
    machine, selector, limit_s = spec.machine_ref, spec.machine_selector, deadline_s(operation)
    return facts(
        "State",
        (
            ("Phase", phase(status.phase or OperationPhase.PENDING.value)),
            ("Reason", status.reason),
            ("Message", status.message),
            ("Machine", None if machine is None else ViewText(machine, urls.machine(machine))),
            ("Machines", None if selector is None else selector_text(selector)),
            ("Executor", None if execution is None else execution.executor),
            ("Requested by", requester(operation)),
            ("Cancel", "requested" if spec.cancel else None),
            ("Abandon", "requested" if spec.abandon else None),
            ("Paused", "yes" if spec.paused else None),
            ("Override of budgets", spec.override),
            ("Created", operation.metadata.creation_timestamp),
            ("Started", status.started_at),
            ("Completed", status.completed_at),
            ("Spent", _spent(operation, limit_s, now)),
            *((f"Parameter {name}", _parameter(value)) for name, value in sorted(spec.parameters.items())),
        ),
    )


def _parameter(value: str) -> str:
    return value if len(value) <= LONGEST_PARAMETER else f"{value[:LONGEST_PARAMETER]}…"


def _spent(operation: MachineOperation, limit_s: int, now: datetime) -> str | None:
    """Return the time from the claim, with the deadline; by the executor's own count as long as it works."""
    status, execution = operation.status, operation.status.execution
    if status.started_at and status.completed_at:
        return f"{duration(_between(status.started_at, status.completed_at))} of at most {duration(limit_s)}"
    if execution is None:
        return None
    spent_s = execution.spent_seconds + max(shown_seconds(execution.recorded_at, now), 0.0)
    return f"{duration(spent_s)} of at most {duration(limit_s)}"


def _between(begin: str, end: str) -> float:
    return shown_seconds(begin, parsed_time(end))


# ---- stages and attempts


def _timeline(timeline: OperationTimeline | None) -> Iterator[ViewSection]:
    """Yield the stages and the attempts of an operation that was claimed."""
    if timeline is None:
        return
    if timeline.stages:
        yield StageTimeline("Stages", tuple(map(_step, timeline.stages)), _dropped("stages", timeline.dropped_stages))
    if timeline.attempts:
        yield ViewTable(
            "Attempts",
            ("Action", "Attempt", "Stage", "Sent", "Ended", "Answer", "Reason", "Message"),
            tuple(map(_attempt_row, timeline.attempts)),
            note=_dropped("attempts", timeline.dropped_attempts),
        )


def _dropped(what: str, count: int) -> str:
    return f"{count} earlier {what} are not listed any more." if count else ""


def _step(stage: TimelineStage) -> StageStep:
    spent_s, limit_s = stage.spent_seconds, stage.limit_seconds
    return StageStep(
        stage.name,
        StageState(stage.state),
        stage.waits_for,
        limit="" if limit_s is None else duration(limit_s),
        began=stage.started_at,
        spent="" if spent_s is None else duration(spent_s),
        share=None if spent_s is None or limit_s is None else min(spent_s / max(limit_s, 1), 1.0),
    )


def _attempt_row(attempt: TimelineAttempt) -> tuple[ViewText, ...]:
    reply = attempt.reply or ("none" if attempt.completed_at else "none yet")
    times = attempt.started_at, attempt.completed_at
    cells = (attempt.action, f"{attempt.number}", attempt.stage, *times, reply, attempt.reason, attempt.message)
    return tuple(map(words, cells))


# ---- last call, evidence, targets


def _call(operation: MachineOperation) -> Iterator[FactList]:
    """Yield the present action with its attempts, and calls that may still arrive."""
    execution, targets = operation.status.execution, operation.status.targets
    if execution is None or len(targets) != 1 or execution.action is None:
        return
    answer = execution.answer
    reply = None if answer is None else ": ".join(filter(None, (answer.reply, answer.reason, answer.message)))
    yield facts(
        "Last call",
        (
            ("Action", execution.action),
            ("Attempt", str(targets[0].attempts or 0)),
            ("Sent", targets[0].last_attempt_at),
            ("Answer", reply or ("none" if not operation.terminal else None)),
            ("Earlier call", "had no answer, and may have had its effect" if execution.lost else None),
            ("Observed", execution.standing),
            ("Read", execution.read_at),
            ("May still arrive", "; ".join(f"{one.action}, for {one.seconds} s" for one in execution.late)),
        ),
    )


def _evidence(operation: MachineOperation) -> ViewTable:
    found = operation.status.evidence
    times = (operation.status.started_at, *(one.at for one in found))
    return ViewTable(
        "Evidence",
        ("Observation", "Time", "After", "Source"),
        tuple(
            tuple(map(words, (one.what, one.at, _after(number, before, one.at), one.where)))
            for number, (before, one) in enumerate(zip(times, found, strict=False))
        ),
        empty="Nothing is proved yet.",
    )


def _after(number: int, before: str | None, at: str) -> str:
    """Return the time from the observation before, or from the claim, to this one."""
    if before is None:
        return ""
    spent = duration(_between(before, at))
    return f"{spent} more" if number else f"{spent} from the start"


def _targets(operation: MachineOperation, now: datetime) -> Iterator[ViewTable]:
    if operation.spec.machine_ref is not None:
        return
    rollout = operation.status.rollout
    if rollout is not None:
        yield ViewTable(
            "Stages of the rollout",
            ("Stage", "Phase", "Completed", "Failed", "Machines"),
            tuple(
                (words(one.name), phase(one.phase), *map(words, map(str, (one.completed, one.failed, one.targets))))
                for one in rollout.stages
            ),
        )
    yield ViewTable(
        "Machines",
        ("Machine", "Phase", "Stage", "Operation", "Retry", "Reason", "Started", "Completed", "Spent", "Message"),
        tuple(_target(one, now) for one in sorted(operation.status.targets, key=_urgency)),
        empty="The selector is not resolved yet.",
    )


_URGENCY: Final = {
    OperationPhase.FAILED.value: 0,
    OperationPhase.IN_PROGRESS.value: 1,
    OperationPhase.COMPLETE.value: 3,
}


def _urgency(target: TargetStatus) -> int:
    """Return the rank of a target: failed ones come first, and complete ones last."""
    return _URGENCY.get(target.phase or "", 2)


def _target(target: TargetStatus, now: datetime) -> tuple[ViewText, ...]:
    begin, end = target.started_at, target.completed_at
    spent = "" if begin is None else duration(shown_seconds(begin, parsed_time(end) if end else now))
    return (
        ViewText(target.machine_ref, urls.machine(target.machine_ref)),
        phase(target.phase or OperationPhase.PENDING.value),
        words(": ".join(filter(None, (target.rollout_stage, target.stage)))),
        words(target.operation, urls.operation(target.operation) if target.operation else ""),
        words(str(target.retry) if target.retry else ""),
        *map(words, (target.reason, begin, end, spent, target.message)),
    )


def _losses(operation: MachineOperation) -> Iterator[ViewTable]:
    status = operation.status
    if status.losses:
        yield ViewTable(
            "Losses",
            ("Field", "Consequence", "Security"),
            tuple(
                (
                    words(one.field),
                    words(one.consequence),
                    words("less secure", tone=Tone.BAD) if one.lessens_security else words(""),
                )
                for one in status.losses
            ),
        )
    if status.erasures:
        yield ViewTable(
            "Erased disks",
            ("Serial number", "State", "Method", "Size", "Result"),
            tuple(
                (
                    words(one.serial_number),
                    phase(one.state),
                    *map(words, (one.method, size(one.size_bytes), one.verification or one.failure)),
                )
                for one in status.erasures
            ),
        )


def _earlier(operation: MachineOperation, machine: Machine | None) -> Iterator[ViewTable]:
    """Yield the operations of the same kind that have ended on the Machine before, such as failed attempts of it."""
    recent = () if machine is None else machine.status.recent_operations
    earlier = [one for one in reversed(recent) if _is_earlier(one, operation)]
    if earlier:
        yield ViewTable(
            "Earlier operations of this kind",
            ("Operation", "Phase", "Reason", "Started", "Completed", "Message"),
            tuple(
                (
                    ViewText(one.name, urls.operation(one.name)),
                    phase(one.phase),
                    *map(words, (one.reason, one.started_at, one.completed_at, one.message)),
                )
                for one in earlier
            ),
        )


def _is_earlier(recent: RecentOperation, operation: MachineOperation) -> bool:
    status = operation.status
    begin = status.started_at or status.completed_at  # one that has failed without a start has an end alone
    return (
        recent.kind == operation.spec.operation_kind
        and recent.uid != operation.metadata.uid
        and (begin is None or (recent.completed_at is not None and recent.completed_at <= begin))
    )
