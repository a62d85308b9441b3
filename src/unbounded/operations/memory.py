"""What one incarnation of an executor knows of an operation beyond its status: times, answers, calls under way."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from unbounded.api.machine import ActiveOperation, Machine
from unbounded.api.operation import MAX_LATE, Cause
from unbounded.operations.calls import (
    NO_ANSWER,
    NO_ANSWER_YET,
    NOT_SENT,
    STORED,
    TAKEN_OVER,
    Answer,
    CallEvent,
    Intent,
    LateCall,
    Reply,
    longest,
)
from unbounded.operations.plan import Timing
from unbounded.operations.procedure import Sight, Unseen
from unbounded.operations.record import Run

ACT_WITHIN_S: Final = 10.0  # an executor acts on its intent within this time of writing it, or not at all
FRESH_S: Final = 2.0  # a sight older than this is taken again before anything is decided on it
DOWN_S: Final = 60.0  # of a deadline, by the wall clock, while no process counted: a clock that jumped ends nothing
ACT_ON_S: Final = 5.0  # and nothing is asked for on one that is older than this when the intent is written


@dataclass(frozen=True)
class Looked:
    """An observation with its times: what it found was true at some moment between them.

    Args:
        on: the Machine and what was wanted of it, as they were then.
        version: of the Machine, which nobody has had as long as it is the same.
    """

    began_at: float
    ended_at: float
    sight: Sight | Unseen
    on: tuple[object, ...]
    version: str


@dataclass(frozen=True)
class Asked:
    """What this process itself asked for last: it knows that better than any record, which may be read late.

    Args:
        at: when it was answered; when it was sent, before that.
    """

    intent: Intent
    answer: Answer
    at: float


@dataclass(frozen=True)
class Late:
    """A call of another process which may still arrive, until a time of the loop.

    Args:
        acts: its process is not known to have ended, and may still be about to send it.
    """

    epoch: str
    action: str
    until: float
    acts: bool


@dataclass(frozen=True)
class Reader:
    """Who reads a record, when, and what that says of the process that has written it.

    Args:
        has_ended: of another process: whether it surely acts no more.
        landing_s: how long a call of one that has ended may still arrive.
        settle_s: how long one of which that is not known may still act, with the arrival of its call.
        down_s: how long before `now` the record was written, by the wall clock.
    """

    identity: str
    now: float
    has_ended: Callable[[str], bool] = lambda _identity: False
    landing_s: float = 0.0
    settle_s: float = 0.0
    down_s: float = 0.0


@dataclass(frozen=True)
class LostSlot:
    """The slot of a lost executor, and the seconds since, counted over all processes that have waited.

    Args:
        uid: of the operation that has the slot.
        began_at: when this process first saw that, by the loop.
        counted_s: the count at `since`.
        ended: no process that may have acted for the operation acts any more, as was known at `began_at`.
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
        """Return for how long a call of the executor may still arrive.

        One that has ended may have sent it at its end: `landing_s` runs from when this process first knew of that.
        """
        left_s = settle_s - self.count_s(now)
        return min(left_s, self.began_at + landing_s - now) if self.ended else left_s


