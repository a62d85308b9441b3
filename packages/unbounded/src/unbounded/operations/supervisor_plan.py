"""The supervisor's decision about one operation that has one Machine: pure, values in and a verdict out.

Before a claim the supervisor is the only writer: it validates, explains waiting, and ends operations that no executor
starts. After the claim it only reaps: executors that are silent past the deadline, and agents that block the host's own
operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from unbounded.api.core import ConfigMap
from unbounded.api.disruption import DisruptionStage
from unbounded.api.machine import Machine
from unbounded.api.names import FINALIZER_OPERATION
from unbounded.api.operation import MachineOperation, OperationKind, OperationPhase
from unbounded.operations import claim_gates, reasons
from unbounded.operations.deadline import LOST_AFTER_S, deadline_s
from unbounded.operations.disruption.model import drain_failure, silent_s
from unbounded.operations.executor_selection import Unavailability, executor_name, executor_of, why_unsupported
from unbounded.operations.parameters import invalid

HOLD_BACK_S: Final = 4.0  # an executor with free capacity claims sooner than this, and needs no explanation
DRAIN_QUIET_S: Final = 15.0  # nor needs one a drain without a blocker that ends sooner
MACHINE_WAIT_S: Final = 60.0
QUIET_S: Final = 5.0  # then the message reports the executor that has not claimed
BUSY_FOR_S: Final = 60.0  # an executor whose operations have changed within this is at work
RELEASE_WITHIN_S: Final = 60.0
LOST_SLOT_S: Final = 180.0  # a returning executor has released a lost lock by then: calls last 120 s at most
ABANDON_AFTER_S: Final = 60.0  # of silence; an executor that is at work is stopped by a cancel instead
SILENT_AFTER_S: Final = 60.0  # kubelet renews its lease every 10 s
LISTEN_FOR_S: Final = 600.0  # a host whose lease is still renewed then has joined again, or was never reset
LISTEN_EVERY_S: Final = 15.0
EVIDENCE_SILENT: Final = "nothing was heard of the host again"


class OperationAges(Struct, frozen=True):
    """Seconds on the supervisor's own clock.

    Attributes:
        known_s: since the operation was first observed.
        created_s: since its creation. For this and `ended_s`, since its end, the server's timestamps count where this
            supervisor has not received the event: a restart makes neither longer.
        machine_missing_s: since its Machine was first missing; 0 when it exists.
        claimed_s: since its claim was first observed.
        unchanged_s: since its status last changed.
        stage_s: since the disruption of its Machine entered its stage; None without a disruption.
    """

    known_s: float = 0.0
    created_s: float = 0.0
    machine_missing_s: float = 0.0
    claimed_s: float = 0.0
    unchanged_s: float = 0.0
    ended_s: float = 0.0
    stage_s: float | None = None


class SupervisorView(Struct, frozen=True):
    """The supervisor's view of one operation."""

    operation: MachineOperation
    machine: Machine | None
    others: Sequence[MachineOperation]  # on the same Machine
    pause: ConfigMap | None
    ages: OperationAges
    busy: bool = False  # its executor has written within the last minute
    last_heard: str = ""  # of the executor, for the message: "last wrote at …"
    recorded: bool = True  # of a child: its parent's targets have the result
    silent_s: float | None = None  # silence of a host that expects_silence selects; None for all others
    under_way: int = 0  # operations that its executor has claimed and not ended
    absent: Unavailability | None = None  # the reason why its executor does not serve now, where it is known
    sharing: Sequence[Machine] = ()  # other Machines with the same BMC and system


class NoAction(Struct, frozen=True):
    requeue_s: float | None = None


class ReportWait(Struct, frozen=True):
    reason: str
    text: str
    held_by: str | None
    until_s: float | None
    requeue_s: float | None


class EndOperation(Struct, frozen=True):
    """Fail the operation before or instead of its executor; `lost` keeps the lock until a fresh observation."""

    reason: str
    text: str
    lost: bool = False


class RemoveOperationFinalizer(Struct, frozen=True):
    """Remove the finalizer."""


class DeleteOperation(Struct, frozen=True):
    pass


class RecordResult(Struct, frozen=True):
    """Write the result to the Machine's history, as the executor has not."""


class AddEvidence(Struct, frozen=True):
    """Add evidence to an operation that has ended."""

    what: str


