"""An operation as a link: its blocker or its end, and the next subject. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from unbounded.api.conditions import ConditionType, counted, split_commands
from unbounded.api.disruption import DisruptionStage, DrainTimeout
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationKind, OperationPhase
from unbounded.explain.blockers import lock_holder
from unbounded.explain.conditions import blocking_condition
from unbounded.explain.facts import MACHINA, ExplainFacts, procedure_of
from unbounded.explain.fix_commands import has_reported, patch_operation
from unbounded.explain.fixes import fixes_for
from unbounded.explain.links import PLUGIN, Explained, ExplainLink, Fix, LinkCode, LinkSubject, Topic
from unbounded.kube.clock import utc_now
from unbounded.operations import reasons, supervisor_plan
from unbounded.operations.batch_plan import is_child_of, plan_batch
from unbounded.operations.claim_gates import DRAINS, RESTING, order
from unbounded.operations.deadline import LOST_AFTER_S, deadline_s
from unbounded.operations.execution_record import Run, run_of, wait_message
from unbounded.operations.executor_selection import ExecutorKind, executor_name
from unbounded.operations.rollout_plan import RolloutFacts
from unbounded.workflow.planner import waiting_text
from unbounded.workflow.procedure import ENDS, Cancel, Procedure, Stage
from unbounded.workflow.run_record import CallOutcome

_FOLLOWED: Final = {
    reasons.PAUSED: Topic.PAUSE,
    reasons.WAITING_FOR_OLDER: Topic.OPERATION,
    reasons.SLOT_HELD: Topic.LOCK,
    reasons.TARGET_IN_USE: Topic.OPERATION,
    reasons.PROVIDER_NOT_SERVED: Topic.EXECUTOR,
    reasons.WAITING_FOR_EXECUTOR: Topic.EXECUTOR,
}


_OF_BOOT: Final = frozenset({ConditionType.NETBOOT_IMAGE_READY, ConditionType.NETBOOT_SERVED, ConditionType.ATTESTED})


def explain_operation(name: str, facts: ExplainFacts) -> Explained:
    """Explain what an operation waits for, or its end."""
    operation = facts.operations.get(name)
    if operation is None:
        if facts.hides(MACHINE_OPERATIONS):
            words = "cannot be read: you have no permission"
            return Explained(ExplainLink(f"operation/{name}", words, LinkCode.NOT_READABLE))
        return Explained(ExplainLink(f"operation/{name}", "it does not exist any more", LinkCode.NOT_FOUND))
    if operation.terminal:
        return _explain_ended(operation, facts)
    if operation.spec.machine_ref is None:
        return _explain_parent(operation, facts)
    run = run_of(operation)
    return _explain_unclaimed(operation, facts) if run is None else _explain_claimed(operation, run, facts)


def message_without_times(operation: MachineOperation) -> str:
    """Return the message without commands, holder, since and until, which are shown beside it."""
    (message, _commands), waiting = split_commands(operation.status.message or ""), operation.status.waiting
    return message.removesuffix(wait_message("", waiting)) if waiting is not None else message


def _about(operation: MachineOperation) -> str:
    return f"operation/{operation.name}"


def _machine(operation: MachineOperation, facts: ExplainFacts) -> Machine | None:
    return facts.machines.get(operation.spec.machine_ref or "")


# Not claimed


def _explain_unclaimed(operation: MachineOperation, facts: ExplainFacts) -> Explained:
    """Explain an unclaimed operation with the supervisor's verdict on the present facts."""
    machine, waiting = _machine(operation, facts), operation.status.waiting
    if machine is None and facts.hides(MACHINES):
        return Explained(_as_reported(operation))
    others, ages = (
        facts.on(operation.spec.machine_ref or ""),
        supervisor_plan.OperationAges(known_s=supervisor_plan.QUIET_S, stage_s=supervisor_plan.DRAIN_QUIET_S),
    )
    kind = operation.spec.operation_kind
    executor = None if machine is None else executor_name(OperationKind(kind), machine)
    sharing = () if machine is None else facts.sharing(machine)
    absent = facts.absence(executor or "")
    decided = supervisor_plan.plan_action(
        supervisor_plan.SupervisorView(operation, machine, others, facts.pause, ages, absent=absent, sharing=sharing)
    )
    if isinstance(decided, supervisor_plan.EndOperation):
        fixes = fixes_for(decided.reason, machine, operation, facts)
        what = f"{kind}, about to end as Failed/{decided.reason}: {decided.text}"
        return _by_machina(ExplainLink(_about(operation), what, decided.reason, fixes=fixes), facts)
    if not isinstance(decided, supervisor_plan.ReportWait):
        what = f"{kind}, being deleted before it started"
        return _by_machina(ExplainLink(_about(operation), what, LinkCode.BEING_DELETED), facts)
    told_already = waiting is not None and waiting.reason == decided.reason
    text = message_without_times(operation) if told_already else decided.text
    link = ExplainLink(
        _about(operation),
        f"{kind}, not started: {text}",
        decided.reason,
        held_by=decided.held_by or "",
        since=(waiting.since if waiting is not None and told_already else operation.metadata.creation_timestamp) or "",
        until=(waiting.until if waiting is not None else None) or "",
        next_step=_ends_as(decided, operation, machine),
        fixes=fixes_for(decided.reason, machine, operation, facts),
    )
    if waiting is None and facts.silence(MACHINA) is not None and decided.reason == reasons.WAITING_FOR_MACHINE:
        return Explained(link, LinkSubject(Topic.MACHINA))
    return Explained(link, _next_subject(decided, operation, facts))


