"""Effects of a command: of a patch of a Machine or an operation, and of an operation that does not exist yet. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from unbounded.api.conditions import counted
from unbounded.api.configuration import MachineConfiguration, MachineConfigurationVersion, UpdateFailurePolicy
from unbounded.api.core import CONFIG_MAPS, ConfigMap, Node
from unbounded.api.disruption import BudgetGroup, DisruptionStage, DrainProgress, MachineDisruptionBudget
from unbounded.api.machine import MACHINES, JoinPurpose, Machine, MachinePhase
from unbounded.api.names import LABEL_CONFIGURATION
from unbounded.api.operation import (
    ALL,
    MACHINE_OPERATIONS,
    MachineOperation,
    OperationKind,
    OperationStrategy,
    RolloutStage,
    TargetStatus,
)
from unbounded.explain.chain import chain
from unbounded.explain.configurations import start_blocker
from unbounded.explain.facts import ExplainFacts, procedure_of
from unbounded.explain.fixes import blocker_fixes
from unbounded.explain.links import ExplainLink, Fix, LinkCode, LinkSubject, Topic
from unbounded.kube.clock import utc_now
from unbounded.machina.csr_approval.plan import open_causes
from unbounded.machina.machines.eligibility import is_set_up_by_join
from unbounded.machina.rolling_update_plan import UpdateView, outdated_in_order, plan_update, replaced_hosts
from unbounded.operations import reasons, supervisor_plan
from unbounded.operations.batch_plan import BatchRejection, child_manifest, snapshot
from unbounded.operations.claim_gates import in_maintenance, needs_grant, paused
from unbounded.operations.deadline import deadline_s
from unbounded.operations.disruption.budgets import (
    drain_rules,
    group_of,
    has_been_node,
    is_unavailable,
    limit_of,
    window_of,
)
from unbounded.operations.disruption.drain import DrainRules
from unbounded.operations.disruption.model import foreign_maintenance, hold_of
from unbounded.operations.execution_record import run_of
from unbounded.operations.executor_selection import ExecutorKind, executor_name
from unbounded.operations.machine_counters import Due, due
from unbounded.operations.rollout_plan import stage_limit, stages_of
from unbounded.plan.consequences import DESTROYS, INSTALLS, UNDER_NODE
from unbounded.plan.intent import IntentPatch
from unbounded.plan.model import MachineForecast, OperationForecast, RolloutLine, StageLine, UpdateForecast
from unbounded.workflow.procedure import Cancel, Procedure

Raw = Mapping[str, Any]
UID: Final = "planned"  # no existing object has it
BLOCKERS: Final = 5  # pods that are named
LAST: Final = "9999-12-31T23:59:59Z"  # later than all existing objects, whatever this machine's clock shows

LOSES: Final[Mapping[OperationKind, str]] = {
    **DESTROYS,
    OperationKind.NODE_REBOOT: "the workload of its Node stops, and starts again with it",
    OperationKind.HOST_REBOOT: "the workload of the host stops, and starts again with it",
    OperationKind.HOST_POWER_OFF: "the workload of the host stops until it is switched on",
}


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
        return (*_of_pause(was, will, facts), *_of_joins(was, will, facts), *_of_maintenance(was, will, facts))
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
    unnamed = msgspec.convert({"metadata": {"name": ""}}, Machine)
    yield from _pause_text(waiting, held=paused(unnamed, after) is not None)


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


def _of_maintenance(before: Machine, after: Machine, facts: ExplainFacts) -> Iterator[str]:
    """Yield what begins, or ends, with the maintenance of a Machine, and what would delay its drain now."""
    node, enabled = facts.nodes.get(after.name), in_maintenance(after)
    if enabled == in_maintenance(before):
        return
    budgets = _counting(after, facts)
    rules = drain_rules(budgets, None, override=False, maintenance=True)
    if node is None:
        yield "there is no Node to drain" if enabled else "there is no Node to uncordon"
    elif not enabled:
        yield f"its Node {node.metadata.name} is uncordoned once it has been Ready for {rules.min_ready_s:.0f} s"
    else:
        yield f"its Node {node.metadata.name} is drained, and stays cordoned until the maintenance ends"
    if not enabled:
        return
    if (foreign := foreign_maintenance(node)) is not None:
        yield f"the maintenance would wait: {foreign.text}"
    for link in (*_without_room(budgets, after, node), *_holds(node)):
        yield from maintenance_wait(link)


def maintenance_wait(link: ExplainLink) -> Iterator[str]:
    """Yield what delays the drain of a Machine's maintenance, and the command that helps."""
    yield f"the maintenance would wait: {link.about} {link.what}"
    yield from (f"try:  {fix.command}" for fix in link.fixes)


