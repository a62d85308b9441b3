"""The waits of a Machine of cluster.k8s.io, as status and in words: each has a reason, a holder and an end. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from unbounded.api.container_cloud.machine import ErrorReason, MachineWaiting
from unbounded.api.fields import MAX_STRING
from unbounded.kube.clock import rfc3339

CONTAINER_CLOUD: Final = "container-cloud"
MACHINA: Final = "machina"
ACCEPTED: Final = "the write is accepted"
CORRECTED: Final = "a person corrects the field that the message names"


@dataclass(frozen=True)
class WaitLimit:
    """The time up to which container-cloud waits for an event.

    Args:
        then: what it does at that time: `the host is installed again`.
        is_new: it is another one than that with which the wait began.
    """

    at: datetime
    then: str
    is_new: bool = False


@dataclass(frozen=True)
class MachineWait:
    """The cause for which a Machine does not go on, its holder and its end.

    Args:
        held_by: object or process that it waits for; the Machine itself, where a person has to change that.
        until: event or action that ends the wait: `Node m-0.default is registered`.
        limit: time at which container-cloud acts without that event; None for a wait that stays until the event.
        error: word for `status.errorReason`, where a person has to act.
    """

    reason: str
    message: str
    held_by: str
    until: str
    limit: WaitLimit | None = None
    error: ErrorReason | None = None

    def __post_init__(self) -> None:
        if not (self.reason and self.held_by and self.until):
            raise ValueError(f"a wait has a reason, a holder and an end: {self}")

    def since_before(self, before: MachineWaiting) -> MachineWait:
        """Return the wait with the limit that it had when it began: a later computation may be rounded otherwise."""
        if self.limit is None or self.limit.is_new or before.until is None:
            return self
        return replace(self, limit=replace(self.limit, at=datetime.fromisoformat(before.until)))


def waiting_of(wait: MachineWait, since: str) -> MachineWaiting:
    """Return a wait for the status."""
    limit = wait.limit
    return MachineWaiting(
        reason=str(wait.reason),
        held_by=wait.held_by[:MAX_STRING],
        since=since,
        until_event=wait.until[:MAX_STRING],
        until=None if limit is None else rfc3339(limit.at),
        then=None if limit is None else limit.then,
    )


def wait_text(wait: MachineWait) -> str:
    """Return the message of a wait for a condition, which has no fields for the holder and the end."""
    limit = "" if wait.limit is None else f"; at {rfc3339(wait.limit.at)}: {wait.limit.then}"
    return f"{wait.message} [held by {wait.held_by}, until {wait.until}{limit}]".lstrip()
