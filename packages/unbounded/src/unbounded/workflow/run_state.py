"""The in-memory state of an operation in one process of an executor: times, answers and open calls."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unbounded.api.machine import ActiveOperation, Machine
from unbounded.api.operation import MAX_LATE, Cause
from unbounded.operations.record import Run
from unbounded.workflow.calls import (
    NO_ANSWER,
    NO_ANSWER_YET,
    NOT_SENT,
    STORED,
    TAKEN_OVER,
    Answer,
    CallEvent,
    CallOutcome,
    Intent,
    LateCall,
    longest,
)
from unbounded.workflow.decisions import Timing
from unbounded.workflow.procedure import NotObservable, Observation

ACT_WITHIN_S: Final = 10.0  # an executor acts on its intent within this time of the write, or not at all
FRESH_S: Final = 2.0  # no decision uses an older observation: the machine is observed again
DOWN_S: Final = 60.0  # at most so much downtime counts against the deadline: a jump of the wall clock ends no operation
ACT_ON_S: Final = 5.0  # no action uses an observation that is older than this when its intent is written


@dataclass(frozen=True)
class TimedObservation:
    """An observation with its times; its fact held at some moment between them.

    Args:
        on: identity of Machine and request at that time.
        version: resourceVersion of the Machine; no other holder has had the lock while it is unchanged.
    """

    began_at: float
    ended_at: float
    result: Observation | NotObservable
    on: tuple[object, ...]
    version: str


@dataclass(frozen=True)
class OwnCall:
    """The last call of this process: more current than any record, which may be read late.

    Args:
        at: loop time of the answer; of the request, before there is one.
    """

    intent: Intent
    answer: Answer
    at: float


@dataclass(frozen=True)
class PendingArrival:
    """A call of another process that may still arrive until a loop time.

    Args:
        acts: its process is not known to have ended, and may still send it.
    """

    epoch: str
    action: str
    until: float
    acts: bool


@dataclass(frozen=True)
class RecordReader:
    """The reader of a record: its identity, its time, and its knowledge of the process that wrote the record.

    Args:
        has_ended: returns whether another process certainly acts no more.
        landing_s: seconds for which a call of an ended process may still arrive.
        settle_s: seconds for which a process that is not known to have ended may still act, including its call.
        down_s: age of the record at `now`, by the wall clock.
    """

    identity: str
    now: float
    has_ended: Callable[[str], bool] = lambda _identity: False
    landing_s: float = 0.0
    settle_s: float = 0.0
    down_s: float = 0.0


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
class RunState:
    """The state of one operation in this process; a crash loses it, and recovery does not need it."""

    uid: str
    stage: str = ""
    stage_since: float = 0.0
    observations: int = 0
    progress: str = ""
    read: tuple[str, str, str] | None = None  # detail, fact and time of the last observation
    moved_at: float = 0.0  # loop time of the last change of progress, or of the stage's begin
    intent: Intent | None = None
    own_call: OwnCall | None = None
    answered_at: float = 0.0  # when our call was answered, or the call of another process was first observed
    answer: Answer = NO_ANSWER
    # by epoch: only the last call of a process can lack an answer
    late: dict[str, PendingArrival] = field(default_factory=dict)
    stored: Answer = NO_ANSWER  # the last call as the status has it
    stored_at: float = -math.inf  # when this process last wrote it
    spent_s: int = -1
    spent_since: float = 0.0
    call: asyncio.Task[None] | None = None
    observing: asyncio.Task[TimedObservation] | None = None
    observing_digest: str = ""  # target digest of the observation under way
    observed: TimedObservation | None = None  # the last completed one
    machine: Machine | None = None  # as of the last observation; it may be gone or replaced by now
    live: dict[str, Any] | None = None  # the Machine as last read live: its lists are written back whole
    unused: TimedObservation | None = None  # observation of a claim that failed
    handle: str | None = None  # came with an answer; not stored yet
    reported_at: float = -math.inf
    lost: LostLock | None = None
    # state of the recreation that holds the lock; the next field is the time of its last change
    recreation: object = None
    recreation_since: float = 0.0
    decided_on: tuple[object, ...] | None = None
    woken: bool = False
    outlasted: bool = False
    awaits_late: bool = False  # waits only for calls of another process to arrive, and yields its capacity
    task_since: float = 0.0  # begin of the observation or call that a pass waits for
    due: float = -math.inf

    def update(self, run: Run, reader: RecordReader) -> None:
        """Update from the record in the status."""
        now, is_first = reader.now, self.intent is None
        if run.stage != self.stage:
            self.stage, self.stage_since, self.observations = run.stage, now - (run.stage_s if is_first else 0), 0
            self.moved_at = now
        if self.spent_s < 0:
            self.spent_s, self.spent_since = run.spent_s, now - min(max(reader.down_s, 0.0), DOWN_S)
        elif run.spent_s > self.spent(now):  # each write rounds the stored seconds up
            self.spent_s, self.spent_since = run.spent_s, now
        self.stored = run.answer
        if run.intent != self.intent:
            self._begin_call(run, reader)
        elif self._is_news(run):
            self._take_stored(run, reader, lost=self.answer.lost)  # the record that was read before was older

    def _begin_call(self, run: Run, reader: RecordReader) -> None:
        self.cancel_observation()
        again = self.intent is not None and self.intent[:2] == run.intent[:2]
        lost, self.intent = again and self.answer.leaves_open, run.intent
        # the process's earlier call: it was answered, else the process would not have continued
        self.late.pop(run.epoch, None)
        self._take_late(run, reader)
        if self.own_call is not None and self.own_call.intent == run.intent:
            self._take_answer(self.own_call.answer, self.own_call.at)
            return
        self._take_stored(run, reader, lost=lost)

    def _is_news(self, run: Run) -> bool:
        """Return whether the record has a newer state of the same call: its process has stored that late."""
        if run.action is None or self.answer.outcome is CallOutcome.ACCEPTED:
            return False
        return run.handle is not None or (self.answer.outcome is CallOutcome.OPEN and run.answer.outcome in STORED)

    def _take_stored(self, run: Run, reader: RecordReader, *, lost: bool) -> None:
        """Take the recorded state of the last call; an unanswered call of another process may still arrive."""
        answer = _stored_answer(run, is_own=run.epoch == reader.identity)
        self._take_answer(replace(answer, lost=answer.lost or lost), reader.now)
        if answer.outcome is not CallOutcome.OPEN:
            self.late.pop(run.epoch, None)
        elif run.epoch not in self.late:
            ended = reader.has_ended(run.epoch)
            wait_s = reader.landing_s if ended else reader.settle_s
            if wait_s > 0:
                self._add_late(LateCall(run.epoch, run.action or "", wait_s), reader, acts=not ended)

    def _take_late(self, run: Run, reader: RecordReader) -> None:
        for call in run.late:
            if call.epoch not in self.late and call.epoch != reader.identity:
                acts = call.epoch == run.epoch and not reader.has_ended(call.epoch)
                self._add_late(call, reader, acts=acts)

    def _add_late(self, call: LateCall, reader: RecordReader, *, acts: bool) -> None:
        self.late[call.epoch] = PendingArrival(call.epoch, call.action, reader.now + call.left_s, acts)

    def _take_answer(self, answer: Answer, at: float) -> None:
        self.answer, self.answered_at = answer, at

    def drop_late(self, epoch: str) -> None:
        """Drop the last call of a process from the late calls: its effect was observed."""
        self.late.pop(epoch, None)

    def late_calls(self, at: float) -> tuple[LateCall, ...]:
        """Return the calls that may still arrive after a loop time."""
        return longest((LateCall(one.epoch, one.action, one.until - at) for one in self.late.values()), MAX_LATE)

    def recorded(self, run: Run, now: float, at: str) -> Run:
        """Return the record with the current times and the known state of the last call."""
        known = run.intent == self.intent
        return replace(
            run,
            answer=self.answer if known else replace(run.answer, outcome=CallOutcome.NONE),
            late=self.late_calls(now),
            spent_s=self.spent(now),
            stage_s=int(now - self.stage_since) if run.stage == self.stage else 0,
            recorded_at=at,
        )

    @property
    def has_unstored_answer(self) -> bool:
        """Return whether this process knows an answer to its own call that the status lacks."""
        own = self.own_call is not None and self.own_call.intent == self.intent
        return own and self.answer.outcome in STORED and self.answer != self.stored

    def record_written(self, run: Run, identity: str, now: float) -> None:
        """Update after this process has written the record of a stage; its action is not called yet.

        Another process can no longer write an intent; only a call that it was about to send remains.
        """
        self.own_call, self.stored_at = None, now
        self.late = {epoch: replace(one, acts=False) for epoch, one in self.late.items()}
        self.update(run, RecordReader(identity, now))

    def lock_taken(self, before: str, version: str) -> None:
        """Update after the lock was taken: an observation of the Machine just before counts for the new version."""
        if self.observed is not None and self.observed.version == before:
            self.observed = replace(self.observed, version=version)

    def reuse_observation(self, on: tuple[object, ...], version: str, now: float) -> TimedObservation | None:
        """Return the observation of a failed claim if the next claim can use it; None where it cannot.

        It must be recent enough to act on, and no other holder may have had the Machine since.
        """
        unused, self.unused = self.unused, None
        good = unused is not None and (unused.on, unused.version) == (on, version) and now - unused.ended_at <= ACT_ON_S
        return unused if good else None

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

    def reset_claim(self) -> None:
        """Reset stage and spent time: an earlier attempt to claim does not count."""
        self.stage, self.spent_s = "", -1

    def timing(self, now: float) -> Timing:
        """Return the times to decide by.

        A retry, or the end of a dwell, needs an observation that began when it was due.
        """
        began_at = now if self.observed is None else self.observed.began_at
        acts = [one.until - began_at for one in self.late.values() if one.acts]
        return Timing(
            in_stage_s=now - self.stage_since,
            since_call_s=began_at - self.answered_at,
            spent_s=self.spent(now),
            settles_in_s=max([*acts, 0.0]),
            late=self.late_calls(began_at),
            observations=self.observations,
            observed_from_s=began_at - self.stage_since,
            stalled_s=now - self.moved_at,
        )

    def update_progress(self, observation: Observation | NotObservable, now: float) -> None:
        """Update the progress from an observation."""
        if not isinstance(observation, Observation):
            return
        if observation.progress != self.progress:
            self.progress, self.moved_at = observation.progress, now

    def with_observation(self, run: Run, observation: Observation | NotObservable, now: Callable[[], str]) -> Run:
        """Return the record with detail, fact and time of the last observation."""
        if isinstance(observation, Observation):
            self.read = (observation.detail, str(observation.fact), now())
        if self.read is None:
            return run
        standing, fact, read_at = self.read
        return replace(run, standing=standing or run.standing, fact=fact, read_at=read_at)

    def record_call(self, now: float) -> None:
        """Record that this process calls the action of the intent."""
        if self.intent is None:
            raise ValueError("no intent is recorded")
        answer = self.answer.after(CallEvent.SEND, text=NO_ANSWER_YET)
        self.own_call, self.answer = OwnCall(self.intent, answer, now), answer

    def record_answer(self, event: CallEvent, reason: str, text: str, now: float, cause: Cause | None = None) -> None:
        """Record the answer to this process's call; the wait for its effect begins now."""
        if self.own_call is None:  # it came after the record of the next call was written
            return
        self.own_call = replace(self.own_call, answer=self.own_call.answer.after(event, reason, text, cause), at=now)
        if self.own_call.intent == self.intent:
            self._take_answer(self.own_call.answer, now)

    def spent(self, now: float) -> int:
        """Return the spent seconds of the deadline; rounded up, so that restarts cannot extend it without limit."""
        return max(self.spent_s, 0) + math.ceil(now - self.spent_since)

    @property
    def calling(self) -> bool:
        return self.call is not None and not self.call.done()

    def cancel_observation(self) -> None:
        """Cancel the observation; a call that was sent ends by itself."""
        if self.observing is not None:
            self.observing.cancel()
            self.observing = None


def _stored_answer(run: Run, *, is_own: bool) -> Answer:
    """Return the recorded state of the last call."""
    if run.action is None:
        return NO_ANSWER
    if run.handle is not None:  # the handle came with the answer
        return Answer(CallOutcome.ACCEPTED, lost=run.answer.lost or not is_own)
    if run.answer.outcome in STORED:
        accepted = run.answer.outcome is CallOutcome.ACCEPTED
        return replace(run.answer, lost=run.answer.lost or (accepted and not is_own))
    written = replace(NOT_SENT, lost=run.answer.lost)
    return written if is_own else written.after(CallEvent.TAKE_OVER, text=TAKEN_OVER)
