"""The view of rollouts and budgets: rolling updates, operations on many Machines, drains, and holders of budgets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from unbounded.api.conditions import counted
from unbounded.api.configuration import MachineConfiguration, UpdateStatus
from unbounded.api.disruption import MAINTENANCE, DisruptionHolder, MachineDisruptionBudget
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation, OperationPhase, RolloutStageStatus
from unbounded.console import urls
from unbounded.console.models.failures import unresolved
from unbounded.console.models.parts import (
    NotRead,
    Tone,
    ViewData,
    ViewSection,
    ViewTable,
    ViewText,
    known,
    note_unread,
    phase,
    words,
)
from unbounded.kube.selectors import selector_text

SHOWN: Final = 50  # names of Machines in a cell


def rollouts_view(
    configurations: Sequence[MachineConfiguration] | NotRead,
    operations: Sequence[MachineOperation] | NotRead,
    budgets: Sequence[MachineDisruptionBudget] | NotRead,
    machines: Sequence[Machine] | NotRead,
) -> ViewData:
    """Return the view of all rollouts, budgets and drains."""
    updates = [
        (one, one.status.rollout)
        for one in sorted(known(configurations), key=lambda each: each.name)
        if one.status.rollout is not None
    ]
    failing = {one.name for one in unresolved(known(operations))}
    parents = [
        one
        for one in sorted(known(operations), key=_newest)
        if one.spec.machine_ref is None and (not one.terminal or one.name in failing)
    ]
    ordered = sorted(known(budgets), key=lambda one: one.name)
    sections: tuple[ViewSection, ...] = (
        note_unread(_updates(updates), configurations),
        note_unread(_stages(updates, parents), configurations, operations),
        note_unread(_failures(updates), configurations),
        note_unread(_operations(parents), operations),
        note_unread(_budgets(ordered), budgets),
        note_unread(_groups(ordered), budgets),
        note_unread(_holders(ordered), budgets),
        note_unread(_drains(known(machines)), machines),
    )
    halted = sum(1 for _, rollout in updates if rollout.phase == "Halted")
    is_whole = not any(isinstance(one, NotRead) for one in (configurations, operations))
    count = counted(len(updates) + len(parents), "rollout")
    present = words(count) if is_whole else words("not all readable", tone=Tone.WARN)
    state = words(f"{halted} halted", tone=Tone.BAD) if halted else present
    return ViewData("Rollouts and budgets", state, sections)


def _newest(operation: MachineOperation) -> tuple[str, str]:
    return operation.metadata.creation_timestamp or "", operation.name


Updates = Sequence[tuple[MachineConfiguration, UpdateStatus]]


def _updates(updates: Updates) -> ViewTable:
    return ViewTable(
        "Rolling updates",
        (
            "Configuration",
            "Version",
            "Phase",
            "Stage",
            "Updated",
            "Outdated",
            "Prepared",
            "Updating",
            "Waits for",
            "Message",
        ),
        tuple(
            (
                words(one.name),
                words(f"v{rollout.version}"),
                phase(rollout.phase),
                words(rollout.stage),
                *map(words, map(str, (rollout.updated, rollout.outdated, rollout.prepared))),
                words(_named(rollout.updating)),
                words(_waiting(rollout)),
                words(rollout.message),
            )
            for one, rollout in updates
        ),
        empty="No configuration rolls out.",
    )


def _waiting(rollout: UpdateStatus) -> str:
    waiting = rollout.waiting
    if waiting is None:
        return ""
    return f"{waiting.reason}, held by {waiting.held_by}" if waiting.held_by else waiting.reason


def _named(machines: Sequence[str]) -> str:
    more = f" and {len(machines) - SHOWN} more" if len(machines) > SHOWN else ""
    return ", ".join(machines[:SHOWN]) + more


def _stages(updates: Updates, parents: Sequence[MachineOperation]) -> ViewTable:
    rows = [
        *(_stage(ViewText(one.name), stage) for one, rollout in updates for stage in rollout.stages),
        *(
            _stage(ViewText(one.name, urls.operation(one.name)), stage)
            for one in parents
            if one.status.rollout is not None
            for stage in one.status.rollout.stages
        ),
    ]
    return ViewTable("Stages", ("Rollout", "Stage", "Phase", "Completed", "Failed", "Machines", "Paused"), tuple(rows))


def _stage(of: ViewText, stage: RolloutStageStatus) -> tuple[ViewText, ...]:
    numbers = map(words, map(str, (stage.completed, stage.failed, stage.targets)))
    return (of, words(stage.name), phase(stage.phase), *numbers, words(stage.paused_at))


def _failures(updates: Updates) -> ViewTable:
    return ViewTable(
        "Failed updates",
        ("Configuration", "Machine", "Message"),
        tuple(
            (words(one.name), ViewText(failed.machine, urls.machine(failed.machine), Tone.BAD), words(failed.message))
            for one, rollout in updates
            for failed in rollout.failed
        ),
    )


def _operations(parents: Sequence[MachineOperation]) -> ViewTable:
    return ViewTable(
        "Operations on several Machines",
        ("Operation", "Kind", "Phase", "Complete", "Failed", "In progress", "Machines", "Message"),
        tuple(map(_parent, parents)),
    )


def _parent(operation: MachineOperation) -> tuple[ViewText, ...]:
    phases = [target.phase for target in operation.status.targets]
    counts = (OperationPhase.COMPLETE, OperationPhase.FAILED, OperationPhase.IN_PROGRESS)
    return (
        ViewText(operation.name, urls.operation(operation.name)),
        words(operation.spec.operation_kind),
        phase(operation.status.phase or OperationPhase.PENDING.value),
        *(words(str(phases.count(one.value))) for one in counts),
        words(str(len(phases))),
        words(operation.status.message),
    )


# ---- budgets and drains


def _budgets(budgets: Iterable[MachineDisruptionBudget]) -> ViewTable:
    return ViewTable(
        "Budgets",
        ("Budget", "Machines", "Unavailable at most", "For each", "Allowed now", "Granted", "Schedule"),
        tuple(
            (
                words(one.name),
                words(selector_text(one.spec.machine_selector)),
                words(str(one.spec.max_unavailable)),
                words(", ".join(one.spec.group_by)),
                _allowed(one),
                words(str(one.status.granted or 0)),
                words(one.spec.schedule),
            )
            for one in budgets
        ),
        empty="No MachineDisruptionBudget exists.",
    )


def _allowed(budget: MachineDisruptionBudget) -> ViewText:
    allowed = budget.status.allowed
    if allowed is None:
        return words("")
    return words(str(allowed), tone=Tone.CALM if allowed else Tone.WARN)


def _groups(budgets: Iterable[MachineDisruptionBudget]) -> ViewTable:
    return ViewTable(
        "Groups of budgets",
        ("Budget", "Group", "Machines", "Unavailable", "Granted", "Allowed"),
        tuple(
            (
                words(one.name),
                words(group.value),
                *map(words, map(str, (group.machines, group.unavailable, group.granted, group.allowed))),
            )
            for one in budgets
            for group in one.status.groups
        ),
    )


def _holders(budgets: Iterable[MachineDisruptionBudget]) -> ViewTable:
    return ViewTable(
        "Holders of budgets",
        ("Budget", "Machine", "Holder", "Since"),
        tuple(
            (
                words(one.name),
                ViewText(grant.machine, urls.machine(grant.machine)),
                _holder(grant.holder),
                words(grant.since),
            )
            for one in budgets
            for grant in one.status.grants
        ),
    )


def _holder(holder: DisruptionHolder) -> ViewText:
    path = urls.machine(holder.name) if holder.kind == MAINTENANCE else urls.operation(holder.name)
    return ViewText(str(holder), path)


def _drains(machines: Iterable[Machine]) -> ViewTable:
    return ViewTable(
        "Disruptions in progress",
        ("Machine", "Stage", "Holder", "Waits for", "Pods left", "Message", "Since"),
        tuple(_disruptions(machines)),
    )


def _disruptions(machines: Iterable[Machine]) -> Iterator[tuple[ViewText, ...]]:
    for one in sorted(machines, key=lambda each: each.name):
        found = one.status.disruption
        if found is not None:
            yield (
                ViewText(one.name, urls.machine(one.name)),
                phase(found.stage),
                _holder(found.holder),
                words(found.held_by),
                words("" if found.drain is None else str(found.drain.left)),
                words(found.message),
                words(found.since),
            )
