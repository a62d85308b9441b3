"""Retries of a run's last call: whether and when the action is called again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from unbounded.workflow.procedure import Repeat, Stage
from unbounded.workflow.run_record import Answer, CallOutcome, RunRecord

BACKOFF_S: Final = 2.0  # after the first call that was not done; doubled after each further one
KEYED_RETRY_S: Final = 1.0  # the effect may end soon, and leaves no trace then


@dataclass(frozen=True, slots=True)
class Retries:
    """Rules for repeating the last call of a run.

    Args:
        repeat: the repeatability of the last action; None where there is none.
        has_more: the observation shows that the action continues with another call at once.
    """

    stage: Stage
    run: RunRecord
    answer: Answer
    repeat: Repeat | None
    has_more: bool

    @property
    def are_used_up(self) -> bool:
        """Return whether the attempts are used up; a call of unknown outcome from another process does not count."""
        most = self.stage.attempts
        return most is not None and self.run.attempt >= most and self.answer.outcome is not CallOutcome.OPEN

    @property
    def unanswered(self) -> str | None:
        """Return the keyed action that needs an answer; None where there is none.

        It is called again whatever is observed: without an answer, no observation proves that the effect is its own.
        """
        return self.run.action if self.leaves_open else None

    @property
    def leaves_open(self) -> bool:
        """Return whether the last call is keyed, and its answer leaves its outcome open."""
        return self.repeat is Repeat.KEYED and self.answer.leaves_open

    @property
    def are_forbidden(self) -> bool:
        """Return whether the call must not be repeated, or need not be."""
        match self.repeat:
            case Repeat.ONCE:
                return not self.answer.is_not_done
            case Repeat.KEYED:
                return self.answer.outcome is CallOutcome.ACCEPTED
        return False

    def have_missed_the_effect(self, since_call_s: float) -> bool:
        """Return whether the effect of an unanswered call is over by now: the observation would show a running one."""
        keyed = self.repeat is Repeat.KEYED and self.stage.on_timeout is None
        return keyed and self.answer.lost and since_call_s >= self.stage.retry_after_s

    @property
    def after_s(self) -> float:
        """Return the seconds between the last call and the next attempt."""
        if self.answer.outcome is CallOutcome.OPEN:  # its process may not have sent it
            return -math.inf
        if self.leaves_open:
            return min(KEYED_RETRY_S * (1 << self.run.attempt - 1), self.stage.retry_after_s)
        if self.answer.outcome is CallOutcome.ACCEPTED and self.has_more:
            return 0.0
        if self.answer.is_not_done:
            return min(BACKOFF_S * (1 << self.run.attempt), self.stage.retry_after_s)
        return self.stage.retry_after_s
