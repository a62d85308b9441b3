"""The front of a simulated cloud: rate limits, faults around a request, and a journal.

Faults act before a request is executed, and on its reply's way back. A rate limit is a token bucket, filled evenly and
full at first. The `Cloud` behind the front implements its own API, and names the call of a request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol

from unbounded_lab.cloud.history import CloudHistory
from unbounded_lab.cloud.misbehaviours import COUNTS, CloudFaults
from unbounded_lab.faults import Counts
from unbounded_lab.http import Delivery, LabReply, LabRequest

JOURNAL_LENGTH: Final = 20_000


@dataclass(frozen=True, slots=True)
class CloudRateLimit:
    """A published rate: a burst, and a steady number each second."""

    burst: float
    per_s: float


class TokenBuckets:
    """The buckets of one cloud, by name. An unused bucket is full."""

    def __init__(self) -> None:
        self._filled: dict[str, tuple[float, float]] = {}  # number of tokens, and the time of that number

    def left(self, name: str, limit: CloudRateLimit, now: float) -> int:
        """Return the number of requests that would pass now."""
        return int(self._tokens(name, limit, now) + 1e-9)

    def take(self, requested: Mapping[str, CloudRateLimit], now: float) -> tuple[str, float] | None:
        """Take one token from each bucket, or from none.

        Returns:
            None when they were taken, else the bucket that stays empty for the longest time, and that time in seconds.
        """
        waits = {name: (1.0 - self._tokens(name, limit, now)) / limit.per_s for name, limit in requested.items()}
        if waits and max(waits.values()) > 1e-9:
            return max(waits.items(), key=lambda item: item[1])
        for name, limit in requested.items():
            self._filled[name] = (self._tokens(name, limit, now) - 1.0, now)
        return None

    def _tokens(self, name: str, limit: CloudRateLimit, now: float) -> float:
        tokens, at = self._filled.get(name, (limit.burst, now))
        return min(limit.burst, tokens + (now - at) * limit.per_s)


@dataclass(frozen=True, slots=True)
class CloudCall:
    """The call that a request makes.

    Args:
        name: as in faults and in the journal, `VirtualMachines.Delete`.
        account: the subscription or tenancy, "" where there is none.
    """

    name: str
    account: str = ""
    changes: bool = False
    is_login: bool = False


@dataclass(frozen=True, slots=True)
class CloudExchange:
    """A request as the cloud received it: the status of its reply (0: lost on the way), and the reply's delivery."""

    at: float
    call: str
    account: str
    method: str
    path: str
    status: int
    fate: str


@dataclass(frozen=True, slots=True)
class CloudAdmission:
    """Admission of a request.

    Args:
        faulty: the configured faults apply to it.
        dropped: the connection is closed; the request is not executed.
        wait_s: delay before its execution.
    """

    call: CloudCall
    faulty: bool
    dropped: bool = False
    wait_s: float = 0.0


class Cloud(Protocol):
    """One cloud's API, without a socket and without a clock."""

    @property
    def faults(self) -> CloudFaults: ...

    @property
    def history(self) -> CloudHistory: ...

    @property
    def error_names(self) -> Collection[str]:
        """Names that the fault `errors` takes."""
        ...

    def set_faults(self, faults: Any, now: float) -> None: ...  # of this cloud's own type

    def advance(self, now: float) -> None:
        """Execute everything that is due by now."""
        ...

    def call(self, request: LabRequest) -> CloudCall:
        """Return the call of a request; for an unknown one, a call with the name for that."""
        ...

    def answer(self, request: LabRequest, call: CloudCall, now: float) -> LabReply:
        """Execute a request; the caller has called `advance` for this time."""
        ...

    def error(self, name: str, request: LabRequest, call: CloudCall, now: float) -> LabReply:
        """Return the reply for an error of the fault `errors`."""
        ...


class CloudFrontend:
    def __init__(self, cloud: Cloud, now: float) -> None:
        self.cloud = cloud
        self.journal: deque[CloudExchange] = deque(maxlen=JOURNAL_LENGTH)
        self.set_faults(cloud.faults, now)

    def set_faults(self, faults: CloudFaults, now: float) -> None:
        """Set the faults; counts restart.

        Raises:
            ValueError: an error that this cloud does not have.
        """
        if unknown := sorted(set(faults.errors) - set(self.cloud.error_names)):
            raise ValueError(f"unknown error: {', '.join(unknown)}; the errors are {', '.join(self.cloud.error_names)}")
        self.cloud.set_faults(faults, now)
        self._counts = Counts(faults, COUNTS)
        self._errors = deque(faults.errors)

    def admit(self, request: LabRequest, now: float) -> CloudAdmission:
        """Admit a request. The caller calls it once for each request, before `answer`."""
        call = self.cloud.call(request)
        if not self._is_meant(call) or self._counts.spend("spared"):
            return CloudAdmission(call, faulty=False)
        if self._counts.spend("lost_before"):
            self._note(request, call, now, 0, "lost on the way")
            return CloudAdmission(call, faulty=True, dropped=True)
        if self.cloud.faults.stall_then == "acts-after" and self._counts.spend("stalls"):
            return CloudAdmission(call, faulty=True, wait_s=self.cloud.faults.stall_s)
        return CloudAdmission(call, faulty=True)

    def answer(self, request: LabRequest, passage: CloudAdmission, now: float) -> LabReply:
        """Execute an admitted request and return the reply, including faults."""
        call = passage.call
        error = self._next_error() if passage.faulty else None
        self.cloud.advance(now)
        if error is None or self.cloud.faults.errors_after:
            reply = self.cloud.answer(request, call, now)
        if error is not None:
            reply = self.cloud.error(error, request, call, now)
        reply = self._with_faults(reply) if passage.faulty else reply
        self._note(request, call, now, reply.status, reply.fate.value)
        return reply

    def _is_meant(self, call: CloudCall) -> bool:
        faults = self.cloud.faults
        if faults.accounts and call.account not in faults.accounts:
            return False
        if faults.of != "any" and call.changes != (faults.of == "changes"):
            return False
        if not faults.only:
            return not call.is_login
        return any(fnmatchcase(call.name, pattern) for pattern in faults.only)

    def _next_error(self) -> str | None:
        if not self._errors:
            return None
        error = self._errors.popleft()
        if self.cloud.faults.errors_go_on:
            self._errors.append(error)
        return error

    def _with_faults(self, reply: LabReply) -> LabReply:
        faults = self.cloud.faults
        if self._counts.spend("lost_after"):
            return replace(reply, fate=Delivery.DROPPED)
        if reply.body and self._counts.spend("cut_off"):
            return replace(reply, fate=Delivery.CUT_OFF)
        stalled = faults.stall_then == "acted-before" and self._counts.spend("stalls")
        return replace(reply, hold_s=reply.hold_s + faults.slow_s + (faults.stall_s if stalled else 0.0))

    def _note(self, request: LabRequest, call: CloudCall, now: float, status: int, fate: str) -> None:
        path = f"{request.path}?{request.query}" if request.query else request.path
        self.journal.append(CloudExchange(now, call.name, call.account, request.method, path, status, fate))
