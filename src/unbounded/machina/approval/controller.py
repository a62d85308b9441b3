"""The loop over CertificateSigningRequests: reads them and their Machine live, and carries out what `plan` decides."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unbounded.api.core import CERTIFICATE_REQUESTS, CertificateRequest
from unbounded.api.failures import Rejected
from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.controller import Controller
from unbounded.kube.errors import NotFound
from unbounded.kube.logs import Log
from unbounded.kube.metrics import Metrics
from unbounded.kube.port import Api
from unbounded.machina.approval.causes import JOIN_ALLOWED, JOIN_REFUSED, is_recorded, recorded
from unbounded.machina.approval.plan import Admit, Deny, NotMine, Renew, Verdict, Wait, is_ours, machine_concerned, plan
from unbounded.operations.announcing import Announce, silence

MACHINE_WAIT_S: Final = 60.0  # as long as an operation waits for its Machine
RENEWED: Final = "Renewal"

log = Log("approval")


@dataclass(frozen=True)
class _Waiting:
    """A request whose Machine is not there yet, and since when on our clock."""

    uid: str
    machine: str
    since: float


class Approver:
    """Approves or denies what agents and kubelets ask for, and leaves all other requests alone.

    What a join uses up is written to the Machine, which must not have changed since it was looked at, before the
    request is approved. So of several requests, and of several approvers, one gets it; and where the approval was lost
    after that, the same request gets it later.
    """

    def __init__(
        self,
        api: Api,
        requests: Cache[CertificateRequest],
        machines: Cache[Machine],
        *,
        announce: Announce = silence,
        now: WallClock = utc_now,
        loop_metrics: Metrics | None = None,
    ) -> None:
        self._api = api
        self._requests = requests
        self._machines = machines
        self._announce = announce
        self._now = now
        self._waiting: dict[str, _Waiting] = {}
        self._controller: Controller[str] = Controller("approval", self._reconcile, workers=4, metrics=loop_metrics)

    async def run(self) -> None:
        """Work until cancelled."""
        self._waiting.clear()
        with (
            self._requests.subscribed(lambda old, new: self._request_changed(new or old)),
            self._machines.subscribed(self._machine_changed),
        ):
            await self._controller.run()

    def _request_changed(self, request: CertificateRequest | None) -> None:
        if request is not None and (is_ours(request) or request.name in self._waiting):
            self._controller.enqueue(request.name)

    def _machine_changed(self, old: Machine | None, new: Machine | None) -> None:
        if old is not None or new is None:
            return
        for name, waiting in self._waiting.items():
            if waiting.machine == new.name:
                self._controller.enqueue(name)

    async def _reconcile(self, name: str) -> float | None:
        raw = await self._live(name)
        if raw is None:
            self._waiting.pop(name, None)
            return None
        request = msgspec.convert(raw, CertificateRequest)
        machine = await self._machine(machine_concerned(request)) if is_ours(request) else None
        decided = plan(request, machine, waited=self._waited_s(request) >= MACHINE_WAIT_S)
        if isinstance(decided, Wait):
            return self._wait(request)
        self._waiting.pop(name, None)
        await self._carry_out(raw, request, machine, decided)
        return None

    async def _live(self, name: str) -> dict[str, Any] | None:
        if self._requests.get(name) is None:
            return None
        try:
            return await self._api.get(CERTIFICATE_REQUESTS.raw(), name)
        except NotFound:
            return None

    async def _machine(self, name: str | None) -> Machine | None:
        if name is None:
            return None
        try:
            return await self._api.get(MACHINES, name)
        except NotFound:
            return None

    def _wait(self, request: CertificateRequest) -> float:
        uid, machine = request.metadata.uid, machine_concerned(request) or ""
        if request.name not in self._waiting or self._waiting[request.name].uid != uid:
            self._waiting[request.name] = _Waiting(uid, machine, _loop_time())
        return max(MACHINE_WAIT_S - self._waited_s(request), 0.01)

    def _waited_s(self, request: CertificateRequest) -> float:
        waiting = self._waiting.get(request.name)
        return 0.0 if waiting is None or waiting.uid != request.metadata.uid else _loop_time() - waiting.since

    async def _carry_out(
        self, raw: dict[str, Any], request: CertificateRequest, machine: Machine | None, decided: Verdict
    ) -> None:
        match decided:
            case NotMine() | Wait():
                return
            case Deny(reason=reason, message=message):
                await self._decide(raw, "Denied", reason, message)
                self._tell(machine, "Warning", JOIN_REFUSED, f"{request.name} of {request.spec.username}: {message}")
            case Renew(purpose=purpose):
                words = f"{request.spec.username} asks for the next certificate of its {purpose}"
                await self._decide(raw, "Approved", RENEWED, words)
            case Admit(purpose=purpose) if machine is not None:
                await self._admit(raw, request, machine, decided)
                words = f"the {purpose} of Machine {machine.name} gets its certificate ({request.name})"
                self._tell(machine, "Normal", JOIN_ALLOWED, words)

    async def _admit(self, raw: dict[str, Any], request: CertificateRequest, machine: Machine, decided: Admit) -> None:
        if decided.causes:
            await self._use_up(request, machine, decided)
        because = f" ({', '.join(decided.causes)})" if decided.causes else ""
        words = f"Machine {machine.name} may join{because}: this is the certificate of its {decided.purpose}"
        await self._decide(raw, "Approved", JOIN_ALLOWED, words)

    async def _use_up(self, request: CertificateRequest, machine: Machine, decided: Admit) -> None:
        uid = request.metadata.uid
        uses = recorded(machine, decided.purpose, decided.causes, request=uid, now=rfc3339(self._now()))
        patch = {
            "metadata": {"resourceVersion": machine.metadata.resource_version},
            "status": {"join": {"used": [msgspec.to_builtins(use) for use in uses]}},
        }
        written = await self._api.patch(MACHINES, machine.name, patch, subresource="status")
        if not is_recorded(written, decided.purpose, uid):
            raise Rejected("the CustomResourceDefinition of Machine is older than this program: it has no status.join")
        self._machines.saw(written)

    async def _decide(self, raw: dict[str, Any], kind: str, reason: str, message: str) -> None:
        """Add a condition to the request as it was read; raises Conflict where it has changed since."""
        at = rfc3339(self._now())
        condition = {"type": kind, "status": "True", "reason": reason, "message": message, "lastUpdateTime": at}
        before = raw.get("status", {}).get("conditions") or []
        meta = raw["metadata"]
        patch = {
            "metadata": {"resourceVersion": meta["resourceVersion"]},
            "status": {"conditions": [*before, condition]},
        }
        written = await self._api.patch(CERTIFICATE_REQUESTS, meta["name"], patch, subresource="approval")
        self._requests.saw(written)
        log.info("certificate request decided", request=meta["name"], decision=kind, reason=reason)

    def _tell(self, machine: Machine | None, kind: str, reason: str, message: str) -> None:
        if machine is not None:
            self._announce(machine, kind, reason, message)


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
