"""Metrics and traces of the operations that agents execute. An agent serves none: they follow from the status.

An agent writes the status, and may write any text and any number there. So the number of series has a limit, and so
has each time.
"""

from __future__ import annotations

from typing import Final

from unbounded.api.operation import MachineOperation
from unbounded.api.run_history import RunHistory
from unbounded.kube.tracing import Tracer
from unbounded.operations.executor_selection import is_agent
from unbounded.operations.metrics import LimitedLabel, OperationMetrics
from unbounded.operations.traces import trace_end, traced

LONGEST_S: Final = 30 * 86400


def is_executed_by_agent(operation: MachineOperation) -> bool:
    """Return whether an agent has claimed the operation."""
    execution = operation.status.execution
    return execution is not None and is_agent(execution.executor)


class AgentResults:
    """Records ends and stages of agents' operations, also those that the supervisor ends as their agent is lost.

    What happens while no process leads is not recorded. Times are those that the agents have counted.
    """

    def __init__(self, metrics: OperationMetrics, tracer: Tracer) -> None:
        self._metrics = metrics
        self._tracer = tracer
        self._stages, self._reasons = LimitedLabel(), LimitedLabel()

    def changed(self, old: MachineOperation | None, new: MachineOperation | None) -> None:
        """Take a change of the cache into account."""
        if new is None or not is_executed_by_agent(new) or (new.terminal and (old is None or old.terminal)):
            return
        uid, execution = new.metadata.uid, new.status.execution
        if execution is None:
            return
        if old is not None and old.metadata.uid == uid:
            attributes = traced(new, execution.executor)
            for stage, spent_s in _left_stages(old, new):
                seconds = _limited(spent_s)
                self._metrics.left_stage(new.spec.operation_kind, self._stages.value(stage), seconds)
                self._tracer.left_stage(uid, stage, seconds, attributes)
        if new.terminal:
            reason = self._reasons.value(new.status.reason or "")
            self._metrics.ended(new, _limited(execution.spent_seconds), reason=reason)
            trace_end(self._tracer, new, execution.executor)


def _left_stages(old: MachineOperation, new: MachineOperation) -> list[tuple[str, int]]:
    """Return the stages that an operation has left between two states, with the seconds in each."""
    was, now, history = old.status.execution, new.status.execution, new.status.history
    if now is None:
        return []
    if history is None:  # of an agent of the former release: of several stages in between, the first has all the time
        stage = _stage(old)
        if was is None or stage is None or (stage == _stage(new) and not new.terminal):
            return []
        return [(stage, now.spent_seconds - was.spent_seconds + was.stage_seconds)]
    count = _count_left(history) - _count_left(old.status.history or RunHistory())
    left = [(visit.name, visit.spent_seconds or 0) for visit in history.stages if visit.completed_at is not None]
    left = left[-count:] if count > 0 else []
    last = history.stages[-1] if history.stages else None
    if new.terminal and last is not None and last.completed_at is None:  # the supervisor has ended it
        left.append((last.name, now.stage_seconds))
    return left


def _count_left(history: RunHistory) -> int:
    return history.dropped_stages + sum(visit.completed_at is not None for visit in history.stages)


def _stage(operation: MachineOperation) -> str | None:
    targets = operation.status.targets
    return targets[0].stage if targets else None


def _limited(seconds: int) -> int:
    return min(max(seconds, 0), LONGEST_S)
