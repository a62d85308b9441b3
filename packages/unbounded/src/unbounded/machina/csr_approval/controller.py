"""Loop over CertificateSigningRequests: reads them and their Machine live, and carries out the verdict of `plan`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from unbounded.api.core import CERTIFICATE_REQUESTS, NODES, SERVICES, CertificateRequest, Node
from unbounded.api.failures import Rejected, Transient
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import NODE_USER
from unbounded.join.cluster_facts import FactsFollower
from unbounded.kube.api import Api, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, loop_time, rfc3339, utc_now
from unbounded.kube.controller import Controller
from unbounded.kube.events import EventSink, no_events
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.status_writer import StatusWriter
from unbounded.machina.csr_approval import plan as csr_plan
from unbounded.machina.csr_approval import serving_certificates as serving

MACHINE_WAIT_S: Final = 60.0  # as long as an operation waits for its Machine
NODE_POLL_S: Final = 2.0  # between reads for addresses that a Node has not reported yet
RENEWED: Final = "Renewal"
SERVING: Final = "ServingAllowed"
SERVING_REFUSED: Final = "ServingRefused"  # reason of the Event on the Machine
API_NAMESPACE: Final = "default"
API_SERVICE: Final = "kubernetes"

log = Log("approval")


@dataclass(frozen=True)
class _WaitingRequest:
    """A request whose Machine does not exist yet, and since when by the local clock."""

    uid: str
    machine: str
    since: float


class Approver:
    """Controller that approves or denies requests of agents and kubelets and ignores all others.

    Before an approval the controller records the used causes in the Machine. The write fails if the Machine has changed
    since the read, so only one of several requests or approvers succeeds. If the approval is lost after the record, the
    same request gets it later.

    Args:
        nodes, facts: owners of names and addresses, for serving certificates.
    """

    def __init__(
        self,
        api: Api,
        requests: Cache[CertificateRequest],
        machines: Cache[Machine],
        nodes: Cache[Node],
        facts: FactsFollower,
        *,
        announce: EventSink = no_events,
        now: WallClock = utc_now,
        loop_metrics: ControllerMetrics | None = None,
    ) -> None:
        self._api = api
        self._requests = requests
        self._machines = machines
        self._status = StatusWriter(api, MACHINES, fields=("join",), cache=machines)
        self._nodes = nodes
        self._facts = facts
        self._announce = announce
        self._now = now
        self._waiting: dict[str, _WaitingRequest] = {}
        self._controller: Controller[str] = Controller("approval", self._reconcile, workers=4, metrics=loop_metrics)
        self._controller.follow(requests, self._if_ours)
        # only a Machine that is new or gone
        self._controller.follow(machines, self._requests_waiting_for, parts=lambda _machine: None)

    async def run(self) -> None:
        """Run until cancelled."""
        self._waiting.clear()
        await self._controller.run()

    def _if_ours(self, request: CertificateRequest) -> tuple[str, ...]:
        return (request.name,) if _is_ours(request) or request.name in self._waiting else ()

    def _requests_waiting_for(self, machine: Machine) -> list[str]:
        return [name for name, waiting in self._waiting.items() if waiting.machine == machine.name]

    async def _reconcile(self, name: str) -> float | None:
        raw = await self._live(name)
        if raw is None:
            self._waiting.pop(name, None)
            return None
        request = msgspec.convert(raw, CertificateRequest)
        machine = await self._machine(_machine_of(request)) if _is_ours(request) else None
        waited = self._waited_s(request) >= MACHINE_WAIT_S
        if serving.is_serving(request):
            around = serving.NameOwners() if machine is None else await self._name_owners(machine)
            decided = serving.plan_serving(request, machine, around, waited=waited)
        else:
            decided = csr_plan.plan(request, machine, waited=waited)
        if isinstance(decided, csr_plan.Defer):
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

    async def _name_owners(self, machine: Machine) -> serving.NameOwners:
        """Read the owners of names and addresses.

        Raises:
            Transient: the caches are not synced yet.
        """
        facts = self._facts.facts
        if facts is None:
            raise Transient(f"the addresses of the cluster are unknown: {self._facts.missing}")
        api = {urlsplit(facts.apiserver_url).hostname or "", facts.cluster_dns, *await self._api_addresses()}
        return serving.NameOwners(
            await self._node(machine.name),
            frozenset(serving.normalize(one) for one in api if one),
            serving.names_of_other_machines(machine.name, self._machines.all()),
            serving.names_of_other_nodes(machine.name, self._nodes.all()),
        )

    async def _node(self, name: str) -> Node | None:
        try:
            return await self._api.get(NODES, name)
        except NotFound:
            return None

    async def _api_addresses(self) -> tuple[str, ...]:
        """Read the addresses of the Service of the API server; empty if the cluster has no such Service."""
        try:
            spec = (await self._api.get(SERVICES, API_SERVICE, namespace=API_NAMESPACE)).spec
        except NotFound:
            return ()
        return (spec.cluster_ip or "", *spec.cluster_ips)

    def _wait(self, request: CertificateRequest) -> float:
        uid, machine = request.metadata.uid, _machine_of(request) or ""
        if request.name not in self._waiting or self._waiting[request.name].uid != uid:
            self._waiting[request.name] = _WaitingRequest(uid, machine, loop_time())
        left_s = max(MACHINE_WAIT_S - self._waited_s(request), 0.01)
        return min(left_s, NODE_POLL_S) if serving.is_serving(request) else left_s

    def _waited_s(self, request: CertificateRequest) -> float:
        waiting = self._waiting.get(request.name)
        return 0.0 if waiting is None or waiting.uid != request.metadata.uid else loop_time() - waiting.since

    async def _carry_out(
        self, raw: dict[str, Any], request: CertificateRequest, machine: Machine | None, decided: csr_plan.Verdict
    ) -> None:
        match decided:
            case csr_plan.NotOurs() | csr_plan.Defer():
                return
            case csr_plan.Deny(reason=reason, message=message):
                await self._write_decision(raw, "Denied", reason, message)
                event_reason = SERVING_REFUSED if serving.is_serving(request) else csr_plan.JOIN_REFUSED
                self._emit_event(
                    machine, "Warning", event_reason, f"{request.name} of {request.spec.username}: {message}"
                )
            case csr_plan.ApproveServing(names=names):
                words = f"the kubelet of Machine {request.spec.username.removeprefix(NODE_USER)} serves"
                await self._write_decision(raw, "Approved", SERVING, f"{words} {', '.join(names)}")
            case csr_plan.ApproveRenewal(purpose=purpose):
                words = f"{request.spec.username} renews the certificate of its {purpose}"
                await self._write_decision(raw, "Approved", RENEWED, words)
            case csr_plan.ApproveJoin(purpose=purpose) if machine is not None:
                await self._approve_join(raw, request, machine, decided)
                words = f"the {purpose} of Machine {machine.name} receives its certificate ({request.name})"
                self._emit_event(machine, "Normal", csr_plan.JOIN_ALLOWED, words)

    async def _approve_join(
        self, raw: dict[str, Any], request: CertificateRequest, machine: Machine, decided: csr_plan.ApproveJoin
    ) -> None:
        if decided.causes:
            await self._record_use(request, machine, decided)
        because = f" ({', '.join(decided.causes)})" if decided.causes else ""
        words = f"Machine {machine.name} may join{because}: this is the certificate of its {decided.purpose}"
        await self._write_decision(raw, "Approved", csr_plan.JOIN_ALLOWED, words)

    async def _record_use(self, request: CertificateRequest, machine: Machine, decided: csr_plan.ApproveJoin) -> None:
        uid = request.metadata.uid
        uses = csr_plan.with_recorded(machine, decided.purpose, decided.causes, request=uid, now=rfc3339(self._now()))
        written = await self._status.write(machine, {"join": {"used": [msgspec.to_builtins(use) for use in uses]}})
        if written is None or not csr_plan.is_recorded(written, decided.purpose, uid):
            raise Rejected("the CustomResourceDefinition of Machine is older than this program and has no status.join")

    async def _write_decision(self, raw: dict[str, Any], kind: str, reason: str, message: str) -> None:
        """Add a condition to the request as it was read; raises Conflict if it has changed since."""
        at = rfc3339(self._now())
        condition = {"type": kind, "status": "True", "reason": reason, "message": message, "lastUpdateTime": at}
        before = raw.get("status", {}).get("conditions") or []
        meta = raw["metadata"]
        patch = {
            "metadata": {"resourceVersion": meta["resourceVersion"]},
            "status": {"conditions": [*before, condition]},
        }
        written = await self._api.patch(CERTIFICATE_REQUESTS, meta["name"], patch, subresource="approval")
        self._requests.observe(written)
        log.info("certificate request decided", request=meta["name"], decision=kind, reason=reason)

    def _emit_event(self, machine: Machine | None, kind: str, reason: str, message: str) -> None:
        if machine is not None:
            self._announce(machine, kind, reason, message)


def _is_ours(request: CertificateRequest) -> bool:
    return csr_plan.is_ours(request) or serving.is_serving(request)


def _machine_of(request: CertificateRequest) -> str | None:
    return serving.machine_serving(request) if serving.is_serving(request) else csr_plan.machine_concerned(request)
