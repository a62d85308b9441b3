"""Plan of one Machine. Pure: from its observation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.core import Node
from unbounded.api.machine import PROVISIONING, Machine, MachinePhase, ProvisioningStatus, SSHHop
from unbounded.api.meta import Condition
from unbounded.api.phase import machine_phase
from unbounded.machina.machines import conditions as report
from unbounded.machina.machines import eligibility
from unbounded.machina.machines.conditions import end_of_attempt
from unbounded.machina.machines.credentials import is_refused, refused_message, untrusted
from unbounded.machina.machines.deletion import deletion, finalizer_actions, needs_ssh_key
from unbounded.machina.machines.model import (
    Action,
    MachineObservation,
    MachinePlan,
    PassIntervals,
    ProbeHost,
    Provision,
    RecordEnd,
    RecordHostKey,
    RecordLateSuccess,
    RecordRefusedKey,
    RecordRetry,
    ReleaseLock,
    SetCondition,
    StopAttempt,
)
from unbounded.machina.machines.nodes import node_actions
from unbounded.machina.ssh.model import SshReason, SshRejected
from unbounded.operations.claim_gates import lock_gate, paused

TIMES: Final = PassIntervals()
MARGIN_S: Final = 0.05  # a timer may fire a little early


@dataclass(frozen=True)
class _Step:
    """Decision about provisioning: actions, and conditions about them."""

    actions: tuple[Action, ...] = ()
    conditions: tuple[SetCondition, ...] = ()
    within_s: float | None = None  # earlier than the interval of the phase
    blocked_by: str = ""  # gate to name in the message, besides the conditions
    waits_for_capacity: bool = False


def plan(observed: MachineObservation, times: PassIntervals = TIMES) -> MachinePlan:
    """Decide the next actions on one Machine. The same observation always gives the same plan."""
    machine = observed.machine
    if machine.metadata.deletion_timestamp is not None:
        return _being_deleted(observed, times)
    if machine.spec.ssh is None:
        return _without_ssh(observed)
    reach = _reach(observed, times)
    step = _set_up(observed, reach.conditions, times)
    exclusive = report.exclusive(machine, observed.sharing)
    conditions = (*reach.conditions, *exclusive, *_first(machine, step.conditions))
    after = report.after(machine, conditions)
    phase = machine_phase(
        machine.spec,
        conditions=after,
        node=observed.node,
        slot=machine.status.active_operation,
        join=machine.status.join,
    )
    if step.blocked_by and step.blocked_by not in phase.message:
        phase = phase._replace(message=f"{phase.message}; {step.blocked_by}")
    every_s = _every_s(phase.phase, after, times)
    probe = _probe(observed, reach, every_s)
    waits = [every_s, *(one for one in (reach.within_s, step.within_s) if one is not None)]
    if observed.probe is not None and not _probe_is_due(observed, every_s):
        waits.append(every_s - observed.probe.age_s + MARGIN_S)
    actions = (*probe, *step.actions, *finalizer_actions(machine), *_of_node(observed))
    return MachinePlan(actions, conditions, phase.message, phase, min(waits), step.waits_for_capacity)


def is_idle(machine: Machine, node: Node | None) -> bool:
    """Return whether `plan` is empty for a Machine without an attempt in this process.

    So it is for most Machines without `ssh` and Node, whose operations change them often.
    """
    slot, before = machine.status.active_operation, machine.status.provisioning
    return (
        machine.spec.ssh is None
        and node is None
        and machine.metadata.deletion_timestamp is None
        and not eligibility.is_attempt_open(before)
        and (slot is None or slot.kind != PROVISIONING)
        and not finalizer_actions(machine)
        and report.current(machine, ConditionType.HOST_EXCLUSIVE) is None
    )


def requires_prerequisites(observed: MachineObservation, times: PassIntervals = TIMES) -> bool:
    """Return whether `plan` needs keys, token and facts for its decision."""
    machine = observed.machine
    if machine.spec.ssh is None:
        return False
    if machine.metadata.deletion_timestamp is not None:
        return needs_ssh_key(observed)
    if machine.spec.ssh.bastion is not None and (
        _probe_is_due(observed, _interval(machine, times)) or _is_away(observed)
    ):
        return True
    if observed.attempt is not None or machine.spec.kubernetes is None:
        return False
    return (
        eligibility.is_attempt_open(machine.status.provisioning)
        or eligibility.reason_against(machine, observed.node) is None
    )


# ---- whether the port answers


def _reach(observed: MachineObservation, times: PassIntervals) -> _Step:
    """Decide the condition SSHReachable. For a bastion its key matters, as a probe logs in there."""
    needs = observed.needs
    if _waits_for_key(observed):
        return _Step(conditions=_initial(observed.machine, report.not_tried()))
    if needs is not None and observed.machine.spec.ssh is not None and observed.machine.spec.ssh.bastion is not None:
        if needs.bastion_key is not None:
            words = report.unreachable(needs.bastion_key, needs.bastion_key_reason, SSHHop.BASTION)
            return _Step(conditions=(words,), within_s=times.secret_s)
        if is_refused(observed.machine, SSHHop.BASTION, needs.bastion_version):
            words = report.unreachable(refused_message("bastion"), ConditionReason.CREDENTIALS_REFUSED, SSHHop.BASTION)
            return _Step(conditions=(report.with_current_message(observed.machine, words),), within_s=times.secret_s)
    if observed.probe is None:
        known = report.current(observed.machine, ConditionType.SSH_REACHABLE)
        return _Step(conditions=() if known is not None else (report.not_tried(),))
    error = observed.probe.error
    if error is None:
        return _Step(conditions=(report.reachable(),))
    noted = (*_refusals(observed, error), *_other_keys(observed, error)) if isinstance(error, SshRejected) else ()
    return _Step(actions=noted, conditions=(report.probe_failed(error),))


def _refusals(observed: MachineObservation, error: SshRejected) -> tuple[Action, ...]:
    """Record a bastion's refusal of the key, once."""
    version = observed.probe.version if observed.probe is not None else ""
    if error.reason != SshReason.LOGIN or error.hop != SSHHop.BASTION or not version:
        return ()
    known = is_refused(observed.machine, SSHHop.BASTION, version)
    return () if known else (RecordRefusedKey(version, fingerprint=error.fingerprint),)


