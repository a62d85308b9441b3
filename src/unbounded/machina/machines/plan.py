"""Plan of one Machine. Pure: from its observation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.machine import PROVISIONING, Machine, MachinePhase, ProvisioningStatus, SSHHop
from unbounded.api.meta import Condition
from unbounded.api.phase import machine_phase
from unbounded.machina.machines import conditions as say
from unbounded.machina.machines.deletion import deletion, hold, wants_reset
from unbounded.machina.machines.model import (
    Action,
    CountAsDone,
    FreeSlot,
    GiveBack,
    NoteHostKey,
    Observed,
    Plan,
    ProbeHost,
    Provision,
    Refuse,
    Set,
    StopAttempt,
    TellRetry,
    Times,
)
from unbounded.machina.machines.nodes import node_actions
from unbounded.machina.machines.outcome import given_back
from unbounded.machina.machines.refused import is_refused, refused_words, untrusted
from unbounded.machina.machines.same_host import first_of, host_words, is_begun
from unbounded.machina.machines.wanted import (
    is_asked_anew,
    is_open,
    is_reset,
    joined_since,
    moved,
    next_attempt,
    why_not,
)
from unbounded.machina.ssh.model import SshRejected, Trouble
from unbounded.operations.gates import paused, slot_gate

TIMES: Final = Times()
MARGIN_S: Final = 0.05  # a timer may fire a little early


@dataclass(frozen=True)
class _Step:
    """Decision about provisioning: actions, and conditions about them."""

    actions: tuple[Action, ...] = ()
    conditions: tuple[Set, ...] = ()
    within_s: float | None = None  # earlier than the interval of the phase
    held: str = ""  # gate to name in the message, besides the conditions
    waits_for_room: bool = False


def plan(seen: Observed, times: Times = TIMES) -> Plan:
    """Decide the next actions on one Machine. The same observation always gives the same plan."""
    machine = seen.machine
    if machine.metadata.deletion_timestamp is not None:
        return _leaving(seen, times)
    if machine.spec.ssh is None:
        return _without_ssh(seen)
    reach = _reach(seen, times)
    step = _set_up(seen, reach.conditions, times)
    exclusive = say.exclusive(machine, seen.sharing)
    conditions = (*reach.conditions, *exclusive, *_first(machine, step.conditions))
    after = say.after(machine, conditions)
    phase = machine_phase(
        machine.spec,
        conditions=after,
        node=seen.node,
        slot=machine.status.active_operation,
        join=machine.status.join,
    )
    if step.held and step.held not in phase.message:
        phase = phase._replace(message=f"{phase.message}; {step.held}")
    every_s = _every_s(phase.phase, after, times)
    probe = _probe(seen, reach, every_s)
    waits = [every_s, *(one for one in (reach.within_s, step.within_s) if one is not None)]
    if seen.probe is not None and not _probe_is_due(seen, every_s):
        waits.append(every_s - seen.probe.age_s + MARGIN_S)
    actions = (*probe, *step.actions, *hold(machine), *_of_node(seen))
    return Plan(actions, conditions, phase.message, phase, min(waits), step.waits_for_room)


def asks_for_needs(seen: Observed, times: Times = TIMES) -> bool:
    """Return whether `plan` needs keys, token and facts for its decision."""
    machine = seen.machine
    if machine.spec.ssh is None:
        return False
    if machine.metadata.deletion_timestamp is not None:
        return wants_reset(seen)
    if machine.spec.ssh.bastion is not None and (_probe_is_due(seen, _interval(machine, times)) or _is_away(seen)):
        return True
    if seen.attempt is not None or machine.spec.kubernetes is None:
        return False
    return is_open(machine.status.provisioning) or why_not(machine, seen.node) is None


# ---- whether the port answers


def _reach(seen: Observed, times: Times) -> _Step:
    """Decide the condition SSHReachable. For a bastion its key matters, as a probe logs in there."""
    needs = seen.needs
    if _waits_for_key(seen):
        return _Step(conditions=_unless_said(seen.machine, say.not_tried()))
    if needs is not None and seen.machine.spec.ssh is not None and seen.machine.spec.ssh.bastion is not None:
        if needs.bastion_key is not None:
            words = say.unreachable(needs.bastion_key, needs.bastion_key_reason, SSHHop.BASTION)
            return _Step(conditions=(words,), within_s=times.secret_s)
        if is_refused(seen.machine, SSHHop.BASTION, needs.bastion_version):
            words = say.unreachable(refused_words("bastion"), ConditionReason.CREDENTIALS_REFUSED, SSHHop.BASTION)
            return _Step(conditions=(say.unless_said(seen.machine, words),), within_s=times.secret_s)
    if seen.probe is None:
        known = say.said(seen.machine, ConditionType.SSH_REACHABLE)
        return _Step(conditions=() if known is not None else (say.not_tried(),))
    error = seen.probe.error
    if error is None:
        return _Step(conditions=(say.reachable(),))
    noted = (*_refusals(seen, error), *_other_keys(seen, error)) if isinstance(error, SshRejected) else ()
    return _Step(actions=noted, conditions=(say.probe_failed(error),))


def _refusals(seen: Observed, error: SshRejected) -> tuple[Action, ...]:
    """Record a bastion's refusal of the key, once."""
    version = seen.probe.version if seen.probe is not None else ""
    if error.trouble != Trouble.LOGIN or error.hop != SSHHop.BASTION or not version:
        return ()
    known = is_refused(seen.machine, SSHHop.BASTION, version)
    return () if known else (Refuse(version, fingerprint=error.fingerprint),)