class WarnOnce(Struct, frozen=True):
    """Create one Event about an operation whose status its executor owns."""

    reason: str
    text: str
    until_s: float  # when it may be over


SupervisorAction = (
    NoAction
    | ReportWait
    | EndOperation
    | RemoveOperationFinalizer
    | DeleteOperation
    | RecordResult
    | AddEvidence
    | WarnOnce
)


def plan_action(view: SupervisorView) -> SupervisorAction:
    """Decide about an operation with a machineRef."""
    if view.operation.terminal:
        return _ended(view)
    return _claimed(view) if view.operation.claimed else _unclaimed(view)


def has_finalizer(operation: MachineOperation) -> bool:
    return FINALIZER_OPERATION in operation.metadata.finalizers


def plan_cleanup(operation: MachineOperation, ended_s: float) -> SupervisorAction:
    """Clean up an ended operation: remove the finalizer, then delete the object after its TTL."""
    if has_finalizer(operation):
        return RemoveOperationFinalizer()
    ttl = operation.spec.ttl_seconds_after_finished
    if ttl is None or operation.metadata.deletion_timestamp:
        return NoAction()
    return DeleteOperation() if ended_s >= ttl else NoAction(ttl - ended_s)


def _ended(view: SupervisorView) -> SupervisorAction:
    active = view.machine.status.active_operation if view.machine else None
    if view.machine is not None and active is not None and active.uid == view.operation.metadata.uid:
        left_s = (LOST_SLOT_S if active.lost else RELEASE_WITHIN_S) - view.ages.ended_s
        known = any(one.uid == active.uid for one in view.machine.status.recent_operations)
        if active.lost and has_finalizer(view.operation) and not known:  # the next operation may take the lock soon
            return RecordResult()
        if left_s > 0:
            return NoAction(left_s)
    if has_finalizer(view.operation) and not view.recorded:
        return NoAction(1.0)
    decided = plan_cleanup(view.operation, view.ages.ended_s)
    if view.silent_s is None or not isinstance(decided, NoAction):
        return decided
    if view.silent_s >= SILENT_AFTER_S:
        return AddEvidence(EVIDENCE_SILENT)
    return NoAction(LISTEN_EVERY_S if decided.requeue_s is None else min(decided.requeue_s, LISTEN_EVERY_S))


def expects_silence(operation: MachineOperation, machine: Machine | None, ended_s: float) -> bool:
    """Return whether to detect that a host falls silent: after its agent was reset, while no operation acts on it.

    Each supervisor counts from its own first observation. The Machine's status shows that a reset is long over: a later
    operation, or a new join of the host. A later silence of such a host has another cause.
    """
    status = operation.status
    return (
        operation.spec.operation_kind == OperationKind.AGENT_RESET
        and status.phase == OperationPhase.COMPLETE
        and machine is not None
        and machine.status.active_operation is None
        and _nothing_since(operation, machine)
        and ended_s < LISTEN_FOR_S
        and all(evidence.what != EVIDENCE_SILENT for evidence in status.evidence)
    )


def _nothing_since(reset: MachineOperation, machine: Machine) -> bool:
    """Return whether a reset is the last event of a Machine, by its history."""
    uid, history = reset.metadata.uid, machine.status.recent_operations
    used = () if machine.status.join is None else machine.status.join.used
    joined = any(use.cause == f"{OperationKind.AGENT_RESET}/{uid}" for use in used)
    return bool(history) and history[-1].uid == uid and not joined


