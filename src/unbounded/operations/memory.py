"""What one incarnation of an executor knows of an operation beyond its status: times, answers, calls under way."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field, replace
from typing import Final

from unbounded.api.machine import Machine
from unbounded.operations.plan import NO_ANSWER, Answer, Reply, Timing
from unbounded.operations.procedure import Sight, Unseen
from unbounded.operations.record import Intent, Run

ACT_WITHIN_S: Final = 10.0  # an executor acts on its intent within this time of writing it, or not at all
FRESH_S: Final = 2.0  # a sight older than this is taken again before anything is decided on it
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


@dataclass
class Memory:
    """One operation, as this process has seen it. Lost in a crash, and nothing rests on it then."""

    uid: str
    stage: str = ""
    stage_since: float = 0.0
    looks: int = 0
    progress: str = ""
    standing: str = ""  # what the last look found
    moved_at: float = 0.0  # when the progress was another one for the last time, or the stage began
    intent: Intent | None = None
    asked: Asked | None = None
    foreign: bool = False  # somebody else has asked, and may still be about to
    ended: bool = False  # who that is has ended: only what was sent already may still arrive
    asked_at: float = 0.0  # when our ask was answered, or somebody else's was first seen
    answer: Answer = NO_ANSWER
    spent_s: int = -1
    spent_since: float = 0.0
    call: asyncio.Task[None] | None = None
    look: asyncio.Task[Looked] | None = None
    looked: Looked | None = None  # the last one that ended
    machine: Machine | None = None  # as it was at the last look; it may be gone, or another one, by now
    unused: Looked | None = None  # one that a claim rested on which came to nothing
    handle: str | None = None  # came with an answer, not yet stored
    said_at: float = -math.inf
    lost_since: dict[str, float] = field(default_factory=dict)
    recreation: object = None  # the state of a recreation that has the slot, and since when it is that one
    recreation_since: float = 0.0
    decided_on: tuple[object, ...] | None = None
    nudged: bool = False
    left_alone: bool = False
    beside_since: float = 0.0  # when the look or call began that a pass waits for
    due: float = -math.inf

    def follow(self, run: Run, incarnation: str, now: float, *, ended: bool = False) -> None:
        """Take note of the record as it stands in the status.

        Args:
            ended: the incarnation that wrote it is known to have ended.
        """
        if run.stage != self.stage:
            self.stage, self.stage_since, self.looks = run.stage, now, 0
            self.moved_at = now
        if self.spent_s < 0 or run.spent_s > self.spent(now):  # what is recorded is rounded up, each time
            self.spent_s, self.spent_since = run.spent_s, now
        if run.intent != self.intent:
            self._begin_to_follow(run, incarnation, now, ended=ended)
        elif run.action is not None and run.handle is not None and self.answer.reply is not Reply.ACCEPTED:
            self._take_first(run, incarnation, now, lost=self.answer.lost)  # what was read before was older

    def _begin_to_follow(self, run: Run, incarnation: str, now: float, *, ended: bool) -> None:
        self.drop_calls()
        again = self.intent is not None and self.intent[:2] == run.intent[:2]
        before, self.intent = self.answer, run.intent
        if self.asked is not None and self.asked.intent == run.intent:
            self._take_answer(self.asked.answer, self.asked.at)
            return
        self._take_first(run, incarnation, now, lost=again and before.leaves_open)
        answered = run.action is None or run.handle is not None  # a handle came with the answer
        self.foreign = not answered and run.incarnation != incarnation
        self.ended = self.foreign and ended

    def _take_first(self, run: Run, incarnation: str, now: float, *, lost: bool) -> None:
        first = _first_answer(run, incarnation)
        self._take_answer(replace(first, lost=first.lost or lost), now)

    def _take_answer(self, answer: Answer, at: float) -> None:
        self.answer, self.asked_at = answer, at
        self.foreign = self.ended = False

    def wrote(self, run: Run, incarnation: str, now: float) -> None:
        """Take note of the record of a stage that this process has just written: nothing was asked for by that yet."""
        self.asked = None
        self.follow(run, incarnation, now)

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

    def recreation_stands_still(self, state: object, now: float) -> float:
        """Seconds since the recreation that has the slot was last seen to move."""
        if state != self.recreation:
            self.recreation, self.recreation_since = state, now
        return now - self.recreation_since

    def begin_anew(self) -> None:
        """Nothing has been claimed yet: what an attempt to do so took counts for nothing."""
        self.stage, self.spent_s = "", -1

    def timing(self, now: float, *, settle_s: float, landing_s: float) -> Timing:
        """The times to decide by. An ask is repeated, a dwell is over, on a look that began when that was due.

        Args:
            settle_s: how long somebody else could still act on an intent.
            landing_s: how long what was sent may still arrive whose sender has ended.
        """
        began_at = now if self.looked is None else self.looked.began_at
        known_s = began_at - self.asked_at
        settles_in_s = max((landing_s if self.ended else settle_s) - known_s, 0.0) if self.foreign else 0.0
        return Timing(
            in_stage_s=now - self.stage_since,
            since_ask_s=known_s,
            spent_s=self.spent(now),
            settles_in_s=settles_in_s,
            ended=self.ended,
            looks=self.looks,
            look_began_s=began_at - self.stage_since,
            still_s=now - self.moved_at,
        )

    def saw(self, sight: Sight | Unseen, now: float) -> None:
        """Take note of how far it is."""
        if not isinstance(sight, Sight):
            return
        self.standing = sight.detail
        if sight.progress != self.progress:
            self.progress, self.moved_at = sight.progress, now

    def asks(self, now: float) -> None:
        """Take note that what the record says is being asked for, by this process."""
        if self.intent is None:
            raise ValueError("nothing was written down that could be asked for")
        answer = Answer(Reply.UNKNOWN, text="no answer yet", lost=self.answer.lost)
        self.asked, self.answer = Asked(self.intent, answer, now), answer

    def answered(self, answer: Answer, now: float) -> None:
        """Take note of the answer to our own ask: what it asked for begins to come true now."""
        if self.asked is None:  # it came after the record of the next one was written
            return
        self.asked = replace(self.asked, answer=replace(answer, lost=self.asked.answer.lost), at=now)
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


def _first_answer(run: Run, incarnation: str) -> Answer:
    if run.action is None:
        return NO_ANSWER
    if run.handle is not None:
        return Answer(Reply.ACCEPTED, lost=run.incarnation != incarnation)
    if run.incarnation != incarnation:
        return Answer(Reply.UNKNOWN, text="an earlier process was about to ask for it")
    return Answer(Reply.NOT_DONE, text="written down, and not sent in time")
