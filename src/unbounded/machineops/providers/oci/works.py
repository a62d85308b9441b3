"""Work requests: how far the cloud is with what it has accepted, and why that failed.

Whoever may not see them goes without: the records of the instances say the same, later and with fewer words.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from unbounded.machineops import reasons
from unbounded.machineops.provider import Budget, Instance, NotDone, Refusal, said
from unbounded.machineops.providers.oci.calls import Body, Calls
from unbounded.machineops.providers.oci.errors import NotThere, lack

FAILED: Final = frozenset({"FAILED", "CANCELED"})
SUCCEEDED: Final = "SUCCEEDED"


class Operation(StrEnum):
    """What a work request is for, by the name of the call that began it."""

    LAUNCH = "LaunchInstance"
    ACTION = "InstanceAction"


@dataclass(frozen=True)
class Work:
    """A work request as it is shown.

    Args:
        again_s: when the cloud wants to be asked for it again.
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


class Works:
    """The work requests of one login."""

    def __init__(self, calls: Calls, budget: Budget) -> None:
        self._calls = calls
        self._budget = budget

    async def get(self, instance: Instance, ident: str) -> Work | None:
        """What there is under an OCID; None where nothing is shown."""
        await self._budget.read(self._calls.scope(instance))
        try:
            reply = await self._calls.read(instance, "get_work_request", ident)
        except (NotThere, Refusal):
            return None
        return _work(reply.body, reply.again_s)

    async def first_of(
        self, instance: Instance, shown: Body, operation: Operation, since: datetime | None = None
    ) -> Work | None:
        """The first that was accepted for an instance from then on.

        Args:
            instance: whose account is asked, which may be another one than that which is `shown`.
        """
        about = {"resource_id": str(shown["id"])}
        every = await self._every(instance, "list_work_requests", str(shown["compartmentId"]), **about)
        begun = [each for each in every if _begun_by(each, operation)]
        fitting = [each for each in begun if since is None or _accepted(each) >= since]
        return _work(min(fitting, key=_accepted), None) if fitting else None

    async def why(self, instance: Instance, work: Work) -> NotDone:
        """Why a work request has failed."""
        for each in await self._every(instance, "list_work_request_errors", work.id):
            code, message = str(each.get("code")), str(each.get("message"))
            return NotDone(lack(code, message) or reasons.PROVIDER_OPERATION_FAILED, said(f"{code}: {message}"))
        return NotDone(reasons.PROVIDER_OPERATION_FAILED, f"{work.words}, and does not say why")

    async def _every(self, instance: Instance, call: str, *args: str, **query: str) -> list[Body]:
        try:
            return await self._calls.every(self._budget, instance, call, *args, **query)
        except (NotThere, Refusal):
            return []


def _work(body: Any, again_s: float | None) -> Work:
    return Work(str(body["id"]), str(body["status"]), float(body.get("percentComplete") or 0), again_s)


def _accepted(body: Any) -> datetime:
    return datetime.fromisoformat(str(body["timeAccepted"]))


def _begun_by(body: Any, operation: Operation) -> bool:
    """No reference lists these names, and elsewhere in this cloud they are written with blanks."""
    written = "".join(filter(str.isalpha, str(body.get("operationType")))).lower()
    return written == operation.lower() or (operation is Operation.ACTION and "reset" in written)
