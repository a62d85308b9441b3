"""The deletion of a Machine of cluster.k8s.io: graceful, unsafe or forced. Pure.

A graceful deletion drains the Node, and resets the host: from there on, it cannot be aborted. An unsafe one switches
the host off first, as a running host would register its Node again. A forced one tries each step once, and records
those that it could not prove. Neither waits for disruption budgets: the operation overrides them, and records that.

A host that others have installed is neither reset nor switched off, and its Node stays: a graceful deletion drains it,
and then, as the others at once, gives the host back as it was before the claim.

A write that the server refuses is repeated later, and its wait names what refuses it. A forced deletion records it, and
goes on: the controller of the host repeats what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace as replace_plan
from typing import Any, Final

from msgspec.structs import replace

from unbounded.api.container_cloud.machine import (
    MAX_UNPROVEN,
    ContainerCloudMachine,
    DeletionPhase,
    DeletionPolicy,
    ErrorReason,
    MachineStage,
    ProviderConditionType,
)
from unbounded.api.container_cloud.names import FINALIZER_MACHINE
from unbounded.api.disruption import DisruptionStatus, DrainMode
from unbounded.api.operation import OperationKind
from unbounded.containercloud.claims import ClaimReason, is_claimed_by
from unbounded.containercloud.hosts.model import host_key, not_released, release_text
from unbounded.containercloud.machines.life import drain_holder, enter, in_stage_s, limit_in, operation_name, request
from unbounded.containercloud.machines.model import (
    DELETION_STAGES,
    CancelOperation,
    ChangeTarget,
    DeleteMachineObject,
    DeleteNode,
    MachineAction,
    MachineReason,
    MachineStep,
    MachineView,
    ReleaseHost,
    RequestOperation,
    SetMachineFinalizer,
    SetProviderID,
)
from unbounded.containercloud.machines.target_fields import maintenance_change, record_of_claim
from unbounded.containercloud.waits import ACCEPTED, CONTAINER_CLOUD, MACHINA, MachineWait, WaitLimit
from unbounded.kube.clock import seconds_since

FORCED_START_S: Final = 30  # for the claim of the one attempt to switch a host off
FORCED_S: Final = 60  # from that claim to its end
FORCED_WAIT_S: Final = FORCED_START_S + FORCED_S + 10.0  # before a forced deletion goes on without an operation's end
DRAIN_LIMIT_S: Final = 3600.0
ABORT_LIMIT_S: Final = 900.0  # for the return of a Node to service; then a person has to look
MAX_OVERRIDE: Final = 256
MAX_STEP: Final = 256  # of the record of a forced deletion
RETRY_S: Final = (60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0)
REFUSED_S: Final = (5.0, 300.0)  # the least and the most time until a refused write is repeated
MAX_REFUSAL: Final = 1024
REPEATED_S: Final = 1.0  # until the pass after a refused write that was repeated

_UNCORDONED: Final = "the Node is uncordoned"
_PAUSED: Final = "the pause ends, or deletionPolicy needs no such step"
_S = MachineStage
_R = MachineReason
_KINDS: Final = {_S.RESETTING: OperationKind.AGENT_RESET, _S.POWERING_OFF: OperationKind.HOST_POWER_OFF}
_PAST_RETURN: Final = frozenset({_S.RESETTING, _S.POWERING_OFF, _S.REMOVING, _S.RELEASING})
_NEVER: Final = {"mode": DrainMode.NEVER.value}
_LOST: Final = frozenset({ClaimReason.HOST_TAKEN, ClaimReason.HOST_CHANGED})  # it may be the node of another Machine


def is_deleting(view: MachineView) -> bool:
    """Return whether the Machine is being deleted, or its deletion is to be aborted."""
    machine = view.machine
    is_begun = view.execution.stage in DELETION_STAGES
    return is_begun or machine.value.delete or machine.metadata.deletion_timestamp is not None


def policy_of(view: MachineView) -> DeletionPolicy:
    return DeletionPolicy(view.machine.value.deletion_policy or view.default_policy)


def plan_deletion(view: MachineView) -> MachineStep:
    """Return the next step of the deletion of a Machine."""
    meta = view.machine.metadata
    if meta.deletion_timestamp is not None and FINALIZER_MACHINE not in meta.finalizers:
        return _kept(view)
    if view.execution.stage not in DELETION_STAGES:
        return MachineStep(execution=enter(view, _S.GUARDING), phase=None, requeue_s=0.0)
    is_lost = view.execution.host is not None and view.claim.reason in _LOST
    if is_lost and view.execution.stage != _S.RELEASING:
        plan = (_stopped(view) or _go(view, _S.RELEASING)) if _is_requested(view) else _back(view)
    else:
        plan = _named_too_late(view, _STAGES[MachineStage(view.execution.stage)](view))
    execution = plan.execution
    if execution.stage in DELETION_STAGES:
        execution = replace(execution, policy=policy_of(view).value)
    limit = plan.obstacle.limit if plan.obstacle is not None else None
    requeue_s = plan.requeue_s if limit is None else max((limit.at - view.now).total_seconds(), 0.05)
    return _after_refusal(view, replace_plan(plan, execution=execution, requeue_s=requeue_s))


# Writes that the server refuses


def plan_refused(view: MachineView, plan: MachineStep, action: MachineAction, text: str, by: str) -> MachineStep:
    """Return the step after the server has refused an action of a plan whose status is stored.

    Args:
        text: the answer.
        by: what refuses it.
    """
    answer = f"cannot {write_text(view, action)}: {text}"
    if policy_of(view) is DeletionPolicy.FORCED and not isinstance(action, SetMachineFinalizer | DeleteMachineObject):
        execution = replace(plan.execution, unproven=_unproven(view, answer))
        return replace_plan(plan, execution=execution, actions=(), requeue_s=0.0)
    least_s, most_s = REFUSED_S
    waiting = view.execution.waiting
    is_first = waiting is None or waiting.reason != _R.WRITE_REFUSED or view.execution.stage != plan.execution.stage
    waited_s = 0.0 if is_first or waiting is None else seconds_since(waiting.since, view.now)
    pause_s = min(max(waited_s, least_s), most_s)
    obstacle = _refused_wait(view, answer[:MAX_REFUSAL], by, pause_s)
    plan = _named_too_late(view, replace_plan(plan, obstacle=obstacle, phase=_refused_phase(plan)))
    return replace_plan(plan, actions=(), requeue_s=pause_s)


def _after_refusal(view: MachineView, plan: MachineStep) -> MachineStep:
    """Return the plan of a Machine one of whose writes was refused: the wait for its repetition, or that."""
    waiting, execution = view.execution.waiting, plan.execution
    if waiting is None or waiting.reason != _R.WRITE_REFUSED or waiting.until is None or not plan.actions:
        return plan
    is_other = (execution.stage, execution.operation) != (view.execution.stage, view.execution.operation)
    if is_other or execution.policy != view.execution.policy:
        return plan
    left_s = -seconds_since(waiting.until, view.now)
    obstacle = _refused_wait(view, view.execution.message or "", waiting.held_by or "", left_s)
    plan = replace_plan(plan, obstacle=obstacle, phase=_refused_phase(plan))
    return replace_plan(plan, actions=(), requeue_s=left_s) if left_s > 0 else replace_plan(plan, requeue_s=REPEATED_S)


def _refused_wait(view: MachineView, answer: str, by: str, left_s: float) -> MachineWait:
    limit = replace_plan(limit_in(view, left_s, "the write is tried again"), is_new=True)
    return MachineWait(_R.WRITE_REFUSED, answer, by, ACCEPTED, limit, ErrorReason.DELETE_ERROR)


def _refused_phase(plan: MachineStep) -> DeletionPhase | None:
    is_open = plan.phase in (DeletionPhase.STARTED, DeletionPhase.ABORTING)
    return DeletionPhase.FAILED if is_open else plan.phase


def write_text(view: MachineView, action: MachineAction) -> str:
    """Return an action in words, by which the record of a forced deletion and waits name it."""
    match action:
        case ChangeTarget(spec=spec):
            return f"change {' and '.join(sorted(spec))} of Machine {view.execution.machine}"
        case RequestOperation(name=name, kind=kind, spec=spec):
            return f"create {kind} {name}{' as cancelled' if spec.get('cancel') else ''}"
        case CancelOperation(operation=operation):
            return f"cancel {operation.spec.operation_kind} {operation.name}"
        case DeleteNode(node=node):
            return f"delete Node {node.name}"
        case ReleaseHost(host=host):
            return release_text(host_key(host))
        case SetMachineFinalizer(present=present):
            return f"{'add' if present else 'remove'} the finalizer of this Machine"
        case SetProviderID(node=node):
            return f"change Node {node.name}"
        case DeleteMachineObject():
            return "delete this Machine"


def _is_given_up(view: MachineView, action: MachineAction) -> bool:
    """Return whether the forced deletion has tried an action that the server refused."""
    begin = f"cannot {write_text(view, action)}: "[:MAX_STEP]
    return any(one.startswith(begin) for one in view.execution.unproven)


def _kept(view: MachineView) -> MachineStep:
    """Return the wait of a deleted Machine for the finalizers of others; no wait for one that goes now."""
    finalizers = view.machine.metadata.finalizers
    if not finalizers:
        return MachineStep(execution=view.execution)
    text, holder = f"Machine {view.full_name} is kept by its finalizers", f"finalizers {', '.join(finalizers)}"
    return _stay(view, MachineWait(_R.FINALIZERS_REMAINING, text, holder, "their owners remove them"))


def _named_too_late(view: MachineView, plan: MachineStep) -> MachineStep:
    """Say with the cause of a wait that an abort came after the point of no return."""
    waits = plan.obstacle
    if waits is None or _is_requested(view) or view.execution.stage not in _PAST_RETURN or waits.reason == _R.ABORTING:
        return plan
    text = f"delete: false came too late, the deletion goes on: {waits.message}"
    return replace_plan(plan, obstacle=replace_plan(waits, message=text))


def _is_requested(view: MachineView) -> bool:
    """Return whether the deletion is still requested; that of the object cannot be taken back."""
    return view.machine.value.delete or view.machine.metadata.deletion_timestamp is not None


def _phase(view: MachineView, phase: DeletionPhase) -> DeletionPhase | None:
    """Return the phase of a graceful deletion; None for another one."""
    return phase if policy_of(view) is DeletionPolicy.GRACEFUL else None


def _stay(view: MachineView, obstacle: MachineWait, *actions: MachineAction, **more: Any) -> MachineStep:
    return MachineStep(execution=view.execution, obstacle=obstacle, actions=actions, **{"deleting": True, **more})


def _go(view: MachineView, stage: MachineStage, *actions: MachineAction, **changed: Any) -> MachineStep:
    phase = DeletionPhase.STARTED if stage in (_S.DRAINING, _S.RESETTING) else DeletionPhase.COMPLETED
    execution = enter(view, stage, **{"operation": None, "attempt": 0, "message": None, **changed})
    return MachineStep(execution=execution, actions=actions, deleting=True, phase=_phase(view, phase), requeue_s=0.0)


# Before the point of no return


def _guarding(view: MachineView) -> MachineStep:
    if not _is_requested(view):
        return _back(view)
    if (running := _running(view)) is not None:
        return replace_plan(running, deleting=False)
    guard = None if policy_of(view) is DeletionPolicy.FORCED else guard_of(view)
    if guard is not None:
        return _stay(view, guard, deleting=False)
    if view.execution.host is None:
        return _go(view, _S.RELEASING)
    if policy_of(view) is not DeletionPolicy.GRACEFUL:
        return _undrained(view)
    return _go(view, _S.DRAINING) if view.node is not None else _drained(view)


def _undrained(view: MachineView) -> MachineStep:
    """Go on without a drain."""
    return _go(view, _S.RELEASING if view.adopted else _S.POWERING_OFF)


def _drained(view: MachineView) -> MachineStep:
    """Go on after the drain, or without a Node."""
    return _go(view, _S.RELEASING if view.adopted else _S.RESETTING)


def _stopped(view: MachineView) -> MachineStep | None:
    """Return the step that asks the recorded operation to stop; None where that is done, or nothing runs.

    One that does not exist may be on its way from a process that leads no more: created as cancelled, it takes the name
    of that one, which can then never start.
    """
    operation, result, name = view.operation, view.result, view.execution.operation
    if name is not None and result is None:
        kind = _KINDS.get(MachineStage(view.execution.stage), OperationKind.HOST_REPLACE)
        text = f"{kind} {name} is not to start"
        requested = request(view, name, kind, cancel=True)
        return None if _is_given_up(view, requested) else _stay(view, _operation_wait(name, text), requested)
    if operation is None or result is None or result.ended or operation.spec.cancel:
        return None
    if _is_given_up(view, CancelOperation(operation)):
        return None
    text = f"{operation.spec.operation_kind} {operation.name} is asked to stop: {result.message}"
    return _stay(view, _operation_wait(operation.name, text), CancelOperation(operation))


def _operation_wait(name: str, text: str, reason: MachineReason = _R.OPERATION_RUNNING) -> MachineWait:
    return MachineWait(reason, text, f"MachineOperation {name}", "it has ended")


def _running(view: MachineView) -> MachineStep | None:
    """Return the wait for the install or the update that is asked to stop; None where nothing runs."""
    operation, result = view.operation, view.result
    if (stopping := _stopped(view)) is not None:
        return stopping
    if operation is None or result is None or result.ended:
        return None
    if policy_of(view) is DeletionPolicy.FORCED and in_stage_s(view) > FORCED_WAIT_S:
        return None
    state = "is asked to stop" if operation.spec.cancel else "cannot be asked to stop"
    text = f"{operation.spec.operation_kind} {operation.name} {state}: {result.message}"
    return _stay(view, replace_plan(_operation_wait(operation.name, text), limit=_forced_limit(view)))


def _forced_limit(view: MachineView) -> WaitLimit | None:
    """Return the end of the wait for one step of a forced deletion; None for another policy."""
    if policy_of(view) is not DeletionPolicy.FORCED:
        return None
    return limit_in(view, max(FORCED_WAIT_S - in_stage_s(view), 0.05), "the deletion goes on without it")


def guard_of(view: MachineView) -> MachineWait | None:
    """Return what keeps the deletion of this Machine from its start; None for nothing."""
    cluster = view.cluster
    if cluster is None or cluster.metadata.deletion_timestamp is not None:
        return None
    if cluster.value.maintenance:
        text, until = f"Cluster {cluster.name} is in maintenance", "the maintenance of the Cluster ends"
        return MachineWait(_R.CLUSTER_MAINTENANCE, text, f"Cluster {cluster.name}", until)
    if not view.machine.is_manager:
        return None
    leaving = [one.name for one in view.managers if one.provider_status.delete]
    if leaving:
        text = f"manager {leaving[0]} is being deleted, and managers are deleted one by one"
        return MachineWait(_R.MANAGER_DELETION, text, f"Machine {leaving[0]}", "that Machine is gone, or stays")
    ready = sum(has_ready_node(one) for one in view.managers)
    if ready < view.min_other_managers:
        text = (
            f"{ready} other managers of Cluster {cluster.name} are ready, and {view.min_other_managers} have to be "
            "(--min-other-managers)"
        )
        until = f"{view.min_other_managers} other managers are ready"
        return MachineWait(_R.MANAGERS_MISSING, text, f"Cluster {cluster.name}", until)
    return None


def has_ready_node(machine: ContainerCloudMachine) -> bool:
    """Return whether the Machine's Node is Ready; a deletion that only waits for its guards leaves it so."""
    conditions = machine.provider_status.conditions
    return any(one.type == ProviderConditionType.KUBELET and one.ready for one in conditions)