def _as_reported(operation: MachineOperation) -> ExplainLink:
    """Return the wait in the status, for a reader who may not read the Machine."""
    waiting, message = operation.status.waiting, message_without_times(operation)
    hidden = f"you have no permission to read Machine {operation.spec.machine_ref}"
    return ExplainLink(
        _about(operation),
        f"{operation.spec.operation_kind}, not started: {f'{message}; ' if message else ''}{hidden}",
        LinkCode.NOT_READABLE if waiting is None else waiting.reason,
        held_by=(waiting.held_by if waiting is not None else None) or "",
        since=(waiting.since if waiting is not None else operation.metadata.creation_timestamp) or "",
        until=(waiting.until if waiting is not None else None) or "",
    )


def _by_machina(link: ExplainLink, facts: ExplainFacts) -> Explained:
    """Return a link that machina resolves, with machina as the next subject if it is away."""
    away = facts.silence(MACHINA) is not None
    return Explained(link, LinkSubject(Topic.MACHINA) if away else None)


def _ends_as(decided: supervisor_plan.ReportWait, operation: MachineOperation, machine: Machine | None) -> str:
    if decided.reason == reasons.WAITING_FOR_MACHINE:
        return f"it starts when the Machine exists, and fails as {reasons.MACHINE_NOT_FOUND} otherwise"
    record = None if machine is None else machine.status.disruption
    is_own = record is not None and record.holder.uid == operation.metadata.uid
    if record is not None and is_own and record.until is not None and record.stage in DRAINS:
        drain = operation.spec.drain
        end = f"it starts without that at {record.until}"
        if drain is None or drain.on_timeout != DrainTimeout.PROCEED or record.stage == DisruptionStage.GRANTED:
            end = f"it fails as {reasons.DRAIN_TIMED_OUT} at {record.until} (drain.timeoutSeconds)"
        return f"it starts once the Node is drained; otherwise {end}"
    if decided.until_s is None:
        return "it starts as soon as nothing blocks it; its start deadline does not count meanwhile"
    return f"it starts as soon as nothing blocks it, and fails as {reasons.NOT_STARTED} otherwise"


def _next_subject(
    decided: supervisor_plan.ReportWait, operation: MachineOperation, facts: ExplainFacts
) -> LinkSubject | None:
    """Return the blocker as the next subject."""
    name = operation.spec.machine_ref or ""
    if decided.reason in RESTING:
        return _behind_drain(name, operation, facts)
    match _FOLLOWED.get(decided.reason):
        case None:
            return LinkSubject(Topic.MACHINE, name) if name in facts.machines else None
        case Topic.PAUSE:
            return LinkSubject(Topic.PAUSE, name)
        case Topic.LOCK:
            return lock_holder(name, facts)
        case topic:
            return LinkSubject(topic, decided.held_by or "")


