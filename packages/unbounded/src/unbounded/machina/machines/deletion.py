"""Deletion of a Machine with `spec.resetOnDelete`: its agent resets the host first, or else machina over SSH. Pure.

The finalizer blocks the deletion until the reset completes, at most for `PassIntervals.reset_s`. After that the
finalizer is removed, and an Event reports what remains on the host. A user who does not want to wait unsets
resetOnDelete.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from unbounded.api.conditions import ConditionReason
from unbounded.api.failures import Failure
from unbounded.api.machine import PROVISIONING, Machine, MachinePhase, ProvisioningStatus, SSHHop
from unbounded.api.names import ANNOTATION_MACHINE_UID, FINALIZER_RESET
from unbounded.api.operation import MachineOperation, OperationKind, OperationPhase
from unbounded.api.phase import CurrentPhase
from unbounded.machina.machines import conditions as report
from unbounded.machina.machines import model
from unbounded.machina.machines.credentials import is_refused, known_refusal, pinned, refused_message, untrusted
from unbounded.machina.machines.eligibility import last_reset
from unbounded.machina.provisioning.model import ANOTHER_MACHINE, Finished
from unbounded.machina.ssh.model import SshReason, SshRejected, SshTransient
from unbounded.operations.claim_gates import lock_gate, paused

_R = ConditionReason
CLAIM_S: Final = 60  # a running agent claims within seconds; SSH is there for a missing one
CLAIM_ALONE_S: Final = 900  # without SSH: the agent may return
RETRY_S: Final = 60.0
RESET_RETENTION_S: Final = 3600  # retention of an ended AgentReset, for users
_LEAST_S: Final = 0.01
_TAIL: Final = 300  # characters


def finalizer_actions(machine: Machine) -> tuple[model.Action, ...]:
    """Set the finalizer of a Machine that is not being deleted while resetOnDelete is set, else remove it."""
    if machine.metadata.deletion_timestamp is not None or machine.spec.reset_on_delete == has_finalizer(machine):
        return ()
    return (model.SetFinalizer(machine.spec.reset_on_delete),)


def has_finalizer(machine: Machine) -> bool:
    return FINALIZER_RESET in machine.metadata.finalizers


def deletion(observed: model.MachineObservation, times: model.PassIntervals) -> model.MachinePlan | None:
    """Plan for a Machine that is being deleted; None without machina's finalizer."""
    if not has_finalizer(observed.machine):
        return None
    if stop := _stop(observed):
        return model.MachinePlan(stop, why="being deleted; stopping the setup of its host", requeue_after_s=_LEAST_S)
    plan = _next(observed, times.reset_s - (observed.deleted_s or 0.0), times)
    return replace(plan, phase=_phase(observed.machine, plan))


def _stop(observed: model.MachineObservation) -> tuple[model.Action, ...]:
    """Stop an attempt in this process, or free the lock of one."""
    slot = observed.machine.status.active_operation
    if observed.attempt is not None:
        return (model.StopAttempt(observed.attempt.attempt),)
    return (model.ReleaseLock(slot.uid),) if slot is not None and slot.kind == PROVISIONING else ()


def needs_ssh_key(observed: model.MachineObservation) -> bool:
    """Return whether a reset over SSH may be necessary, which needs a key."""
    return has_finalizer(observed.machine) and observed.machine.spec.reset_on_delete and not nothing_to_reset(observed)