def begun_maintenance(before: Machine, after: Machine, facts: ExplainFacts) -> DrainRules | None:
    """Return the rules of the drain that a change of a Machine begins; None where it begins none."""
    if in_maintenance(before) or not in_maintenance(after) or after.name not in facts.nodes:
        return None
    return drain_rules(_counting(after, facts), None, override=False, maintenance=True)


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
    return (
        f"it ends once {execution.executor} has been silent for {supervisor_plan.ABANDON_AFTER_S:.0f} s, and not before"
    )


def decoded(manifest: Mapping[str, Any]) -> MachineOperation:
    """Return the operation as it would exist: with the schema's defaults, and the last in order."""
    metadata = {"uid": UID, "creationTimestamp": LAST, **(manifest.get("metadata") or {})}
    return msgspec.convert({**manifest, "metadata": metadata}, MachineOperation)


def forecast(operation: MachineOperation, facts: ExplainFacts, pods: int | None) -> OperationForecast:
    """Forecast an operation from the present state.

    Args:
        facts: of its Machines, with the operations on them.
        pods: number of Pods on the Node of its one Machine, where that is known.
    """
    kind = OperationKind(operation.spec.operation_kind)
    planned = OperationForecast(
        name=operation.name,
        kind=kind.value,
        deadline_s=deadline_s(operation),
        start_deadline_s=operation.spec.start_deadline_seconds,
        max_concurrent=operation.spec.max_concurrent,
        max_failures=operation.spec.max_failures,
        on_failure=(operation.spec.strategy or OperationStrategy()).on_failure,
    )
    if operation.spec.machine_ref is not None:
        targets: tuple[MachineForecast, ...] = (_forecast_target(operation, facts),)
    else:
        found = snapshot(operation, tuple(facts.machines.values()))
        if isinstance(found, BatchRejection):
            return replace(planned, refused=f"{found.reason}: {found.text}")
        if operation.spec.strategy is not None:
            lines = _rollout(operation.spec.strategy, operation.spec.max_concurrent, found)
            planned = replace(planned, rollout=lines)
        targets = _waves(operation, found, planned.rollout, facts)
    first = next((one for one in targets if one.executor), None)
    procedure = None if first is None else procedure_of(operation, first.executor, facts.machines.get(first.machine))
    return replace(
        planned,
        targets=targets,
        stages=() if procedure is None else stages(procedure),
        budgets=tuple(_rooms(targets, operation, facts)),
        loses=tuple(_losses(kind, targets, pods)),
    )


def forecast_update(view: UpdateView, facts: ExplainFacts) -> UpdateForecast:
    """Forecast the rolling update of a configuration from the present state.

    Args:
        view: with the configuration as it would be.
        facts: with the Nodes of the Machines and their budgets.
    """
    status, settings = plan_update(view).status, view.settings
    found, images = outdated_in_order(view), replaced_hosts(view)
    if isinstance(found, str) or status is None:
        return UpdateForecast(refused=found if isinstance(found, str) else "it has no version yet")
    limit = view.configuration.spec.update_strategy.max_unavailable or 1
    rollout = _rollout(OperationStrategy(stages=settings.stages), limit, found) if settings.stages else ()
    return UpdateForecast(
        version=status.version,
        targets=tuple(
            MachineForecast(
                name,
                "",
                executor=_executor_of_update(facts.machines[name], images.get(name)),
                wave=wave,
                stage=target.rollout_stage or "",
                image=images.get(name, ""),
                held=tuple(_update_blockers(facts.machines[name], images.get(name), facts)),
            )
            for wave, target in _numbered(found, rollout, limit)
            for name in (target.machine_ref,)
        ),
        rollout=rollout,
        max_concurrent=limit,
        max_failures=settings.max_failures or 1,
        on_failure=settings.on_failure or UpdateFailurePolicy.HALT.value,
        now=f"{status.phase}: {status.message or ''}",
        starts=status.updating,
    )