def _draining(view: MachineView) -> MachineStep:
    if not _is_requested(view):
        return _aborting(view)
    if policy_of(view) is not DeletionPolicy.GRACEFUL:
        return _undrained(view)
    if view.node is None or view.drained:
        return _drained(view)
    disruption = view.target.status.disruption if view.target is not None else None
    text = f"Node {view.node.name} is to be drained"
    if disruption is not None:
        text = disruption.message or f"Node {view.node.name}: {disruption.stage}"
    holder, until = drain_holder(disruption), "the Node is drained, or deletionPolicy needs no drain"
    if in_stage_s(view) > DRAIN_LIMIT_S:
        late = f"Node {view.node.name} is not drained after {DRAIN_LIMIT_S / 60:.0f} min: {text}"
        obstacle = MachineWait(_R.DRAIN_TIMED_OUT, late, holder, until, error=ErrorReason.DELETE_ERROR)
        return _stay(view, obstacle, *_maintained(view), phase=DeletionPhase.FAILED)
    then = f"the reason is {_R.DRAIN_TIMED_OUT}, and the wait goes on"
    limit = limit_in(view, DRAIN_LIMIT_S - in_stage_s(view) + 1, then)
    obstacle = MachineWait(_R.DRAINING, text, holder, until, limit)
    return _stay(view, obstacle, *_maintained(view), phase=DeletionPhase.STARTED)