def _unclaimed(view: SupervisorView) -> SupervisorAction:
    operation = view.operation
    if operation.metadata.deletion_timestamp:
        return RemoveOperationFinalizer() if has_finalizer(operation) else NoAction()
    if operation.spec.cancel:
        return EndOperation(reasons.CANCELLED, "cancelled before it started")
    if operation.spec.abandon:
        return EndOperation(reasons.CANCELLED, "abandoned before it started")
    if view.machine is None:
        return _without_machine(view)
    if not claim_gates.is_meant_for(operation, view.machine):
        return EndOperation(
            reasons.TARGET_CHANGED, f"it was created for an earlier Machine of the name {view.machine.name}"
        )
    kind = OperationKind(operation.spec.operation_kind)
    executor = executor_of(kind, view.machine)
    if executor is None:
        return EndOperation(reasons.UNSUPPORTED_TARGET, why_unsupported(kind, view.machine))
    wrong = invalid(operation, executor)
    if wrong is not None:
        return EndOperation(reasons.INVALID_PARAMETERS, wrong)
    undrained = claim_gates.ignores_grants(operation, view.machine)
    if undrained is not None:
        return EndOperation(reasons.AGENT_OUTDATED, undrained)
    overtaken_by = _overtaken(view)
    if overtaken_by is not None:
        return EndOperation(reasons.PREEMPTED, _overtaken_text(overtaken_by))
    if (failure := drain_failure(operation, view.machine)) is not None:
        return EndOperation(reasons.DRAIN_TIMED_OUT, failure)
    left_s = operation.spec.start_deadline_seconds - _waited_s(view, view.machine)
    wait = _wait(view, view.machine, kind, left_s)
    if left_s <= 0 and wait.until_s is not None:
        limit_s = operation.spec.start_deadline_seconds
        return EndOperation(
            reasons.NOT_STARTED, f"not started within {limit_s} s (spec.startDeadlineSeconds): {wait.text}"
        )
    held_back_s = _held_back_s(view, view.machine, wait)
    return NoAction(held_back_s) if held_back_s > 0 else wait


def _waited_s(view: SupervisorView, machine: Machine) -> float:
    """Return the seconds of the start deadline that have passed. It rests for drains, and counts anew after one."""
    stage_s = view.ages.stage_s
    own_s = silent_s(view.operation, machine, stage_s or 0.0)
    if own_s is not None:
        return own_s
    return view.ages.created_s if stage_s is None else min(view.ages.created_s, stage_s)


def _held_back_s(view: SupervisorView, machine: Machine, wait: ReportWait) -> float:
    """Return the seconds for which the wait needs no explanation yet."""
    record = machine.status.disruption
    if wait.reason == reasons.WAITING_FOR_EXECUTOR:
        return HOLD_BACK_S - _claimable_s(view)
    is_own = record is not None and record.holder.uid == view.operation.metadata.uid
    drains = is_own and record is not None and record.stage == DisruptionStage.DRAINING
    if drains and not _has_blockers(machine) and not view.operation.status.message:
        return DRAIN_QUIET_S - (view.ages.stage_s or 0.0)
    return HOLD_BACK_S - view.ages.known_s


def _has_blockers(machine: Machine) -> bool:
    record = machine.status.disruption
    return record is not None and record.drain is not None and bool(record.drain.blockers)


def _claimable_s(view: SupervisorView) -> float:
    """Return the seconds for which the executor could have claimed the operation, which may have had to wait for a
    drain.
    """
    known_s, stage_s = view.ages.known_s, view.ages.stage_s
    return known_s if stage_s is None else min(known_s, stage_s)


def _without_machine(view: SupervisorView) -> SupervisorAction:
    name, left_s = view.operation.spec.machine_ref, MACHINE_WAIT_S - view.ages.machine_missing_s
    if left_s <= 0:
        return EndOperation(
            reasons.MACHINE_NOT_FOUND, f"Machine {name} does not exist; waited {MACHINE_WAIT_S:.0f} s for it"
        )
    if view.ages.known_s < HOLD_BACK_S:
        return NoAction(HOLD_BACK_S - view.ages.known_s)
    text = f"Machine {name} does not exist; waiting {MACHINE_WAIT_S:.0f} s for it"
    return ReportWait(reasons.WAITING_FOR_MACHINE, text, f"Machine {name}", left_s, left_s)


