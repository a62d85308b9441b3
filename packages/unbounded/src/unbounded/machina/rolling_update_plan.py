"""Rolling updates of a MachineConfiguration: outdated Machines, the next step of each, and that of the whole. Pure.

The stages are those of `operations.rollout_plan`. The plan depends on the recorded status, the versions, the Machines,
their Nodes and the time alone, so that any process can continue it. An update starts only for a Machine that the
configuration's status already names: a process with an older state starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from unbounded.api.disruption import DisruptionStage
from unbounded.api.machine import NODE_RECREATION, Machine, NodeUpdate, NodeUpdatePhase, RecentOperation
from unbounded.api.operation import (
    FailurePolicy,
    OperationPhase,
    OperationStrategy,
    RolloutStatus,
    StagePhase,
    TargetStatus,
    Waiting,
)
from unbounded.join.node_marks import bound_version, newest
from unbounded.kube.clock import rfc3339, seconds_since
from unbounded.kube.selectors import SelectorError
from unbounded.operations import reasons
from unbounded.operations.claim_gates import in_maintenance, is_paused
from unbounded.operations.disruption.budgets import is_unavailable
from unbounded.operations.disruption.holders import foreign_maintenance, is_cordoned_by_us
from unbounded.operations.rollout_plan import (
    STARTING,
    RolloutFacts,
    RolloutRules,
    RolloutStep,
    plan_rollout,
    ready_at,
    staged,
)

RECREATE_S: Final = 3600.0  # from the deletion of the Node, while its agent does not recreate it
MAX_TEXT: Final = 512
NAMED: Final = 5
_ROLLBACK: Final = OperationStrategy(on_failure=FailurePolicy.HALT)  # all at once, the failed ones first
OPEN: Final = frozenset({NodeUpdatePhase.PREPARING, NodeUpdatePhase.DRAINING, NodeUpdatePhase.RECREATING})
_BEFORE_DELETION: Final = frozenset({NodeUpdatePhase.PREPARING, NodeUpdatePhase.DRAINING})


@dataclass(frozen=True)
class UpdateView:
    """All that a plan depends on.

    Args:
        versions: of the configuration.
        machines: those that are bound to the configuration.
        nodes: by the name of their Machine.
    """

    configuration: MachineConfiguration
    versions: Sequence[MachineConfigurationVersion]
    machines: Sequence[Machine]
    now: datetime
    nodes: Mapping[str, Node] = field(default_factory=dict)

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
        updates: `status.nodeUpdate` to write, by the name of the Machine; None to remove it.
        delete: Machines whose Node is to be deleted.
        requeue_s: the time until the plan changes without an event.
    """

    status: UpdateStatus | None = None
    bad: Mapping[str, str] = field(default_factory=dict)
    updates: Mapping[str, NodeUpdate | None] = field(default_factory=dict)
    delete: tuple[str, ...] = ()
    requeue_s: float | None = None


@dataclass(frozen=True)
class _Member:
    """A Machine of the configuration that has, or had, a Node."""

    machine: Machine
    node: Node | None
    target: MachineConfigurationVersion

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def update(self) -> NodeUpdate | None:
        return self.machine.status.node_update

    @property
    def is_updated(self) -> bool:
        made = self.machine.status.configuration
        return made is not None and made.version_name == self.target.metadata.name

    @property
    def is_running(self) -> bool:
        """True from the start of the update until its Node is usable again."""
        record = self.machine.status.disruption
        is_held = record is not None and record.holder.kind == NODE_RECREATION
        return is_held or (self.update is not None and self.update.phase in OPEN)

    @property
    def has_failed(self) -> bool:
        """True where the update to the target failed; by the name of the version, which `unbounded migrate` keeps."""
        update = self.update
        if update is None or update.version != self.target.metadata.name:
            return False
        return update.phase == NodeUpdatePhase.FAILED and not self.is_updated


def is_rolling(configuration: MachineConfiguration) -> bool:
    is_chosen = configuration.spec.update_strategy.type == UpdateStrategyType.ROLLING_UPDATE
    return is_chosen and configuration.metadata.deletion_timestamp is None