def _maintained(view: MachineView) -> list[MachineAction]:
    """Return the request for a drain, which outlasts the maintenance that a user may have requested."""
    if view.target is None:
        return []
    change = maintenance_change(view, view.target, enabled=True, purpose="deletion")
    return [] if change is None else [ChangeTarget({"maintenance": change}, annotations=record_of_claim(view))]


def _aborting(view: MachineView) -> MachineStep:
    """Give the drain back; the writer of its cordon uncordons the Node."""
    target = view.target
    if view.machine.value.maintenance:  # for which the Node stays drained
        return _back(view)
    change = None if target is None else maintenance_change(view, target, enabled=False)
    if change is not None:
        obstacle = MachineWait(_R.ABORTING, "the Node is returned to service", MACHINA, _UNCORDONED)
        return _stay(view, obstacle, ChangeTarget({"maintenance": change}), phase=_phase(view, DeletionPhase.ABORTING))
    disruption = target.status.disruption if target is not None else None
    if disruption is not None:
        return _returning(view, disruption)
    return _back(view)


def _returning(view: MachineView, disruption: DisruptionStatus) -> MachineStep:
    """Return the wait for a Node to be uncordoned after an abort, which has failed after some time."""
    text = disruption.message or "the Node is returned to service"
    waiting = view.execution.waiting
    began = waiting.since if waiting is not None and waiting.reason == _R.ABORTING else None
    left_s = ABORT_LIMIT_S - (seconds_since(began, view.now) if began is not None else 0.0)
    if left_s > 0:
        limit = limit_in(view, left_s, f"errorReason is {ErrorReason.DELETE_ERROR}, and the wait goes on")
        obstacle = MachineWait(_R.ABORTING, text, drain_holder(disruption), _UNCORDONED, limit)
        return _stay(view, obstacle, phase=_phase(view, DeletionPhase.ABORTING))
    late = f"the Node is not back in service {ABORT_LIMIT_S / 60:.0f} min after the abort: {text}"
    holder, error = drain_holder(disruption), ErrorReason.DELETE_ERROR
    obstacle = MachineWait(_R.ABORTING, late, holder, _UNCORDONED, error=error)
    return _stay(view, obstacle, phase=_phase(view, DeletionPhase.FAILED))


