"""The last call to the outside: its known state as one value, and the transitions of that state.

The status stores the value for the next process. A call of an ended process may still arrive until the call limit has
passed: `LateCall` stores the remaining time, counted over all processes since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from unbounded.api.fields import Cause

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