def _other_keys(observed: MachineObservation, error: SshRejected) -> tuple[Action, ...]:
    """Record a bastion's key that is not the trusted one, once."""
    if error.reason != SshReason.HOST_KEY or not error.fingerprint:
        return ()
    known = untrusted(observed.machine, error.hop)
    return () if known == error.fingerprint else (RecordHostKey(error.hop, error.fingerprint),)


def _probe(observed: MachineObservation, reach: _Step, every_s: float) -> tuple[Action, ...]:
    is_late = reach.within_s is not None or _waits_for_key(observed)  # a refused key would be offered again
    due = not is_late and not observed.probing and _probe_is_due(observed, every_s)
    return (*reach.actions, *((ProbeHost(),) if due else ()))


def _waits_for_key(observed: MachineObservation) -> bool:
    """Return whether the state of a bastion is unknown because its key is being read."""
    ssh = observed.machine.spec.ssh
    return observed.reading and ssh is not None and ssh.bastion is not None


def _probe_is_due(observed: MachineObservation, every_s: float) -> bool:
    return observed.probe is None or observed.probe.age_s >= every_s or _is_of_another_key(observed)


def _is_of_another_key(observed: MachineObservation) -> bool:
    """Return whether the probe used a key for the bastion that the Secret does not contain any more."""
    needs, probe = observed.needs, observed.probe
    if needs is None or probe is None:
        return False
    return isinstance(probe.error, SshRejected) and probe.version != needs.bastion_version


def _interval(machine: Machine, times: PassIntervals) -> float:
    phase = machine.status.phase
    return _every_s(MachinePhase(phase), machine.status.conditions, times) if phase in set(MachinePhase) else 0.0


def _every_s(phase: MachinePhase, conditions: Iterable[Condition], times: PassIntervals) -> float:
    """Return the interval between passes. A port that does not answer is probed as often as before its host joined."""
    away = any(one.type == ConditionType.SSH_REACHABLE and one.status == ConditionStatus.FALSE for one in conditions)
    every_s = times.by_phase[phase]
    return min(every_s, times.by_phase[MachinePhase.PENDING]) if away else every_s


