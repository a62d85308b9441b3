"""Plans of rollouts with a strategy: stages, their order, soak, pause and halt. Pure.

The plan of a pass depends on the recorded targets, the Machines, the Nodes and the time alone. Two users share it:
`batch_plan` for selector operations, and machina for the rolling updates of MachineConfigurations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace as changed

from unbounded.api.core import Node
from unbounded.api.machine import Machine
from unbounded.api.meta import LabelSelector
from unbounded.api.operation import (
    ALL,
    TERMINAL_PHASES,
    FailurePolicy,
    MachineOperation,
    OperationKind,
    OperationPhase,
    OperationStrategy,
    RolloutStage,
    RolloutStageStatus,
    RolloutStatus,
    StagePhase,
    TargetStatus,
)
from unbounded.kube.clock import rfc3339
from unbounded.kube.selectors import label_test, selector_text
from unbounded.operations import reasons

RETURN_S: Final = 900.0  # of the Node of a target whose operation has completed
STARTING: Final = "Starting"  # stage of a target that a write has released, until its operation is observed
WHOLE: Final = RolloutStage(name="all", size="100%")  # of a strategy without stages

_RESTARTS_THE_NODE: Final = frozenset(
    {
        OperationKind.NODE_REBOOT,
        OperationKind.HOST_REBOOT,
        OperationKind.HOST_POWER_ON,
        OperationKind.HOST_REPLACE,
        OperationKind.HOST_INSPECT,
        OperationKind.FIRMWARE_UPDATE,
    }
)
_LEAVES_NO_NODE: Final = frozenset(
    {
        OperationKind.AGENT_RESET,
        OperationKind.HOST_POWER_OFF,
        OperationKind.HOST_ERASE,
        OperationKind.HOST_RESCUE,
    }
)


@dataclass(frozen=True)
class RolloutFacts:
    """The facts beside a parent and its children that its rollout depends on.

    Attributes:
        now: the time of the server.
        machines: by name; a Machine that is not among them does not exist.
        nodes: by the name of their Machine.
    """

    now: datetime
    machines: Mapping[str, Machine] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)


@dataclass(frozen=True)
class RolloutRules:
    """The settings of a rollout, and what its last pass recorded.

    Attributes:
        kind: of the operations; None for node recreations, which the agents prove.
        halts: nothing starts after maxFailures, and the rollout does not end.
        unavailable: Machines that are not available for another cause. They use maxConcurrent, too.
        blocked: Machines that cannot start now.
    """

    strategy: OperationStrategy
    max_concurrent: int
    max_failures: int
    paused: bool
    before: RolloutStatus
    kind: OperationKind | None = None
    retry_failed: int = 0
    halts: bool = False
    unavailable: frozenset[str] = frozenset()
    blocked: frozenset[str] = frozenset()


def rules_of(parent: MachineOperation, strategy: OperationStrategy) -> RolloutRules:
    """Return the rules of a selector operation."""
    return RolloutRules(
        strategy=strategy,
        max_concurrent=parent.spec.max_concurrent,
        max_failures=parent.spec.max_failures,
        paused=parent.spec.paused,
        before=parent.status.rollout or RolloutStatus(),
        kind=OperationKind(parent.spec.operation_kind),
        retry_failed=parent.spec.retry_failed,
        halts=strategy.on_failure == FailurePolicy.HALT,
    )


@dataclass(frozen=True)
class RolloutWait:
    """The reason why no target starts although some have not; `until` is the end of a soak."""

    reason: str
    text: str
    held_by: str
    until: str | None = None


PAUSED: Final = RolloutWait(reasons.PAUSED, "paused, nothing starts", "spec.paused")


@dataclass(frozen=True)
class RolloutStep:
    """The next step of a rollout.

    Attributes:
        targets: with the start of their soak, the failures in it, and the mark of those that start.
        start: Machines whose children are to be created now.
        pause: set spec.paused, as a stage with pauseAfter is complete.
        is_over: every stage is complete.
        broken: the failures after which no target starts; 0 for less than maxFailures in each stage.
        requeue_s: the time until the plan changes without an event.
    """

    targets: tuple[TargetStatus, ...]
    status: RolloutStatus
    start: tuple[str, ...] = ()
    pause: bool = False
    is_over: bool = False
    broken: int = 0
    wait: RolloutWait | None = None
    requeue_s: float | None = None


# Stages and their targets


def stages_of(strategy: OperationStrategy) -> tuple[RolloutStage, ...]:
    return strategy.stages or (WHOLE,)


def share(value: int | str, of: int, *, up: bool) -> int:
    """Return a number of Machines from a number or a percentage of some; at least 1."""
    if isinstance(value, int):
        return value
    percent = int(value.removesuffix("%")) * of
    return max(-(-percent // 100) if up else percent // 100, 1)


def stage_limit(stage: RolloutStage, members: int, limit: int) -> int:
    """Return how many targets of a stage may run at a time, below the limit of all stages."""
    return limit if stage.max_concurrent is None else min(limit, share(stage.max_concurrent, members, up=False))


def ordered(machines: Sequence[Machine], order_by: str | None) -> list[Machine]:
    """Sort Machines by a label: integers ascending, then all others; Machines of the same value by name."""

    def key(machine: Machine) -> tuple[bool, int, str]:
        value = machine.metadata.labels.get(order_by or "", "")
        is_number = value.isascii() and value.isdecimal()
        return (not is_number, int(value) if is_number else 0, machine.name)

    return sorted(machines, key=key)


def staged(
    strategy: OperationStrategy, machines: Sequence[Machine], *, may_be_empty: bool = False
) -> tuple[TargetStatus, ...] | str:
    """Return the targets in the order of their stages; or an error where a stage or a Machine has no counterpart.

    Args:
        may_be_empty: a stage whose selector matches no Machine is no error.

    Raises:
        SelectorError: the selector of a stage is not valid.
    """
    left, targets = ordered(machines, strategy.order_by), list[TargetStatus]()
    for stage in stages_of(strategy):
        taken = _taken(stage, left, len(machines))
        if not taken and stage.machine_selector is not None and not may_be_empty:
            return f"stage {stage.name} of spec.strategy has no targets: its machineSelector matches none that is left"
        names = {machine.name for machine in taken}
        left = [machine for machine in left if machine.name not in names]
        targets += (
            TargetStatus(machine_ref=machine.name, phase=OperationPhase.PENDING, rollout_stage=stage.name)
            for machine in taken
        )
    if left:
        some = ", ".join(machine.name for machine in left[:5])
        return (
            f"no stage of spec.strategy has {len(left)} of the {len(machines)} Machines ({some}): "
            "add a last stage with size 100%"
        )
    return tuple(targets)


def _taken(stage: RolloutStage, left: Sequence[Machine], total: int) -> list[Machine]:
    if stage.machine_selector is None:
        return list(left[: share(stage.size or 0, total, up=True)])
    fits = label_test(selector_text(stage.machine_selector or LabelSelector()))
    return [machine for machine in left if fits(machine.metadata.labels)]


def initial_status(strategy: OperationStrategy, targets: Sequence[TargetStatus]) -> RolloutStatus:
    """Return the status of a rollout whose targets have not started."""
    return RolloutStatus(
        stages=tuple(
            RolloutStageStatus(
                name=stage.name,
                phase=StagePhase.PENDING.value,
                targets=len(_members(stage, targets)),
                completed=0,
            )
            for stage in stages_of(strategy)
        )
    )


def _members(stage: RolloutStage, targets: Sequence[TargetStatus]) -> list[TargetStatus]:
    return [target for target in targets if target.rollout_stage == stage.name]


# A pass


@dataclass(frozen=True)
class _StageView:
    """A stage in one pass."""

    stage: RolloutStage
    members: tuple[TargetStatus, ...]
    failed: int
    soaked: int  # targets that have completed, and their soak with them
    is_finished: bool  # all targets have ended and soaked
    paused_at: str | None
    is_last: bool

    @property
    def pause_is_due(self) -> bool:
        return (
            self.stage.pause_after
            and bool(self.members)
            and self.is_finished
            and not self.is_last
            and self.paused_at is None
        )


def retried(parent: MachineOperation, targets: Sequence[TargetStatus], facts: RolloutFacts) -> list[TargetStatus]:
    """Return the targets; where spec.retryFailed was raised, the failed ones are to start again."""
    before = parent.status.rollout or RolloutStatus()
    if parent.spec.retry_failed <= before.retried_failed:
        return list(targets)
    return [
        TargetStatus(
            machine_ref=target.machine_ref,
            phase=OperationPhase.PENDING,
            rollout_stage=target.rollout_stage,
            retry=parent.spec.retry_failed,
        )
        if _counts_as_failed(target, facts)
        else target
        for target in targets
    ]


def plan_rollout(
    rules: RolloutRules, targets: Sequence[TargetStatus], running: Collection[str], facts: RolloutFacts
) -> RolloutStep:
    """Return the next step of a rollout.

    Args:
        targets: the mirror of the work on each Machine, such as a child operation.
        running: Machines whose work has not ended.
    """
    before = rules.before
    stages = {stage.name: stage for stage in stages_of(rules.strategy)}
    over = {one.name for one in before.stages if one.phase in (StagePhase.COMPLETE, StagePhase.PAUSED)}
    watched = {name: stage for name, stage in stages.items() if stage.soak_seconds and name not in over}
    soaking = [_soak(target, watched.get(target.rollout_stage or ""), rules.kind, facts) for target in targets]
    paused_at = {one.name: one.paused_at for one in before.stages}
    views = [
        _view(stage, soaking, paused_at.get(name), facts, is_last=number == len(stages))
        for number, (name, stage) in enumerate(stages.items(), 1)
    ]
    if rules.paused:  # a pause by the user counts, too
        views = [replace(one, paused_at=rfc3339(facts.now)) if one.pause_is_due else one for one in views]
    failures = max((one.failed for one in views), default=0)
    broken = failures if failures >= rules.max_failures else 0
    halted = bool(broken) and rules.halts
    pause = next((one for one in views if one.pause_is_due), None)
    wait = _wait(rules, views, failures if halted else 0, running, facts)
    may_start = not (broken or rules.paused or pause)
    start = _starts(rules, views, running) if may_start else ()
    released = set(start)
    step = RolloutStep(
        targets=tuple(changed(t, stage=STARTING) if t.machine_ref in released else t for t in soaking),
        status=RolloutStatus(
            stages=tuple(
                _status(one, rules, released, halted=halted, may_start=_may_start(number, views))
                for number, one in enumerate(views)
            ),
            retried_failed=max(rules.retry_failed, before.retried_failed),
        ),
        start=start,
        pause=pause is not None and not broken,
        is_over=all(one.is_finished for one in views) and not halted,
        broken=broken,
        requeue_s=_next_change_s(soaking, stages, facts),
    )
    return replace(step, wait=None if step.start or step.is_over else wait)


def _view(
    stage: RolloutStage, targets: Sequence[TargetStatus], paused_at: str | None, facts: RolloutFacts, *, is_last: bool
) -> _StageView:
    members = _members(stage, targets)
    completed = [target for target in members if target.phase == OperationPhase.COMPLETE]
    soaked = sum(_soak_left_s(target, stage, facts) == 0.0 for target in completed)
    ended = all(target.phase in TERMINAL_PHASES for target in members)
    return _StageView(
        stage=stage,
        members=tuple(members),
        failed=sum(_counts_as_failed(target, facts) for target in members),
        soaked=soaked,
        is_finished=ended and soaked == len(completed),
        paused_at=paused_at,
        is_last=is_last,
    )


def _counts_as_failed(target: TargetStatus, facts: RolloutFacts) -> bool:
    return target.phase == OperationPhase.FAILED and target.machine_ref in facts.machines


def _may_start(number: int, views: Sequence[_StageView]) -> bool:
    """Return whether the stages before let a stage start."""
    if number == 0:
        return True
    after = views[number].stage.start_after
    if after is None:
        return views[number - 1].is_finished
    earlier = next((one for one in views if one.stage.name == after.stage), views[number - 1])
    return earlier.is_finished or (after.targets != ALL and earlier.soaked >= int(after.targets))


def _starts(rules: RolloutRules, views: Sequence[_StageView], running: Collection[str]) -> tuple[str, ...]:
    """Return the Machines whose turn it is, within the limits of their stages and of all.

    The released ones without a child come first, and use their share of the limits: their children may be on the way.
    A Machine that is unavailable already uses no more of the limit of all.
    """
    found = [t.machine_ref for view in views for t in view.members if t.stage == STARTING and is_waiting(t, running)]
    busy = {*running, *found}
    for number, view in enumerate(views):
        if not _may_start(number, views):
            continue
        limit = stage_limit(view.stage, len(view.members), rules.max_concurrent)
        stage_room = limit - sum(t.machine_ref in busy for t in view.members)
        room = rules.max_concurrent - len(busy | rules.unavailable)
        waiting = (t.machine_ref for t in view.members if is_waiting(t, busy))
        for name in (one for one in waiting if one not in rules.blocked):
            if stage_room > 0 and (room > 0 or name in rules.unavailable):
                busy.add(name)
                found.append(name)
                stage_room -= 1
                room -= name not in rules.unavailable
    return tuple(found)


def is_waiting(target: TargetStatus, running: Collection[str]) -> bool:
    """Return whether a target has no child yet."""
    return target.phase not in TERMINAL_PHASES and target.operation is None and target.machine_ref not in running


def _status(
    view: _StageView, rules: RolloutRules, released: Collection[str], *, halted: bool, may_start: bool
) -> RolloutStageStatus:
    is_empty = not view.members and not may_start  # a later stage without targets is not complete before its turn
    phase = StagePhase.PENDING if is_empty else _phase(view, rules, released, halted=halted)
    return RolloutStageStatus(
        name=view.stage.name,
        phase=phase.value,
        targets=len(view.members),
        completed=sum(target.phase == OperationPhase.COMPLETE for target in view.members),
        failed=view.failed,
        paused_at=view.paused_at,
    )


def _phase(view: _StageView, rules: RolloutRules, released: Collection[str], *, halted: bool) -> StagePhase:
    if halted and view.failed >= rules.max_failures:
        return StagePhase.HALTED
    if view.is_finished:
        is_paused = view.paused_at is not None and rules.paused
        return StagePhase.PAUSED if view.pause_is_due or is_paused else StagePhase.COMPLETE
    if all(target.phase in TERMINAL_PHASES for target in view.members):
        return StagePhase.SOAKING
    is_begun = any(t.phase != OperationPhase.PENDING or t.stage or t.machine_ref in released for t in view.members)
    return StagePhase.IN_PROGRESS if is_begun else StagePhase.PENDING


def _wait(
    rules: RolloutRules,
    views: Sequence[_StageView],
    failures: int,
    running: Collection[str],
    facts: RolloutFacts,
) -> RolloutWait | None:
    if failures:
        failed = [t for one in views for t in one.members if _counts_as_failed(t, facts)]
        first = f"{failed[0].machine_ref}: {failed[0].reason}"
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        holder = failed[0].operation or failed[0].machine_ref
        return RolloutWait(reasons.HALTED, f"halted, nothing starts: {first}{more}", holder)
    if rules.paused or any(one.pause_is_due for one in views):
        after = [one.stage.name for one in views if one.stage.pause_after and one.is_finished and not one.is_last]
        return replace(PAUSED, text=f"paused after stage {after[-1]}, nothing starts") if after else PAUSED
    for one in () if running else views:
        if not one.is_finished and all(target.phase in TERMINAL_PHASES for target in one.members):
            return _soak_wait(one)
    return None


def _soak_wait(view: _StageView) -> RolloutWait:
    completed = [target for target in view.members if target.phase == OperationPhase.COMPLETE]
    absent = [target.machine_ref for target in completed if target.ready_at is None]
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        text = f"stage {view.stage.name} waits until the Node of {absent[0]}{more} is Ready again"
        return RolloutWait(reasons.SOAKING, text, absent[0])
    last = max(datetime.fromisoformat(target.ready_at) for target in completed if target.ready_at is not None)
    until = rfc3339(last + timedelta(seconds=view.stage.soak_seconds))
    text = f"stage {view.stage.name} soaks: its Nodes have to stay Ready"
    return RolloutWait(reasons.SOAKING, text, view.stage.name, until)


# Soak


def _soak(
    target: TargetStatus, stage: RolloutStage | None, kind: OperationKind | None, facts: RolloutFacts
) -> TargetStatus:
    """Return a target with the start of its soak, or failed in it.

    Its Node is observed until the end of the stage is recorded: a soak that ended while no supervisor ran counts only
    if the Node is still Ready.

    Args:
        stage: None for one without a soak, or whose end is recorded.
    """
    if stage is None or target.phase != OperationPhase.COMPLETE:
        return target
    machine, node = facts.machines.get(target.machine_ref), facts.nodes.get(target.machine_ref)
    kubernetes = None if machine is None else machine.spec.kubernetes
    has_joined = node is not None or (kubernetes is not None and kubernetes.node_ref is not None)
    if kind in _LEAVES_NO_NODE or machine is None or not has_joined:
        return target if target.ready_at else changed(target, ready_at=rfc3339(facts.now))
    if target.ready_at is not None:
        return target if _stays_ready(node, target.ready_at) else _failed(target, "turned not Ready", stage, facts)
    if node is not None and node.ready and _has_returned(node, target, kind):
        return changed(target, ready_at=ready_at(node, facts.now))
    if _age_s(target.completed_at, facts) >= RETURN_S:
        return _failed(target, f"was not Ready within {RETURN_S:.0f} s", stage, facts)
    return target


def ready_at(node: Node, at: datetime) -> str:
    """Return the begin of a soak: now, or the last change of the Node, as the clock of its host may be ahead."""
    now, condition = rfc3339(at), node.ready_condition
    since = None if condition is None else condition.last_transition_time
    return since if since is not None and _is_after(since, now) else now


def _stays_ready(node: Node | None, since: str) -> bool:
    """Return whether a Node is Ready, and was so since a time, as far as it shows."""
    condition = None if node is None else node.ready_condition
    if node is None or condition is None or not node.ready:
        return False
    is_new = _is_after(node.metadata.creation_timestamp, since)
    return is_new or not _is_after(condition.last_transition_time, since)


def _has_returned(node: Node, target: TargetStatus, kind: OperationKind | None) -> bool:
    """Return whether a Ready Node is more than the last report before a restart: its kubelet has reported since."""
    condition = node.ready_condition
    if kind not in _RESTARTS_THE_NODE or condition is None:
        return True
    is_reported = _is_after(condition.last_heartbeat_time, target.completed_at)
    return is_reported or _is_after(condition.last_transition_time, target.started_at)


def _is_after(later: str | None, earlier: str | None) -> bool:
    if later is None or earlier is None:
        return False
    return datetime.fromisoformat(later) > datetime.fromisoformat(earlier)


def _failed(target: TargetStatus, how: str, stage: RolloutStage, facts: RolloutFacts) -> TargetStatus:
    text = f"its Node {how} after the operation completed, in the soak of stage {stage.name}"
    return changed(
        target,
        phase=OperationPhase.FAILED,
        reason=reasons.NODE_NOT_READY,
        message=text,
        completed_at=rfc3339(facts.now),
    )


def _age_s(since: str | None, facts: RolloutFacts) -> float:
    return 0.0 if since is None else (facts.now - datetime.fromisoformat(since)).total_seconds()


def _soak_left_s(target: TargetStatus, stage: RolloutStage, facts: RolloutFacts) -> float:
    """Return the seconds until a completed target has soaked; all of them while its soak has not started."""
    if not stage.soak_seconds:
        return 0.0
    if target.ready_at is None:
        return float(stage.soak_seconds)
    return max(stage.soak_seconds - _age_s(target.ready_at, facts), 0.0)


def _next_change_s(
    targets: Sequence[TargetStatus], stages: Mapping[str, RolloutStage], facts: RolloutFacts
) -> float | None:
    """Return the seconds until a soak ends, or a Node has been away too long."""
    times = list[float]()
    for target in targets:
        stage = stages.get(target.rollout_stage or "")
        if stage is None or not stage.soak_seconds or target.phase != OperationPhase.COMPLETE:
            continue
        left_s = _soak_left_s(target, stage, facts)
        if target.ready_at is None:
            left_s = RETURN_S - _age_s(target.completed_at, facts)
        if left_s > 0:
            times.append(left_s)
    return min(times, default=None)
