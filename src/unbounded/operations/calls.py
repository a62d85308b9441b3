"""The last call to the outside: what is known of it, as one value, and the table of what changes that.

The value is stored with the status, so a process leaves it to its successor. A call of a process that has ended may
still arrive for as long as a call can last: `LateCall` keeps that time, counted over all processes since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import Final

from unbounded.api.operation import Cause

Intent = tuple[str, str | None, int, str]
"""Stage, action, attempt and the process that has written it."""


class Reply(StrEnum):
    """The state of a call. The first four are not stored: the epoch tells the reader of a record without an answer."""

    NONE = "None"  # the stage asks for nothing
    WRITTEN = "Written"  # the intent is stored, and its own process has not sent it
    SENT = "Sent"  # on its way, without an answer yet
    OPEN = "Open"  # another process has written the intent: perhaps sent, perhaps done
    ACCEPTED = "Accepted"
    NOT_DONE = "NotDone"
    UNKNOWN = "Unknown"  # the answer was lost: perhaps done
    REFUSED = "Refused"


class CallEvent(Enum):
    """What happens to a call."""

    SEND = "its process sends it"
    ACCEPT = "the outside accepts it"
    FAIL = "it surely had no effect"
    LOSE = "its answer is lost"
    REFUSE = "the outside refuses it for good"
    TAKE_OVER = "another process reads its record"


_ANSWERS: Final = {
    CallEvent.ACCEPT: Reply.ACCEPTED,
    CallEvent.FAIL: Reply.NOT_DONE,
    CallEvent.LOSE: Reply.UNKNOWN,
    CallEvent.REFUSE: Reply.REFUSED,
}
STORED: Final = frozenset(_ANSWERS.values())
TRANSITIONS: Final[Mapping[tuple[Reply, CallEvent], Reply]] = {
    (Reply.WRITTEN, CallEvent.SEND): Reply.SENT,
    **{(Reply.SENT, event): reply for event, reply in _ANSWERS.items()},
    (Reply.NONE, CallEvent.TAKE_OVER): Reply.NONE,
    (Reply.WRITTEN, CallEvent.TAKE_OVER): Reply.OPEN,  # its process may have sent it since
    (Reply.SENT, CallEvent.TAKE_OVER): Reply.OPEN,
    (Reply.OPEN, CallEvent.TAKE_OVER): Reply.OPEN,
    **{(reply, CallEvent.TAKE_OVER): reply for reply in STORED},
    **{(Reply.OPEN, event): reply for event, reply in _ANSWERS.items()},  # its process stored it late
}


@dataclass(frozen=True)
class Answer:
    """What is known of a call.

    Attributes:
        lost: an earlier call for the same action was left open, or this one was accepted of a process that has ended:
            it may have been done with no process looking.
    """

    reply: Reply
    reason: str = ""
    text: str = ""
    lost: bool = False
    cause: Cause | None = None

    def after(self, event: CallEvent, reason: str = "", text: str = "", cause: Cause | None = None) -> Answer:
        """Return what is known after an event."""
        return replace(self, reply=TRANSITIONS[self.reply, event], reason=reason, text=text, cause=cause)

    @property
    def is_open(self) -> bool:
        """Whether the last call was perhaps done."""
        return self.reply in (Reply.SENT, Reply.OPEN, Reply.UNKNOWN)

    @property
    def is_not_done(self) -> bool:
        """Whether the last call surely had no effect."""
        return self.reply in (Reply.WRITTEN, Reply.NOT_DONE)

    @property
    def leaves_open(self) -> bool:
        """Whether this call or one before it for the same action was perhaps done."""
        return self.is_open or (self.lost and self.reply is not Reply.ACCEPTED)


NO_ANSWER: Final = Answer(Reply.NONE)
NOT_SENT: Final = Answer(Reply.WRITTEN, text="written down, and not sent in time")
NO_ANSWER_YET: Final = "no answer yet"
TAKEN_OVER: Final = "an earlier process was about to ask for it"


@dataclass(frozen=True)
class LateCall:
    """A call of a process that has ended, and for how many seconds it may still arrive."""

    epoch: str
    action: str
    left_s: float


def longest(late: Iterable[LateCall], most: int) -> tuple[LateCall, ...]:
    """Return the calls that may still arrive, those of the longest time first; so many at most."""
    return tuple(sorted((call for call in late if call.left_s > 0), key=lambda call: -call.left_s)[:most])