def plan_update(view: UpdateView) -> UpdatePlan:
    """Return the next step of a configuration's rolling update."""
    best = newest(view.versions, view.configuration.metadata.name)
    if not is_rolling(view.configuration) or best is None:
        return UpdatePlan(updates={one.name: None for one in view.machines if one.status.node_update is not None})
    members = _members(view)
    back = _is_rollback(view, best)
    strategy = _strategy(view, best)
    targets = _staged(view, best, members)
    if isinstance(targets, str):
        return _invalid(view, best, members, targets)
    released = _released(view, best)
    mirrored = [_mirror(target, members[target.machine_ref], view.now, released) for target in targets]
    running = {one.name for one in members.values() if one.is_running}
    facts = RolloutFacts(view.now, {one.name: one.machine for one in members.values()}, view.nodes)
    step = plan_rollout(_rules(view, best, members, strategy, running), mirrored, running, facts)
    bad = {} if back or not step.broken else _bad_versions(view, best, members, step)
    if bad:
        return UpdatePlan(view.recorded, bad)
    going = not (step.broken or view.settings.paused)
    status = _status(view, best, members, step, back=back)
    if _decides(status) != _decides(view.recorded):
        return UpdatePlan(status, requeue_s=0.0)
    updates, delete, waits = dict[str, NodeUpdate | None](), list[str](), list[float]()
    for one in members.values():
        moved = _advance(one, view.now, may_start=going and one.name in released)
        if view.settings.paused and moved.update is not None and moved.update.phase == NodeUpdatePhase.FAILED:
            moved = _Moved(changed(moved.update, phase=NodeUpdatePhase.PENDING))
        if moved.update != one.update:
            updates[one.name] = moved.update
        elif moved.delete:
            delete.append(one.name)
        if moved.requeue_s is not None:
            waits.append(moved.requeue_s)
    strays = (one for one in view.machines if one.name not in members and one.status.node_update is not None)
    updates.update((one.name, None) for one in strays)
    if step.requeue_s is not None:
        waits.append(step.requeue_s)
    return UpdatePlan(status, {}, updates, tuple(delete), min(waits, default=None))


def outdated_in_order(view: UpdateView) -> tuple[TargetStatus, ...] | str:
    """Return the outdated Machines in the order of their stages; or an error where the stages do not fit."""
    best, members = newest(view.versions, view.configuration.metadata.name), _members(view)
    targets = () if best is None else _staged(view, best, members)
    return targets if isinstance(targets, str) else tuple(t for t in targets if not members[t.machine_ref].is_updated)


def _strategy(view: UpdateView, best: MachineConfigurationVersion) -> OperationStrategy:
    if _is_rollback(view, best):
        return _ROLLBACK
    return OperationStrategy(
        stages=view.settings.stages, order_by=view.settings.order_by, on_failure=FailurePolicy.HALT
    )


def _staged(
    view: UpdateView, best: MachineConfigurationVersion, members: Mapping[str, _Member]
) -> tuple[TargetStatus, ...] | str:
    """Return the Machines in the order of their stages; or an error where the stages do not fit."""
    try:
        targets = staged(_strategy(view, best), [one.machine for one in members.values()], may_be_empty=True)
    except SelectorError as error:
        return f"spec.updateStrategy.rollingUpdate.stages: {error}"
    if isinstance(targets, str) or not _is_rollback(view, best):
        return targets
    return tuple(sorted(targets, key=lambda one: not _is_broken(members[one.machine_ref])))


def _members(view: UpdateView) -> dict[str, _Member]:
    """Return the Machines by name. One that has never had a Node gets the newest version when it joins."""
    found = dict[str, _Member]()
    for machine in sorted(view.machines, key=lambda one: one.name):
        node, target = view.nodes.get(machine.name), bound_version(machine, view.versions)
        has_joined = node is not None or machine.status.configuration is not None
        if target is not None and has_joined and machine.metadata.deletion_timestamp is None:
            found[machine.name] = _Member(machine, node, target)
    return found


def _released(view: UpdateView, best: MachineConfigurationVersion) -> frozenset[str]:
    """Return the Machines whose start is recorded, for this version."""
    recorded = view.recorded
    if recorded is None or recorded.version != best.spec.version:
        return frozenset()
    return frozenset(recorded.updating)


def _rules(
    view: UpdateView,
    best: MachineConfigurationVersion,
    members: Mapping[str, _Member],
    strategy: OperationStrategy,
    running: set[str],
) -> RolloutRules:
    recorded = view.recorded
    is_same = recorded is not None and recorded.version == best.spec.version
    others = [one for one in members.values() if one.name not in running]
    return RolloutRules(
        strategy=strategy,
        max_concurrent=view.configuration.spec.update_strategy.max_unavailable or 1,
        max_failures=view.settings.max_failures or 1,
        paused=view.settings.paused,
        before=RolloutStatus(stages=recorded.stages) if recorded is not None and is_same else RolloutStatus(),
        halts=True,
        unavailable=frozenset(one.name for one in others if is_unavailable(one.machine, one.node)),
        blocked=frozenset(one.name for one in others if _blocked_by(one) is not None),
    )