def with_template(
    versions: Sequence[MachineConfigurationVersion], after: MachineConfiguration
) -> Sequence[MachineConfigurationVersion]:
    """Return the versions of a configuration, with the new one that its template makes."""
    name, template = after.metadata.name, after.spec.template
    last = max((one.spec.version for one in versions), default=0)
    if any(one.spec.version == last and one.spec.template == template for one in versions):
        return versions
    metadata = {"name": f"{name}-v{last + 1}", "uid": UID, "generation": 1, "labels": {LABEL_CONFIGURATION: name}}
    spec = {"version": last + 1, "template": msgspec.to_builtins(template)}
    return [*versions, msgspec.convert({"metadata": metadata, "spec": spec}, MachineConfigurationVersion)]


def with_image(machine: Machine, image: str | None) -> Machine:
    """Return a Machine with another image of its host; None leaves it as it is."""
    pxe = machine.spec.pxe
    if image is None or pxe is None:
        return machine
    change = msgspec.structs.replace
    return change(machine, spec=change(machine.spec, pxe=change(pxe, image=image)))


def _executor_of_update(machine: Machine, image: str | None) -> str:
    of_host = None if image is None else executor_name(OperationKind.HOST_REPLACE, machine)
    return of_host or f"{ExecutorKind.AGENT}/{machine.name}"


def _update_blockers(machine: Machine, image: str | None, facts: ExplainFacts) -> Iterator[ExplainLink]:
    node = facts.nodes.get(machine.name)
    if (blocker := start_blocker(machine, node, image)) is not None:
        yield blocker
    yield from _without_room(_counting(machine, facts), machine, node)


def _rollout(
    strategy: OperationStrategy, max_concurrent: int, targets: Sequence[TargetStatus]
) -> tuple[RolloutLine, ...]:
    """Return the stages in order."""
    sizes, stages = Counter(target.rollout_stage for target in targets), stages_of(strategy)
    before = ("", *(stage.name for stage in stages))
    return tuple(
        RolloutLine(
            name=stage.name,
            size=sizes[stage.name],
            at_once=stage_limit(stage, sizes[stage.name], max_concurrent),
            starts=_starts(stage, earlier),
            ends=_ends(stage, is_last=stage is stages[-1]),
        )
        for stage, earlier in zip(stages, before, strict=False)
    )


def _starts(stage: RolloutStage, before: str) -> str:
    after = stage.start_after
    if not before:
        return ""
    if after is None or after.targets == ALL:
        return f"after stage {before if after is None else after.stage}"
    return f"after {after.targets} of stage {after.stage}"


def _ends(stage: RolloutStage, *, is_last: bool) -> str:
    soaks = f"its Nodes have to stay Ready for {stage.soak_seconds} s" if stage.soak_seconds else ""
    pauses = "then it pauses" if stage.pause_after and not is_last else ""
    return ", ".join(part for part in (soaks, pauses) if part)


def _waves(
    parent: MachineOperation, found: Sequence[TargetStatus], rollout: Sequence[RolloutLine], facts: ExplainFacts
) -> tuple[MachineForecast, ...]:
    """Return the targets in the order of their starts, in waves of the concurrency limits."""
    return tuple(
        replace(
            _forecast_target(decoded(child_manifest(parent, target.machine_ref)), facts),
            wave=wave,
            stage=target.rollout_stage or "",
        )
        for wave, target in _numbered(found, rollout, parent.spec.max_concurrent)
    )


