"""Rolling updates of a MachineConfiguration: its outdated Machines, their turns, rollback and status. Pure.

`node_update_plan` has the update of one Machine. The stages are those of `operations.rollout_plan`. The plan depends on
the recorded status, the versions, the Machines, their Nodes and operations and the time alone, so that any process can
continue it. An update starts only for a Machine that the configuration's status already names: a process with an older
state starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from msgspec.structs import replace as changed

from unbounded.api.conditions import counted
from unbounded.api.configuration import (
    MAX_FAILED,
    MAX_UPDATING,
    FailedUpdate,
    MachineConfiguration,
    MachineConfigurationVersion,
    RollingUpdate,
    UpdateFailurePolicy,
    UpdatePhase,
    UpdateStatus,
    UpdateStrategyType,
)
from unbounded.api.core import Node
from unbounded.api.machine import Machine, NodeUpdate, NodeUpdatePhase
from unbounded.api.operation import (
    FailurePolicy,
    MachineOperation,
    OperationPhase,
    OperationStrategy,
    RolloutStageStatus,
    RolloutStatus,
    StagePhase,
    TargetStatus,
    Waiting,
)
from unbounded.join.labels_and_taints import bound_version, newest
from unbounded.kube.clock import rfc3339
from unbounded.kube.selectors import SelectorError
from unbounded.machina.node_update_plan import (
    MAX_TEXT,
    OPEN,
    MemberStep,
    UpdateMember,
    advance,
    ends_now,
    has_unknown_image,
    is_late,
    outdated_image,
    passed_over_by,
    replace_command,
    running_wait,
)
from unbounded.operations import reasons, rollout_plan
from unbounded.operations.disruption.budgets import is_unavailable

NAMED: Final = 5
AHEAD: Final = 50  # downloads of a stage ahead of their turn, unless prepareAhead says otherwise
_ROLLBACK: Final = OperationStrategy(on_failure=FailurePolicy.HALT)  # all at once, the failed ones first


@dataclass(frozen=True)
class UpdateView:
    """All that a plan depends on.

    Args:
        versions: of the configuration.
        machines: those that are bound to the configuration.
        nodes: by the name of their Machine.
        operations: by name; at least those that updates of the Machines name.
    """

    configuration: MachineConfiguration
    versions: Sequence[MachineConfigurationVersion]
    machines: Sequence[Machine]
    now: datetime
    nodes: Mapping[str, Node] = field(default_factory=dict)
    operations: Mapping[str, MachineOperation] = field(default_factory=dict)

    @property
    def recorded(self) -> UpdateStatus | None:
        return self.configuration.status.rollout

    @property
    def settings(self) -> RollingUpdate:
        return self.configuration.spec.update_strategy.rolling_update or RollingUpdate()


@dataclass(frozen=True)
class UpdatePlan:
    """The next step of a configuration.

    Args:
        status: `status.rollout` after the step; None for none. Where a start depends on a change of it, the plan has
            nothing else: the next one starts what is recorded.
        bad: messages of the versions to mark as Bad, by name. Nothing else happens before.
        pause: set `rollingUpdate.paused`, as a stage with pauseAfter is complete. Nothing else happens before.
        updates: `status.nodeUpdate` to write, by the name of the Machine; None to remove it.
        delete: Machines whose Node is to be deleted.
        create: Machines whose HostReplace is to be created.
        cancel: Machines whose HostReplace is to be cancelled.
        requeue_s: the time until the plan changes without an event.
    """

    status: UpdateStatus | None = None
    bad: Mapping[str, str] = field(default_factory=dict)
    pause: bool = False
    updates: Mapping[str, NodeUpdate | None] = field(default_factory=dict)
    delete: tuple[str, ...] = ()
    create: tuple[str, ...] = ()
    cancel: tuple[str, ...] = ()
    requeue_s: float | None = None


def is_rolling(configuration: MachineConfiguration) -> bool:
    is_chosen = configuration.spec.update_strategy.type == UpdateStrategyType.ROLLING_UPDATE
    return is_chosen and configuration.metadata.deletion_timestamp is None


def plan_update(view: UpdateView) -> UpdatePlan:
    """Return the next step of a configuration's rolling update."""
    best = newest(view.versions, view.configuration.metadata.name)
    if not is_rolling(view.configuration) or best is None:
        return UpdatePlan(updates={one.name: None for one in view.machines if one.status.node_update is not None})
    members = _members(view, best)
    back = _is_rollback(view, best, members)
    strategy = _strategy(view, best, members)
    targets = _staged(view, best, members)
    if isinstance(targets, str):
        return _invalid(view, best, members, targets)
    mirrored = [_mirror(target, members[target.machine_ref], view.now) for target in targets]
    running = {one.name for one in members.values() if one.is_running}
    facts = rollout_plan.RolloutFacts(view.now, {one.name: one.machine for one in members.values()}, view.nodes)
    before = RolloutStatus(stages=_recorded_stages(view, best, members, targets))
    step = rollout_plan.plan_rollout(_rules(view, members, strategy, running, before), mirrored, running, facts)
    bad = {} if _is_rolled_back(view, best) or not step.broken else _bad_versions(view, best, members, step)
    if bad:
        return UpdatePlan(view.recorded, bad)
    if step.pause and not view.settings.paused:
        return UpdatePlan(view.recorded, pause=True)
    going = _is_going(view, step)
    status = _status(view, best, members, step, back=back)
    if _decides(status) != _decides(view.recorded):
        return UpdatePlan(status, requeue_s=0.0)
    ahead = _ahead(view, members, step) if going else frozenset[str]()
    steps = {
        name: advance(
            one, view.now, may_start=going and one.is_released, may_prepare=name in ahead or (going and one.is_late)
        )
        for name, one in members.items()
    }
    if view.settings.paused:
        steps = {name: _to_be_retried(each) for name, each in steps.items()}
    plan = _of_members(members, steps, status)
    strays = {one.name: None for one in view.machines if one.name not in members and one.status.node_update is not None}
    waits = [one for one in (plan.requeue_s, step.requeue_s) if one is not None]
    return replace(plan, updates={**plan.updates, **strays}, requeue_s=min(waits, default=None))