def _next(observed: model.MachineObservation, left_s: float, times: model.PassIntervals) -> model.MachinePlan:
    machine, requested = observed.machine, requested_reset(observed.machine, observed.operations)
    if not machine.spec.reset_on_delete:
        return model.MachinePlan(
            (model.RemoveFinalizer(),), why="spec.resetOnDelete is not set any more: the host stays as it is"
        )
    if nothing_to_reset(observed):
        return model.MachinePlan((model.RemoveFinalizer(),), why="the host was never set up")
    if _is_done(observed.reset) or (requested is not None and requested.status.phase == OperationPhase.COMPLETE):
        return model.MachinePlan((model.RemoveFinalizer(),), why="the host was reset")
    if (another := _is_another(observed.reset)) is not None:
        text = f"Machine {machine.name}: no host was reset: {another}, and stays as it is"
        return _failing(text, model.RemoveFinalizer(text))
    held_back = _blocked_by(observed, requested)
    if left_s <= 0:
        lacks = _lacks_key(observed)
        why = (
            held_back or _failed(observed, requested) or (lacks.words if lacks is not None else "the time limit passed")
        )
        return _give_up(machine, why)
    if held_back:
        return _wait(held_back, left_s)
    if requested is None and machine.has_agent:
        return _resetting(
            "requesting a reset from its agent", model.CreateAgentReset(new_reset_name(machine, observed.operations))
        )
    if machine.spec.ssh is None:
        return _give_up(
            machine, _failed(observed, requested) or "no agent has reported from it, and spec.ssh is not set"
        )
    return _over_ssh(observed, left_s, times)


def _over_ssh(observed: model.MachineObservation, left_s: float, times: model.PassIntervals) -> model.MachinePlan:
    reset = observed.reset
    if reset is not None and reset.ended is None:
        return _wait(f"resetting the host over SSH: {reset.progress or reset.step}", left_s)
    if (refusal := _refusal(observed)) is not None:
        cause = _Cause(f"the {refusal.hop} rejected user name and key", _R.CREDENTIALS_REFUSED, refusal.hop)
        return replace(_failing_for(cause, cause.words, refusal), requeue_after_s=_LEAST_S)
    if observed.reading:  # a refused key would be offered again
        message = observed.machine.status.message or "being deleted; reading its Secrets"
        return model.MachinePlan(
            why=message, requeue_after_s=max(left_s, _LEAST_S), waits_for_capacity=not observed.has_capacity
        )
    if (lacks := _lacks_key(observed)) is not None:
        return _retry(lacks, f"the reset over SSH needs a key: {lacks.words}", min(times.secret_s, left_s))
    if reset is None or _login_refused(reset) is not None:  # the key has changed since that login
        return _begin(observed, left_s)
    again_s = RETRY_S - reset.seconds
    if again_s <= 0 or _is_trusted_since(observed.machine, reset):
        return _begin(observed, left_s)
    waits = _retry(_cause(reset), f"retrying the reset over SSH: {_reset_text(reset)}", min(again_s, left_s))
    noted = _other_key(observed.machine, reset)
    return replace(waits, actions=(noted,), requeue_after_s=_LEAST_S) if noted is not None else waits


def _begin(observed: model.MachineObservation, left_s: float) -> model.MachinePlan:
    if not observed.has_capacity:
        words = "waiting for capacity: the limit of resets over SSH is reached"
        return replace(_wait(words, left_s), waits_for_capacity=True)
    return _resetting("resetting the host over SSH", model.ResetOverSsh())


@dataclass(frozen=True)
class _Cause:
    """Cause that blocks a reset over SSH, for the condition HostReset; `hop` is the server of the cause."""

    words: str
    reason: ConditionReason
    hop: SSHHop | None = None


def _cause(reset: model.Attempt) -> _Cause:
    end = reset.ended
    if isinstance(end, SshTransient | SshRejected):
        return _Cause(_reset_text(reset), ConditionReason(end.reason), end.hop)
    return _Cause(_reset_text(reset), _R.FAILED)


def _lacks_key(observed: model.MachineObservation) -> _Cause | None:
    """Return the fault that must be fixed before a login; None without one."""
    needs = observed.needs
    if needs is None:
        return None
    if needs.key:
        return _Cause(needs.key, needs.key_reason, SSHHop.HOST)
    if needs.bastion_key:
        return _Cause(needs.bastion_key, needs.bastion_key_reason, SSHHop.BASTION)
    hop = known_refusal(observed.machine, needs.key_version, needs.bastion_version)
    return None if hop is None else _Cause(refused_message(hop), _R.CREDENTIALS_REFUSED, hop)