def _behind_drain(name: str, operation: MachineOperation, facts: ExplainFacts) -> LinkSubject | None:
    """Return what a drain, a grant or a return waits for, where its message does not say all."""
    machine, node = facts.machines.get(name), facts.nodes.get(name)
    record = None if machine is None else machine.status.disruption
    if record is None:
        return LinkSubject(Topic.MACHINA) if facts.silence(MACHINA) is not None else None
    holder = facts.operations.get(record.holder.name)
    if holder is not None and not holder.terminal and record.holder.uid != operation.metadata.uid:
        return LinkSubject(Topic.OPERATION, holder.name)
    is_away = record.stage == DisruptionStage.RETURNING and node is not None and not node.ready
    return LinkSubject(Topic.NODE, name) if is_away else None


# Claimed


def _explain_claimed(operation: MachineOperation, run: Run, facts: ExplainFacts) -> Explained:
    machine, waiting = _machine(operation, facts), operation.status.waiting
    procedure = procedure_of(operation, run.executor, machine)
    stage = None if procedure is None else procedure.stages.get(run.stage)
    text = message_without_times(operation)
    if not text and procedure is not None and stage is not None:
        text = waiting_text(procedure, run, cancel=operation.spec.cancel)
    reason = waiting.reason if waiting is not None else reasons.IN_PROGRESS
    going = "; it is being deleted, and its finalizer stays until it has ended" if _is_being_deleted(operation) else ""
    away = facts.is_away(run.executor) or _agent_is_away(run, facts)
    link = ExplainLink(
        _about(operation),
        f"{operation.spec.operation_kind} on Machine {run.machine}, stage {run.stage}: {text}{going}",
        reason,
        held_by=run.executor,
        since=(waiting.since if waiting is not None else run.called_at or run.started_at) or "",
        until=(waiting.until if waiting is not None else None) or "",
        next_step=_after_silence(operation, run)
        if away or operation.spec.abandon
        else _after_limit(procedure, stage, run, reason),
        fixes=(
            *fixes_for(reason, machine, operation, facts),
            *(_abandon(operation) if away else _cancel(operation, stage)),
        ),
    )
    return Explained(link, LinkSubject(Topic.EXECUTOR, run.executor) if away else _other_blocker(operation, run, facts))


def _other_blocker(operation: MachineOperation, run: Run, facts: ExplainFacts) -> LinkSubject | None:
    """Return the blocker of a claimed operation, if it is not what its stage waits for."""
    machine = _machine(operation, facts)
    found = blocking_condition(machine) if machine is not None else None
    if found is not None and operation.spec.operation_kind == OperationKind.HOST_REPLACE and found[0].type in _OF_BOOT:
        return LinkSubject(Topic.CONDITION, run.machine)
    return None


def _is_being_deleted(operation: MachineOperation) -> bool:
    return operation.metadata.deletion_timestamp is not None


def _agent_is_away(run: Run, facts: ExplainFacts) -> bool:
    """Return whether the host is silent. Silence is expected while the agent itself takes the node down."""
    if not run.executor.startswith("unbounded-agent/") or run.action is not None:
        return False
    node = facts.nodes.get(run.machine)
    return node is not None and not node.ready


def _after_limit(procedure: Procedure | None, stage: Stage | None, run: Run, reason: str) -> str:
    """Describe what follows if the awaited event does not come."""
    if procedure is None or stage is None:
        return ""
    if run.failing is not None:
        return f"it fails as {run.failing.reason}"
    if reason not in (reasons.IN_PROGRESS, reasons.SETTLING, reasons.WAITING_FOR_TURN):
        if run.answer.outcome is CallOutcome.NOT_DONE:
            return f"the executor retries it; after {stage.limit_s:.0f} s at most it fails as {reason}"
        limit_s = stage.limit_s if stage.is_cleanup else max(stage.limit_s, procedure.unobservable_limit_s)
        return f"the executor observes again; after {limit_s:.0f} s it fails as {reason}"
    following = stage.on_timeout
    if following is None:
        return f"after {stage.limit_s:.0f} s without that it fails as {reasons.TIMED_OUT}"
    if following.fail is not None or following.stage in ENDS:
        return f"after {stage.limit_s:.0f} s without that it fails as {following.fail or reasons.TIMED_OUT}"
    asking = f", requesting {following.action}" if following.action else ""
    return f"after {stage.limit_s:.0f} s without that it continues with {following.stage}{asking}"