def _is_going(view: UpdateView, step: rollout_plan.RolloutStep) -> bool:
    """Return whether updates may start, and those that have begun may delete their Nodes."""
    return not (step.broken or view.settings.paused)


def _to_be_retried(step: MemberStep) -> MemberStep:
    """Return the step where the update is paused: a failed update is to be tried again."""
    update = step.update
    if update is None or update.phase != NodeUpdatePhase.FAILED:
        return step
    return MemberStep(changed(update, phase=NodeUpdatePhase.PENDING))


def _of_members(
    members: Mapping[str, UpdateMember], steps: Mapping[str, MemberStep], status: UpdateStatus
) -> UpdatePlan:
    """Return the plan of the steps of all Machines: a write of a record, or what the record demands."""
    same = {name: step for name, step in steps.items() if step.update == members[name].update}
    return UpdatePlan(
        status,
        updates={name: step.update for name, step in steps.items() if name not in same},
        delete=tuple(name for name, step in same.items() if step.delete),
        create=tuple(name for name, step in same.items() if step.create),
        cancel=tuple(name for name, step in same.items() if step.cancel),
        requeue_s=min((step.requeue_s for step in steps.values() if step.requeue_s is not None), default=None),
    )


def _ahead(view: UpdateView, members: Mapping[str, UpdateMember], step: rollout_plan.RolloutStep) -> frozenset[str]:
    """Return the Machines that may download before their turn: the next ones of each stage."""
    limit = AHEAD if view.settings.prepare_ahead is None else view.settings.prepare_ahead
    running = {one.name for one in members.values() if one.is_running}
    able: dict[str | None, list[str]] = {}
    for target in step.targets:
        one = members[target.machine_ref]
        is_waiting = rollout_plan.is_waiting(target, running) and not one.is_released
        if is_waiting and passed_over_by(one, view.now) is None:
            able.setdefault(target.rollout_stage, []).append(one.name)
    return frozenset(name for names in able.values() for name in names[:limit])


