"""Work requests: progress and failures of accepted calls, and the evidence that a RESET has completed.

A login without the right to read them uses the records of the instances, which are later and less detailed. The best
evidence of a RESET is its work request. No reference promises one for a RESET. Without it, the lifecycle states in the
response and in later observations must do.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import msgspec

from unbounded.machineops import reasons
from unbounded.machineops.provider import Budget, Instance, Job, NotDone, Progress, Refusal, State, said
from unbounded.machineops.providers.oci.errors import OciNotFound, capacity_reason
from unbounded.machineops.providers.oci.instances import RESTARTING, RUNNING, TERMINATED
from unbounded.machineops.providers.oci.sdk_client import Body, OciClient, OciReply

FAILED: Final = frozenset({"FAILED", "CANCELED"})
SUCCEEDED: Final = "SUCCEEDED"
QUIET_S: Final = 60.0
"""Seconds after which a RUNNING instance will not show the restart any more: no record lags that far."""
RESOLUTION: Final = timedelta(seconds=2)  # of the time in a response, which is in whole seconds
REMEMBERED_S: Final = 3600.0


class WorkOperation(StrEnum):
    """Operation of a work request, by the name of the call that started it."""

    LAUNCH = "LaunchInstance"
    ACTION = "InstanceAction"


@dataclass(frozen=True)
class OciWorkRequest:
    """A work request.

    Args:
        again_s: seconds after which the cloud wants to be polled for it.
    """

    id: str
    status: str
    percent: float
    again_s: float | None = None

    @property
    def how_far(self) -> str:
        return self.status if self.status in (SUCCEEDED, *FAILED) else f"{self.status}, {self.percent:.0f} %"

    @property
    def words(self) -> str:
        return f"work request {self.id} is {self.how_far}"


class OciWorkRequests:
    """Reader of one login's work requests."""

    def __init__(self, calls: OciClient, budget: Budget) -> None:
        self._calls = calls
        self._budget = budget

    async def get(self, instance: Instance, ident: str) -> OciWorkRequest | None:
        """Read a work request; return None if it is not shown."""
        await self._budget.read(self._calls.scope(instance))
        try:
            reply = await self._calls.read(instance, "get_work_request", ident)
        except (OciNotFound, Refusal):
            return None
        return _work(reply.body, reply.again_s)

    async def first_of(
        self, instance: Instance, shown: Body, operation: WorkOperation, since: datetime | None = None
    ) -> OciWorkRequest | None:
        """Return the first work request for an instance since a time.

        Args:
            instance: identifies the account, which may differ from that of `shown`.
        """
        about = {"resource_id": str(shown["id"])}
        every = await self._every(instance, "list_work_requests", str(shown["compartmentId"]), **about)
        requests = [each for each in every if _begun_by(each, operation)]
        fitting = [each for each in requests if since is None or _accepted(each) >= since]
        return _work(min(fitting, key=_accepted), None) if fitting else None

    async def why(self, instance: Instance, work: OciWorkRequest) -> NotDone:
        """Return the failure of a failed work request."""
        for each in await self._every(instance, "list_work_request_errors", work.id):
            code, message = str(each.get("code")), str(each.get("message"))
            return NotDone(
                capacity_reason(code, message) or reasons.PROVIDER_OPERATION_FAILED, said(f"{code}: {message}")
            )
        return NotDone(reasons.PROVIDER_OPERATION_FAILED, f"{work.words}, without a cause")

    async def _every(self, instance: Instance, call: str, *args: str, **query: str) -> list[Body]:
        try:
            return await self._calls.every(self._budget, instance, call, *args, **query)
        except (OciNotFound, Refusal):
            return []


def _work(body: Any, again_s: float | None) -> OciWorkRequest:
    return OciWorkRequest(str(body["id"]), str(body["status"]), float(body.get("percentComplete") or 0), again_s)


def _accepted(body: Any) -> datetime:
    return datetime.fromisoformat(str(body["timeAccepted"]))


def _begun_by(body: Any, operation: WorkOperation) -> bool:
    """Return whether a work request has this operation. No reference lists the names; elsewhere this cloud writes
    blanks.
    """
    written = "".join(filter(str.isalpha, str(body.get("operationType")))).lower()
    return written == operation.lower() or (operation is WorkOperation.ACTION and "reset" in written)