def _numbered(
    found: Sequence[TargetStatus], rollout: Sequence[RolloutLine], limit: int
) -> Iterator[tuple[int, TargetStatus]]:
    """Yield targets with the numbers of their waves."""
    limits, wave, left = {line.name: line.at_once for line in rollout}, 0, 0
    stage = None
    for target in found:
        if not left or target.rollout_stage != stage:
            stage, wave = target.rollout_stage, wave + 1
            left = limits.get(stage or "", limit)
        left -= 1
        yield wave, target


def _forecast_target(operation: MachineOperation, facts: ExplainFacts) -> MachineForecast:
    """Return the verdict of the supervisor and the gates on one Machine's operation."""
    name = operation.spec.machine_ref or ""
    machine = facts.machines.get(name)
    ages = supervisor_plan.OperationAges(
        known_s=min(supervisor_plan.QUIET_S, operation.spec.start_deadline_seconds - 0.5)
    )
    executor = _executor(operation, machine)
    absent = facts.absence(executor)
    decided = supervisor_plan.plan_action(
        supervisor_plan.SupervisorView(operation, machine, facts.on(name), facts.pause, ages, absent=absent)
    )
    found = MachineForecast(name, operation.name, executor=executor)
    if isinstance(decided, supervisor_plan.EndOperation):
        return replace(found, refused=f"{decided.reason}: {decided.text}")
    if not isinstance(decided, supervisor_plan.ReportWait):
        return found
    record = None if machine is None else machine.status.disruption
    takes_over = record is not None and record.stage == DisruptionStage.RETURNING  # from a holder that has ended
    is_free = decided.reason == reasons.WAITING_FOR_DRAIN and (record is None or takes_over)
    if machine is None or not is_free:
        return replace(found, held=_blockers(operation, decided, facts))
    node, budgets = facts.nodes.get(name), _counting(machine, facts)  # nothing but its grant and its drain is missing
    full = () if operation.spec.override is not None else _without_room(budgets, machine, node)
    rules = _drain_of(operation, machine, budgets)
    if node is None or not rules.enabled:
        return replace(found, held=tuple(full))
    drains = f"its Node {node.metadata.name} is drained first, within {rules.timeout_s} s"
    return replace(found, held=(*full, *_holds(node)), drains=drains)


def operation_drain(operation: MachineOperation, facts: ExplainFacts) -> DrainRules | None:
    """Return the rules of the drain before an operation on one Machine; None for no drain."""
    machine = facts.machines.get(operation.spec.machine_ref or "")
    if machine is None or machine.name not in facts.nodes or not needs_grant(operation, machine):
        return None
    rules = _drain_of(operation, machine, _counting(machine, facts))
    return rules if rules.enabled else None


def _drain_of(operation: MachineOperation, machine: Machine, budgets: Sequence[MachineDisruptionBudget]) -> DrainRules:
    override, maintenance = operation.spec.override is not None, in_maintenance(machine)
    return drain_rules(budgets, operation.spec.drain, override=override, maintenance=maintenance)


def _holds(node: Node | None) -> Iterator[ExplainLink]:
    """Yield the applications that hold the drain of a Node now."""
    if (hold := hold_of(node)) is not None:
        yield ExplainLink(
            f"Node {node.metadata.name if node else ''}", hold.text, hold.reason, fixes=blocker_fixes(hold.held_by)
        )


def pod_blockers(progress: DrainProgress) -> tuple[ExplainLink, ...]:
    """Return the pods that would block a drain, as a trial of it found them."""
    links = [
        ExplainLink(
            f"Pod {one.pod}",
            f"would block the drain: {one.why}",
            LinkCode.POD_BLOCKS_DRAIN,
            fixes=blocker_fixes(one.held_by or ""),
        )
        for one in progress.blockers[:BLOCKERS]
    ]
    if (more := len(progress.blockers) - BLOCKERS) > 0:
        links[-1] = replace(links[-1], what=f"{links[-1].what}; and {counted(more, 'more Pod')}")
    return tuple(links)