def outdated_in_order(view: UpdateView) -> tuple[TargetStatus, ...] | str:
    """Return the outdated Machines in the order of their stages; or an error where the stages do not fit."""
    best = newest(view.versions, view.configuration.metadata.name)
    if best is None:
        return ()
    members = _members(view, best)
    targets = _staged(view, best, members)
    return targets if isinstance(targets, str) else tuple(t for t in targets if not members[t.machine_ref].is_updated)


def replaced_hosts(view: UpdateView) -> Mapping[str, str]:
    """Return the images that the hosts of outdated Machines are replaced with, by the name of the Machine."""
    best = newest(view.versions, view.configuration.metadata.name)
    members = {} if best is None else _members(view, best)
    return {one.name: one.image for one in members.values() if one.image is not None}


def _strategy(
    view: UpdateView, best: MachineConfigurationVersion, members: Mapping[str, UpdateMember]
) -> OperationStrategy:
    if _is_rollback(view, best, members):
        return _ROLLBACK
    stages = view.settings.stages
    if all(one.is_updated for one in members.values()):  # there is nothing to pause before
        stages = tuple(changed(stage, pause_after=False) for stage in stages)
    return OperationStrategy(stages=stages, order_by=view.settings.order_by, on_failure=FailurePolicy.HALT)


def _staged(
    view: UpdateView, best: MachineConfigurationVersion, members: Mapping[str, UpdateMember]
) -> tuple[TargetStatus, ...] | str:
    """Return the Machines in the order of their stages; or an error where the stages do not fit."""
    try:
        targets = rollout_plan.staged(
            _strategy(view, best, members), [one.machine for one in members.values()], may_be_empty=True
        )
    except SelectorError as error:
        return f"spec.updateStrategy.rollingUpdate.stages: {error}"
    if isinstance(targets, str) or not _is_rollback(view, best, members):
        return targets
    return tuple(sorted(targets, key=lambda one: not _is_broken(members[one.machine_ref])))


def _members(view: UpdateView, best: MachineConfigurationVersion) -> dict[str, UpdateMember]:
    """Return the Machines by name. One that has never had a Node gets the newest version when it joins.

    A rollback returns Nodes to their version; hosts are replaced after it.
    """
    found, released = dict[str, UpdateMember](), _released(view, best)
    for machine in sorted(view.machines, key=lambda one: one.name):
        node, target = view.nodes.get(machine.name), bound_version(machine, view.versions)
        has_joined = node is not None or machine.status.configuration is not None
        if target is not None and has_joined and machine.metadata.deletion_timestamp is None:
            update = machine.status.node_update
            found[machine.name] = UpdateMember(
                machine,
                node,
                target,
                image=outdated_image(machine, node) if view.settings.host else None,
                is_released=machine.name in released,
                is_late=is_late(machine, view.now),
                operation=view.operations.get((update and update.operation) or ""),
            )
    if _is_rollback(view, best, found):
        found = {name: replace(one, image=None) for name, one in found.items()}
    return found


def _released(view: UpdateView, best: MachineConfigurationVersion) -> frozenset[str]:
    """Return the Machines whose start is recorded, for this version."""
    recorded = view.recorded
    if recorded is None or recorded.version != best.spec.version:
        return frozenset()
    return frozenset(recorded.updating)


def _recorded_stages(
    view: UpdateView,
    best: MachineConfigurationVersion,
    members: Mapping[str, UpdateMember],
    targets: Sequence[TargetStatus],
) -> tuple[RolloutStageStatus, ...]:
    """Return the record of the stages, for this version; without complete ones that have outdated Machines again."""
    recorded = view.recorded
    if recorded is None or recorded.version != best.spec.version:
        return ()
    again = {one.rollout_stage for one in targets if not members[one.machine_ref].is_updated}
    return tuple(one for one in recorded.stages if one.phase != StagePhase.COMPLETE or one.name not in again)


