"""The timeline of an operation: its stages with their limits and times, and its attempts. Pure.

An operation of a former release has no history: of its stages before the present one, the times are not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from math import ceil

import msgspec
from msgspec.structs import replace

from unbounded.api.operation import MachineOperation, OperationPhase
from unbounded.api.run_history import RunHistory, StageVisit
from unbounded.kube.clock import parsed_time, shown_seconds
from unbounded.workflow.procedure import Procedure


class StageState(StrEnum):
    """The place of a stage in an operation."""

    DONE = "Done"
    CURRENT = "Current"
    PASSED = "Passed"  # or not needed: the status does not tell
    AHEAD = "Ahead"
    FAILED = "Failed"  # the operation ended in it


class TimelineStage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A stage of an operation. A stage to which the operation has returned is listed several times.

    Attributes:
        state: Done, Current, Passed (or not needed: the status does not tell), Ahead, or Failed, if the operation
            failed in it.
        waits_for: ends the sentence "waits for …"; empty for a stage that the program does not know.
        started_at: RFC 3339, by the executor's clock; empty where it is not recorded.
        completed_at: RFC 3339; empty for the present stage, and where it is not recorded.
        limit_seconds: time limit of the stage.
        spent_seconds: the time that the limit counts; of the present stage, up to now.
    """

    name: str
    state: str
    waits_for: str = ""
    started_at: str = ""
    completed_at: str = ""
    limit_seconds: int | None = None
    spent_seconds: int | None = None


class TimelineAttempt(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A call of an action.

    Attributes:
        number: among the attempts of the action in the stage.
        started_at: RFC 3339: the intent was written.
        completed_at: RFC 3339: the next call or stage followed, or the operation ended; empty for the present call.
        reply: Accepted, NotDone, Unknown or Refused; empty while there is no answer.
        reason, message: of the reply.
    """

    stage: str
    action: str
    number: int
    started_at: str = ""
    completed_at: str = ""
    reply: str = ""
    reason: str = ""
    message: str = ""


class OperationTimeline(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The timeline of an operation since its claim.

    Attributes:
        stages: in the order in which they began, then those ahead.
        dropped_stages: number of earlier stages that are not listed.
        attempts: oldest first; the last one is the present one, or the last before the end.
        dropped_attempts: number of earlier attempts that are not listed.
    """

    stages: tuple[TimelineStage, ...]
    dropped_stages: int = 0
    attempts: tuple[TimelineAttempt, ...] = ()
    dropped_attempts: int = 0


def timeline_of(operation: MachineOperation, procedure: Procedure | None, now: datetime) -> OperationTimeline | None:
    """Return the timeline of an operation; None for one that is not claimed, and for one on several Machines.

    Args:
        procedure: of its executor; None for one that is not part of this program.
    """
    status = operation.status
    if status.execution is None or len(status.targets) != 1:
        return None
    history = status.history or RunHistory()
    return OperationTimeline(
        stages=tuple(_stages(operation, history, procedure, now)),
        dropped_stages=history.dropped_stages,
        attempts=tuple(_attempts(operation, history)),
        dropped_attempts=history.dropped_attempts,
    )


def _stages(
    operation: MachineOperation, history: RunHistory, procedure: Procedure | None, now: datetime
) -> Iterator[TimelineStage]:
    recorded = operation.status.targets[0].stage or ""
    if not recorded:  # it ended before its first stage
        return
    here = recorded if procedure is None else procedure.former_stages.get(recorded, recorded)
    visits, last = list(history.stages), None
    if visits and visits[-1].name in (recorded, here) and (operation.terminal or visits[-1].completed_at is None):
        last = visits.pop()
    order = () if procedure is None else procedure.regular_stages()
    before, after = _around(order, here)
    is_whole = bool(history.stages) and history.stages[0].started_at is not None
    if not is_whole:
        known = {visit.name for visit in visits}
        passed = (name for name in before if name not in known)
        yield from (_of_procedure(name, StageState.PASSED, procedure) for name in passed)
    for visit in visits:
        yield _visited(visit, procedure)
    yield _present(operation, here, last, procedure, now)
    if not operation.terminal:
        yield from (_of_procedure(name, StageState.AHEAD, procedure) for name in after)


def _around(order: tuple[str, ...], here: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the stages before and after one; after a stage that undoes there are none."""
    if here not in order:
        return order, ()
    at = order.index(here)
    return order[:at], order[at + 1 :]


def _of_procedure(name: str, state: StageState, procedure: Procedure | None) -> TimelineStage:
    stage = None if procedure is None else procedure.stages.get(name)
    if stage is None:
        return TimelineStage(name=name, state=state)
    return TimelineStage(name=name, state=state, waits_for=stage.waits_for, limit_seconds=ceil(stage.limit_s))


def _visited(visit: StageVisit, procedure: Procedure | None) -> TimelineStage:
    known = _of_procedure(visit.name, StageState.DONE, procedure)
    return replace(
        known,
        started_at=visit.started_at or "",
        completed_at=visit.completed_at or "",
        limit_seconds=known.limit_seconds if visit.limit_seconds is None else visit.limit_seconds,
        spent_seconds=visit.spent_seconds,
    )


def _present(
    operation: MachineOperation, name: str, visit: StageVisit | None, procedure: Procedure | None, now: datetime
) -> TimelineStage:
    """Return the present stage, or that in which the operation ended."""
    status = operation.status
    ended_at = status.completed_at if operation.terminal else None
    found = replace(_visited(visit or StageVisit(name=name), procedure), name=name, completed_at=ended_at or "")
    state = StageState.CURRENT
    if operation.terminal:
        state = StageState.DONE if status.phase == OperationPhase.COMPLETE else StageState.FAILED
    spent_s = found.spent_seconds
    if spent_s is None and status.execution is not None:
        later_s = shown_seconds(status.execution.recorded_at, parsed_time(ended_at) if ended_at else now)
        spent_s = round(status.execution.stage_seconds + max(later_s, 0.0))
    return replace(found, state=state, spent_seconds=spent_s)


def _attempts(operation: MachineOperation, history: RunHistory) -> Iterator[TimelineAttempt]:
    for attempt in history.attempts:
        yield TimelineAttempt(
            stage=attempt.stage,
            action=attempt.action,
            number=attempt.number,
            started_at=attempt.started_at or "",
            completed_at=attempt.completed_at,
            reply=attempt.reply,
            reason=attempt.reason or "",
            message=attempt.message or "",
        )
    execution, target = operation.status.execution, operation.status.targets[0]
    if execution is None or execution.action is None:
        return
    answer = execution.answer
    yield TimelineAttempt(
        stage=target.stage or "",
        action=execution.action,
        number=target.attempts or 0,
        started_at=target.last_attempt_at or "",
        completed_at=(operation.status.completed_at if operation.terminal else None) or "",
        reply="" if answer is None else answer.reply,
        reason="" if answer is None else answer.reason or "",
        message="" if answer is None else answer.message or "",
    )
