"""The history of a run in its status: the stages that it has been in, and its earlier attempts."""

from __future__ import annotations

from math import ceil
from typing import Annotated, Final

from msgspec.structs import replace

from unbounded.api.fields import ApiStruct, Count, Field, Int32, Time

MAX_VISITS: Final = 32
MAX_ATTEMPTS: Final = 10
MAX_ATTEMPT_TEXT: Final = 256
CALL_REPLIES: Final = ("Accepted", "NotDone", "Unknown", "Refused")


class StageVisit(ApiStruct, frozen=True, kw_only=True):
    """A stage that the operation has been in, or is in. A stage to which it returns has several entries."""

    name: Annotated[str, Field("Stage, such as WaitingOff.", max_length=128)]
    started_at: Annotated[
        Time | None, Field("Time at which the stage began; absent if an executor of an earlier version began it.")
    ] = None
    completed_at: Annotated[
        Time | None, Field("Time at which the operation left the stage or ended; absent in the present stage.")
    ] = None
    limit_seconds: Annotated[Count | None, Field("Time limit of the stage, as known at its begin.")] = None
    spent_seconds: Annotated[
        Count | None,
        Field(
            "Seconds that the limit counts: without the time in which no executor ran. Absent in the present stage, "
            "for which execution.stageSeconds counts."
        ),
    ] = None


class EarlierAttempt(ApiStruct, frozen=True, kw_only=True):
    """A call of an action that is not the last one any more: the executor has called again, or has left the stage."""

    stage: Annotated[str, Field("Stage of the call.", max_length=128)]
    action: Annotated[str, Field("Action of the call.", max_length=256)]
    number: Annotated[Int32, Field("Number among the attempts of the action in this stage, from 1.", minimum=0)]
    started_at: Annotated[Time | None, Field("Time at which the executor wrote the intent of the call.")] = None
    completed_at: Annotated[Time, Field("Time at which the next call or stage replaced it.")]
    reply: Annotated[str, Field("Accepted, NotDone, Unknown or Refused.", enum=CALL_REPLIES)]
    reason: Annotated[str | None, Field("Cause of the outcome, in CamelCase.", max_length=256)] = None
    message: Annotated[str | None, Field("Answer to the call, for users.", max_length=MAX_ATTEMPT_TEXT)] = None


class RunHistory(ApiStruct, frozen=True, kw_only=True):
    """The stages and the earlier attempts of an operation. The executor writes it with the record of each stage."""

    stages: Annotated[
        tuple[StageVisit, ...], Field("Stages, in the order in which they began.", max_items=MAX_VISITS)
    ] = ()
    dropped_stages: Annotated[Count, Field("Number of earlier stages that are not listed any more.")] = 0
    attempts: Annotated[
        tuple[EarlierAttempt, ...], Field("Attempts before the last one, oldest first.", max_items=MAX_ATTEMPTS)
    ] = ()
    dropped_attempts: Annotated[Count, Field("Number of earlier attempts that are not listed any more.")] = 0

    def with_stage_begun(self, name: str, *, at: str, limit_s: float) -> RunHistory:
        """Return the history with a stage that begins."""
        return self._with_stages(StageVisit(name=name, started_at=at, limit_seconds=ceil(limit_s)))

    def with_stage_left(self, name: str, *, at: str, spent_s: float) -> RunHistory:
        """Return the history with the end of the present stage.

        Its begin is not known where an executor of an earlier version, which writes no history, has begun it.
        """
        spent, last = max(round(spent_s), 0), self.stages[-1] if self.stages else None
        if last is None or last.completed_at is not None or last.name != name:
            return self._with_stages(StageVisit(name=name, completed_at=at, spent_seconds=spent))
        return replace(self, stages=(*self.stages[:-1], replace(last, completed_at=at, spent_seconds=spent)))

    def _with_stages(self, visit: StageVisit) -> RunHistory:
        stages = (*self.stages, visit)
        dropped = max(len(stages) - MAX_VISITS, 0)
        return replace(self, stages=stages[dropped:], dropped_stages=self.dropped_stages + dropped)

    def with_attempt(self, attempt: EarlierAttempt) -> RunHistory:
        """Return the history with an attempt that is not the last one any more."""
        attempts = (*self.attempts, attempt)
        dropped = max(len(attempts) - MAX_ATTEMPTS, 0)
        return replace(self, attempts=attempts[dropped:], dropped_attempts=self.dropped_attempts + dropped)
