"""The record of a run, which survives a crash, with the last call to the outside: its known state and its transitions.

The status stores the record for the next process. A call of an ended process may still arrive until the call limit has
passed: `LateCall` stores the remaining time, counted over all processes since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Final, Self

from msgspec import Struct
from msgspec.structs import replace

from unbounded.api.fields import MAX_EVIDENCE, Cause, Evidence
from unbounded.api.run_history import RunHistory

Intent = tuple[str, str | None, int, str]
"""Stage, action, attempt and the process that has written it."""


class CallOutcome(StrEnum):
    """The state of a call.

    The first four are not stored: the reader of a record without an answer derives them from the epoch.
    """

    NONE = "None"  # the stage has no action
    WRITTEN = "Written"  # the intent is stored, and its own process has not sent it
    SENT = "Sent"  # on its way, without an answer yet
    OPEN = "Open"  # another process has written the intent: perhaps sent, perhaps done
    ACCEPTED = "Accepted"
    NOT_DONE = "NotDone"
    UNKNOWN = "Unknown"  # the answer was lost: perhaps done
    REFUSED = "Refused"


class CallEvent(Enum):
    """An event of a call, which changes its state."""

    SEND = "its process sends it"
    ACCEPT = "the outside accepts it"
    FAIL = "it surely had no effect"
    LOSE = "its answer is lost"
    REFUSE = "the outside refuses it for good"
    TAKE_OVER = "another process reads its record"


_ANSWERS: Final = {
    CallEvent.ACCEPT: CallOutcome.ACCEPTED,
    CallEvent.FAIL: CallOutcome.NOT_DONE,
    CallEvent.LOSE: CallOutcome.UNKNOWN,
    CallEvent.REFUSE: CallOutcome.REFUSED,
}
STORED: Final = frozenset(_ANSWERS.values())
TRANSITIONS: Final[Mapping[tuple[CallOutcome, CallEvent], CallOutcome]] = {
    (CallOutcome.WRITTEN, CallEvent.SEND): CallOutcome.SENT,
    **{(CallOutcome.SENT, event): outcome for event, outcome in _ANSWERS.items()},
    (CallOutcome.NONE, CallEvent.TAKE_OVER): CallOutcome.NONE,
    (CallOutcome.WRITTEN, CallEvent.TAKE_OVER): CallOutcome.OPEN,  # its process may have sent it since
    (CallOutcome.SENT, CallEvent.TAKE_OVER): CallOutcome.OPEN,
    (CallOutcome.OPEN, CallEvent.TAKE_OVER): CallOutcome.OPEN,
    **{(outcome, CallEvent.TAKE_OVER): outcome for outcome in STORED},
    **{(CallOutcome.OPEN, event): outcome for event, outcome in _ANSWERS.items()},  # its process stored it late
}


class Answer(Struct, frozen=True):
    """The known state of a call.

    Attributes:
        lost: the action may have taken effect while no process observed it. An earlier call for the same action has no
            known outcome, or this one was accepted from a process that has ended.
    """

    outcome: CallOutcome
    reason: str = ""
    text: str = ""
    lost: bool = False
    cause: Cause | None = None

    def after(self, event: CallEvent, reason: str = "", text: str = "", cause: Cause | None = None) -> Answer:
        """Return the state after an event."""
        return replace(self, outcome=TRANSITIONS[self.outcome, event], reason=reason, text=text, cause=cause)

    @property
    def is_open(self) -> bool:
        """Return whether the last call may have taken effect."""
        return self.outcome in (CallOutcome.SENT, CallOutcome.OPEN, CallOutcome.UNKNOWN)

    @property
    def is_not_done(self) -> bool:
        """Return whether the last call certainly had no effect."""
        return self.outcome in (CallOutcome.WRITTEN, CallOutcome.NOT_DONE)

    @property
    def reply(self) -> CallOutcome:
        """Return the outcome as a record of the call has it."""
        if self.outcome in STORED:
            return self.outcome
        return CallOutcome.NOT_DONE if self.is_not_done else CallOutcome.UNKNOWN

    @property
    def leaves_open(self) -> bool:
        """Return whether this call, or an earlier one for the same action, may have taken effect."""
        return self.is_open or (self.lost and self.outcome is not CallOutcome.ACCEPTED)


NO_ANSWER: Final = Answer(CallOutcome.NONE)
NOT_SENT: Final = Answer(CallOutcome.WRITTEN, text="recorded, but not sent in time")
NO_ANSWER_YET: Final = "no answer yet"
TAKEN_OVER: Final = "an earlier process was about to send it"


class LateCall(Struct, frozen=True):
    """A call of an ended process, and the seconds for which it may still arrive."""

    epoch: str
    action: str
    left_s: float


def longest(late: Iterable[LateCall]) -> tuple[LateCall, ...]:
    """Return the calls that may still arrive, longest remaining time first."""
    return tuple(sorted((call for call in late if call.left_s > 0), key=lambda call: -call.left_s))


class PendingFailure(Struct, frozen=True):
    """The failure with which a run ends after its cleanup stage."""

    reason: str
    text: str
    cause: Cause | None = None


class RunRecord(Struct, frozen=True, kw_only=True):
    """The stage of a run, its last call, and the calling process.

    Attributes:
        epoch: the process that has written the record.
        answer: the stored answer to the last call; NO_ANSWER where there is none.
        late: calls of ended processes that may still arrive, as of the last write.
        spent_s, stage_s: duration of the run and of its stage at the last write.
        recorded_at: the time of that write, RFC 3339.
        standing: detail of the last observation.
        fact: its fact, in the procedure's terms.
        history: for users; no decision depends on it.
    """

    epoch: str
    stage: str
    action: str | None = None
    attempt: int = 0
    boot_id: str | None = None
    handle: str | None = None
    answer: Answer = NO_ANSWER
    late: tuple[LateCall, ...] = ()
    spent_s: int = 0
    stage_s: int = 0
    recorded_at: str | None = None
    evidence: tuple[Evidence, ...] = ()
    failing: PendingFailure | None = None
    standing: str = ""
    fact: str = ""
    read_at: str | None = None
    history: RunHistory = RunHistory()

    @property
    def intent(self) -> Intent:
        """The identity of a call, by which two observers compare it."""
        return (self.stage, self.action, self.attempt, self.epoch)

    def with_findings(self, findings: Iterable[str], *, at: str, where: str) -> Self:
        """Return the record with evidence that it does not have yet."""
        known = {evidence.what for evidence in self.evidence}
        new = tuple(Evidence(what=what, at=at, where=where) for what in findings if what not in known)
        return replace(self, evidence=(*self.evidence, *new)[-MAX_EVIDENCE:]) if new else self

    def with_evidence(self, what: str | None, *, at: str, where: str) -> tuple[Evidence, ...]:
        """Return the evidence with one more entry, which replaces an older one of the same words."""
        if what is None:
            return self.evidence
        others = [evidence for evidence in self.evidence if evidence.what != what]
        return (*others, Evidence(what=what, at=at, where=where))[-MAX_EVIDENCE:]
