"""Metrics and traces of the operations that agents execute. An agent serves none: they follow from the status.

An agent writes the status, and may write any text and any number there. So the number of series has a limit, and so
has each time.
"""

from __future__ import annotations

from typing import Final

from unbounded.api.operation import MachineOperation
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
        self._entered: dict[str, int] = {}  # seconds spent before the present stage, by UID
        self._stages, self._reasons = LimitedLabel(), LimitedLabel()

    def changed(self, old: MachineOperation | None, new: MachineOperation | None) -> None:
        """Take a change of the cache into account."""
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._entered.pop(old.metadata.uid, None)
            old = None
        if new is None or not is_executed_by_agent(new) or (new.terminal and (old is None or old.terminal)):
            return
        uid, execution = new.metadata.uid, new.status.execution
        before, stage = None if old is None else _stage(old), None if new.terminal else _stage(new)
        if execution is None or (before == stage and not new.terminal):
            return
        if before is not None and uid in self._entered:
            seconds = _limited(execution.spent_seconds - self._entered[uid])
            self._metrics.left_stage(new.spec.operation_kind, self._stages.value(before), seconds)
            self._tracer.left_stage(uid, before, seconds, traced(new, execution.executor))
        if stage is not None:
            self._entered[uid] = execution.spent_seconds - execution.stage_seconds
        if new.terminal:
            self._entered.pop(uid, None)
            reason = self._reasons.value(new.status.reason or "")
            self._metrics.ended(new, _limited(execution.spent_seconds), reason=reason)
            trace_end(self._tracer, new, execution.executor)


def _stage(operation: MachineOperation) -> str | None:
    targets = operation.status.targets
    return targets[0].stage if targets else None


def _limited(seconds: int) -> int:
    return min(max(seconds, 0), LONGEST_S)