def _is_away(observed: MachineObservation) -> bool:
    known = report.current(observed.machine, ConditionType.SSH_REACHABLE)
    return known is None or known.status != ConditionStatus.TRUE


# ---- setting up the host


def _set_up(observed: MachineObservation, reach: tuple[SetCondition, ...], times: PassIntervals) -> _Step:
    """Decide about provisioning. The first rule that applies wins."""
    return (
        _open_attempt(observed)
        or _not_needed(observed)
        or _duplicate(observed)
        or _unreachable(observed, reach)
        or _paused(observed, times)
        or _locked(observed)
        or _missing_prerequisites(observed, times)
        or _failed_before(observed, times)
        or _begin(observed)
    )


def _open_attempt(observed: MachineObservation) -> _Step | None:
    """Decide about an attempt that runs, has ended, or was recorded by an earlier process."""
    before, attempt, slot = (
        observed.machine.status.provisioning,
        observed.attempt,
        observed.machine.status.active_operation,
    )
    if before is None or before.ended_at is not None:
        stray = (ReleaseLock(slot.uid),) if slot is not None and slot.kind == PROVISIONING else ()
        left = (*_stop(observed), *stray)
        return _Step(actions=left) if left else None
    lost = _stop_reason(observed.machine)
    if lost is not None:
        stop = (StopAttempt(attempt.attempt),) if attempt is not None else ()
        back = RecordEnd(before.attempt, failure=report.FAILED, message=lost)
        return _Step((*stop, back), (report.failed(ConditionReason.FAILED, lost),))
    if attempt is None:
        return _resume(observed, before)
    if attempt.attempt != before.attempt:
        return _Step(actions=(StopAttempt(attempt.attempt),), within_s=0.0)
    if attempt.ended is not None:
        back = end_of_attempt(attempt, observed.machine.metadata.generation)
        return _Step((back,), _ended(back, before.generation))
    return _Step(conditions=(report.running(attempt.progress or attempt.step),))


def _stop_reason(machine: Machine) -> str | None:
    """Return why a recorded attempt must stop."""
    slot, before = machine.status.active_operation, machine.status.provisioning
    if machine.spec.kubernetes is None:
        return "spec.kubernetes was removed during the setup of the host"
    if (elsewhere := eligibility.moved_message(machine)) is not None:
        return elsewhere
    if slot is not None and before is not None and slot.uid != before.attempt:
        return f"{slot.kind} {slot.name} took the lock of the Machine during the setup of the host"
    return None


def _resume(observed: MachineObservation, before: ProvisioningStatus) -> _Step:
    """Resume a recorded attempt, whatever the spec is now: the install may run on the host, or have ended there."""
    if observed.needs is None:
        return _unread(observed)
    lacks = _lacks_key(observed)
    if lacks is not None:
        back = RecordEnd(before.attempt, failure=str(lacks[0]), message=lacks[1])
        return _Step((back,), (report.failed(*lacks),))
    if not observed.has_capacity:
        return _Step(conditions=(report.running(_NO_CAPACITY),), waits_for_capacity=True)
    gate = paused(observed.machine, observed.pause)
    resume = Provision(before.attempt, before.generation, resume=True, held=gate.text if gate is not None else "")
    return _Step((resume,), (report.running("checking the progress of the install on the host"),))


def _ended(back: RecordEnd, generation: int) -> tuple[SetCondition, ...]:
    if back.failure is None:
        return (report.completed(back.message), report.provisioned(generation))
    if back.failure == report.ON_HOLD:
        return (report.waiting(back.message),)
    return (report.failed(report.reason_of(back.failure), back.message),)


def _not_needed(observed: MachineObservation) -> _Step | None:
    machine = observed.machine
    if machine.spec.kubernetes is None:
        words = "The Machine needs no Node"
        return _Step(conditions=_initial(machine, report.not_run(words)))
    words = eligibility.reason_against(machine, observed.node) or ""
    if not words:
        return None
    before = machine.status.provisioning
    if before is None:
        return _Step(conditions=(report.not_run(words), report.never_provisioned(words)))
    came = eligibility.join_evidence(machine, observed.node)
    if words == came:
        done = RecordLateSuccess(before.attempt, came)
        return _Step(
            (done,), (report.completed(f"{came}: the install has succeeded"), report.provisioned(before.generation))
        )
    ran = report.with_current_message(machine, report.completed()) if before.failure is None else report.not_run(words)
    if eligibility.is_reset(machine):
        return _Step(conditions=(ran, report.was_reset()))
    good = (
        (report.provisioned(before.generation),) if before.failure is None else ()
    )  # else an image has overwritten it
    return _Step(conditions=(ran, *good))