def _blocked_by(member: _Member) -> tuple[str, str] | None:
    """Return why the update of a Machine cannot start, and the object that it waits for; None where it can."""
    if (blocker := update_blocker(member.machine, member.node)) is not None:
        return blocker
    if member.target.about_to_change:
        name = member.target.metadata.name
        return f"MachineConfigurationVersion {name} is about to change", f"MachineConfigurationVersion {name}"
    return None


def update_blocker(machine: Machine, node: Node | None) -> tuple[str, str] | None:
    """Return what of a Machine and its Node prevents the start of an update, and its object; None for nothing."""
    if node is None:
        return "it has no Node: its agent creates one from the newest version", f"Machine {machine.name}"
    if is_paused(machine.metadata.annotations):
        return "it is paused", f"Machine {machine.name}"
    if in_maintenance(machine):
        return "it is in maintenance", f"Machine {machine.name}"
    if (foreign := foreign_maintenance(node)) is not None:
        return foreign.text, foreign.held_by
    if node.spec.unschedulable and not is_cordoned_by_us(node):
        return f"Node {node.metadata.name} is cordoned, which a new Node would not be", f"Node {node.metadata.name}"
    return None


def _mirror(target: TargetStatus, member: _Member, now: datetime, released: frozenset[str]) -> TargetStatus:
    """Return the target as its Machine shows it."""
    update, node = member.update, member.node
    if member.is_updated and (update is None or update.phase not in OPEN):
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
    is_starting = member.name in released and _blocked_by(member) is None
    return changed(target, stage=STARTING) if is_starting else target


# Rollback


def _is_rollback(view: UpdateView, best: MachineConfigurationVersion) -> bool:
    """Return whether the newest version that is not Bad is older than one that is."""
    return any(one.bad and one.spec.version > best.spec.version for one in view.versions)


def _is_broken(member: _Member) -> bool:
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
    view: UpdateView, best: MachineConfigurationVersion, members: Mapping[str, _Member], step: RolloutStep
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


def _speaks_against(version: MachineConfigurationVersion, member: _Member) -> bool:
    """Return whether a failed Machine had, or was to have, a Node of the version: a drain that failed had none."""
    update = member.update
    return member.target is version and update is not None and update.node_uid is not None


# One Machine


@dataclass(frozen=True)
class _Moved:
    """The next step of one Machine: its record, or the deletion of its Node."""

    update: NodeUpdate | None
    delete: bool = False
    requeue_s: float | None = None


def _advance(member: _Member, now: datetime, *, may_start: bool) -> _Moved:
    """Return the next step of a Machine.

    Args:
        may_start: the update is recorded as started, and nothing stops it.
    """
    update, target = member.update, member.target
    if update is None or update.phase not in OPEN:
        is_its = update is not None and update.uid == target.metadata.uid
        if update is not None and is_its and update.phase != NodeUpdatePhase.COMPLETE and member.is_updated:
            return _Moved(_completed(member, update, now))  # its agent, or a user, has tried again
        is_due = may_start and not member.is_updated and not member.has_failed and _blocked_by(member) is None
        return _Moved(_prepare(target, now) if is_due else update)
    if update.phase == NodeUpdatePhase.RECREATING:
        return _recreating(member, update, now)
    if member.is_updated:  # in place
        return _Moved(_completed(member, update, now))
    if not may_start or update.uid != target.metadata.uid or _blocked_by(member) is not None:
        return _Moved(None)
    if update.generation != target.metadata.generation:
        return _Moved(_prepare(target, now))
    if update.phase == NodeUpdatePhase.PREPARING:
        is_prepared = _is_prepared(member.machine, update)
        return _Moved(_entered(update, NodeUpdatePhase.DRAINING, now) if is_prepared else update)
    return _Moved(_draining(member, update, now))


def _prepare(target: MachineConfigurationVersion, now: datetime) -> NodeUpdate:
    meta = target.metadata
    return NodeUpdate(
        version=meta.name,
        uid=meta.uid,
        generation=meta.generation or 0,
        phase=NodeUpdatePhase.PREPARING,
        since=rfc3339(now),
    )


def _is_prepared(machine: Machine, update: NodeUpdate) -> bool:
    agent = machine.status.agent
    done = None if agent is None else agent.prepared
    return done is not None and done.complete and (done.version, done.generation) == (update.version, update.generation)


