"""End of an attempt: its record in the status, and its message."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from unbounded.api.conditions import ConditionReason
from unbounded.api.failures import Failure
from unbounded.api.machine import SSHHop
from unbounded.machina.machines import conditions as say
from unbounded.machina.machines.model import Attempt, GiveBack
from unbounded.machina.provisioning.causes import cause_of
from unbounded.machina.provisioning.model import Finished, HostRefuses, Interrupted
from unbounded.machina.provisioning.progress import TIMED_OUT, end_words
from unbounded.machina.ssh.model import SshRejected, SshTransient, Trouble


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


def given_back(attempt: Attempt, generation: int | None) -> GiveBack:
    """Return the record of an attempt that has ended.

    Args:
        generation: current one of the Machine. A key that was refused under an earlier generation may be accepted now.
    """
    return replace(_ended(attempt, generation), untouched=not attempt.touched)


def _ended(attempt: Attempt, generation: int | None) -> GiveBack:
    ended = attempt.ended
    if isinstance(ended, Finished):
        return _finished(attempt.attempt, ended)
    if isinstance(ended, Interrupted):
        return GiveBack(attempt.attempt, say.FAILED, f"the install was interrupted: {ended.why}")
    if isinstance(ended, HostRefuses):
        return GiveBack(attempt.attempt, str(ended.reason), str(ended))
    if isinstance(ended, OutOfTime):
        return GiveBack(attempt.attempt, say.TIMED_OUT, str(ended))
    if isinstance(ended, CannotBegin):
        return GiveBack(attempt.attempt, str(ended.reason), str(ended))
    if isinstance(ended, OnHold):
        return GiveBack(attempt.attempt, say.ON_HOLD, str(ended))
    if isinstance(ended, Failure):
        refused = _refused(ended, attempt.version) if attempt.generation == generation else None
        at_bastion = isinstance(ended, SshRejected | SshTransient) and ended.hop == SSHHop.BASTION
        return GiveBack(
            attempt.attempt,
            say.trouble_of(ended),
            str(ended),
            refused=refused,
            fingerprint=ended.fingerprint if isinstance(ended, SshRejected) else "",
            hop=SSHHop.BASTION if at_bastion else None,
        )
    return GiveBack(attempt.attempt, say.FAILED, "the host does not know of the install")


def _finished(attempt: str, ended: Finished) -> GiveBack:
    if ended.status == 0:
        return GiveBack(attempt, message=say.COMPLETED if ended.attempt == attempt else _EARLIER)
    reason = say.TIMED_OUT if ended.status == TIMED_OUT else str(cause_of(ended.tail))
    return GiveBack(attempt, reason, end_words(ended), tail=ended.tail)


_EARLIER: Final = "The install of an earlier attempt has ended well"


def _refused(ended: Failure, version: str) -> str | None:
    """Return the Secret whose key the host refused."""
    if not isinstance(ended, SshRejected) or (ended.trouble, ended.hop) != (Trouble.LOGIN, SSHHop.HOST):
        return None
    return version or None
