"""Forecast of an operation that does not exist yet. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.cli.explain.facts import ExplainFacts, procedure_of
from unbounded.cli.explain.links import ExplainLink, LinkSubject, Topic
from unbounded.cli.explain.run import chain
from unbounded.cli.forecast.model import MachineForecast, OperationForecast, StageLine
from unbounded.cli.operate import manifests
from unbounded.operations import reasons
from unbounded.operations.batch_plan import BatchRejection, child_manifest, snapshot
from unbounded.operations.default_deadlines import deadline_s
from unbounded.operations.ownership import ExecutorKind, executor_name
from unbounded.operations.supervisor_plan import (
    QUIET_S,
    EndOperation,
    OperationAges,
    ReportWait,
    SupervisorView,
    plan_action,
)
from unbounded.workflow.procedure import ENDS, Procedure

UID: Final = "planned"  # no existing object has it
LAST: Final = "9999-12-31T23:59:59Z"  # later than all existing objects, whatever this machine's clock shows

LOSES: Final[Mapping[OperationKind, str]] = {
    **manifests.DESTROYS,
    OperationKind.NODE_REBOOT: "the workload of its Node stops, and starts again with it",
    OperationKind.HOST_REBOOT: "the workload of the host stops, and starts again with it",
    OperationKind.HOST_POWER_OFF: "the workload of the host stops until it is switched on",
}


def decoded(manifest: Mapping[str, Any]) -> MachineOperation:
    """Return the operation as it would exist: with the schema's defaults, and the last in order."""
    metadata = {"uid": UID, "creationTimestamp": LAST, **(manifest.get("metadata") or {})}
    return msgspec.convert({**manifest, "metadata": metadata}, MachineOperation)


def forecast(operation: MachineOperation, facts: ExplainFacts, pods: Mapping[str, int]) -> OperationForecast:
    """Forecast an operation from the present state.

    Args:
        facts: of its Machines, with the operations on them.
        pods: number of Pods on the Node of each Machine, where that is known.
    """
    kind = OperationKind(operation.spec.operation_kind)
    planned = OperationForecast(
        name=operation.name,
        kind=kind.value,
        deadline_s=deadline_s(operation),
        start_deadline_s=operation.spec.start_deadline_seconds,
        max_concurrent=operation.spec.max_concurrent,
        max_failures=operation.spec.max_failures,
    )
    if operation.spec.machine_ref is not None:
        targets: tuple[MachineForecast, ...] = (_forecast_target(operation, facts),)
    else:
        found = snapshot(operation, tuple(facts.machines.values()))
        if isinstance(found, BatchRejection):
            return replace(planned, refused=f"{found.reason}: {found.text}")
        targets = _waves(operation, [target.machine_ref for target in found], facts)
    first = next((one for one in targets if one.executor), None)
    procedure = None if first is None else procedure_of(operation, first.executor, facts.machines.get(first.machine))
    return replace(
        planned,
        targets=targets,
        stages=() if procedure is None else stages(procedure),
        loses=tuple(_losses(kind, targets, pods)),
    )


def _waves(parent: MachineOperation, machines: Sequence[str], facts: ExplainFacts) -> tuple[MachineForecast, ...]:
    """Return the targets in the order of their starts, in waves of the concurrency limit."""
    limit = parent.spec.max_concurrent
    children = (decoded(child_manifest(parent, machine)) for machine in machines)
    outlooks = (_forecast_target(child, facts) for child in children)
    return tuple(replace(one, wave=number // limit + 1) for number, one in enumerate(outlooks))


def _forecast_target(operation: MachineOperation, facts: ExplainFacts) -> MachineForecast:
    """Return the verdict of the supervisor and the gates on one Machine's operation."""
    name = operation.spec.machine_ref or ""
    machine = facts.machines.get(name)
    ages = OperationAges(known_s=min(QUIET_S, operation.spec.start_deadline_seconds - 0.5))
    executor = _executor(operation, machine)
    absent = facts.absence(executor)
    decided = plan_action(SupervisorView(operation, machine, facts.on(name), facts.pause, ages, absent=absent))
    found = MachineForecast(name, operation.name, executor=executor)
    if isinstance(decided, EndOperation):
        return replace(found, refused=f"{decided.reason}: {decided.text}")
    if not isinstance(decided, ReportWait):
        return found
    return replace(found, held=_blockers(operation, decided, facts))


def _executor(operation: MachineOperation, machine: Machine | None) -> str:
    if machine is None:
        return ""
    return executor_name(OperationKind(operation.spec.operation_kind), machine) or ""


def _blockers(operation: MachineOperation, decided: ReportWait, facts: ExplainFacts) -> tuple[ExplainLink, ...]:
    """Return the blockers of an operation; none if it waits only for the claim of a live executor."""
    known = replace(facts, operations={**facts.operations, operation.name: operation})
    first, *others = chain(known, LinkSubject(Topic.OPERATION, operation.name))
    links = (replace(first, since=""), *others)
    if decided.reason not in (reasons.WAITING_FOR_EXECUTOR, reasons.PROVIDER_NOT_SERVED):
        return links
    return () if is_alive(decided.held_by or "", facts) else tuple(others)


def is_alive(executor: str, facts: ExplainFacts) -> bool:
    """Return whether an executor is alive, as far as that can be observed."""
    kind, _, machine = executor.partition("/")
    if kind != ExecutorKind.AGENT:
        return not facts.is_away(executor)
    found, node = facts.machines.get(machine), facts.nodes.get(machine)
    reported = found is not None and found.status.agent is not None and bool(found.status.agent.version)
    return reported and (node is None or node.ready)


def stages(procedure: Procedure) -> tuple[StageLine, ...]:
    """Return the stages of an operation that neither is cancelled nor fails, in the order of its table."""
    reached, left = {procedure.start}, [procedure.start]
    while left:
        here = left.pop()
        following = [step for (stage, _), step in procedure.table.items() if stage == here and step.fail is None]
        otherwise = procedure.stages[here].on_timeout
        following += [otherwise] if otherwise is not None and otherwise.fail is None else []
        new = {step.stage for step in following} - reached - ENDS
        reached |= new
        left += sorted(new)
    return tuple(
        StageLine(name, stage.waits_for, stage.limit_s, stage.cancel.value)
        for name, stage in procedure.stages.items()
        if name in reached and not stage.is_cleanup
    )


def _losses(kind: OperationKind, targets: Sequence[MachineForecast], pods: Mapping[str, int]) -> list[str]:
    """Return what is lost on each Machine of the operation."""
    words = LOSES.get(kind)
    if words is None:
        return []
    return [f"{one.machine}: {words}{_pods(pods.get(one.machine))}" for one in targets if not one.refused]


def _pods(count: int | None) -> str:
    if count is None:
        return ""
    return f" ({count} Pod{'' if count == 1 else 's'} on its Node)"