def _draining(member: _Member, update: NodeUpdate, now: datetime) -> NodeUpdate:
    machine, node = member.machine, member.node
    record, active = machine.status.disruption, machine.status.active_operation
    if record is None or record.holder.uid != update.uid or record.holder.kind != NODE_RECREATION:
        return update
    if record.reason == reasons.DRAIN_TIMED_OUT:
        return _entered(update, NodeUpdatePhase.FAILED, now, record.message or "the drain of the Node timed out")
    is_ours = node is not None and record.cordoned and record.node_uid == node.metadata.uid
    if node is None or record.stage != DisruptionStage.DRAINED or not is_ours or active is not None:
        return update
    entered = _entered(update, NodeUpdatePhase.RECREATING, now)
    last = _last_recreation(machine)
    return changed(entered, node_uid=node.metadata.uid, recreation=None if last is None else last.uid)


def _recreating(member: _Member, update: NodeUpdate, now: datetime) -> _Moved:
    machine, node, active = member.machine, member.node, member.machine.status.active_operation
    if node is not None and node.metadata.uid == update.node_uid:
        return _Moved(update, delete=active is None)
    if active is not None and not active.lost:
        return _Moved(update)
    result = _last_recreation(machine)
    if result is not None and result.uid != update.recreation:
        if result.phase == OperationPhase.FAILED:
            return _Moved(_entered(update, NodeUpdatePhase.FAILED, now, result.message or "the recreation failed"))
        if node is not None and node.ready:
            return _Moved(_completed(member, update, now))
    left_s = RECREATE_S - seconds_since(update.since, now)
    if left_s > 0 or is_paused(machine.metadata.annotations):
        return _Moved(update, requeue_s=left_s if left_s > 0 else None)
    what = "its Node is not Ready" if node is not None else "its agent has not created the Node again"
    text = f"{what}, {RECREATE_S:.0f} s after Node {machine.name} was deleted"
    return _Moved(_entered(update, NodeUpdatePhase.FAILED, now, text))


def _last_recreation(machine: Machine) -> RecentOperation | None:
    """Return the result of the last recreation of the Node."""
    return next((one for one in reversed(machine.status.recent_operations) if one.kind == NODE_RECREATION), None)


def _completed(member: _Member, update: NodeUpdate, now: datetime) -> NodeUpdate:
    since = rfc3339(now) if member.node is None else ready_at(member.node, now)
    return changed(update, phase=NodeUpdatePhase.COMPLETE, since=since, message=None)


def _entered(update: NodeUpdate, phase: NodeUpdatePhase, now: datetime, message: str | None = None) -> NodeUpdate:
    text = None if message is None else message[:MAX_TEXT]
    return changed(update, phase=phase, since=rfc3339(now), message=text)


# The status


def _decides(status: UpdateStatus | None) -> object:
    """Return the part of a status that a start of updates depends on."""
    return None if status is None else (status.version, status.phase, status.updating, status.stages)


