"""The approver on a real API server: tokens and certificates as they are, attackers, crashes, and several approvers."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.explain.staging import commands, typed
from tests.machina.asking import asked_for, body, recent
from tests.support.waiting import eventually
from unbounded.api.core import CERTIFICATE_REQUESTS, EVENTS, NODES, SECRETS, CertificateRequest
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import GROUP_BOOTSTRAP
from unbounded.cli.servers import component_runtime
from unbounded.explain.chain import explain
from unbounded.explain.links import ExplainLink, Topic
from unbounded.join.bootstrap_tokens import TokenIssuer
from unbounded.join.cluster_facts import FactsFollower
from unbounded.join.csr import (
    IdentityFiles,
    StoredCertificate,
    agent_identity,
    certificate,
    kubelet_identity,
    request_name,
)
from unbounded.kube.api import Api, Forbidden, NotFound, ServerUnreachable
from unbounded.kube.cache import Cache
from unbounded.kube.client import HttpApi
from unbounded.kube.credentials import AuthInfo, StaticCredentials
from unbounded.kube.events import event_sink
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process import Runtime, running_caches
from unbounded.kube.tls import ClientCertificate
from unbounded.machina.csr_approval import controller
from unbounded.machina.csr_approval.controller import Approver

pytestmark = pytest.mark.slow

BOTH = ("agent", "kubelet")
NAMES: Final = (f"m{number}" for number in itertools.count(1))


@asynccontextmanager
async def approving(admin: HttpApi, wrap: Callable[[Api], Api] = lambda api: api) -> AsyncIterator[None]:
    """An approver at work as machina, with its rights."""
    async with AsyncExitStack() as stack:
        runtime: Runtime = await stack.enter_async_context(
            component_runtime("machina", admin, metrics=ControllerMetrics())
        )
        requests, machines = Cache(runtime.api, CERTIFICATE_REQUESTS), Cache(runtime.api, MACHINES)
        nodes, facts = Cache(runtime.api, NODES), FactsFollower(runtime.api, runtime.api.version)
        await stack.enter_async_context(running_caches(runtime, requests, machines, nodes))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        announce = event_sink(runtime.events)
        approver = Approver(wrap(runtime.api), requests, machines, nodes, facts, announce=announce)
        tasks = [group.create_task(approver.run()), group.create_task(facts.run())]
        if runtime.events is not None:
            tasks.append(group.create_task(runtime.events.run()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


class Host:
    """A client with a credential, and keys of its own."""

    _count = itertools.count(1)

    def __init__(self, api: HttpApi) -> None:
        self.api = api

    async def ask(self, machine: str, purpose: str = "agent") -> tuple[CertificateRequest, ec.EllipticCurvePrivateKey]:
        key = ec.generate_private_key(ec.SECP256R1())
        name = f"csr-{machine}-{next(self._count)}"
        sent = body(name, asked_for(machine, purpose, key=key), purpose)
        return await self.api.create(CERTIFICATE_REQUESTS, sent), key

    async def joins(self, machine: str, purpose: str = "agent") -> ClientCertificate:
        request, key = await self.ask(machine, purpose)
        found = await decided(self.api, request.name)
        assert found.status.has("Approved"), found.status
        return await issued(self.api, request.name, key)

    async def is_refused(self, machine: str, purpose: str = "agent") -> str:
        request, _ = await self.ask(machine, purpose)
        return why(await decided(self.api, request.name))


def why(request: CertificateRequest) -> str:
    """The reason of a denial."""
    return next(condition.reason for condition in request.status.conditions if condition.type == "Denied")


async def decided(api: Api, name: str) -> CertificateRequest:
    async def known() -> CertificateRequest | None:
        found = await api.get(CERTIFICATE_REQUESTS, name)
        return found if found.status.has("Approved") or found.status.has("Denied") else None

    request: CertificateRequest = await eventually(known, within_s=30)
    return request


async def issued(api: Api, name: str, key: ec.EllipticCurvePrivateKey) -> ClientCertificate:
    async def signed() -> str:
        return (await api.get(CERTIFICATE_REQUESTS, name)).status.certificate

    chain = base64.b64decode(await eventually(signed, within_s=30))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return ClientCertificate(chain, private)


@asynccontextmanager
async def as_user(admin: HttpApi, **login: Any) -> AsyncIterator[Host]:
    config = replace(admin.config, credentials=StaticCredentials(AuthInfo(**login)))
    async with HttpApi(config) as api:
        yield Host(api)


async def new_machine(admin: HttpApi, name: str = "") -> Machine:
    return await admin.create(MACHINES, {"metadata": {"name": name or next(NAMES)}})


@asynccontextmanager
async def with_token(admin: HttpApi, machine: Machine) -> AsyncIterator[Host]:
    """The host of a Machine that was given a token of its own."""
    token, _ = await TokenIssuer(admin).issue(await admin.get(MACHINES, machine.name))
    async with as_user(admin, token=token.text.reveal()) as host:
        yield host


@asynccontextmanager
async def with_site_token(admin: HttpApi) -> AsyncIterator[Host]:
    """A host that has the token of a whole site."""
    data = {
        "token-id": "aaaaaa",
        "token-secret": "0123456789abcdef",
        "usage-bootstrap-authentication": "true",
        "auth-extra-groups": GROUP_BOOTSTRAP,
    }
    secret = {
        "metadata": {"name": "bootstrap-token-aaaaaa"},
        "type": "bootstrap.kubernetes.io/token",
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }
    await admin.create(SECRETS, secret, namespace="kube-system")
    try:
        async with as_user(admin, token="aaaaaa.0123456789abcdef") as host:
            yield host
    finally:
        await admin.delete(SECRETS, "bootstrap-token-aaaaaa", namespace="kube-system")


@asynccontextmanager
async def joined(admin: HttpApi) -> AsyncIterator[tuple[Machine, Host, Host]]:
    """A Machine that has joined: it, its agent and its kubelet."""
    machine = await new_machine(admin)
    async with with_token(admin, machine) as host:
        certificates = {purpose: await host.joins(machine.name, purpose) for purpose in BOTH}
    async with (
        as_user(admin, certificate=certificates["agent"]) as agent,
        as_user(admin, certificate=certificates["kubelet"]) as kubelet,
    ):
        yield machine, agent, kubelet


async def test_machine_token_grants_exactly_two_certificates(admin: HttpApi) -> None:
    machine = await new_machine(admin)
    async with approving(admin), with_token(admin, machine) as host:
        for purpose in BOTH:
            await host.joins(machine.name, purpose)
        for purpose in BOTH:
            assert await host.is_refused(machine.name, purpose) == "NoJoinOpen"
    used = (await admin.get(MACHINES, machine.name)).status.join
    assert used is not None
    assert [(use.purpose, use.cause) for use in used.used] == [(purpose, "Registration") for purpose in BOTH]


async def test_what_was_issued_is_the_agent_and_the_kubelet_of_the_machine(admin: HttpApi) -> None:
    async with approving(admin), joined(admin) as (machine, agent, kubelet):
        assert (await agent.api.get(MACHINES, machine.name)).name == machine.name
        with pytest.raises(Forbidden, match=f'User "system:node:{machine.name}" cannot list resource "machines"'):
            await kubelet.api.list(MACHINES)


async def test_what_the_agent_asks_for_is_what_is_granted(admin: HttpApi, tmp_path: Path) -> None:
    machine = await new_machine(admin)
    async with approving(admin), with_token(admin, machine) as host:
        for wanted in (agent_identity(machine.name), kubelet_identity(machine.name)):
            held = await certificate(host.api, IdentityFiles(tmp_path, wanted), wanted)
            async with as_user(admin, certificate=held.certificate) as itself:
                await itself.api.get(CERTIFICATE_REQUESTS, request_name(wanted, _key_of(held)))
                renewed = await certificate(itself.api, IdentityFiles(tmp_path / "next", wanted), wanted)
            assert renewed.certificate.chain != held.certificate.chain


def _key_of(held: StoredCertificate) -> ec.EllipticCurvePrivateKey:
    found = serialization.load_pem_private_key(held.certificate.key, None)
    assert isinstance(found, ec.EllipticCurvePrivateKey)
    return found


async def test_join_and_denial_are_reported_at_the_machine(admin: HttpApi) -> None:
    machine = await new_machine(admin)

    async def told(count: int) -> bool:
        fields = f"involvedObject.name={machine.name}"
        events = (await admin.list(EVENTS, namespace="default", fields=fields)).items
        assert {event.reason for event in events} <= {"JoinAllowed", "JoinRefused"}
        return len(events) == count

    async def answer() -> ExplainLink:
        found = await explain(admin, Topic.MACHINE, machine.name)
        links, unread = found.links, found.unread
        assert unread == ()
        return links[0]

    async with approving(admin), with_token(admin, machine) as host:
        await host.joins(machine.name)
        await host.is_refused(machine.name)
        await eventually(lambda: told(2), within_s=30)
        refused = await answer()
        assert "the agent of Machine" in refused.what
        assert "already has its certificate (last for Registration at " in refused.what
        assert refused.next_step == "the host requests it again"
        assert commands([refused]) == [f"kubectl unbounded machine allow-join {machine.name}"]
        await typed(admin, commands([refused])[0])
        assert (await answer()).next_step.startswith("it may join now; the host requests it again")
        await host.joins(machine.name)
        await eventually(lambda: told(3), within_s=30)
        assert (await answer()).what == "Ready: The Machine needs no Node; nothing blocks it"


async def test_a_raised_join_counter_lets_it_join_once_more(admin: HttpApi) -> None:
    async with approving(admin), joined(admin) as (machine, _, _), with_token(admin, machine) as host:
        await admin.patch(MACHINES, machine.name, {"spec": {"joinCounter": 1}})
        await host.joins(machine.name)
        assert await host.is_refused(machine.name) == "NoJoinOpen"
        await host.joins(machine.name, "kubelet")
        await admin.patch(MACHINES, machine.name, {"spec": {"joinCounter": 0}})
        assert await host.is_refused(machine.name, "kubelet") == "NoJoinOpen"


async def test_a_reset_lets_it_join_once_more(admin: HttpApi) -> None:
    async with approving(admin), joined(admin) as (machine, _, _), with_token(admin, machine) as host:
        assert await host.is_refused(machine.name) == "NoJoinOpen"
        status = {"recentOperations": [recent("AgentReset", "u1")]}
        await admin.patch(MACHINES, machine.name, {"status": status}, subresource="status")
        await host.joins(machine.name)
        assert await host.is_refused(machine.name) == "NoJoinOpen"


async def test_a_token_opens_neither_another_machine_nor_one_that_was_made_again(admin: HttpApi) -> None:
    machine, other = await new_machine(admin), await new_machine(admin)
    async with approving(admin), with_token(admin, machine) as host:
        for purpose in BOTH:
            assert await host.is_refused(other.name, purpose) == "ForeignToken"

        async def told() -> bool:
            links = (await explain(admin, Topic.MACHINE, other.name)).links
            another = [f"kubectl unbounded machine manual-bootstrap {other.name} --site SITE"]
            return f"was created for a Machine other than {other.name}" in links[0].what and commands(links) == another

        await eventually(told, within_s=30)
        await admin.delete(MACHINES, machine.name)
        assert await host.is_refused(machine.name) == "MachineNotFound"
        await new_machine(admin, machine.name)
        assert await host.is_refused(machine.name) == "ForeignToken"
        async with with_site_token(admin) as stranger:
            await stranger.joins(machine.name)


async def test_site_token_admits_only_machines_that_have_not_joined(
    admin: HttpApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with approving(admin), joined(admin) as (machine, _, _), with_site_token(admin) as host:
        assert await host.is_refused(machine.name) == "NoJoinOpen"
        name = f"late-{machine.name}"
        late, _ = await host.ask(name)
        await admin.create(MACHINES, {"metadata": {"name": name}})
        assert (await decided(admin, late.name)).status.has("Approved")
        monkeypatch.setattr(controller, "MACHINE_WAIT_S", 0.5)
        assert await host.is_refused("none-such") == "MachineNotFound"


async def test_who_holds_a_certificate_renews_it_and_gets_no_other(admin: HttpApi) -> None:
    async with approving(admin), joined(admin) as (machine, agent, kubelet):
        await agent.joins(machine.name)
        await agent.joins(machine.name, "kubelet")
        await kubelet.joins(machine.name, "kubelet")
        other = await new_machine(admin)
        assert await agent.is_refused(other.name) == "ForeignIdentity"
        assert await agent.is_refused(other.name, "kubelet") == "ForeignIdentity"
        assert await kubelet.is_refused(machine.name) == "ForeignIdentity"
        assert (await admin.get(MACHINES, other.name)).status.join is None
        await admin.delete(MACHINES, machine.name)
        assert await agent.is_refused(machine.name) == "MachineNotFound"


async def test_without_the_approver_nothing_is_approved(admin: HttpApi) -> None:
    """No role of ours lets the server approve by itself what the approver would refuse."""
    async with approving(admin), joined(admin) as (machine, _, _):
        pass
    async with with_token(admin, machine) as host:
        asked = [await host.ask(machine.name, purpose) for purpose in BOTH]
    async with as_user(admin, token="") as nobody:
        with pytest.raises(Forbidden):
            await nobody.ask(machine.name)
    marker, _ = await Host(admin).ask(machine.name, "kubelet")  # the administrator's own: approved by his role
    await decided(admin, marker.name)
    for request, _ in asked:
        assert (await admin.get(CERTIFICATE_REQUESTS, request.name)).status.conditions == ()


class Cut:
    """An API whose approvals are lost before they arrive, as when the process dies after it has written the use."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.lost: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.api, name)

    async def patch(self, kind: Any, name: str, patch: Any, **where: Any) -> Any:
        if where.get("subresource") == "approval":
            self.lost.add(name)
            raise ServerUnreachable("cut off")
        return await self.api.patch(kind, name, patch, **where)