def _back(view: MachineView) -> MachineStep:
    """Return to the life of the Machine: to the claim, the install that has not failed, or its Node.

    A host is installed again only where its install has failed, or where it may have been reset.
    """
    operation, result = view.operation, view.result
    before = {"policy": None, "unproven": (), "message": None}
    if view.execution.stage == _S.GUARDING and view.execution.operation and (result is None or not result.failed):
        if operation is not None and operation.spec.cancel and result is not None and not result.ended:
            text = f"{operation.spec.operation_kind} {operation.name} was asked to stop: {result.message}"
            return _stay(view, _operation_wait(operation.name, text, _R.ABORTING), deleting=False)
        return MachineStep(execution=enter(view, _S.PROVISIONING, **before), requeue_s=0.0)
    is_whole = view.execution.stage in (_S.GUARDING, _S.DRAINING) and view.execution.operation is None
    is_installed = is_whole and view.target is not None and view.target.status.image is not None
    is_installed = is_installed or view.adopted  # by others
    life = _S.CONFIGURING if view.node is not None or is_installed else _S.PLANNING
    stage = _S.CLAIMING if view.execution.host is None else life
    return MachineStep(execution=enter(view, stage, operation=None, attempt=0, **before), requeue_s=0.0)


def _resetting(view: MachineView) -> MachineStep:
    operation, result = view.operation, view.result
    if not _is_requested(view):
        if view.execution.operation is None or (result is not None and result.failed):
            return _aborting(view)
        is_unclaimed = operation is not None and operation.status.execution is None
        if result is None or (is_unclaimed and not result.ended):
            text = "the AgentReset is not to start" if result is None else result.message
            stopping = _stopped(view)
            actions = () if stopping is None else stopping.actions
            waits = _operation_wait(view.execution.operation, text, _R.ABORTING)
            return _stay(view, waits, *actions, phase=_phase(view, DeletionPhase.ABORTING))
    if policy_of(view) is not DeletionPolicy.GRACEFUL:
        return _running(view) or _go(view, _S.POWERING_OFF)
    if view.target is None or not (view.target.has_agent or view.node is not None):
        return _running(view) or _go(view, _S.POWERING_OFF)  # nothing runs that could be reset
    return _by_operation(view, OperationKind.AGENT_RESET, "reset", _S.POWERING_OFF, _R.RESET_FAILED)