def _after_silence(operation: MachineOperation, run: Run) -> str:
    """Describe what follows if the executor stays silent."""
    end = f"machina fails it as {reasons.EXECUTOR_LOST}"
    if operation.spec.abandon:
        return f"{end} once {run.executor} has been silent for {supervisor_plan.ABANDON_AFTER_S:.0f} s"
    limit_s = deadline_s(operation) + LOST_AFTER_S
    return f"it continues when {run.executor} is back; {limit_s:.0f} s after its claim {end}"


def _abandon(operation: MachineOperation) -> tuple[Fix, ...]:
    """Return the fix that abandons an operation without a live executor."""
    if operation.spec.abandon:
        return ()
    does = "ends it, if its executor will not return; its effect on the machine is then unknown"
    return (Fix(f"{PLUGIN} machine operation abandon {operation.name}", does),)


def _cancel(operation: MachineOperation, stage: Stage | None) -> tuple[Fix, ...]:
    """Return the fix that cancels the operation, in stages that can be cancelled."""
    if stage is None or stage.cancel is Cancel.TOO_LATE or operation.spec.cancel or _is_being_deleted(operation):
        return ()
    return (Fix(f"{PLUGIN} machine operation cancel {operation.name}", stage.cancel.value),)


# Ended


def _explain_ended(operation: MachineOperation, facts: ExplainFacts) -> Explained:
    status, machine = operation.status, _machine(operation, facts)
    reason = status.reason or ""
    how = f"{status.phase}/{reason}" if reason and reason != reasons.SUCCEEDED else f"{status.phase}"
    words = message_without_times(operation) or reasons.MEANING.get(reason, "")
    what = f"{operation.spec.operation_kind} has ended: {how}: {words}"
    failed = status.phase == OperationPhase.FAILED
    fixes = (*fixes_for(reason, machine, operation, facts), *_kept_console(operation, machine)) if failed else ()
    link = ExplainLink(
        _about(operation),
        what,
        reason or f"{status.phase}",
        since=status.completed_at or "",
        next_step=_deletion_text(operation),
        fixes=fixes,
    )
    if supervisor_plan.has_finalizer(operation) and operation.metadata.deletion_timestamp:
        return _by_machina(link, facts)
    if reason == reasons.TARGET_FAILED:
        child = _first(child for child in _children(operation, facts) if child.status.phase == OperationPhase.FAILED)
        return Explained(link, child)
    if failed and machine is not None and (agent := _missed_agent(operation, machine)):
        return Explained(link, LinkSubject(Topic.EXECUTOR, agent))
    return Explained(link)


def _kept_console(operation: MachineOperation, machine: Machine | None) -> tuple[Fix, ...]:
    """Return the command that prints what the host's console showed before the operation failed, where it is kept."""
    kept = None if machine is None else machine.status.console_output
    if machine is None or kept is None or kept.operation != operation.name:
        return ()
    does = f"prints the host's last console output, from Secret {NAMESPACE}/{kept.secret}"
    return (Fix(f"{PLUGIN} machine serial {machine.name} --last-failed", does),)


def _missed_agent(operation: MachineOperation, machine: Machine) -> str:
    """Return the agent whose absence kept an operation from starting, if it is still missing; empty otherwise."""
    executor = executor_name(OperationKind(operation.spec.operation_kind), machine) or ""
    by_agent = operation.status.reason == reasons.NOT_STARTED and executor == f"{ExecutorKind.AGENT}/{machine.name}"
    return executor if by_agent and not has_reported(machine) else ""


def _deletion_text(operation: MachineOperation) -> str:
    if operation.metadata.deletion_timestamp:
        return "machina removes its finalizer, and it is deleted"
    ttl = operation.spec.ttl_seconds_after_finished
    return "" if ttl is None else f"it is deleted {ttl} s after its end"


# Parents