def _unreachable(observed: MachineObservation, reach: tuple[SetCondition, ...]) -> _Step | None:
    known = reach[0].status if reach else _reached_before(observed)
    return None if known == ConditionStatus.TRUE and observed.probe is not None else _Step()


def _reached_before(observed: MachineObservation) -> str:
    known = report.current(observed.machine, ConditionType.SSH_REACHABLE)
    return known.status if known is not None else ConditionStatus.UNKNOWN


def _paused(observed: MachineObservation, times: PassIntervals) -> _Step | None:
    """Wait while the Machine is paused. Other faults are reported as well: they remain after the pause."""
    gate = paused(observed.machine, observed.pause)
    if gate is None:
        return None
    wrong = (
        _missing_prerequisites(observed, times) or _failure(observed) or _Step(conditions=(report.waiting(gate.text),))
    )
    return replace(wrong, blocked_by=gate.text)


def _duplicate(observed: MachineObservation) -> _Step | None:
    """Wait for another Machine of the same host: two installs would overwrite one another."""
    first = eligibility.first_of(observed.machine, observed.sharing)
    if first.name == observed.machine.name:
        return None
    how = "is set up, or in setup" if eligibility.is_begun(first) else "is older"
    words = f"Machine {first.name}, which {how}, names the same SSH host, {eligibility.host_text(observed.machine)}"
    return _Step(conditions=(report.waiting(words, ConditionReason.DUPLICATE_HOST),))


def _locked(observed: MachineObservation) -> _Step | None:
    """Wait for the owner of the lock, or for a configuration that does not exist yet."""
    machine = observed.machine
    holder = machine.status.active_operation
    gate = lock_gate(machine, holder) if holder is not None else None
    words = gate.text if gate is not None else ""
    if not words and report.is_true(machine, ConditionType.CONFIGURATION_PENDING):
        condition = report.current(machine, ConditionType.CONFIGURATION_PENDING)
        words = (condition.message if condition is not None else "") or "no MachineConfiguration is bound"
    return _Step(conditions=(report.waiting(words),)) if words else None


def _missing_prerequisites(observed: MachineObservation, times: PassIntervals) -> _Step | None:
    """Wait for missing prerequisites of an install."""
    needs = observed.needs
    if needs is None:
        return _unread(observed)
    if needs.facts is not None:
        words = f"facts about the cluster are missing: {needs.facts}"
        return _Step(conditions=(report.waiting(words, ConditionReason.FACTS_MISSING),), within_s=times.secret_s)
    lacks = _lacks_key(observed)
    if lacks is None and needs.token is not None:
        lacks = (needs.token_reason, needs.token)
    if lacks is None and needs.source is not None:
        lacks = (needs.source_reason, needs.source)
    if lacks is None:
        return None
    message = report.failed(*lacks)
    if lacks[0] == ConditionReason.CREDENTIALS_REFUSED:
        message = report.with_current_message(observed.machine, message)
    return _Step(conditions=(message,), within_s=times.secret_s)


def _unread(observed: MachineObservation) -> _Step:
    """Wait for a read in progress, which wakes the Machine, or request one at once."""
    return _Step(within_s=None if observed.reading else 0.0)


def _lacks_key(observed: MachineObservation) -> tuple[ConditionReason, str] | None:
    needs = observed.needs
    if needs is None:
        return None
    if needs.key is not None:
        return (needs.key_reason, needs.key)
    if is_refused(observed.machine, SSHHop.HOST, needs.key_version):
        return (ConditionReason.CREDENTIALS_REFUSED, refused_message("host"))
    return None