def _other_keys(seen: Observed, error: SshRejected) -> tuple[Action, ...]:
    """Record a bastion's key that is not the trusted one, once."""
    if error.trouble != Trouble.HOST_KEY or not error.fingerprint:
        return ()
    known = untrusted(seen.machine, error.hop)
    return () if known == error.fingerprint else (NoteHostKey(error.hop, error.fingerprint),)


def _probe(seen: Observed, reach: _Step, every_s: float) -> tuple[Action, ...]:
    held = reach.within_s is not None or _waits_for_key(seen)  # a refused key would be offered again
    due = not held and not seen.probing and _probe_is_due(seen, every_s)
    return (*reach.actions, *((ProbeHost(),) if due else ()))


def _waits_for_key(seen: Observed) -> bool:
    """Return whether the state of a bastion is unknown because its key is being read."""
    ssh = seen.machine.spec.ssh
    return seen.reading and ssh is not None and ssh.bastion is not None


def _probe_is_due(seen: Observed, every_s: float) -> bool:
    return seen.probe is None or seen.probe.age_s >= every_s or _is_of_another_key(seen)


def _is_of_another_key(seen: Observed) -> bool:
    """Return whether the probe used a key for the bastion that the Secret does not contain any more."""
    needs, probe = seen.needs, seen.probe
    if needs is None or probe is None:
        return False
    return isinstance(probe.error, SshRejected) and probe.version != needs.bastion_version


def _interval(machine: Machine, times: Times) -> float:
    phase = machine.status.phase
    return _every_s(MachinePhase(phase), machine.status.conditions, times) if phase in set(MachinePhase) else 0.0


def _every_s(phase: MachinePhase, conditions: Iterable[Condition], times: Times) -> float:
    """Return the interval between passes. A port that does not answer is probed as often as before its host joined."""
    away = any(one.type == ConditionType.SSH_REACHABLE and one.status == ConditionStatus.FALSE for one in conditions)
    every_s = times.by_phase[phase]
    return min(every_s, times.by_phase[MachinePhase.PENDING]) if away else every_s


def _is_away(seen: Observed) -> bool:
    known = say.said(seen.machine, ConditionType.SSH_REACHABLE)
    return known is None or known.status != ConditionStatus.TRUE