def _rules(
    view: UpdateView,
    members: Mapping[str, UpdateMember],
    strategy: OperationStrategy,
    running: set[str],
    before: RolloutStatus,
) -> rollout_plan.RolloutRules:
    others = [one for one in members.values() if one.name not in running]
    return rollout_plan.RolloutRules(
        strategy=strategy,
        max_concurrent=view.configuration.spec.update_strategy.max_unavailable or 1,
        max_failures=view.settings.max_failures or 1,
        paused=view.settings.paused,
        before=before,
        halts=True,
        unavailable=frozenset(one.name for one in others if is_unavailable(one.machine, one.node)),
        blocked=frozenset(one.name for one in others if passed_over_by(one, view.now) is not None),
    )


def _mirror(target: TargetStatus, member: UpdateMember, now: datetime) -> TargetStatus:
    """Return the target as its Machine shows it."""
    update, node = member.update, member.node
    is_at_work = update is not None and update.phase in OPEN and member.is_running
    if member.is_updated and not is_at_work:
        is_ours = update is not None and update.uid == member.target.metadata.uid
        since = update.since if update is not None and is_ours else None
        if since is None and node is not None and node.ready and node.ready_condition is not None:
            since = node.ready_condition.last_transition_time or node.metadata.creation_timestamp
        return changed(target, phase=OperationPhase.COMPLETE, completed_at=since or rfc3339(now), ready_at=since)
    if member.has_failed and update is not None:
        return changed(
            target,
            phase=OperationPhase.FAILED,
            reason=f"{update.version}: {update.message}",
            message=update.message,
            completed_at=update.since,
        )
    if member.is_running:
        return changed(target, phase=OperationPhase.IN_PROGRESS)
    is_starting = member.is_released and passed_over_by(member, now) is None
    return changed(target, stage=rollout_plan.STARTING) if is_starting else target


# Rollback


def _is_rolled_back(view: UpdateView, best: MachineConfigurationVersion) -> bool:
    """Return whether the newest version that is not Bad is older than one that is."""
    return any(one.bad and one.spec.version > best.spec.version for one in view.versions)


def _is_rollback(view: UpdateView, best: MachineConfigurationVersion, members: Mapping[str, UpdateMember]) -> bool:
    """Return whether Nodes still return to an earlier version."""
    left = (one for one in members.values() if not one.has_version or (one.is_running and not _is_of_host(one)))
    return _is_rolled_back(view, best) and any(True for _one in left)


def _is_of_host(member: UpdateMember) -> bool:
    return member.update is not None and member.update.image is not None


def _is_broken(member: UpdateMember) -> bool:
    """Return whether the Node of a Machine does not work, or its last update failed."""
    update = member.update
    has_failed = update is not None and update.phase == NodeUpdatePhase.FAILED
    return has_failed or is_unavailable(member.machine, member.node)


def _last_good(view: UpdateView, best: MachineConfigurationVersion) -> MachineConfigurationVersion | None:
    """Return the version that a rollback returns to: the last whose update completed, else the last that was used."""
    earlier = [one for one in view.versions if one.spec.version < best.spec.version and not one.bad]
    good = None if view.recorded is None else view.recorded.last_good
    proven = next((one for one in earlier if one.spec.version == good), None)
    used = (one for one in earlier if one.status.deployed)
    return proven or max(used, key=lambda one: one.spec.version, default=None)


