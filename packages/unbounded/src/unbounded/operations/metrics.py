"""Metrics of operations: results and durations. Without machine names, which would make too many series."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from unbounded.api.operation import MachineOperation
from unbounded.operations.reasons import is_known_wait

MAX_LABELS: Final = 64
OTHER: Final = "Other"


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