@dataclass
class Memory:
    """One operation, as this process has seen it. Lost in a crash, and nothing rests on it then."""

    uid: str
    stage: str = ""
    stage_since: float = 0.0
    looks: int = 0
    progress: str = ""
    read: tuple[str, str, str] | None = None  # what the last look found: detail, fact, and when that was
    moved_at: float = 0.0  # when the progress was another one for the last time, or the stage began
    intent: Intent | None = None
    asked: Asked | None = None
    asked_at: float = 0.0  # when our ask was answered, or somebody else's was first seen
    answer: Answer = NO_ANSWER
    late: dict[str, Late] = field(default_factory=dict)  # by epoch: of each at most the last call has no answer
    stored: Answer = NO_ANSWER  # what the status says of the last call
    stored_at: float = -math.inf  # when it was last written by this process
    spent_s: int = -1
    spent_since: float = 0.0
    call: asyncio.Task[None] | None = None
    look: asyncio.Task[Looked] | None = None
    look_of: str = ""  # the binding of the host that it is of
    looked: Looked | None = None  # the last one that ended
    machine: Machine | None = None  # as it was at the last look; it may be gone, or another one, by now
    unused: Looked | None = None  # one that a claim rested on which came to nothing
    handle: str | None = None  # came with an answer, not yet stored
    said_at: float = -math.inf
    lost: LostSlot | None = None
    recreation: object = None  # the state of a recreation that has the slot, and since when it is that one
    recreation_since: float = 0.0
    decided_on: tuple[object, ...] | None = None
    nudged: bool = False
    left_alone: bool = False
    settles: bool = False  # nothing is done but to wait for what another process may have sent: others have its place
    beside_since: float = 0.0  # when the look or call began that a pass waits for
    due: float = -math.inf

    def follow(self, run: Run, reader: Reader) -> None:
        """Take note of the record as it stands in the status."""
        now, is_first = reader.now, self.intent is None
        if run.stage != self.stage:
            self.stage, self.stage_since, self.looks = run.stage, now - (run.stage_s if is_first else 0), 0
            self.moved_at = now
        if self.spent_s < 0:
            self.spent_s, self.spent_since = run.spent_s, now - min(max(reader.down_s, 0.0), DOWN_S)
        elif run.spent_s > self.spent(now):  # what is recorded is rounded up, each time
            self.spent_s, self.spent_since = run.spent_s, now
        self.stored = run.answer
        if run.intent != self.intent:
            self._begin_to_follow(run, reader)
        elif self._is_news(run):
            self._take_stored(run, reader, lost=self.answer.lost)  # what was read before was older

    def _begin_to_follow(self, run: Run, reader: Reader) -> None:
        self.drop_calls()
        again = self.intent is not None and self.intent[:2] == run.intent[:2]
        lost, self.intent = again and self.answer.leaves_open, run.intent
        self.late.pop(run.incarnation, None)  # that of its call before: it would not have gone on without an answer
        self._take_late(run, reader)
        if self.asked is not None and self.asked.intent == run.intent:
            self._take_answer(self.asked.answer, self.asked.at)
            return
        self._take_stored(run, reader, lost=lost)

    def _is_news(self, run: Run) -> bool:
        """Whether the record says more of the same call than was known: its process has stored that late."""
        if run.action is None or self.answer.reply is Reply.ACCEPTED:
            return False
        return run.handle is not None or (self.answer.reply is Reply.OPEN and run.answer.reply in STORED)

    def _take_stored(self, run: Run, reader: Reader, *, lost: bool) -> None:
        """Take what the record says of the last call; one of another process without an answer may still arrive."""
        answer = _stored_answer(run, is_own=run.incarnation == reader.identity)
        self._take_answer(replace(answer, lost=answer.lost or lost), reader.now)
        if answer.reply is not Reply.OPEN:
            self.late.pop(run.incarnation, None)
        elif run.incarnation not in self.late:
            ended = reader.has_ended(run.incarnation)
            wait_s = reader.landing_s if ended else reader.settle_s
            if wait_s > 0:
                self._add_late(LateCall(run.incarnation, run.action or "", wait_s), reader, acts=not ended)

    def _take_late(self, run: Run, reader: Reader) -> None:
        for call in run.late:
            if call.epoch not in self.late and call.epoch != reader.identity:
                acts = call.epoch == run.incarnation and not reader.has_ended(call.epoch)
                self._add_late(call, reader, acts=acts)

    def _add_late(self, call: LateCall, reader: Reader, *, acts: bool) -> None:
        self.late[call.epoch] = Late(call.epoch, call.action, reader.now + call.left_s, acts)

    def _take_answer(self, answer: Answer, at: float) -> None:
        self.answer, self.asked_at = answer, at

    def has_arrived(self, epoch: str) -> None:
        """Take note that the effect of the last call of a process was seen, so that it arrives no more."""
        self.late.pop(epoch, None)

    def late_calls(self, at: float) -> tuple[LateCall, ...]:
        """Return the calls that may still arrive after a time of the loop."""
        return longest((LateCall(one.epoch, one.action, one.until - at) for one in self.late.values()), MAX_LATE)

    def recorded(self, run: Run, now: float, at: str) -> Run:
        """Return the record with all that is known by now of times and of the last call."""
        known = run.intent == self.intent
        return replace(
            run,
            answer=self.answer if known else replace(run.answer, reply=Reply.NONE),
            late=self.late_calls(now),
            spent_s=self.spent(now),
            stage_s=int(now - self.stage_since) if run.stage == self.stage else 0,
            recorded_at=at,
        )

    @property
    def keeps_answer(self) -> bool:
        """Whether this process knows an answer to its own call that the status does not have."""
        own = self.asked is not None and self.asked.intent == self.intent
        return own and self.answer.reply in STORED and self.answer != self.stored

    def wrote(self, run: Run, identity: str, now: float) -> None:
        """Take note of the record of a stage that this process has just written: nothing was asked for by that yet.

        Another process can write no intent beside it. What is left of that one is the call it was about to send.
        """
        self.asked, self.stored_at = None, now
        self.late = {epoch: replace(one, acts=False) for epoch, one in self.late.items()}
        self.follow(run, Reader(identity, now))

    def slot_taken(self, before: str, version: str) -> None:
        """The slot is ours: a look at the Machine as it was just before is one at the Machine as it is now."""
        if self.looked is not None and self.looked.version == before:
            self.looked = replace(self.looked, version=version)

    def take_unused(self, on: tuple[object, ...], version: str, now: float) -> Looked | None:
        """The look of a claim that came to nothing, where the next one can rest on it: it may still be acted on, and
        nobody else has had the Machine since.
        """
        unused, self.unused = self.unused, None
        good = unused is not None and (unused.on, unused.version) == (on, version) and now - unused.ended_at <= ACT_ON_S
        return unused if good else None

    def count_lost(self, active: ActiveOperation, now: float, *, ended: bool) -> LostSlot:
        """Count how long ago an executor was lost, on from what another process has counted."""
        lost = self.lost
        if lost is None or lost.uid != active.uid:
            lost = LostSlot(active.uid, now, active.lost_seconds, now, ended)
        elif active.lost_seconds > lost.count_s(now):
            lost = replace(lost, counted_s=active.lost_seconds, since=now)
        self.lost = lost
        return lost

    def recreation_stands_still(self, state: object, now: float) -> float:
        """Seconds since the recreation that has the slot was last seen to move."""
        if state != self.recreation:
            self.recreation, self.recreation_since = state, now
        return now - self.recreation_since

    def begin_anew(self) -> None:
        """Nothing has been claimed yet: what an attempt to do so took counts for nothing."""
        self.stage, self.spent_s = "", -1

    def timing(self, now: float) -> Timing:
        """Return the times to decide by. An ask is repeated, a dwell is over, on a look that began when it was due."""
        began_at = now if self.looked is None else self.looked.began_at
        acts = [one.until - began_at for one in self.late.values() if one.acts]
        return Timing(
            in_stage_s=now - self.stage_since,
            since_ask_s=began_at - self.asked_at,
            spent_s=self.spent(now),
            settles_in_s=max([*acts, 0.0]),
            late=self.late_calls(began_at),
            looks=self.looks,
            look_began_s=began_at - self.stage_since,
            still_s=now - self.moved_at,
        )

    def saw(self, sight: Sight | Unseen, now: float) -> None:
        """Take note of how far it is."""
        if not isinstance(sight, Sight):
            return
        if sight.progress != self.progress:
            self.progress, self.moved_at = sight.progress, now

    def with_sight(self, run: Run, sight: Sight | Unseen, now: Callable[[], str]) -> Run:
        """Return the record with what was read last, and when."""
        if isinstance(sight, Sight):
            self.read = (sight.detail, str(sight.fact), now())
        if self.read is None:
            return run
        standing, fact, read_at = self.read
        return replace(run, standing=standing or run.standing, fact=fact, read_at=read_at)

    def asks(self, now: float) -> None:
        """Take note that what the record says is being asked for, by this process."""
        if self.intent is None:
            raise ValueError("nothing was written down that could be asked for")
        answer = self.answer.after(CallEvent.SEND, text=NO_ANSWER_YET)
        self.asked, self.answer = Asked(self.intent, answer, now), answer

    def answered(self, event: CallEvent, reason: str, text: str, now: float, cause: Cause | None = None) -> None:
        """Take note of the answer to our own ask: what it asked for begins to come true now."""
        if self.asked is None:  # it came after the record of the next one was written
            return
        self.asked = replace(self.asked, answer=self.asked.answer.after(event, reason, text, cause), at=now)
        if self.asked.intent == self.intent:
            self._take_answer(self.asked.answer, now)

    def spent(self, now: float) -> int:
        """Seconds of the deadline that are gone, rounded up, so that restarts cannot make it last for ever."""
        return max(self.spent_s, 0) + math.ceil(now - self.spent_since)

    @property
    def calling(self) -> bool:
        return self.call is not None and not self.call.done()

    def drop_calls(self) -> None:
        """Stop looking; a call that was sent is left to end by itself."""
        if self.look is not None:
            self.look.cancel()
            self.look = None


def _stored_answer(run: Run, *, is_own: bool) -> Answer:
    """Return what a record says of its last call."""
    if run.action is None:
        return NO_ANSWER
    if run.handle is not None:  # it came with the answer
        return Answer(Reply.ACCEPTED, lost=run.answer.lost or not is_own)
    if run.answer.reply in STORED:
        accepted = run.answer.reply is Reply.ACCEPTED
        return replace(run.answer, lost=run.answer.lost or (accepted and not is_own))
    written = replace(NOT_SENT, lost=run.answer.lost)
    return written if is_own else written.after(CallEvent.TAKE_OVER, text=TAKEN_OVER)