def _bad_versions(
    view: UpdateView,
    best: MachineConfigurationVersion,
    members: Mapping[str, UpdateMember],
    step: rollout_plan.RolloutStep,
) -> dict[str, str]:
    """Return the messages of the versions to mark as Bad; none where nothing is rolled back."""
    if view.settings.on_failure != UpdateFailurePolicy.ROLLBACK or view.settings.paused:
        return {}
    failed = [
        t for t in step.targets if t.phase == OperationPhase.FAILED and _speaks_against(best, members[t.machine_ref])
    ]
    if not failed:
        return {}
    good = _last_good(view, best)
    if good is None:
        return {}
    first = f"{failed[0].machine_ref}: {failed[0].message}"
    cause = f"rolled back to version {good.spec.version} after {counted(len(failed), 'failure')}; {first}"[:MAX_TEXT]
    unproven = f"its update never completed, and version {best.spec.version} after it was rolled back"
    return {
        one.metadata.name: cause if one is best else unproven
        for one in view.versions
        if one.spec.version > good.spec.version and not one.bad
    }


def _speaks_against(version: MachineConfigurationVersion, member: UpdateMember) -> bool:
    """Return whether a failed Machine had, or was to have, a Node of the version: a drain that failed had none."""
    update = member.update
    return member.target is version and update is not None and update.node_uid is not None


# The status


def _decides(status: UpdateStatus | None) -> object:
    """Return the part of a status that a start of updates depends on."""
    return None if status is None else (status.version, status.phase, status.updating, status.stages)


def _status(
    view: UpdateView,
    best: MachineConfigurationVersion,
    members: Mapping[str, UpdateMember],
    step: rollout_plan.RolloutStep,
    *,
    back: bool,
) -> UpdateStatus:
    going = _is_going(view, step)
    kept = [one.name for one in members.values() if one.is_running and not ends_now(one, going=going)]
    updated = sum(one.is_updated for one in members.values())
    outdated = len(members) - updated
    recorded = view.recorded
    good = None if recorded is None else recorded.last_good
    prepared = sum(one.is_prepared and not one.is_updated for one in members.values())
    is_over = step.is_over and not outdated and not kept
    end = UpdatePhase.ROLLED_BACK if _is_rolled_back(view, best) else UpdatePhase.COMPLETE
    phase = end if is_over else _phase(view, step, back=back)
    if phase == UpdatePhase.COMPLETE and updated:
        good = best.spec.version
    failed = [t for t in step.targets if t.phase == OperationPhase.FAILED]
    wait, text = _waiting(view, members, step, phase)
    have = "has" if updated == 1 else "have"
    progress = f"{updated} of {counted(len(members), 'Node')} {have} version {best.spec.version}"
    if hosts := sum(one.image is not None for one in members.values()):
        progress += f", {counted(hosts, 'host')} {'has' if hosts == 1 else 'have'} another image"
    if passed := [one.name for one in members.values() if one.is_late and kept and not one.is_updated]:
        more = f" (and {len(passed) - 1} more)" if len(passed) > 1 else ""
        progress += f", the download for {passed[0]}{more} has not completed, so others take the turn"
    unknown = [one.name for one in members.values() if view.settings.host and has_unknown_image(one.machine, one.node)]
    if unknown:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        progress += (
            f", {unknown[0]}{more} is left alone until its next HostReplace, as the image on its disk is not known: "
            f"`{replace_command(unknown[0])}` writes it"
        )
    return UpdateStatus(
        version=best.spec.version,
        phase=phase,
        stage=_first_open(step),
        updated=updated,
        outdated=outdated,
        prepared=prepared,
        updating=tuple(sorted({*kept, *step.start}))[:MAX_UPDATING],
        failed=tuple(
            FailedUpdate(machine=t.machine_ref, message=(t.message or "")[:MAX_TEXT] or None)
            for t in failed[:MAX_FAILED]
        ),
        stages=step.status.stages,
        last_good=good,
        waiting=wait,
        message=f"{progress}; {text}" if text else progress,
    )


def _phase(view: UpdateView, step: rollout_plan.RolloutStep, *, back: bool) -> UpdatePhase:
    if step.broken:
        return UpdatePhase.HALTED
    if view.settings.paused:
        return UpdatePhase.PAUSED
    return UpdatePhase.ROLLING_BACK if back else UpdatePhase.IN_PROGRESS


