"""Conditions that machina sets on a Machine, their merge into its status, and the record of an attempt's end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from unbounded.api.conditions import (
    CONDITIONS,
    ConditionReason,
    ConditionStatus,
    ConditionType,
    fit_message,
    named_alike,
    set_condition,
)
from unbounded.api.failures import Failure
from unbounded.api.machine import Machine, SSHHop
from unbounded.api.meta import Condition
from unbounded.machina.machines.eligibility import host_text
from unbounded.machina.machines.model import Attempt, RecordEnd, SetCondition
from unbounded.machina.provisioning import model
from unbounded.machina.ssh.model import SshReason, SshRejected, SshTransient, SshUncertain

_R = ConditionReason
_REASONS: Final = frozenset(CONDITIONS[ConditionType.PROVISIONING].reasons)

TIMED_OUT: Final = str(_R.TIMED_OUT)
FAILED: Final = str(_R.FAILED)
ON_HOLD: Final = "OnHold"  # not started, without a fault: the next observation decides
COMPLETED: Final = "The install has succeeded"
_EARLIER: Final = "The install of an earlier attempt has succeeded"


def failure_name(failure: Failure) -> str:
    """Return the value of `status.provisioning.failure` for an error."""
    if isinstance(failure, SshTransient | SshRejected | SshUncertain):
        return str(getattr(failure, "reason", SshReason.LOST))
    return FAILED


def reason_of(failure: str) -> ConditionReason:
    """Return the reason of the condition Provisioning for a failure."""
    return ConditionReason(failure) if failure in _REASONS else _R.FAILED


def reachable() -> SetCondition:
    return SetCondition(ConditionType.SSH_REACHABLE, ConditionStatus.TRUE, _R.REACHABLE, "The SSH port answers")


def unreachable(words: str, reason: ConditionReason, hop: SSHHop) -> SetCondition:
    return SetCondition(ConditionType.SSH_REACHABLE, ConditionStatus.FALSE, reason, words, hop=hop)


def probe_failed(error: SshTransient | SshRejected) -> SetCondition:
    """Return SSHReachable for a failed probe, of the host or of the bastion."""
    return unreachable(str(error), ConditionReason(error.reason), error.hop)


def not_tried() -> SetCondition:
    return SetCondition(ConditionType.SSH_REACHABLE, ConditionStatus.UNKNOWN, _R.PENDING, "SSH has not been tried yet")


def running(message: str) -> SetCondition:
    return SetCondition(ConditionType.PROVISIONING, ConditionStatus.TRUE, _R.IN_PROGRESS, message)


def not_run(message: str = "") -> SetCondition:
    return SetCondition(ConditionType.PROVISIONING, ConditionStatus.UNKNOWN, _R.NOT_RUN, message)


def waiting(message: str, reason: ConditionReason = _R.WAITING) -> SetCondition:
    return SetCondition(ConditionType.PROVISIONING, ConditionStatus.UNKNOWN, reason, message)


def completed(message: str = COMPLETED) -> SetCondition:
    return SetCondition(ConditionType.PROVISIONING, ConditionStatus.FALSE, _R.COMPLETED, message)


def failed(reason: ConditionReason, message: str) -> SetCondition:
    return SetCondition(ConditionType.PROVISIONING, ConditionStatus.FALSE, reason, message)


def provisioned(generation: int) -> SetCondition:
    words = "The host was set up"
    return SetCondition(ConditionType.PROVISIONED, ConditionStatus.TRUE, _R.PROVISIONED, words, generation)


def never_provisioned(message: str = "") -> SetCondition:
    return SetCondition(ConditionType.PROVISIONED, ConditionStatus.UNKNOWN, _R.NOT_RUN, message)


def was_reset() -> SetCondition:
    words = "An AgentReset has reset the host; run `kubectl unbounded machine allow-join` to set it up again"
    return SetCondition(ConditionType.PROVISIONED, ConditionStatus.FALSE, _R.RESET, words)


def resetting(message: str) -> SetCondition:
    return SetCondition(ConditionType.HOST_RESET, ConditionStatus.FALSE, _R.IN_PROGRESS, message)


def reset_failed(message: str, reason: ConditionReason = _R.FAILED, hop: SSHHop | None = None) -> SetCondition:
    return SetCondition(ConditionType.HOST_RESET, ConditionStatus.FALSE, reason, message, hop=hop)


def exclusive(machine: Machine, sharing: Sequence[Machine]) -> tuple[SetCondition, ...]:
    """Return the condition about other Machines that name the same host; empty if there never were any."""
    if sharing:
        others = named_alike(one.name for one in sharing)
        words = f"{others} the same SSH host, {host_text(machine)}: machina sets up at most one of them"
        return (SetCondition(ConditionType.HOST_EXCLUSIVE, ConditionStatus.FALSE, _R.DUPLICATE_HOST, words),)
    if current(machine, ConditionType.HOST_EXCLUSIVE) is None:
        return ()
    words = "No other Machine names its SSH host any more"
    return (SetCondition(ConditionType.HOST_EXCLUSIVE, ConditionStatus.TRUE, _R.RESOLVED, words),)


def current(machine: Machine, kind: ConditionType) -> Condition | None:
    """Return the Machine's condition of this type."""
    return next((one for one in machine.status.conditions if one.type == kind), None)