async def test_an_approver_that_died_before_its_approval_gives_it_after_its_restart(admin: HttpApi) -> None:
    machine = await new_machine(admin)
    cuts: list[Cut] = []

    def cut(api: Api) -> Api:
        cuts.append(Cut(api))
        found: Any = cuts[0]
        return cast("Api", found)

    async with with_token(admin, machine) as host:
        async with approving(admin, cut):
            first, _ = await host.ask(machine.name)

            async def is_lost() -> bool:
                return first.name in cuts[0].lost  # and not one that an earlier test has left behind

            await eventually(is_lost, within_s=30)
        second, _ = await host.ask(machine.name)
        async with approving(admin):
            assert why(await decided(admin, second.name)) == "NoJoinOpen"
            assert (await decided(admin, first.name)).status.has("Approved")
    used = (await admin.get(MACHINES, machine.name)).status.join
    assert used is not None
    assert [use.request for use in used.used] == [first.metadata.uid]


async def test_of_many_requests_to_several_approvers_one_is_granted(admin: HttpApi) -> None:
    machine = await new_machine(admin)
    async with with_token(admin, machine) as host:
        asked = [await host.ask(machine.name) for _ in range(8)]
        async with approving(admin), approving(admin):
            found = await asyncio.gather(*(decided(admin, request.name) for request, _ in asked))
    assert sum(request.status.has("Approved") for request in found) == 1
    assert {why(request) for request in found if request.status.has("Denied")} == {"NoJoinOpen"}


async def test_machina_may_approve_only_requests_of_agents_and_kubelets(admin: HttpApi) -> None:
    request, _ = await Host(admin).ask("m-admin")
    patch = {"status": {"conditions": [{"type": "Approved", "status": "True"}]}}
    async with component_runtime("machina", admin, metrics=ControllerMetrics()) as runtime:
        with pytest.raises(Forbidden, match="machina may decide on requests of agents and kubelets only"):
            await runtime.api.patch(CERTIFICATE_REQUESTS, request.name, patch, subresource="approval")
        with pytest.raises(NotFound):
            await runtime.api.patch(CERTIFICATE_REQUESTS, "none", patch, subresource="approval")