def _untrusted_key(reset: model.Attempt) -> SshRejected | None:
    """Return the failure of a login at which a server showed another host key than the trusted one."""
    end = reset.ended
    changed = isinstance(end, SshRejected) and end.reason == SshReason.HOST_KEY and end.fingerprint
    return end if isinstance(end, SshRejected) and changed else None


def _is_trusted_since(machine: Machine, reset: model.Attempt) -> bool:
    """Return whether the user has trusted the host key that the login met."""
    met = _untrusted_key(reset)
    if met is None:
        return False
    return pinned(machine, met.hop) == met.fingerprint or reset.generation != (machine.metadata.generation or 0)


def _other_key(machine: Machine, reset: model.Attempt) -> model.RecordHostKey | None:
    """Record the host key that a server showed instead of the trusted one, once."""
    met = _untrusted_key(reset)
    if met is None or untrusted(machine, met.hop) == met.fingerprint:
        return None
    return model.RecordHostKey(met.hop, met.fingerprint)


def _login_refused(reset: model.Attempt) -> SSHHop | None:
    """Return the server that refused the key of the reset."""
    end = reset.ended
    if not isinstance(end, SshRejected) or end.reason != SshReason.LOGIN or not reset.version:
        return None
    return end.hop


def _refusal(observed: model.MachineObservation) -> model.RecordRefusedKey | None:
    """Record a refused key unless it is recorded already or the Machine has changed since the login."""
    reset, generation = observed.reset, observed.machine.metadata.generation or 0
    hop = _login_refused(reset) if reset is not None else None
    if (
        reset is None
        or hop is None
        or reset.generation != generation
        or is_refused(observed.machine, hop, reset.version)
    ):
        return None
    end = reset.ended
    fingerprint = end.fingerprint if isinstance(end, SshRejected) else ""
    return model.RecordRefusedKey(reset.version, hop=hop, generation=generation, fingerprint=fingerprint)


def _blocked_by(observed: model.MachineObservation, requested: MachineOperation | None) -> str:
    """Return the reason why a reset has to wait; empty if it can start."""
    if requested is not None and not requested.terminal:
        return f"its agent is resetting the host: {requested.spec.operation_kind} {requested.name}"
    gate = paused(observed.machine, observed.pause)
    if gate is not None:
        return gate.text
    slot = observed.machine.status.active_operation
    return "" if slot is None or slot.lost else lock_gate(observed.machine, slot).text


def requested_reset(machine: Machine, operations: Iterable[MachineOperation]) -> MachineOperation | None:
    """Return the AgentReset for the deletion of this Machine, and not of an earlier one of the same name."""
    names = (reset_name(machine), _another_name(machine))
    return next((one for one in operations if one.name in names and _is_of(machine, one)), None)


def new_reset_name(machine: Machine, operations: Iterable[MachineOperation]) -> str:
    """Return the name for a new AgentReset; that of an earlier Machine of the same name may still exist."""
    taken = any(one.name == reset_name(machine) for one in operations)
    return _another_name(machine) if taken else reset_name(machine)


def _is_of(machine: Machine, operation: MachineOperation) -> bool:
    return operation.metadata.annotations.get(ANNOTATION_MACHINE_UID) == machine.metadata.uid


def nothing_to_reset(observed: model.MachineObservation) -> bool:
    """Return whether nothing was ever installed on the host, or it was reset since. In doubt it is reset again."""
    status = observed.machine.status
    if observed.node is not None:
        return False
    return _was_reset(observed.machine) or (status.agent is None and _is_untouched(status.provisioning))


def _is_untouched(provisioning: ProvisioningStatus | None) -> bool:
    """Return whether no attempt has started anything on the host, for example as the login was refused.

    The effect of a running attempt is unknown until it ends.
    """
    return provisioning is None or (provisioning.ended_at is not None and provisioning.untouched)