def _by_operation(
    view: MachineView, kind: OperationKind, purpose: str, next_stage: MachineStage, failed: MachineReason, **spec: Any
) -> MachineStep:
    """Return the step of a stage that ends with an operation, which is requested again after a failure."""
    name, result = view.execution.operation, view.result
    phase = DeletionPhase.STARTED if view.execution.stage == _S.RESETTING else DeletionPhase.COMPLETED
    if name is None:
        execution = replace(view.execution, operation=operation_name(view, purpose), attempt=view.execution.attempt + 1)
        requested = request(view, execution.operation or "", kind, **spec)
        return MachineStep(
            execution=execution, actions=(requested,), deleting=True, phase=_phase(view, phase), requeue_s=0.0
        )
    if result is None:
        requested = request(view, name, kind, **spec)
        return _stay(view, _operation_wait(name, f"{kind} {name} is requested"), requested, phase=_phase(view, phase))
    if result.complete:
        return _go(view, next_stage)
    if not result.failed:
        return _stay(view, _operation_wait(name, f"{kind} {name}: {result.message}"), phase=_phase(view, phase))
    text = f"{kind} {name} failed: {result.reason}: {result.message}"
    since = view.operation.status.completed_at if view.operation is not None else view.execution.since
    pause_s = RETRY_S[min(max(view.execution.attempt, 1), len(RETRY_S)) - 1]
    left_s = pause_s - (seconds_since(since, view.now) if since is not None else 0.0)
    if left_s <= 0:
        execution = replace(view.execution, operation=None)
        return MachineStep(execution=execution, deleting=True, phase=_phase(view, phase), requeue_s=0.0)
    limit = limit_in(view, left_s, f"{kind} is requested again")
    obstacle = MachineWait(
        failed, f"{text}; it is requested again", CONTAINER_CLOUD, _PAUSED, limit, ErrorReason.DELETE_ERROR
    )
    shown = DeletionPhase.FAILED if view.execution.stage == _S.RESETTING else phase
    return _stay(view, obstacle, phase=_phase(view, shown))