# ---- setting up the host


def _set_up(seen: Observed, reach: tuple[Set, ...], times: Times) -> _Step:
    """Decide about provisioning. The first rule that applies wins."""
    return (
        _attempt_at_work(seen)
        or _not_wanted(seen)
        or _duplicate(seen)
        or _unreachable(seen, reach)
        or _paused(seen, times)
        or _held(seen)
        or _lacking(seen, times)
        or _failed_before(seen, times)
        or _begin(seen)
    )


def _attempt_at_work(seen: Observed) -> _Step | None:
    """Decide about an attempt that runs, has ended, or was recorded by an earlier process."""
    before, attempt, slot = seen.machine.status.provisioning, seen.attempt, seen.machine.status.active_operation
    if before is None or before.ended_at is not None:
        stray = (FreeSlot(slot.uid),) if slot is not None and slot.kind == PROVISIONING else ()
        left = (*_stop(seen), *stray)
        return _Step(actions=left) if left else None
    lost = _why_to_stop(seen.machine)
    if lost is not None:
        stop = (StopAttempt(attempt.attempt),) if attempt is not None else ()
        back = GiveBack(before.attempt, failure=say.FAILED, message=lost)
        return _Step((*stop, back), (say.failed(ConditionReason.FAILED, lost),))
    if attempt is None:
        return _resume(seen, before)
    if attempt.attempt != before.attempt:
        return _Step(actions=(StopAttempt(attempt.attempt),), within_s=0.0)
    if attempt.ended is not None:
        back = given_back(attempt, seen.machine.metadata.generation)
        return _Step((back,), _ended(back, before.generation))
    return _Step(conditions=(say.running(attempt.progress or attempt.step),))


def _why_to_stop(machine: Machine) -> str | None:
    """Return why a recorded attempt must stop."""
    slot, before = machine.status.active_operation, machine.status.provisioning
    if machine.spec.kubernetes is None:
        return "spec.kubernetes was taken away while the host was set up"
    if (elsewhere := moved(machine)) is not None:
        return elsewhere
    if slot is not None and before is not None and slot.uid != before.attempt:
        return f"{slot.kind} {slot.name} has taken the Machine while the host was set up"
    return None


def _resume(seen: Observed, before: ProvisioningStatus) -> _Step:
    """Resume a recorded attempt, whatever the spec is now: the install may run on the host, or have ended there."""
    if seen.needs is None:
        return _not_looked_at(seen)
    lacks = _lacks_key(seen)
    if lacks is not None:
        back = GiveBack(before.attempt, failure=str(lacks[0]), message=lacks[1])
        return _Step((back,), (say.failed(*lacks),))
    if not seen.room:
        return _Step(conditions=(say.running(_NO_ROOM),), waits_for_room=True)
    gate = paused(seen.machine, seen.pause)
    resume = Provision(before.attempt, before.generation, resume=True, held=gate.text if gate is not None else "")
    return _Step((resume,), (say.running("asking the host how far the install is"),))


def _ended(back: GiveBack, generation: int) -> tuple[Set, ...]:
    if back.failure is None:
        return (say.completed(back.message), say.provisioned(generation))
    if back.failure == say.ON_HOLD:
        return (say.waiting(back.message),)
    return (say.failed(say.reason_of(back.failure), back.message),)


def _not_wanted(seen: Observed) -> _Step | None:
    machine = seen.machine
    if machine.spec.kubernetes is None:
        words = "No Kubernetes node is wanted"
        return _Step(conditions=_unless_said(machine, say.not_run(words)))
    words = why_not(machine, seen.node) or ""
    if not words:
        return None
    before = machine.status.provisioning
    if before is None:
        return _Step(conditions=(say.not_run(words), say.never_provisioned(words)))
    came = joined_since(machine, seen.node)
    if words == came:
        done = CountAsDone(before.attempt, came)
        return _Step(
            (done,), (say.completed(f"{came}: the install has ended well"), say.provisioned(before.generation))
        )
    ran = say.unless_said(machine, say.completed()) if before.failure is None else say.not_run(words)
    if is_reset(machine):
        return _Step(conditions=(ran, say.was_reset()))
    good = (say.provisioned(before.generation),) if before.failure is None else ()  # else an image has overwritten it
    return _Step(conditions=(ran, *good))


