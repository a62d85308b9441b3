"""Metrics and traces of operations: results and durations. Without machine names, which would make too many series.

Engines and the supervisor record what they end themselves. An agent serves neither metrics nor traces: those of its
operations follow from their status.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from unbounded.api.operation import MachineOperation, OperationPhase
from unbounded.api.run_history import RunHistory
from unbounded.kube.clock import timestamp_of
from unbounded.kube.tracing import Attributes, Tracer
from unbounded.operations.executor_selection import is_agent
from unbounded.operations.reasons import is_known_wait

MAX_LABELS: Final = 64
OTHER: Final = "Other"
LONGEST_S: Final = 30 * 86400  # that an agent can report


class LimitedLabel:
    """A label with texts of others, of which the first MAX_LABELS are values: a series is never removed."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def value(self, text: str) -> str:
        """Return a text as the value of the label; OTHER where there are too many."""
        if text not in self._known and len(self._known) >= MAX_LABELS:
            return OTHER
        self._known.add(text)
        return text


class OperationMetrics:
    """Metrics of the engines and the supervisor; a process has one instance, in its registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        self._ended = Counter(
            "unbounded_operations",
            "Ended MachineOperations, by kind, phase and reason.",
            ("kind", "phase", "reason"),
            registry=registry,
        )
        self._overrides = Counter(
            "unbounded_disruption_budget_overrides",
            "Operations that spec.override let exceed a disruption budget, by kind.",
            ("kind",),
            registry=registry,
        )
        self._seconds = Histogram(
            "unbounded_operation_duration_seconds",
            "Time from the claim of a MachineOperation to its end, by kind and phase.",
            ("kind", "phase"),
            buckets=(1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600),
            registry=registry,
        )
        self._stage_seconds = Histogram(
            "unbounded_operation_stage_duration_seconds",
            "Time of a MachineOperation in a stage as its limit counts it, while an executor ran, by kind and stage.",
            ("kind", "stage"),
            buckets=(1, 5, 15, 60, 120, 300, 600, 1800, 3600),
            registry=registry,
        )
        self._blocked_seconds = Histogram(
            "unbounded_operation_blocked_duration_seconds",
            "Ended waits of MachineOperations, by blocker and reason.",
            ("by", "reason"),
            buckets=(5, 30, 60, 300, 900, 3600, 14400, 86400),
            registry=registry,
        )
        self._own_reasons = LimitedLabel()  # of executors
        self._ends = LimitedLabel()

    def overrode(self, kind: str) -> None:
        """Count an operation that was granted over a disruption budget."""
        self._overrides.labels(kind).inc()

    def left_stage(self, kind: str, stage: str, seconds: float) -> None:
        """Record that an operation has left a stage."""
        self._stage_seconds.labels(kind, stage).observe(seconds)

    def unblocked(self, by: str, reason: str, seconds: float) -> None:
        """Record the end of a wait.

        Args:
            by: the blocker, as `reasons.blocker_of` names it.
        """
        known = reason if is_known_wait(reason) else self._own_reasons.value(reason)
        self._blocked_seconds.labels(by, known).observe(seconds)

    def ended(self, operation: MachineOperation, seconds: float | None, *, reason: str | None = None) -> None:
        """Count an operation whose status is terminal.

        Args:
            seconds: from its claim, by the clock of the component that ended it; None for one that was never claimed.
            reason: in place of that of the status.
        """
        kind, status = operation.spec.operation_kind, operation.status
        self._ended.labels(kind, status.phase or "", self._ends.value(reason or status.reason or "")).inc()
        if seconds is not None:
            self._seconds.labels(kind, status.phase or "").observe(seconds)


def traced(operation: MachineOperation, executor: str = "") -> Attributes:
    """Return the attributes of an operation's spans."""
    found = {
        "unbounded.operation.name": operation.name,
        "unbounded.operation.kind": operation.spec.operation_kind,
        "unbounded.machine": operation.spec.machine_ref or "",
        "unbounded.executor": executor,
    }
    return {name: value for name, value in found.items() if value}


def trace_end(tracer: Tracer, operation: MachineOperation, executor: str = "") -> None:
    """Record an operation that has ended, from its claim, or from its creation if it was never claimed."""
    status = operation.status
    times = (status.started_at, operation.metadata.creation_timestamp, status.completed_at)
    began = next((at for text in times if (at := timestamp_of(text)) is not None), None)
    if began is None:
        return
    has_failed = status.phase == OperationPhase.FAILED
    tracer.ended(
        operation.metadata.uid,
        operation.spec.operation_kind,
        began,
        {
            **traced(operation, executor),
            "unbounded.operation.phase": status.phase or "",
            "unbounded.operation.reason": status.reason or "",
        },
        f"{status.reason}: {status.message}" if has_failed else None,
    )


def is_executed_by_agent(operation: MachineOperation) -> bool:
    """Return whether an agent has claimed the operation."""
    execution = operation.status.execution
    return execution is not None and is_agent(execution.executor)


class AgentResults:
    """Records ends and stages of agents' operations, also those that the supervisor ends as their agent is lost.

    What happens while no process leads is not recorded. Times are those that the agents have counted. An agent may
    write any text and any number to the status, so the number of series and each time have a limit.
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