def _failed_before(observed: MachineObservation, times: PassIntervals) -> _Step | None:
    """Wait for the backoff after a failure. A Secret that could not be used is read meanwhile, as a new one counts at
    once.
    """
    before, step = observed.machine.status.provisioning, _failure(observed)
    if before is None or before.failure is None or step is None or observed.retry_s is None or observed.retry_s <= 0:
        return None
    edited = before.generation != observed.machine.metadata.generation
    if observed.changed_since_failure and (
        not edited or eligibility.is_requested_again(observed.machine, observed.node)
    ):
        return None
    by_secret = report.reason_of(before.failure) in _OF_SECRETS
    message = (RecordRetry(observed.retry_at_text),) if observed.retry_at_text != (before.retry_at or "") else ()
    return replace(
        step, actions=message, within_s=min(observed.retry_s, times.secret_s) if by_secret else observed.retry_s
    )


_OF_SECRETS: Final = frozenset(
    {
        ConditionReason.SECRET_UNUSABLE,
        ConditionReason.SECRET_MISSING,
        ConditionReason.SECRET_FORBIDDEN,
        ConditionReason.PASSPHRASE_WRONG,
    }
)


def _failure(observed: MachineObservation) -> _Step | None:
    """Keep the message of the last failure."""
    before = observed.machine.status.provisioning
    if before is None or before.failure in (None, report.ON_HOLD):
        return None
    words = "the setup of the host has failed; machina retries it"
    failed = report.failed(report.reason_of(before.failure), words)
    return _Step(conditions=(report.with_current_message(observed.machine, failed),))


_NO_CAPACITY: Final = "waiting for capacity: the limit of hosts in setup is reached"


def _begin(observed: MachineObservation) -> _Step:
    if not observed.has_capacity:
        return _Step(conditions=(report.waiting(_NO_CAPACITY),), waits_for_capacity=True)
    name = eligibility.next_attempt(observed.machine, observed.node, observed.new_attempt)
    begin = Provision(name, observed.machine.metadata.generation or 0)
    return _Step((begin,), (report.running("logging in to the host"),))


# ---- the rest


def _first(machine: Machine, conditions: tuple[SetCondition, ...]) -> tuple[SetCondition, ...]:
    """Add the initial conditions on the first pass; later passes set only changed ones."""
    given = {one.kind for one in conditions}
    missing = (report.not_run(), report.never_provisioned())
    return (
        *conditions,
        *(one for one in missing if one.kind not in given and report.current(machine, one.kind) is None),
    )


def _initial(machine: Machine, one: SetCondition) -> tuple[SetCondition, ...]:
    return () if report.current(machine, one.kind) is not None else (one,)


def _of_node(observed: MachineObservation) -> tuple[Action, ...]:
    if observed.node is None or observed.machine.spec.kubernetes is None:
        return ()
    return node_actions(observed.machine, observed.node, observed.template, observed.pause)


def _being_deleted(observed: MachineObservation, times: PassIntervals) -> MachinePlan:
    """End an attempt before anything else on a Machine that is being deleted."""
    words = "the Machine is being deleted"
    actions = (*_stop(observed), *_release_lock(observed, words))
    return MachinePlan(actions, why=words) if actions else deletion(observed, times) or MachinePlan(why=words)


def _without_ssh(observed: MachineObservation) -> MachinePlan:
    """Follow the Node of a Machine without `ssh`, and end what was started over SSH."""
    actions = (
        *_stop(observed),
        *_release_lock(observed, "spec.ssh was removed"),
        *finalizer_actions(observed.machine),
        *_of_node(observed),
    )
    exclusive = report.exclusive(observed.machine, observed.sharing)
    return MachinePlan(actions, exclusive, why="without spec.ssh, machina does not set up the host")


def _stop(observed: MachineObservation) -> tuple[Action, ...]:
    return (StopAttempt(observed.attempt.attempt),) if observed.attempt is not None else ()


def _release_lock(observed: MachineObservation, why: str) -> tuple[Action, ...]:
    before, slot = observed.machine.status.provisioning, observed.machine.status.active_operation
    if before is not None and before.ended_at is None:
        return (RecordEnd(before.attempt, failure=report.FAILED, message=why),)
    return (ReleaseLock(slot.uid),) if slot is not None and slot.kind == PROVISIONING else ()
