"""Work requests: progress and failures of accepted calls.

A login without the right to read them uses the records of the instances, which are later and less detailed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from unbounded.machineops import reasons
from unbounded.machineops.provider import Budget, Instance, NotDone, Refusal, said
from unbounded.machineops.providers.oci.calls import Body, OciCalls
from unbounded.machineops.providers.oci.errors import OciNotFound, capacity_reason

FAILED: Final = frozenset({"FAILED", "CANCELED"})
SUCCEEDED: Final = "SUCCEEDED"


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

    def __init__(self, calls: OciCalls, budget: Budget) -> None:
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
        begun = [each for each in every if _begun_by(each, operation)]
        fitting = [each for each in begun if since is None or _accepted(each) >= since]
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