def _counting(machine: Machine, facts: ExplainFacts) -> list[MachineDisruptionBudget]:
    """Return the budgets that limit a Machine now."""
    if not has_been_node(machine, facts.nodes.get(machine.name)):
        return []
    found = (facts.budgets.get(name) for name in machine.status.disruption_budgets)
    return [one for one in found if one is not None and window_of(one, utc_now()).counts]


def _without_room(
    budgets: Sequence[MachineDisruptionBudget], machine: Machine, node: Node | None
) -> Iterator[ExplainLink]:
    """Yield the budgets that have no room for a Machine now, as their status shows it."""
    for budget in budgets:
        group = next((one for one in budget.status.groups if one.value == group_of(budget, machine)), None)
        counts = is_unavailable(machine, node) or any(one.machine == machine.name for one in budget.status.grants)
        if group is None or group.allowed or counts:
            continue
        fix = Fix(f"kubectl describe mdb {budget.name}", "shows its groups, and the holders of its grants")
        what = f"has no room now: {_room_text(budget, group)}"
        yield ExplainLink(f"MachineDisruptionBudget {budget.name}", what, reasons.WAITING_FOR_BUDGET, fixes=(fix,))


def _room_text(budget: MachineDisruptionBudget, group: BudgetGroup) -> str:
    of = f"{counted(group.machines, 'Machine')}{f' of group {group.value}' if group.value else ''}"
    text = f"it lets {limit_of(budget, group.machines)} of {of} be unavailable, and {group.unavailable} "
    text += "is" if group.unavailable == 1 else "are"
    grants = budget.status.grants
    if not grants or budget.spec.group_by:
        return text
    first = f"{grants[0].machine} ({grants[0].holder}, since {grants[0].since})"
    return f"{text}: {first}{f' and {len(grants) - 1} more grants' if len(grants) > 1 else ''}"


def _rooms(targets: Sequence[MachineForecast], operation: MachineOperation, facts: ExplainFacts) -> Iterator[str]:
    """Yield the budgets of the Machines, and how many more may become unavailable now."""
    machines = [facts.machines[one.machine] for one in targets if one.machine in facts.machines]
    groups: dict[str, set[str]] = {}
    for machine in machines:
        for budget in _counting(machine, facts) if needs_grant(operation, machine) else ():
            groups.setdefault(budget.name, set()).add(group_of(budget, machine))
    for name, values in sorted(groups.items()):
        room = sum(one.allowed for one in facts.budgets[name].status.groups if one.value in values)
        more = counted(room, "more Machine")
        over = "; spec.override exceeds it" if operation.spec.override is not None else ""
        yield f"MachineDisruptionBudget {name} lets {more} be unavailable now{over}"


def _executor(operation: MachineOperation, machine: Machine | None) -> str:
    if machine is None:
        return ""
    return executor_name(OperationKind(operation.spec.operation_kind), machine) or ""


def _blockers(
    operation: MachineOperation, decided: supervisor_plan.ReportWait, facts: ExplainFacts
) -> tuple[ExplainLink, ...]:
    """Return the blockers of an operation; none if it waits only for the claim of a live executor."""
    known = dataclasses.replace(facts, operations={**facts.operations, operation.name: operation})
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
    found = {name: procedure.stages[name] for name in procedure.regular_stages()}
    return tuple(StageLine(name, stage.waits_for, stage.limit_s, stage.cancel.value) for name, stage in found.items())


def _losses(kind: OperationKind, targets: Sequence[MachineForecast], pods: int | None) -> list[str]:
    """Return what is lost on each Machine of the operation."""
    words = LOSES.get(kind)
    if words is None:
        return []
    return [f"{one.machine}: {words}{_pods(pods)}" for one in targets if not one.refused]


def _pods(count: int | None) -> str:
    if count is None:
        return ""
    return f" ({counted(count, 'Pod')} on its Node)"