class OciResetHandle(msgspec.Struct, frozen=True):
    """Handle of a RESET.

    Args:
        work: OCID of its work request, if the response names it.
        shown: lifecycle state in the response.
        since: earliest time of the acceptance, by the cloud's clock; None if the response has no time.
    """

    work: str = ""
    shown: str = ""
    since: datetime | None = None

    @property
    def handle(self) -> str:
        return msgspec.json.encode(self).decode()


def accepted(reply: OciReply, asked_for_s: float) -> OciResetHandle:
    """Build the handle of a response.

    Args:
        asked_for_s: time since the request was first sent.
    """
    at = reply.at
    since = None if at is None else at - timedelta(seconds=asked_for_s) - RESOLUTION
    return OciResetHandle(reply.work_request, str(reply.body.get("lifecycleState")), since)


def of_handle(handle: str) -> OciResetHandle:
    """Parse a handle.

    Raises:
        Refusal: the handle is not valid.
    """
    try:
        return msgspec.json.decode(handle, type=OciResetHandle)
    except msgspec.DecodeError as error:
        message = f"OCIInstance issues no such handle: {handle[:64]!r}"
        raise Refusal(reasons.PROVIDER_OPERATION_FAILED, message) from error


class CallTimes:
    """Times of calls by operation, by the time of the loop; a new process starts empty."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def asked_s(self, uid: str) -> float:
        """Return the time since a RESET was first sent for an operation."""
        return self._for_s(f"asked {uid}")

    def accepted_s(self, uid: str) -> float:
        """Return the least time since a RESET was accepted."""
        return self._for_s(f"accepted {uid}")

    def launches(self, uid: str) -> None:
        """Record that a launch is about to be sent for an operation, or was just answered."""
        self._since[f"launched {uid}"] = asyncio.get_running_loop().time()

    def launched_s(self, uid: str) -> float:
        """Return the least time since the last launch of an operation."""
        return self._for_s(f"launched {uid}")

    def _for_s(self, what: str) -> float:
        now = asyncio.get_running_loop().time()
        if what not in self._since:
            self._since = {each: at for each, at in self._since.items() if now - at < REMEMBERED_S}
        return now - self._since.setdefault(what, now)


@dataclass(frozen=True)
class ResetObservation:
    """One observation of a RESET.

    Args:
        quiet_s: least time since it was accepted.
    """

    works: OciWorkRequests
    job: Job
    known: OciResetHandle
    quiet_s: float

    async def progress(self, shown: Body, where: str) -> Progress:
        """Return the progress of the RESET.

        Args:
            shown: current record of the instance.
        """
        state, instance = str(shown.get("lifecycleState")), f"{self.job.instance.name} is {shown.get('lifecycleState')}"
        work = await self._work(shown, state)
        if work is not None:
            return await self._by_work(work, state, instance, where)
        if state == TERMINATED:
            return Progress(State.FORGOTTEN, instance, where)
        if state != RUNNING:
            return Progress(State.ON_ITS_WAY, instance, where)
        if self.quiet_s < QUIET_S:
            return Progress(State.RUNNING, f"RESET was accepted, and has no visible effect yet; {instance}", where)
        if self.known.shown in RESTARTING:
            message = f"the answer to RESET showed it {self.known.shown}; {instance}"
            return Progress(State.DONE, message, f"{where}, InstanceAction")
        message = f"RESET was accepted, and had no visible effect for {self.quiet_s:.0f} s"
        return Progress(State.FORGOTTEN, message, where)

    async def _work(self, shown: Body, state: str) -> OciWorkRequest | None:
        """Return its work request. Without an OCID it is searched once the instance runs, as only then it can have
        ended.
        """
        if self.known.work:
            return await self.works.get(self.job.instance, self.known.work)
        if state != RUNNING or self.known.since is None:
            return None
        return await self.works.first_of(self.job.instance, shown, WorkOperation.ACTION, self.known.since)

    async def _by_work(self, work: OciWorkRequest, state: str, instance: str, where: str) -> Progress:
        where = f"{where}, GetWorkRequest {work.id}"
        if work.status in FAILED:
            why = await self.works.why(self.job.instance, work)
            return Progress(State.FAILED, f"RESET has failed: {why}; {instance}", where)
        done = work.status == SUCCEEDED and state == RUNNING
        message = f"{work.words}; {instance}"
        return Progress(State.DONE if done else State.RUNNING, message, where, work.again_s)
