"""Effects of a patch: of a Machine's counters, pause or join counter, or of an operation. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from unbounded.api.core import CONFIG_MAPS, ConfigMap
from unbounded.api.machine import MACHINES, JoinPurpose, Machine, MachinePhase
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.cli.deploy.allow_join import INSTALLS, UNDER_NODE
from unbounded.cli.explain.facts import ExplainFacts, procedure_of
from unbounded.cli.plugin.command import IntentPatch
from unbounded.machina.csr_approval.plan import open_causes
from unbounded.machina.machines.eligibility import is_set_up_by_join
from unbounded.operations.counters import Due, due
from unbounded.operations.gates import paused
from unbounded.operations.record import run_of
from unbounded.operations.supervisor_plan import ABANDON_AFTER_S
from unbounded.workflow.procedure import Cancel

Raw = Mapping[str, Any]


def merged(old: Any, change: Raw) -> dict[str, Any]:
    """Apply a JSON merge patch (RFC 7396)."""
    new = dict(old) if isinstance(old, Mapping) else {}
    for key, value in change.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = merged(new.get(key), value) if isinstance(value, Mapping) else value
    return new


def counter_request(patch: IntentPatch, before: Raw) -> Due | None:
    """Return the operation that a raised counter requests; None where the patch raises none."""
    if patch.kind.plural != MACHINES.plural or "operations" not in (patch.body.get("spec") or {}):
        return None
    return due(_machine(merged(before, patch.body)))


def effects(patch: IntentPatch, before: Raw, facts: ExplainFacts) -> tuple[str, ...]:
    """Describe the effects of a patch.

    Args:
        before: the object before the patch.
    """
    after = merged(before, patch.body)
    if patch.kind.plural == MACHINES.plural:
        was, will = _machine(before), _machine(after)
        return (*_of_pause(was, will, facts), *_of_joins(was, will, facts))
    if patch.kind.plural == CONFIG_MAPS.plural:
        return tuple(_of_pause_of_all(msgspec.convert(after, ConfigMap), facts))
    if patch.kind.plural == MACHINE_OPERATIONS.plural:
        return tuple(
            _of_end(msgspec.convert(before, MachineOperation), msgspec.convert(after, MachineOperation), facts)
        )
    return ()


def _machine(body: Raw) -> Machine:
    return msgspec.convert(body, Machine)


def _of_pause(before: Machine, after: Machine, facts: ExplainFacts) -> Iterator[str]:
    was, will = paused(before, None), paused(after, None)
    if (was is None) == (will is None):
        return
    waiting = [one for one in facts.on(after.name) if not one.terminal]
    yield from _pause_text(waiting, held=will is not None)
    if will is None and (gate := paused(after, facts.pause)) is not None:
        yield f"still nothing starts: {gate.text}"


def _of_pause_of_all(after: ConfigMap, facts: ExplainFacts) -> Iterator[str]:
    waiting = [one for one in facts.operations.values() if not one.terminal]
    nobody = msgspec.convert({"metadata": {"name": ""}}, Machine)
    yield from _pause_text(waiting, held=paused(nobody, after) is not None)


def _pause_text(waiting: list[MachineOperation], *, held: bool) -> Iterator[str]:
    unclaimed = ", ".join(sorted(one.name for one in waiting if not one.claimed))
    running = ", ".join(sorted(one.name for one in waiting if one.claimed))
    if held:
        yield f"nothing starts any more; of the existing operations that blocks: {unclaimed or 'none'}"
        if running:
            yield f"operations in progress continue: {running}"
    else:
        yield f"waiting operations may start: {unclaimed or 'none'}"


def _of_joins(before: Machine, after: Machine, facts: ExplainFacts) -> Iterator[str]:
    if after.spec.join_counter <= before.spec.join_counter:
        return
    for purpose in JoinPurpose:
        causes = set(open_causes(after, purpose)) - set(open_causes(before, purpose))
        if causes:
            yield f"its {purpose} may have one more certificate ({', '.join(sorted(causes))})"
    if is_set_up_by_join(before, facts.nodes.get(before.name), after.spec.join_counter):
        yield UNDER_NODE if before.status.phase == MachinePhase.READY else INSTALLS


def _of_end(before: MachineOperation, after: MachineOperation, facts: ExplainFacts) -> Iterator[str]:
    run = run_of(before)
    if after.spec.abandon and not before.spec.abandon:
        yield _abandoned(before)
    elif after.spec.cancel and not before.spec.cancel:
        if run is None:
            yield _cancelled_targets(before) if before.status.targets else "it ends, as it has not started"
            return
        procedure = procedure_of(before, run.executor, facts.machines.get(run.machine))
        stage = procedure.stages.get(run.stage) if procedure is not None else None
        yield f"in stage {run.stage}, a cancel {(stage.cancel if stage is not None else Cancel.TOO_LATE).value}"


def _cancelled_targets(parent: MachineOperation) -> str:
    opened = [target for target in parent.status.targets if target.operation is None and target.completed_at is None]
    return f"{len(opened)} of its {len(parent.status.targets)} targets do not start; a cancel reaches the others"


def _abandoned(operation: MachineOperation) -> str:
    execution = operation.status.execution
    if execution is None:
        return "it ends, as it has not started"
    return f"it ends once {execution.executor} has been silent for {ABANDON_AFTER_S:.0f} s, and not before"
