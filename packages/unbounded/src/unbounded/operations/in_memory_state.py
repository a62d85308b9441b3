"""The in-memory state of an operation in one process of an executor: that of its run, and of its Machine's lock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from unbounded.api.machine import ActiveOperation, Machine
from unbounded.workflow.procedure import Procedure
from unbounded.workflow.run_state import RunState

COUNT_S: Final = 5.0  # between two writes of nothing but a count that the next process needs


@dataclass(frozen=True)
class LostLock:
    """The lock of a lost executor, and the seconds since, counted over all processes that have waited.

    Args:
        uid: of the operation that holds the lock.
        began_at: loop time at which this process first observed the lost lock.
        counted_s: the count at `since`.
        ended: all processes that may have acted for the operation have ended, as known at `began_at`.
    """

    uid: str
    began_at: float
    counted_s: float
    since: float
    ended: bool

    def count_s(self, now: float) -> float:
        """Return the seconds since the executor was lost."""
        return self.counted_s + now - self.since

    def left_s(self, now: float, settle_s: float, landing_s: float) -> float:
        """Return the seconds for which a call of the executor may still arrive.

        An ended process may have sent it at its end: `landing_s` runs from when this process first knew of that end.
        """
        left_s = settle_s - self.count_s(now)
        return min(left_s, self.began_at + landing_s - now) if self.ended else left_s


@dataclass
class OperationState(RunState):
    """The state of one operation in this process."""

    machine: Machine | None = None  # as of the last observation; it may be gone or replaced by now
    procedure: Procedure | None = None  # of the last pass
    live: dict[str, Any] | None = None  # the Machine as last read live: its lists are written back whole
    lost: LostLock | None = None
    # state of the recreation that holds the lock; the next field is the time of its last change
    recreation: object = None
    recreation_since: float = 0.0

    def count_lost(self, active: ActiveOperation, now: float, *, ended: bool) -> LostLock:
        """Count the seconds since an executor was lost, continuing another process's count."""
        lost = self.lost
        if lost is None or lost.uid != active.uid:
            lost = LostLock(active.uid, now, active.lost_seconds, now, ended)
        elif active.lost_seconds > lost.count_s(now):
            lost = replace(lost, counted_s=active.lost_seconds, since=now)
        self.lost = lost
        return lost

    def recreation_stalled_s(self, state: object, now: float) -> float:
        """Return the seconds since the recreation that holds the lock last made progress."""
        if state != self.recreation:
            self.recreation, self.recreation_since = state, now
        return now - self.recreation_since