def _was_reset(machine: Machine) -> bool:
    """Return whether the last known change of the host is a complete AgentReset."""
    uid, status = last_reset(machine), machine.status
    if uid is None or (status.provisioning is not None and status.provisioning.reset == uid):
        return False
    used = status.join.used if status.join is not None else ()
    return all(use.cause != f"{OperationKind.AGENT_RESET}/{uid}" for use in used)


def reset_name(machine: Machine) -> str:
    return f"{machine.name}-reset-on-delete"


def _another_name(machine: Machine) -> str:
    return f"{reset_name(machine)}-{machine.metadata.uid[:8]}"


def reset_manifest(machine: Machine, name: str) -> dict[str, Any]:
    """Return the AgentReset. Without owner: an owned one would be deleted together with its Machine."""
    spec = {
        "machineRef": machine.name,
        "operationKind": str(OperationKind.AGENT_RESET),
        "startDeadlineSeconds": CLAIM_S if machine.spec.ssh is not None else CLAIM_ALONE_S,
        "ttlSecondsAfterFinished": RESET_RETENTION_S,
    }
    return {"metadata": {"name": name, "annotations": {ANNOTATION_MACHINE_UID: machine.metadata.uid}}, "spec": spec}


def _is_done(reset: model.Attempt | None) -> bool:
    return reset is not None and isinstance(reset.ended, Finished) and reset.ended.status == 0


def _is_another(reset: model.Attempt | None) -> str | None:
    """Return the message of a host that is another Machine."""
    if reset is None or not isinstance(reset.ended, Finished) or reset.ended.status != ANOTHER_MACHINE:
        return None
    return reset.ended.tail.strip() or "the host belongs to another Machine"


def _failed(observed: model.MachineObservation, requested: MachineOperation | None) -> str:
    """Return the failure of the last reset; empty before the first one."""
    if observed.reset is not None:
        return f"over SSH: {_reset_text(observed.reset)}"
    if requested is not None:
        return f"by its agent: {requested.status.message or requested.status.reason or 'no cause was reported'}"
    return ""


def _reset_text(reset: model.Attempt) -> str:
    match reset.ended:
        case Finished(status=status, tail=tail):
            end = tail.strip()[-_TAIL:]
            return f"the reset ended with status {status}" + (f": {end}" if end else "")
        case Failure():
            return str(reset.ended)
        case _:
            return reset.progress or reset.step


def _give_up(machine: Machine, why: str) -> model.MachinePlan:
    text = (
        f"the host of Machine {machine.name} was not reset: {why}. Agent and node stay on it; run "
        "`unbounded-agent reset` there to remove them"
    )
    return _failing(text, model.RemoveFinalizer(text))


def _resetting(why: str, *actions: model.Action) -> model.MachinePlan:
    return model.MachinePlan(actions, (report.resetting(why),), why=why)


def _failing(why: str, *actions: model.Action) -> model.MachinePlan:
    return _failing_for(_Cause(why, _R.FAILED), why, *actions)


def _failing_for(cause: _Cause, why: str, *actions: model.Action) -> model.MachinePlan:
    return model.MachinePlan(actions, (report.reset_failed(why, cause.reason, cause.hop),), why=why)


def _wait(why: str, within_s: float) -> model.MachinePlan:
    return replace(_resetting(f"being deleted; {why}"), requeue_after_s=max(within_s, _LEAST_S))


def _retry(cause: _Cause, why: str, within_s: float) -> model.MachinePlan:
    """Return the plan between a failed reset and the next one."""
    return replace(_failing_for(cause, f"being deleted; {why}"), requeue_after_s=max(within_s, _LEAST_S))


def _phase(machine: Machine, plan: model.MachinePlan) -> CurrentPhase | None:
    """Return the phase of a Machine with `ssh`, which machina writes: unchanged until its reset fails."""
    if machine.spec.ssh is None:
        return None
    failed = any(one.reason != ConditionReason.IN_PROGRESS for one in plan.conditions)
    phase = MachinePhase.FAILED if failed else MachinePhase(machine.status.phase or MachinePhase.PENDING)
    return CurrentPhase(phase, plan.why, next((str(one.reason) for one in plan.conditions), ""))