def _unreachable(seen: Observed, reach: tuple[Set, ...]) -> _Step | None:
    known = reach[0].status if reach else _reached_before(seen)
    return None if known == ConditionStatus.TRUE and seen.probe is not None else _Step()


def _reached_before(seen: Observed) -> str:
    known = say.said(seen.machine, ConditionType.SSH_REACHABLE)
    return known.status if known is not None else ConditionStatus.UNKNOWN


def _paused(seen: Observed, times: Times) -> _Step | None:
    """Wait while the Machine is paused. Other faults are reported as well: they remain after the pause."""
    gate = paused(seen.machine, seen.pause)
    if gate is None:
        return None
    wrong = _lacking(seen, times) or _failure(seen) or _Step(conditions=(say.waiting(gate.text),))
    return replace(wrong, held=gate.text)


def _duplicate(seen: Observed) -> _Step | None:
    """Wait for another Machine of the same host: two installs would overwrite one another."""
    first = first_of(seen.machine, seen.sharing)
    if first.name == seen.machine.name:
        return None
    how = "was set up, or is being set up" if is_begun(first) else "was made first"
    words = f"Machine {first.name}, which {how}, names the same SSH host, {host_words(seen.machine)}"
    return _Step(conditions=(say.waiting(words, ConditionReason.DUPLICATE_HOST),))


def _held(seen: Observed) -> _Step | None:
    """Wait for the owner of the lock, or for a configuration that does not exist yet."""
    machine = seen.machine
    holder = machine.status.active_operation
    gate = slot_gate(machine, holder) if holder is not None else None
    words = gate.text if gate is not None else ""
    if not words and say.is_true(machine, ConditionType.CONFIGURATION_PENDING):
        condition = say.said(machine, ConditionType.CONFIGURATION_PENDING)
        words = (condition.message if condition is not None else "") or "no MachineConfiguration is bound"
    return _Step(conditions=(say.waiting(words),)) if words else None


def _lacking(seen: Observed, times: Times) -> _Step | None:
    """Wait for missing prerequisites of an install."""
    needs = seen.needs
    if needs is None:
        return _not_looked_at(seen)
    if needs.facts is not None:
        words = f"the cluster is not known well enough: {needs.facts}"
        return _Step(conditions=(say.waiting(words, ConditionReason.FACTS_MISSING),), within_s=times.secret_s)
    lacks = _lacks_key(seen)
    if lacks is None and needs.token is not None:
        lacks = (needs.token_reason, needs.token)
    if lacks is None and needs.source is not None:
        lacks = (needs.source_reason, needs.source)
    if lacks is None:
        return None
    said = say.failed(*lacks)
    if lacks[0] == ConditionReason.CREDENTIALS_REFUSED:
        said = say.unless_said(seen.machine, said)
    return _Step(conditions=(said,), within_s=times.secret_s)


def _not_looked_at(seen: Observed) -> _Step:
    """Wait for a read in progress, which wakes the Machine, or request one at once."""
    return _Step(within_s=None if seen.reading else 0.0)


def _lacks_key(seen: Observed) -> tuple[ConditionReason, str] | None:
    needs = seen.needs
    if needs is None:
        return None
    if needs.key is not None:
        return (needs.key_reason, needs.key)
    if is_refused(seen.machine, SSHHop.HOST, needs.key_version):
        return (ConditionReason.CREDENTIALS_REFUSED, refused_words("host"))
    return None