def _first_open(step: rollout_plan.RolloutStep) -> str | None:
    return next((one.name for one in step.status.stages if one.phase != StagePhase.COMPLETE), None)


def _waiting(
    view: UpdateView, members: Mapping[str, UpdateMember], step: rollout_plan.RolloutStep, phase: UpdatePhase
) -> tuple[Waiting | None, str]:
    """Return the cause for which the update does not go on now, with its text."""
    if phase in (UpdatePhase.COMPLETE, UpdatePhase.ROLLED_BACK):
        bad = [one.spec.version for one in view.versions if one.bad]
        return None, f"version {max(bad)} is Bad" if phase == UpdatePhase.ROLLED_BACK and bad else ""
    if phase in (UpdatePhase.HALTED, UpdatePhase.PAUSED) and step.wait is not None:
        return _wait(view, step.wait.reason, step.wait.held_by), step.wait.text
    running = [one for one in members.values() if one.is_running and one.name not in step.start]
    if running:
        reason, held_by, text = running_wait(running[0].machine, view.now)
        more = f" (and {len(running) - 1} more)" if len(running) > 1 else ""
        return _wait(view, reason, held_by), f"{running[0].name}{more}: {text}"
    if step.start:
        return None, ""
    if step.wait is not None:
        return _wait(view, step.wait.reason, step.wait.held_by, step.wait.until), step.wait.text
    stage = _first_open(step)
    in_stage = (members[one.machine_ref] for one in step.targets if one.rollout_stage == stage)
    left = [one for one in in_stage if not (one.is_updated or one.has_failed)]
    blocked = [(one, cause) for one in left if (cause := passed_over_by(one, view.now)) is not None]
    if blocked and len(blocked) == len(left):
        first, (text, held_by) = blocked[0]
        others = f" (and {len(blocked) - 1} more)" if len(blocked) > 1 else ""
        return _wait(view, reasons.WAITING_FOR_MACHINE, held_by), f"{first.name}{others}: {text}"
    away = sorted(one.name for one in members.values() if is_unavailable(one.machine, one.node))
    if away:
        limit = view.configuration.spec.update_strategy.max_unavailable or 1
        names = f"{', '.join(away[:NAMED])}{f' and {len(away) - NAMED} more' if len(away) > NAMED else ''}"
        these = "this Machine is" if len(away) == 1 else "these Machines are"
        text = f"maxUnavailable is {limit}, and {these} not available: {names}"
        return _wait(view, reasons.WAITING_FOR_MACHINE, f"Machine {away[0]}"), text
    return None, ""


def _wait(view: UpdateView, reason: str, held_by: str, until: str | None = None) -> Waiting:
    before = None if view.recorded is None else view.recorded.waiting
    is_same = before is not None and (before.reason, before.held_by) == (reason, held_by)
    since = before.since if before is not None and is_same else rfc3339(view.now)
    return Waiting(reason=reason, held_by=held_by, since=since, until=until)


def _invalid(
    view: UpdateView, best: MachineConfigurationVersion, members: Mapping[str, UpdateMember], text: str
) -> UpdatePlan:
    """Return the plan where the stages do not fit the Machines: nothing starts, and what has begun completes."""
    steps = {name: advance(one, view.now, may_start=False) for name, one in members.items()}
    updated = sum(one.is_updated for one in members.values())
    status = UpdateStatus(
        version=best.spec.version,
        phase=UpdatePhase.HALTED,
        updated=updated,
        outdated=len(members) - updated,
        updating=tuple(one.name for one in members.values() if one.is_running and not ends_now(one, going=False)),
        last_good=None if view.recorded is None else view.recorded.last_good,
        waiting=_wait(view, reasons.INVALID_SPEC, "spec.updateStrategy.rollingUpdate.stages"),
        message=text,
    )
    return _of_members(members, steps, status)