# After the point of no return


def _powering_off(view: MachineView) -> MachineStep:
    """Switch the host off without a drain; one that a looser policy has overtaken is given back, also another's."""
    plan = _switched_off(view)
    overtaken = _has_maintenance(view) and not view.drained and policy_of(view) is not DeletionPolicy.GRACEFUL
    if not overtaken:
        return plan
    change = ChangeTarget({"maintenance": {"enabled": False, "reason": None}})
    return plan if _is_given_up(view, change) else replace_plan(plan, actions=(change, *plan.actions))


def _switched_off(view: MachineView) -> MachineStep:
    policy = policy_of(view)
    if view.target is None or view.target.spec.pxe is None or view.target.spec.pxe.redfish is None:
        return _go(view, _S.REMOVING)  # no BMC can be asked
    spec: dict[str, Any] = {"drain": _NEVER}
    if policy is not DeletionPolicy.GRACEFUL:
        spec["override"] = f"deletionPolicy {policy} of Machine {view.full_name}"[:MAX_OVERRIDE]
    if policy is not DeletionPolicy.FORCED:
        return _by_operation(view, OperationKind.HOST_POWER_OFF, "off", _S.REMOVING, _R.POWER_OFF_FAILED, **spec)
    result = view.result
    is_late = in_stage_s(view) > FORCED_WAIT_S
    is_open = result is not None and not result.ended
    if is_late and is_open and (stopping := _stopped(view)) is not None:  # it must not start once the host is another's
        return stopping
    if result is not None and (result.failed or (is_late and is_open)):
        what = f"{result.reason}: {result.message}" if result.failed else "it did not end in time"
        return _go(view, _S.REMOVING, unproven=_unproven(view, f"HostPowerOff: {what}"))
    spec |= {"deadlineSeconds": FORCED_S, "startDeadlineSeconds": FORCED_START_S, "parameters": {"force": "true"}}
    name = view.execution.operation
    if (
        name is not None
        and result is None
        and _is_given_up(view, request(view, name, OperationKind.HOST_POWER_OFF, **spec))
    ):
        return _stopped(view) or _go(view, _S.REMOVING)
    plan = _by_operation(view, OperationKind.HOST_POWER_OFF, "off", _S.REMOVING, _R.POWER_OFF_FAILED, **spec)
    if plan.obstacle is not None:
        left_s = max(FORCED_WAIT_S - in_stage_s(view), 0.0) + 1
        limit = limit_in(view, left_s, "the deletion goes on, and records the step as not proven")
        return replace_plan(plan, obstacle=replace_plan(plan.obstacle, limit=limit))
    return plan


