"""Hand-over of agents to the target: their Machines on the source name it, and the source relays their certificates."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from unbounded.agent.cluster_access import ClusterAccess, fingerprint
from unbounded.api.conditions import ConditionType
from unbounded.api.core import CERTIFICATE_REQUESTS, NODES, CertificateRequest
from unbounded.api.failures import Failure
from unbounded.api.machine import MACHINES, JoinPurpose, Machine
from unbounded.api.names import (
    ANNOTATION_SUCCESSOR,
    SIGNER_AGENT,
    SIGNER_KUBELET,
    SIGNER_SUCCESSOR_AGENT,
    SIGNER_SUCCESSOR_KUBELET,
)
from unbounded.cli.migrate.copier import AT_ONCE, Report
from unbounded.cli.migrate.sides import MigrationSource, MigrationTarget
from unbounded.cli.terminal_text import one_line
from unbounded.join.migration_successor import Successor, encoded
from unbounded.kube.api import AlreadyExists, Api
from unbounded.kube.tasks import gather
from unbounded.machina.csr_approval.request import Holder, UnfitRequest, is_decided, requested_machine, requester_of

POLL_S: Final = 1.0
_SHOWN: Final = 5
_SIGNERS: Final[Mapping[str, tuple[str, JoinPurpose]]] = {
    SIGNER_SUCCESSOR_AGENT: (SIGNER_AGENT, JoinPurpose.AGENT),
    SIGNER_SUCCESSOR_KUBELET: (SIGNER_KUBELET, JoinPurpose.KUBELET),
}


async def hand_over(source: MigrationSource, target: MigrationTarget, report: Report) -> None:
    """Serve agents until the last one has followed, or until cancelled."""
    access, reported = await target.access(), ""
    while True:
        try:
            behind = await _pending_machines(source.api, target.api, access)
            if (words := _pending_text(behind)) != reported:
                reported = words
                report(words)
            if not behind:
                return
            await _announce(source.api, target.api, access, list(behind))
            await relay(source.api, target.api)
        except Failure as error:
            if str(error) != reported:
                reported = str(error)
                report(f"agents wait: {error}")
        await asyncio.sleep(POLL_S)


def _pending_text(behind: Mapping[str, str]) -> str:
    if not behind:
        return "all agents have moved: this data is not needed any more"
    more = f" and {len(behind) - _SHOWN} more" if len(behind) > _SHOWN else ""
    lines = [f"{len(behind)} agents have not moved yet: {', '.join(list(behind)[:_SHOWN])}{more}"]
    lines += [one_line(f"  {name}: {why}") for name, why in behind.items() if why][:_SHOWN]
    return "\n".join(lines)


async def _pending_machines(here: Api, existing: Api, access: ClusterAccess) -> dict[str, str]:
    """Return the Machines whose agents use another API server than the target, each with the reason that its agent
    reports.

    Machines that were deleted on the target have no agent to wait for.
    """
    agents = {
        one.name: _pending_reason(one) for one in (await here.list(MACHINES)).items if one.status.agent is not None
    }
    used = (access.server, fingerprint(access.ca_pem))
    behind = (one.name for one in (await existing.list(MACHINES)).items if one.name in agents and _used(one) != used)
    return {name: agents[name] for name in sorted(behind)}


def _pending_reason(machine: Machine) -> str:
    """Return why an agent does not follow; empty where it reports no reason."""
    current = ConditionType.CLUSTER_ACCESS_CURRENT
    found = (one for one in machine.status.conditions if one.type == current and one.status == "False")
    return next((one.message for one in found), "")


def _used(machine: Machine) -> tuple[str | None, str | None]:
    agent = machine.status.agent
    return (agent.api_server, agent.cluster_ca) if agent is not None else (None, None)


async def _announce(here: Api, existing: Api, access: ClusterAccess, names: list[str]) -> None:
    """Set the successor on each Machine whose agent has to follow."""
    machines = {one.name: one.metadata.uid for one in (await existing.list(MACHINES)).items}
    nodes = {one.metadata.name: one.metadata.uid for one in (await existing.list(NODES)).items}
    before = {one.name: one.metadata.annotations.get(ANNOTATION_SUCCESSOR) for one in (await here.list(MACHINES)).items}
    free = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> None:
        successor = Successor(
            server=access.server,
            ca_pem=access.ca_pem,
            dns=access.dns,
            machine_uid=machines[name],
            node_uid=nodes.get(name, ""),
        )
        if before.get(name) != encoded(successor):
            async with free:
                body = {"metadata": {"annotations": {ANNOTATION_SUCCESSOR: encoded(successor)}}}
                await here.patch(MACHINES, name, body)

    await gather(one(name) for name in names if name in before)


async def relay(here: Api, existing: Api) -> None:
    """Relay the certificate requests that agents make on the source to the target, and the certificates back."""
    requests = (await here.list(CERTIFICATE_REQUESTS)).items
    open_ones = [one for one in requests if one.spec.signer_name in _SIGNERS and not _is_done(one)]
    free = asyncio.Semaphore(AT_ONCE)

    async def one(request: CertificateRequest) -> None:
        async with free:
            await _relay(here, existing, request)

    await gather(one(request) for request in open_ones)


def _is_done(request: CertificateRequest) -> bool:
    return bool(request.status.certificate) or request.status.has("Denied") or request.status.has("Failed")


def unfit(request: CertificateRequest) -> str:
    """Return why a request is none of an agent for itself or its kubelet; empty where it is one. Pure."""
    asker, (_, purpose) = requester_of(request), _SIGNERS[request.spec.signer_name]
    if not isinstance(asker, Holder) or asker.purpose is not JoinPurpose.AGENT:
        return f"{request.spec.username} is not an agent with its own certificate"
    try:
        named = requested_machine(request, purpose)
    except UnfitRequest as error:
        return str(error)
    return "" if named == asker.machine else f"{request.spec.username} requests a certificate of {named}"


async def _relay(here: Api, existing: Api, request: CertificateRequest) -> None:
    if why := unfit(request):
        await _decide(here, request.name, "Denied", why)
        return
    signer, _ = _SIGNERS[request.spec.signer_name]
    desired = {"request": request.spec.request, "signerName": signer, "usages": list(request.spec.usages)}
    try:
        response = await existing.create(CERTIFICATE_REQUESTS, {"metadata": {"name": request.name}, "spec": desired})
    except AlreadyExists:
        response = await existing.get(CERTIFICATE_REQUESTS, request.name)
        if response.spec.request != request.spec.request or response.spec.signer_name != signer:
            await _decide(here, request.name, "Denied", "the target has another request of this name")
            return
    if not is_decided(response):
        await _decide(
            existing, request.name, "Approved", "an agent requested it with its certificate of the old server"
        )
    certificate = response.status.certificate
    if not certificate:
        return  # the next round finds it
    await _decide(here, request.name, "Approved", "the target has signed it")
    await here.patch(CERTIFICATE_REQUESTS, request.name, {"status": {"certificate": certificate}}, subresource="status")


async def _decide(api: Api, name: str, decision: str, why: str) -> None:
    condition = {"type": decision, "status": "True", "reason": "Migration", "message": why}
    patch = {"status": {"conditions": [condition]}}
    await api.patch(CERTIFICATE_REQUESTS, name, patch, subresource="approval")