def _status(
    view: UpdateView,
    best: MachineConfigurationVersion,
    members: Mapping[str, _Member],
    step: RolloutStep,
    *,
    back: bool,
) -> UpdateStatus:
    going = not (step.broken or view.settings.paused)
    kept = [one.name for one in members.values() if one.is_running and not _ends_now(one, going=going)]
    updated = sum(one.is_updated for one in members.values())
    outdated = len(members) - updated
    recorded = view.recorded
    good = None if recorded is None else recorded.last_good
    phase = _phase(view, step, is_over=step.is_over and not outdated and not kept, back=back)
    if phase == UpdatePhase.COMPLETE and updated:
        good = best.spec.version
    failed = [t for t in step.targets if t.phase == OperationPhase.FAILED]
    wait, text = _waiting(view, members, step, phase)
    have = "has" if updated == 1 else "have"
    progress = f"{updated} of {counted(len(members), 'Node')} {have} version {best.spec.version}"
    return UpdateStatus(
        version=best.spec.version,
        phase=phase,
        stage=next((one.name for one in step.status.stages if one.phase != StagePhase.COMPLETE), None),
        updated=updated,
        outdated=outdated,
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


def _ends_now(member: _Member, *, going: bool) -> bool:
    """Return whether an update ends at once, as its Node exists, and it is stopped or not wanted any more."""
    update = member.update
    if update is None or update.phase not in _BEFORE_DELETION:
        return False
    is_wanted = update.uid == member.target.metadata.uid and not member.is_updated
    return not going or not is_wanted or _blocked_by(member) is not None


def _phase(view: UpdateView, step: RolloutStep, *, is_over: bool, back: bool) -> UpdatePhase:
    if is_over:
        return UpdatePhase.ROLLED_BACK if back else UpdatePhase.COMPLETE
    if step.broken:
        return UpdatePhase.HALTED
    if view.settings.paused:
        return UpdatePhase.PAUSED
    return UpdatePhase.ROLLING_BACK if back else UpdatePhase.IN_PROGRESS


def _waiting(
    view: UpdateView, members: Mapping[str, _Member], step: RolloutStep, phase: UpdatePhase
) -> tuple[Waiting | None, str]:
    """Return the cause for which the update does not go on now, with its text."""
    if phase in (UpdatePhase.COMPLETE, UpdatePhase.ROLLED_BACK):
        bad = [one.spec.version for one in view.versions if one.bad]
        return None, f"version {max(bad)} is Bad" if phase == UpdatePhase.ROLLED_BACK and bad else ""
    if phase in (UpdatePhase.HALTED, UpdatePhase.PAUSED) and step.wait is not None:
        return _wait(view, step.wait.reason, step.wait.held_by), step.wait.text
    running = [one for one in members.values() if one.is_running and one.name not in step.start]
    if running:
        reason, held_by, text = running_wait(running[0].machine)
        more = f" (and {len(running) - 1} more)" if len(running) > 1 else ""
        return _wait(view, reason, held_by), f"{running[0].name}{more}: {text}"
    if step.start:
        return None, ""
    if step.wait is not None:
        return _wait(view, step.wait.reason, step.wait.held_by, step.wait.until), step.wait.text
    left = [one for one in members.values() if not one.is_updated]
    blocked = [(one, cause) for one in left if (cause := _blocked_by(one)) is not None]
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


def running_wait(machine: Machine) -> tuple[str, str, str]:
    """Return reason, holder and text of the wait of an update that has started."""
    update = machine.status.node_update
    record, name = machine.status.disruption, machine.name
    if update is not None and update.phase == NodeUpdatePhase.PREPARING:
        done = None if machine.status.agent is None else machine.status.agent.prepared
        is_its = done is not None and done.version == update.version
        failure = f": {done.message}" if done is not None and is_its and done.message else ""
        text = f"its agent downloads {update.version} since {update.since}{failure}"
        return reasons.WAITING_FOR_EXECUTOR, f"agent of Machine {name}", text
    if update is not None and update.phase == NodeUpdatePhase.RECREATING:
        return (
            reasons.WAITING_FOR_EXECUTOR,
            f"agent of Machine {name}",
            f"its Node is created again since {update.since}",
        )
    if record is None:
        return reasons.WAITING_FOR_DRAIN, f"Node {name}", "its drain is requested"
    text = record.message or f"its disruption is in stage {record.stage} since {record.since}"
    return record.reason or reasons.WAITING_FOR_DRAIN, record.held_by or f"Node {name}", text


def _wait(view: UpdateView, reason: str, held_by: str, until: str | None = None) -> Waiting:
    before = None if view.recorded is None else view.recorded.waiting
    is_same = before is not None and (before.reason, before.held_by) == (reason, held_by)
    since = before.since if before is not None and is_same else rfc3339(view.now)
    return Waiting(reason=reason, held_by=held_by, since=since, until=until)


def _invalid(
    view: UpdateView, best: MachineConfigurationVersion, members: Mapping[str, _Member], text: str
) -> UpdatePlan:
    """Return the plan where the stages do not fit the Machines: nothing starts, and what has begun completes."""
    moved = {one.name: (one.update, _advance(one, view.now, may_start=False)) for one in members.values()}
    updated = sum(one.is_updated for one in members.values())
    status = UpdateStatus(
        version=best.spec.version,
        phase=UpdatePhase.HALTED,
        updated=updated,
        outdated=len(members) - updated,
        updating=tuple(one.name for one in members.values() if one.is_running and not _ends_now(one, going=False)),
        last_good=None if view.recorded is None else view.recorded.last_good,
        waiting=_wait(view, reasons.INVALID_SPEC, "spec.updateStrategy.rollingUpdate.stages"),
        message=text,
    )
    return UpdatePlan(
        status,
        updates={name: step.update for name, (before, step) in moved.items() if step.update != before},
        delete=tuple(name for name, (_before, step) in moved.items() if step.delete),
    )
