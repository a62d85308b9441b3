"""The in-memory state of a run in one process: times, answers and open calls."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from unbounded.api.fields import Cause
from unbounded.workflow.decisions import Timing
from unbounded.workflow.procedure import NotObservable, Observation
from unbounded.workflow.run_record import (
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
    RunRecord,
    longest,
)

ACT_WITHIN_S: Final = 10.0  # a process acts on its intent within this time of the write, or not at all
FRESH_S: Final = 2.0  # no decision uses an older observation: the target is observed again
DOWN_S: Final = 60.0  # at most so much downtime counts against the deadline: a jump of the wall clock ends no run
ACT_ON_S: Final = 5.0  # no action uses an observation that is older than this when its intent is written

Recorded = TypeVar("Recorded", bound=RunRecord)


class TimedObservation(Struct, frozen=True):
    """An observation with its times; its fact held at some moment between them.

    Args:
        on: identity of target and request at that time.
        version: of the target; no other run has had it while the version is unchanged.
    """

    began_at: float
    ended_at: float
    result: Observation | NotObservable
    on: tuple[object, ...]
    version: str


class OwnCall(Struct, frozen=True):
    """The last call of this process: more current than any record, which may be read late.

    Args:
        at: loop time of the answer; of the request, before there is one.
    """

    intent: Intent
    answer: Answer
    at: float


class PendingArrival(Struct, frozen=True):
    """A call of another process that may still arrive until a loop time.

    Args:
        acts: its process is not known to have ended, and may still send it.
    """

    epoch: str
    action: str
    until: float
    acts: bool


class RecordReader(Struct, frozen=True):
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


@dataclass
class RunState:
    """The state of one run in this process; a crash loses it, and recovery does not need it."""

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
    unused: TimedObservation | None = None  # observation of a claim that failed
    handle: str | None = None  # came with an answer; not stored yet
    reported_at: float = -math.inf
    decided_on: tuple[object, ...] | None = None
    in_pass: bool = False
    changed: bool = False  # since the pass began: operation, Machine or pause
    woken: bool = False
    outlasted: bool = False
    awaits_late: bool = False  # waits only for calls of another process to arrive, and yields its capacity
    task_since: float = 0.0  # begin of the observation or call that a pass waits for
    due: float = -math.inf

    def update(self, run: RunRecord, reader: RecordReader) -> None:
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

    def _begin_call(self, run: RunRecord, reader: RecordReader) -> None:
        self.cancel_observation()
        self.read = None  # the next call may change it
        again = self.intent is not None and self.intent[:2] == run.intent[:2]
        lost, self.intent = again and self.answer.leaves_open, run.intent
        # the process's earlier call: it was answered, else the process would not have continued
        self.late.pop(run.epoch, None)
        self._take_late(run, reader)
        if self.own_call is not None and self.own_call.intent == run.intent:
            self._take_answer(self.own_call.answer, self.own_call.at)
            return
        self._take_stored(run, reader, lost=lost)

    def _is_news(self, run: RunRecord) -> bool:
        """Return whether the record has a newer state of the same call: its process has stored that late."""
        if run.action is None or self.answer.outcome is CallOutcome.ACCEPTED:
            return False
        return run.handle is not None or (self.answer.outcome is CallOutcome.OPEN and run.answer.outcome in STORED)

    def _take_stored(self, run: RunRecord, reader: RecordReader, *, lost: bool) -> None:
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

    def _take_late(self, run: RunRecord, reader: RecordReader) -> None:
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
        return (
            longest(LateCall(one.epoch, one.action, one.until - at) for one in self.late.values()) if self.late else ()
        )

    def recorded(self, run: Recorded, now: float, at: str) -> Recorded:
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

    def record_written(self, run: RunRecord, identity: str, now: float) -> None:
        """Update after this process has written the record of a stage; its action is not called yet.

        Another process can no longer write an intent; only a call that it was about to send remains.
        """
        self.own_call, self.stored_at = None, now
        self.late = {epoch: replace(one, acts=False) for epoch, one in self.late.items()}
        self.update(run, RecordReader(identity, now))

    def target_written(self, before: str, version: str) -> None:
        """Update after this process wrote to the target: an observation just before counts for the new version."""
        if self.observed is not None and self.observed.version == before:
            self.observed = replace(self.observed, version=version)

    def reuse_observation(self, on: tuple[object, ...], version: str, now: float) -> TimedObservation | None:
        """Return the observation of a failed claim if the next claim can use it; None where it cannot.

        It must be recent enough to act on, and no other run may have had the target since.
        """
        unused, self.unused = self.unused, None
        good = unused is not None and (unused.on, unused.version) == (on, version) and now - unused.ended_at <= ACT_ON_S
        return unused if good else None

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
            in_stage_s=self.in_stage_s(now),
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

    def with_observation(
        self, run: Recorded, observation: Observation | NotObservable, now: Callable[[], str]
    ) -> Recorded:
        """Return the record with detail, fact and time of the last observation."""
        if isinstance(observation, Observation):
            self.read = (observation.detail, str(observation.fact), now())
        if self.read is None:
            return run
        standing, fact, read_at = self.read
        return replace(run, standing=standing or run.standing, fact=fact, read_at=read_at)

    def record_call(self, intent: Intent, now: float) -> OwnCall:
        """Record that this process calls the action of the intent, and return the call."""
        self.answer = self.answer.after(CallEvent.SEND, text=NO_ANSWER_YET)
        self.own_call = OwnCall(intent, self.answer, now)
        return self.own_call

    def record_answer(
        self, call: OwnCall, event: CallEvent, reason: str, text: str, now: float, cause: Cause | None = None
    ) -> None:
        """Record the answer to this process's call; the wait for its effect begins now."""
        self.own_call = replace(call, answer=call.answer.after(event, reason, text, cause), at=now)
        if call.intent == self.intent:
            self._take_answer(self.own_call.answer, now)

    def in_stage_s(self, now: float) -> float:
        """Return the seconds since this process first observed the run in its stage."""
        return now - self.stage_since

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


def _stored_answer(run: RunRecord, *, is_own: bool) -> Answer:
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