def _failed_before(seen: Observed, times: Times) -> _Step | None:
    """Wait for the backoff after a failure. A Secret that could not be used is read meanwhile, as a new one counts at
    once.
    """
    before, step = seen.machine.status.provisioning, _failure(seen)
    if before is None or before.failure is None or step is None or seen.retry_s is None or seen.retry_s <= 0:
        return None
    edited = before.generation != seen.machine.metadata.generation
    if seen.changed_since_failure and (not edited or is_asked_anew(seen.machine, seen.node)):
        return None
    by_secret = say.reason_of(before.failure) in _OF_SECRETS
    told = (TellRetry(seen.retry_told),) if seen.retry_told != (before.retry_at or "") else ()
    return replace(step, actions=told, within_s=min(seen.retry_s, times.secret_s) if by_secret else seen.retry_s)


_OF_SECRETS: Final = frozenset(
    {
        ConditionReason.SECRET_UNUSABLE,
        ConditionReason.SECRET_MISSING,
        ConditionReason.SECRET_FORBIDDEN,
        ConditionReason.PASSPHRASE_WRONG,
    }
)


def _failure(seen: Observed) -> _Step | None:
    """Keep the message of the last failure."""
    before = seen.machine.status.provisioning
    if before is None or before.failure in (None, say.ON_HOLD):
        return None
    words = "setting up the host has failed; it is tried again"
    failed = say.failed(say.reason_of(before.failure), words)
    return _Step(conditions=(say.unless_said(seen.machine, failed),))


_NO_ROOM: Final = "as many hosts are being set up as may be at once; it waits for its turn"


def _begin(seen: Observed) -> _Step:
    if not seen.room:
        return _Step(conditions=(say.waiting(_NO_ROOM),), waits_for_room=True)
    name = next_attempt(seen.machine, seen.node, seen.fresh)
    begin = Provision(name, seen.machine.metadata.generation or 0)
    return _Step((begin,), (say.running("logging in to the host"),))


# ---- the rest


def _first(machine: Machine, conditions: tuple[Set, ...]) -> tuple[Set, ...]:
    """Add the initial conditions on the first pass; later passes set only changed ones."""
    given = {one.kind for one in conditions}
    missing = (say.not_run(), say.never_provisioned())
    return (*conditions, *(one for one in missing if one.kind not in given and say.said(machine, one.kind) is None))


def _unless_said(machine: Machine, one: Set) -> tuple[Set, ...]:
    return () if say.said(machine, one.kind) is not None else (one,)


def _of_node(seen: Observed) -> tuple[Action, ...]:
    if seen.node is None or seen.machine.spec.kubernetes is None:
        return ()
    return node_actions(seen.machine, seen.node, seen.template, seen.pause)


def _leaving(seen: Observed, times: Times) -> Plan:
    """End an attempt before anything else on a Machine that is being deleted."""
    words = "the Machine is being deleted"
    actions = (*_stop(seen), *_slot_back(seen, words))
    return Plan(actions, why=words) if actions else deletion(seen, times) or Plan(why=words)


def _without_ssh(seen: Observed) -> Plan:
    """Follow the Node of a Machine without `ssh`, and end what was started over SSH."""
    actions = (*_stop(seen), *_slot_back(seen, "spec.ssh was taken away"), *hold(seen.machine), *_of_node(seen))
    exclusive = say.exclusive(seen.machine, seen.sharing)
    return Plan(actions, exclusive, why="machina does nothing over SSH without spec.ssh")


def _stop(seen: Observed) -> tuple[Action, ...]:
    return (StopAttempt(seen.attempt.attempt),) if seen.attempt is not None else ()


def _slot_back(seen: Observed, why: str) -> tuple[Action, ...]:
    before, slot = seen.machine.status.provisioning, seen.machine.status.active_operation
    if before is not None and before.ended_at is None:
        return (GiveBack(before.attempt, failure=say.FAILED, message=why),)
    return (FreeSlot(slot.uid),) if slot is not None and slot.kind == PROVISIONING else ()