def _explain_parent(operation: MachineOperation, facts: ExplainFacts) -> Explained:
    kind = operation.spec.operation_kind
    if not operation.status.targets:
        what = f"{kind}, not started: machina has not resolved its selector yet"
        link = ExplainLink(_about(operation), what, LinkCode.SELECTOR_UNRESOLVED)
        return _by_machina(link, facts)
    if operation.spec.strategy is not None or operation.status.waiting is not None:
        return _explain_rollout(operation, facts)
    children = _children(operation, facts)
    begun = {child.spec.machine_ref for child in children}
    step = plan_batch(operation, children, RolloutFacts(utc_now()))
    turn = [t for t in step.targets if t.phase == OperationPhase.PENDING and t.machine_ref not in begun]
    stopped = [t for t in step.targets if t.reason == reasons.NOT_STARTED]
    notes = [f"{kind} on {counted(len(step.targets), 'Machine')}: {step.message}"]
    if turn:
        wait = "waits" if len(turn) == 1 else "wait"
        notes.append(f"{len(turn)} {wait} for capacity, as {operation.spec.max_concurrent} may run at once")
    if stopped and not operation.spec.cancel:
        are = "is" if len(stopped) == 1 else "are"
        notes.append(f"{len(stopped)} {are} not started, as spec.maxFailures {operation.spec.max_failures} is reached")
    running = _first(child for child in children if not child.terminal)
    failed = _first(child for child in children if child.status.phase == OperationPhase.FAILED)
    link = ExplainLink(
        _about(operation),
        "; ".join(notes),
        reasons.IN_PROGRESS,
        held_by=running.name if running else "",
        since=operation.status.started_at or "",
        next_step="it ends when all of them have" if running else "it ends now",
        fixes=() if operation.spec.cancel else (_stop(operation),),
    )
    if running is None and failed is None:
        return _by_machina(link, facts)
    return Explained(link, running or failed)


def _explain_rollout(operation: MachineOperation, facts: ExplainFacts) -> Explained:
    """Explain a selector operation with stages or a pause by its status: the facts of all its Machines are not read."""
    status, waiting = operation.status, operation.status.waiting
    reason = "" if waiting is None else waiting.reason
    stages = () if status.rollout is None else status.rollout.stages
    notes = [f"{operation.spec.operation_kind} on {counted(len(status.targets), 'Machine')}: {status.message}"]
    if stages:
        notes.append(f"stages: {', '.join(f'{one.name} {one.phase} {one.completed}/{one.targets}' for one in stages)}")
    children = _children(operation, facts)
    running = _first(child for child in children if not child.terminal)
    failed = _first(child for child in children if child.status.phase == OperationPhase.FAILED)
    following = failed if reason == reasons.HALTED else running
    link = ExplainLink(
        _about(operation),
        "; ".join(notes),
        reason or reasons.IN_PROGRESS,
        held_by=following.name if following else "",
        since=(waiting.since if waiting is not None else status.started_at) or "",
        until=(waiting.until if waiting is not None else None) or "",
        next_step=_NEXT.get(reason, "the next targets start as others end"),
        fixes=() if operation.spec.cancel else (*_continue(operation, reason), _stop(operation)),
    )
    return _by_machina(link, facts) if following is None else Explained(link, following)


_NEXT: Final = {
    reasons.HALTED: "nothing starts until the failed targets are retried, or their Machines deleted",
    reasons.PAUSED: "nothing starts until spec.paused is false",
    reasons.SOAKING: "the next stage starts, or the operation ends, when the soak is over",
}


def _continue(operation: MachineOperation, reason: str) -> tuple[Fix, ...]:
    """Return the fix that continues a halted or paused operation."""
    if reason == reasons.HALTED:
        change: dict[str, Any] = {"spec": {"retryFailed": operation.spec.retry_failed + 1}}
        does = "starts the failed targets again, and continues"
    elif reason == reasons.PAUSED:
        change, does = {"spec": {"paused": False}}, "continues"
    else:
        return ()
    return (Fix(patch_operation(operation.name, change), does),)


def _stop(operation: MachineOperation) -> Fix:
    words = f"{PLUGIN} machine operation cancel {operation.name}"
    return Fix(words, "starts no further targets, and cancels those in progress where possible")


def _children(operation: MachineOperation, facts: ExplainFacts) -> tuple[MachineOperation, ...]:
    return tuple(one for one in facts.operations.values() if is_child_of(one, operation.metadata.uid))


def _first(operations: Iterable[MachineOperation]) -> LinkSubject | None:
    """Return the operation that is due first."""
    ordered = sorted(operations, key=order)
    return LinkSubject(Topic.OPERATION, ordered[0].name) if ordered else None


def blocking(operation: MachineOperation, facts: ExplainFacts) -> MachineOperation | None:
    """Return the child that continues a parent's chain; the facts about its Machine have to be read for that."""
    found = explain_operation(operation.name, facts).then if operation.spec.machine_ref is None else None
    return facts.operations.get(found.name) if found is not None and found.topic is Topic.OPERATION else None
