"""Inputs and results of `planner.decide`: the owner's request, the times, and the possible decisions."""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from unbounded.api.fields import Cause
from unbounded.workflow.run_record import LateCall, PendingFailure

# Ends
SUCCEEDED: Final = "Succeeded"
CANCELLED: Final = "Cancelled"
DEADLINE_EXCEEDED: Final = "DeadlineExceeded"
NO_EFFECT: Final = "NoEffect"
OUTCOME_UNKNOWN: Final = "OutcomeUnknown"
TIMED_OUT: Final = "TimedOut"

# Waits
IN_PROGRESS: Final = "InProgress"
NO_ANSWER: Final = "NoAnswer"
SETTLING: Final = "Settling"


class TargetLoss(Struct, frozen=True):
    """The reason and message of a run whose target is gone, or is another one now."""

    reason: str
    text: str


class OwnerRequest(Struct, frozen=True):
    """The owner's current request, and the loss of the target, if any."""

    deadline_s: float
    cancel: bool = False
    lost: TargetLoss | None = None


class Timing(Struct, frozen=True):
    """Seconds on the observer's own clock.

    Attributes:
        in_stage_s: since this observer first observed the operation in its stage.
        since_call_s: since its call was answered, or another process's call was first observed.
        spent_s: of the deadline, including the time that earlier observers recorded.
        settles_in_s: until a process that is not known to have ended can no longer act; 0 when there is none.
        late: calls of other processes that may still arrive after the begin of the current observation.
        observations: the number of observations in this stage.
        observed_from_s: begin of the current observation, in the stage.
        stalled_s: since this observer observed a change of progress, or the begin of the stage.
    """

    in_stage_s: float
    since_call_s: float
    spent_s: float
    settles_in_s: float = 0.0
    late: tuple[LateCall, ...] = ()
    observations: int = 0
    observed_from_s: float = math.inf
    stalled_s: float = 0.0


class Wait(Struct, frozen=True):
    """Observe again later; `until_s` is the time of the next change without an observation.

    Attributes:
        bare: the text without its progress, where it has one.
    """

    reason: str
    text: str
    requeue_s: float
    until_s: float | None = None
    bare: str = ""
    cause: Cause | None = None


class CallAction(Struct, frozen=True):
    """Write the intent, then call the action."""

    stage: str
    action: str
    attempt: int
    text: str
    evidence: str | None = None
    until_s: float | None = None
    failing: PendingFailure | None = None


class EnterStage(Struct, frozen=True):
    stage: str
    text: str
    evidence: str | None = None
    until_s: float | None = None
    failing: PendingFailure | None = None


class Finish(Struct, frozen=True):
    """End the run.

    Attributes:
        is_complete: False for a failure.
        is_undone: it fails because it was cancelled, and the observation shows that all its effects are undone.
        is_restored: it fails, and the observation shows that its target is not left as `Stage.left` has it.
    """

    reason: str
    text: str
    evidence: str | None = None
    is_complete: bool = False
    is_undone: bool = False
    is_restored: bool = False
    cause: Cause | None = None


Decision = Wait | CallAction | EnterStage | Finish