def _unproven(view: MachineView, text: str) -> tuple[str, ...]:
    return (*view.execution.unproven, text[:MAX_STEP])[:MAX_UNPROVEN]


def _removing(view: MachineView) -> MachineStep:
    target, node = view.target, view.node
    leaves, actions = ChangeTarget({"kubernetes": None, "maintenance": None}), list[MachineAction]()
    is_in_cluster = target is not None and (target.spec.kubernetes is not None or _has_maintenance(view))
    if is_in_cluster and not _is_given_up(view, leaves):
        actions.append(leaves)
    elif node is not None and node.metadata.deletion_timestamp is None and not _is_given_up(view, DeleteNode(node)):
        actions.append(DeleteNode(node))
    if not actions and (node is None or _is_given_up(view, DeleteNode(node))):
        return _go(view, _S.RELEASING)
    name = f"Node {node.name if node is not None else view.execution.machine}"
    text = f"{name} is removed from the cluster"
    limit: WaitLimit | None = None
    if node is not None and node.metadata.deletion_timestamp is not None and node.metadata.finalizers:
        kept = f"{name} is kept by its finalizers: {', '.join(node.metadata.finalizers)}"
        if not actions and (limit := _forced_limit(view)) is not None and in_stage_s(view) > FORCED_WAIT_S:
            return _go(view, _S.RELEASING, unproven=_unproven(view, kept))
        text = kept
    obstacle = MachineWait(_R.REMOVING_NODE, text, name, f"{name} is gone", limit)
    return _stay(view, obstacle, *actions, phase=_phase(view, DeletionPhase.COMPLETED))


def _has_maintenance(view: MachineView) -> bool:
    target = view.target
    return target is not None and target.spec.maintenance is not None and target.spec.maintenance.enabled


def _releasing(view: MachineView) -> MachineStep:
    machine, host = view.machine, view.host
    phase = _phase(view, DeletionPhase.COMPLETED)
    if host is not None and is_claimed_by(host, machine):
        text, until = f"BareMetalHost {host_key(host)} returns to stock", "the host names the Machine no more"
        if not _is_given_up(view, ReleaseHost(host)):
            obstacle = MachineWait(_R.RELEASING_HOST, text, CONTAINER_CLOUD, until)
            return _stay(view, obstacle, ReleaseHost(host), phase=phase)
        if not_released(host) is None and in_stage_s(view) <= FORCED_WAIT_S:
            text = f"BareMetalHost {host_key(host)} cannot be released now, and is marked as Dirty"
            obstacle = MachineWait(_R.RELEASING_HOST, text, CONTAINER_CLOUD, "it is marked", _forced_limit(view))
            return _stay(view, obstacle, phase=phase)
    done: MachineAction = DeleteMachineObject()
    if machine.metadata.deletion_timestamp is not None:
        done = SetMachineFinalizer(False)
    return MachineStep(execution=view.execution, actions=(done,), deleting=True, phase=phase)


_STAGES: Final[Mapping[MachineStage, Callable[[MachineView], MachineStep]]] = {
    _S.GUARDING: _guarding,
    _S.DRAINING: _draining,
    _S.RESETTING: _resetting,
    _S.POWERING_OFF: _powering_off,
    _S.REMOVING: _removing,
    _S.RELEASING: _releasing,
}
