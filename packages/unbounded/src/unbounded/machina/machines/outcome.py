"""End of an attempt: its record in the status, and its message."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from unbounded.api.conditions import ConditionReason
from unbounded.api.failures import Failure
from unbounded.api.machine import SSHHop
from unbounded.machina.machines import conditions as report
from unbounded.machina.machines.model import Attempt, RecordEnd
from unbounded.machina.provisioning.causes import cause_of
from unbounded.machina.provisioning.model import Finished, HostRefuses, Interrupted
from unbounded.machina.provisioning.progress import TIMED_OUT, failure_text
from unbounded.machina.ssh.model import SshReason, SshRejected, SshTransient


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
    ended = attempt.ended
    if isinstance(ended, Finished):
        return _finished(attempt.attempt, ended)
    if isinstance(ended, Interrupted):
        return RecordEnd(attempt.attempt, report.FAILED, f"the install was interrupted: {ended.why}")
    if isinstance(ended, HostRefuses):
        return RecordEnd(attempt.attempt, str(ended.reason), str(ended))
    if isinstance(ended, OutOfTime):
        return RecordEnd(attempt.attempt, report.TIMED_OUT, str(ended))
    if isinstance(ended, CannotBegin):
        return RecordEnd(attempt.attempt, str(ended.reason), str(ended))
    if isinstance(ended, OnHold):
        return RecordEnd(attempt.attempt, report.ON_HOLD, str(ended))
    if isinstance(ended, Failure):
        refused = _refused(ended, attempt.version) if attempt.generation == generation else None
        at_bastion = isinstance(ended, SshRejected | SshTransient) and ended.hop == SSHHop.BASTION
        return RecordEnd(
            attempt.attempt,
            report.failure_name(ended),
            str(ended),
            refused=refused,
            fingerprint=ended.fingerprint if isinstance(ended, SshRejected) else "",
            hop=SSHHop.BASTION if at_bastion else None,
        )
    return RecordEnd(attempt.attempt, report.FAILED, "the host has no record of the install")


def _finished(attempt: str, ended: Finished) -> RecordEnd:
    if ended.status == 0:
        return RecordEnd(attempt, message=report.COMPLETED if ended.attempt == attempt else _EARLIER)
    reason = report.TIMED_OUT if ended.status == TIMED_OUT else str(cause_of(ended.tail))
    return RecordEnd(attempt, reason, failure_text(ended), tail=ended.tail)


_EARLIER: Final = "The install of an earlier attempt has succeeded"


def _refused(ended: Failure, version: str) -> str | None:
    """Return the Secret whose key the host refused."""
    if not isinstance(ended, SshRejected) or (ended.reason, ended.hop) != (SshReason.LOGIN, SSHHop.HOST):
        return None
    return version or None