def _wait(view: SupervisorView, machine: Machine, kind: OperationKind, left_s: float) -> ReportWait:
    gate = claim_gates.closed_gate(view.operation, machine, view.others, view.pause, view.sharing)
    if gate is not None and claim_gates.rests_deadline(gate, machine):
        return ReportWait(gate.reason, gate.text, gate.held_by, None, None)
    if gate is not None:
        return ReportWait(gate.reason, gate.text, gate.held_by, left_s, left_s)
    if not claim_gates.starts_on(view.operation, machine):
        text = f"Machine {machine.name} is being deleted, so no operation starts on it"
        return ReportWait(reasons.WAITING_FOR_MACHINE, text, f"Machine {machine.name}", left_s, left_s)
    executor = executor_name(kind, machine) or ""
    absent = view.absent
    if absent is not None and absent.is_problem:
        text = f"{executor} does not serve: {absent.whole}"
        return ReportWait(reasons.PROVIDER_NOT_SERVED, text, executor, left_s, left_s)
    if absent is not None:
        return ReportWait(
            reasons.WAITING_FOR_EXECUTOR, f"{executor} is starting: {absent.whole}", executor, left_s, left_s
        )
    if view.busy:
        text = f"waiting for {executor}, which works on other operations"
    elif _claimable_s(view) < QUIET_S:
        text = f"waiting for {executor} to claim it"
    else:
        heard = f"; {view.last_heard}" if view.last_heard else ""
        text = (
            f"{executor} has not claimed it within {QUIET_S:.0f} s: the executor is not running or not deployed{heard}"
        )
        if view.under_way:
            still = f"has {view.under_way} in progress, none of which changed for {BUSY_FOR_S:.0f} s"
            text = f"{executor} {still}: it is at its concurrency limit, or not running{heard}"
    quiet_in_s = QUIET_S - _claimable_s(view)
    look_again_s = min(left_s, quiet_in_s if quiet_in_s > 0 else BUSY_FOR_S if view.busy else left_s)
    return ReportWait(reasons.WAITING_FOR_EXECUTOR, text, executor, left_s, look_again_s)


def _claimed(view: SupervisorView) -> SupervisorAction:
    taker = _preempting(view)
    if taker is not None:
        return EndOperation(
            reasons.PREEMPTED, f"no progress for {claim_gates.NO_PROGRESS_S:.0f} s while {_waits(taker)}"
        )
    if view.operation.spec.abandon:
        return _abandoned(view)
    limit_s = deadline_s(view.operation) + LOST_AFTER_S
    left_s = max(limit_s - view.ages.claimed_s, claim_gates.NO_PROGRESS_S - view.ages.unchanged_s)
    if left_s > 0:
        waiting_host = not claim_gates.is_host(view.operation) and any(map(claim_gates.is_host, view.others))
        return NoAction(min(left_s, 5.0) if waiting_host else left_s)
    silent = f"{_executor(view)} has been silent for {LOST_AFTER_S:.0f} s beyond the deadline"
    text = f"{silent}; last message: {view.operation.status.message}"
    return EndOperation(reasons.EXECUTOR_LOST, text, lost=True)


def _abandoned(view: SupervisorView) -> SupervisorAction:
    """End an abandoned operation once its executor no longer writes its status."""
    executor, left_s = _executor(view), ABANDON_AFTER_S - view.ages.unchanged_s
    if left_s <= 0:
        silent = f"abandoned: {executor} has been silent for {ABANDON_AFTER_S:.0f} s"
        return EndOperation(
            reasons.EXECUTOR_LOST, f"{silent}; last message: {view.operation.status.message}", lost=True
        )
    heard = f"{executor} wrote {view.ages.unchanged_s:.0f} s ago; use spec.cancel to stop an operation in progress"
    text = f"not abandoned yet: {heard}; it ends after {ABANDON_AFTER_S:.0f} s without a write"
    return WarnOnce(reasons.ABANDON_WAITS, text, left_s)


def _executor(view: SupervisorView) -> str:
    execution = view.operation.status.execution
    return execution.executor if execution else "its executor"


def _overtaken(view: SupervisorView) -> MachineOperation | None:
    """Return the host operation that holds the Machine although this agent operation is older and was never started."""
    if claim_gates.is_host(view.operation):
        return None
    hosts = (other for other in view.others if claim_gates.is_host(other) and other.claimed and not other.terminal)
    return next((other for other in hosts if claim_gates.order(view.operation) < claim_gates.order(other)), None)


def _overtaken_text(by: MachineOperation) -> str:
    return f"{by.spec.operation_kind} {by.name} took the lock of the Machine before the agent started it"


def _preempting(view: SupervisorView) -> MachineOperation | None:
    """Return the host operation that waits for a claimed agent operation without progress."""
    if claim_gates.is_host(view.operation) or view.ages.unchanged_s < claim_gates.NO_PROGRESS_S:
        return None
    waiting = [
        other for other in view.others if claim_gates.is_host(other) and not other.terminal and not other.claimed
    ]
    return min(waiting, key=claim_gates.order, default=None)


def _waits(operation: MachineOperation) -> str:
    return f"{operation.spec.operation_kind} {operation.name} waits for the Machine"
