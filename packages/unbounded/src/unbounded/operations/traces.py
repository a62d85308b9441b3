"""Attributes and ends of operations in traces."""

from __future__ import annotations

from unbounded.api.operation import MachineOperation, OperationPhase
from unbounded.kube.clock import timestamp_of
from unbounded.kube.tracing import Attributes, Tracer


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