def with_current_message(machine: Machine, one: SetCondition) -> SetCondition:
    """Keep the current message of a condition with the same reason: it describes the failure in more detail."""
    known = current(machine, one.kind)
    if known is None or (known.status, known.reason) != (one.status, one.reason):
        return one
    return replace(one, message=known.message)


def is_true(machine: Machine, kind: ConditionType) -> bool:
    condition = current(machine, kind)
    return condition is not None and condition.status == ConditionStatus.TRUE


def merged_conditions(machine: Machine, sets: Iterable[SetCondition], *, now: str) -> list[dict[str, Any]] | None:
    """Return all conditions of the Machine with these merged, to be written whole; None if nothing changes."""
    before: Sequence[Mapping[str, Any]] = [msgspec.to_builtins(one) for one in machine.status.conditions]
    conditions, changed = list(map(dict, before)), False
    for one in sets:
        after = set_condition(
            conditions,
            one.kind,
            one.status,
            one.reason,
            fit_message(one.message),
            now,
            observed_generation=one.observed_generation,
        )
        conditions, changed = (conditions, changed) if after is None else (after, True)
    return conditions if changed else None


def after(machine: Machine, sets: Iterable[SetCondition]) -> tuple[Condition, ...]:
    """Return the Machine's conditions as they are once these are set."""
    merged = merged_conditions(machine, sets, now="")
    if merged is None:
        return machine.status.conditions
    return tuple(msgspec.convert(one, Condition) for one in merged)


class OutOfTime(Failure):
    """An attempt exceeded its limit, in total or without news."""


class CannotBegin(Failure):
    """The install would have to be started, and a prerequisite is missing.

    Args:
        reason: of the condition Provisioning.
    """

    def __init__(self, reason: ConditionReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class OnHold(Failure):
    """The install would have to be started, and a gate forbids it now; the message names the gate."""


def end_of_attempt(attempt: Attempt, generation: int | None) -> RecordEnd:
    """Return the record of an attempt that has ended.

    Args:
        generation: current one of the Machine. A key that was refused under an earlier generation may be accepted now.
    """
    return replace(_ended(attempt, generation), untouched=not attempt.touched)


def _ended(attempt: Attempt, generation: int | None) -> RecordEnd:
    end = attempt.ended
    if isinstance(end, model.Finished):
        return _finished(attempt.attempt, end)
    if isinstance(end, model.Interrupted):
        return RecordEnd(attempt.attempt, FAILED, f"the install was interrupted: {end.why}")
    if isinstance(end, model.HostRefuses):
        return RecordEnd(attempt.attempt, str(end.reason), str(end))
    if isinstance(end, OutOfTime):
        return RecordEnd(attempt.attempt, TIMED_OUT, str(end))
    if isinstance(end, CannotBegin):
        return RecordEnd(attempt.attempt, str(end.reason), str(end))
    if isinstance(end, OnHold):
        return RecordEnd(attempt.attempt, ON_HOLD, str(end))
    if isinstance(end, Failure):
        refused = _refused(end, attempt.version) if attempt.generation == generation else None
        at_bastion = isinstance(end, SshRejected | SshTransient) and end.hop == SSHHop.BASTION
        return RecordEnd(
            attempt.attempt,
            failure_name(end),
            str(end),
            refused=refused,
            fingerprint=end.fingerprint if isinstance(end, SshRejected) else "",
            hop=SSHHop.BASTION if at_bastion else None,
        )
    return RecordEnd(attempt.attempt, FAILED, "the host has no record of the install")


def _finished(attempt: str, end: model.Finished) -> RecordEnd:
    if end.status == 0:
        return RecordEnd(attempt, message=COMPLETED if end.attempt == attempt else _EARLIER)
    reason = TIMED_OUT if end.status == model.STOPPED_STATUS else str(model.cause_of(end.tail))
    return RecordEnd(attempt, reason, model.failure_text(end), tail=end.tail)


def _refused(end: Failure, version: str) -> str | None:
    """Return the Secret whose key the host refused."""
    if not isinstance(end, SshRejected) or (end.reason, end.hop) != (SshReason.LOGIN, SSHHop.HOST):
        return None
    return version or None
