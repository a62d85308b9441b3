"""Translation of the cloud's errors into failures.

Codes are those of Oracle's table of API errors. Without a free host, a launch in fact returns 500 InternalError with
"Out of host capacity.", although the table has a code of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from unbounded.api.failures import Failure
from unbounded.machineops import reasons
from unbounded.machineops.provider import NotDone, Refusal, Throttled, Transient, Uncertain, said

PAUSE_S: Final = 10.0
"""Seconds after a 429 without a time, which is this cloud's usual form."""

CAPACITY: Final = "out of host capacity"
NO_PART: Final = "RelatedResourceNotAuthorizedOrNotFound"
OVER: Final = frozenset({"LimitExceeded", "QuotaExceeded"})
TOKEN_USED: Final = "InvalidatedRetryToken"  # noqa: S105


@dataclass(frozen=True)
class OciErrorResponse:
    """An error response of the cloud."""

    status: int
    code: str
    message: str
    retry_after: str = ""

    @property
    def words(self) -> str:
        return said(f"{self.status} {self.code}: {self.message}")


class OciNotFound(Failure):
    """404: the resource does not exist, or the login may not see it; the cloud does not distinguish these."""


class WrongState(Transient):
    """The current state of the instance does not allow the action; it may be the desired state already."""


class TokenUsed(Failure):
    """The resource of this retry token was deleted or changed since."""


def failure(answered: OciErrorResponse, *, call: str, changes: bool, scope: str, credential: str) -> Failure:
    """Return the failure for an error.

    Args:
        call: name of the call in the API, for messages.
        changes: the call would have changed something.
        credential: name of the MachineOperationCredential.
    """
    words = f"{call}: {answered.words}"
    match answered.status:
        case 400 if answered.code == NO_PART:
            message = (
                f"the resource does not exist, or MachineOperationCredential {credential} has no permission for "
                f"it; {words}"
            )
            return Refusal(reasons.AUTH_REFUSED, message)
        case 401:
            hint = "its key is unknown or invalid, or the clocks differ by more than 5 minutes"
            return Refusal(
                reasons.AUTH_REFUSED, f"OCI rejected MachineOperationCredential {credential} ({hint}); {words}"
            )
        case 403:
            message = f"MachineOperationCredential {credential} has no permission; {words}"
            return Refusal(reasons.AUTH_REFUSED, message)
        case 404:
            return OciNotFound(f"does not exist, or MachineOperationCredential {credential} has no permission; {words}")
        case 429:
            return Throttled(words, _seconds(answered.retry_after), scope=scope)
        case 409 if answered.code == TOKEN_USED:
            return TokenUsed(words)
        case 409 if answered.code == "IncorrectState":
            return WrongState(words)
        case 409 | 412:
            return Transient(words)
    if (lacking := capacity_reason(answered.code, answered.message)) is not None:
        return NotDone(lacking, words)
    if answered.status >= 500:
        return Uncertain(words) if changes else Transient(words)
    return Refusal(reasons.PROVIDER_REFUSED, words, reasons.cloud_cause(answered.code))


def capacity_reason(code: str, message: str) -> str | None:
    """Return the reason of an error about missing capacity; None for others."""
    if code == "OutOfHostCapacity" or CAPACITY in message.lower():
        return reasons.NO_CAPACITY
    return reasons.QUOTA_EXCEEDED if code in OVER else None


def _seconds(retry_after: str) -> float:
    try:
        return float(retry_after) if retry_after else PAUSE_S
    except ValueError:  # a date, which this cloud does not send
        return PAUSE_S
