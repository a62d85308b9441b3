"""A host joins an embedded server with everything of deploy/ on it: its Machine, its certificate, and its renewal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.agent.daemon.joining import OURS, REQUESTS, TOKEN, approving, config_of, make_machine, make_token
from tests.apiserver.support import Client, client_with
from tests.cli.deployed import deployed
from tests.support.waiting import eventually
from unbounded.agent.daemon.identity import (
    client_config,
    connected,
    identity_of,
    is_set_up,
    join,
    join_credentials,
    kubelet_access,
    register,
)
from unbounded.agent.model import CertificateAccess
from unbounded.agent.paths import HostPaths
from unbounded.api.failures import Rejected, Transient
from unbounded.api.machine import MACHINES
from unbounded.join.agent_config import AgentConfig, ExecCredential, KubeletAuth
from unbounded.join.bootstrap_tokens import machine_group
from unbounded.join.csr import IdentityFiles, agent_identity, kubelet_identity, parse_certificate
from unbounded.join.labels_and_taints import KUBELET_LABELS
from unbounded.kube.api import Forbidden, NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.logs import SecretStr
from unbounded.kube.tls import client_context
from unbounded_apiserver.server import ApiServer

pytestmark = pytest.mark.slow

REFUSED = "denied request: "


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    async with deployed(tmp_path / "server") as (server, admin):
        await make_token(admin)
        yield server, admin


@pytest.fixture
def paths(tmp_path: Path) -> HostPaths:
    return HostPaths(tmp_path / "host")


def with_token(config: AgentConfig) -> HttpApi:
    return HttpApi(client_config(config, join_credentials(config, None)))


async def test_a_host_registers_its_machine_and_has_its_certificate(
    served: tuple[ApiServer, Client], paths: HostPaths
) -> None:
    server, admin = served
    labels = {"unbounded-cloud.io/site": "lab", "unbounded-cloud.io/machine": "m1", "disk": "ssd"}
    config = config_of(server, labels=labels, register_with_taints=("gpu=yes:NoSchedule",))
    async with approving(admin) as decided:
        await join(paths, config)
        await join(paths, config)  # holds a good one
    assert len(decided) == 1
    machine = await admin.get(f"{OURS}/machines/m1")
    assert machine["metadata"]["labels"] == {"unbounded-cloud.io/site": "lab"}
    assert machine["spec"]["kubernetes"] == {
        "version": "v1.34.0",
        "nodeLabels": {"disk": "ssd"},
        "registerWithTaints": ["gpu=yes:NoSchedule"],
        "bootstrapTokenRef": {"name": "bootstrap-token-abcdef"},
    }
    async with connected(paths, config) as api:
        assert (await api.get(MACHINES, "m1")).name == "m1"
        written = await api.patch(MACHINES, "m1", {"status": {"agent": {"version": "v1"}}}, subresource="status")
        assert written.status.agent is not None


async def test_a_machine_that_was_deleted_is_made_again_by_the_next_start(
    served: tuple[ApiServer, Client], paths: HostPaths
) -> None:
    server, admin = served
    config = config_of(server)
    async with approving(admin) as decided:
        assert not await is_set_up(paths, config)
        await join(paths, config)
        assert await is_set_up(paths, config)
        await admin.ask("DELETE", f"{OURS}/machines/m1")
        assert not await is_set_up(paths, config), "start looks for it, and not only for the certificate"
        await join(paths, config)
    assert await is_set_up(paths, config)
    assert (await admin.get(f"{OURS}/machines/m1"))["metadata"]["name"] == "m1"
    assert len(decided) == 1


async def test_a_machine_that_is_there_stays_as_it_is(served: tuple[ApiServer, Client], paths: HostPaths) -> None:
    server, admin = served
    made = await make_machine(admin, agent={"version": "v9"})
    await make_token(admin, machine_group(made["metadata"]["uid"]), token="bbbbbb.0123456789abcdef")
    config = config_of(server, token="bbbbbb.0123456789abcdef")
    async with approving(admin):
        await join(paths, config)
    assert (await admin.get(f"{OURS}/machines/m1"))["spec"] == made["spec"]


async def test_a_token_from_attestation_counts_before_that_of_the_file(
    served: tuple[ApiServer, Client], paths: HostPaths
) -> None:
    server, admin = served
    config = config_of(server, token="")
    with pytest.raises(Rejected, match=r"Kubelet.Auth: joining needs a BootstrapToken"):
        await join(paths, config)
    async with approving(admin):
        await join(paths, config, token=SecretStr(TOKEN))
    assert identity_of(paths, "m1")


async def test_a_server_without_our_definitions_is_named_as_such() -> None:
    class Without:
        async def get(self, *_args: Any) -> Any:
            raise NotFound("the server could not find the requested resource")

        create = get

    with pytest.raises(Rejected, match=r"install the CustomResourceDefinitions of deploy/crd/ first"):
        await register(Without(), AgentConfig(machine_name="m1"))  # type: ignore[arg-type]


async def test_a_denied_certificate_ends_joining_with_the_reason(
    served: tuple[ApiServer, Client], paths: HostPaths
) -> None:
    server, admin = served
    async with approving(admin, "Denied"):
        with pytest.raises(Rejected, match="the agent's certificate for Machine m1 was denied: Test"):
            await join(paths, config_of(server))
    with pytest.raises(Rejected, match="run `unbounded-agent start`"):
        identity_of(paths, "m1")


async def test_joining_that_was_cut_off_goes_on_with_the_same_request(
    served: tuple[ApiServer, Client], paths: HostPaths
) -> None:
    server, admin = served
    for _ in range(2):
        with pytest.raises(Transient, match="by hand: kubectl certificate approve unbounded-agent-m1-"):
            await join(paths, config_of(server), within_s=0.3)
    says = json.dumps(
        {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": {"token": TOKEN}}
    )
    program = ExecCredential(command="echo", args=(says,))
    by_program = config_of(server)
    by_program = replace(by_program, kubelet=replace(by_program.kubelet, auth=KubeletAuth(exec_credential=program)))
    with pytest.raises(
        Transient, match="approved by an administrator, as machina approves only requests of bootstrap tokens"
    ):
        await join(paths, by_program, within_s=0.3)
    assert len((await admin.get(REQUESTS))["items"]) == 1
    async with approving(admin):
        await join(paths, config_of(server))
    assert len((await admin.get(REQUESTS))["items"]) == 1


async def test_agent_renews_its_certificate_and_continues_with_the_new_one(
    served: tuple[ApiServer, Client], paths: HostPaths
) -> None:
    server, admin = served
    config = config_of(server)
    clock = [datetime.now(UTC)]
    async with approving(admin) as decided:
        await join(paths, config)
        before = IdentityFiles(paths.identity, agent_identity("m1")).stored()
        clock[0] += timedelta(days=365 * 0.95)
        identity = identity_of(paths, "m1", now=lambda: clock[0])
        async with HttpApi(client_config(config, identity)) as api:
            renewing = asyncio.create_task(identity.keep_renewed(api))

            async def renewed() -> bool:
                return IdentityFiles(paths.identity, agent_identity("m1")).stored() != before

            await eventually(renewed)
            renewing.cancel()
            login = await identity.login()
            assert before is not None
            assert login.certificate != before.certificate
            assert (await api.get(MACHINES, "m1")).name == "m1"
    assert len(decided) >= 2
    (asked,) = [one for one in (await admin.get(REQUESTS))["items"] if one["metadata"]["name"] == decided[1]]
    assert asked["spec"]["username"] == "system:node:m1"
    assert asked["spec"]["groups"][0] == "unbounded-agent-daemons"


async def test_a_certificate_that_has_run_out_is_said_with_the_remedy(
    served: tuple[ApiServer, Client], paths: HostPaths
) -> None:
    server, admin = served
    async with approving(admin):
        await join(paths, config_of(server))
    late = datetime.now(UTC) + timedelta(days=400)
    with pytest.raises(Rejected, match=r"increase spec.joinCounter of Machine m1, and run `unbounded-agent start`"):
        identity_of(paths, "m1", now=lambda: late)


async def test_the_agent_gets_the_certificate_of_its_kubelet(
    served: tuple[ApiServer, Client], paths: HostPaths
) -> None:
    server, admin = served
    config = config_of(server)
    async with approving(admin):
        await join(paths, config)
        async with connected(paths, config) as api:
            access = await kubelet_access(api, paths, config)
            assert await kubelet_access(api, paths, config) == access
    assert isinstance(access, CertificateAccess)
    assert parse_certificate(access.pem.reveal().encode(), kubelet_identity("m1"))


MADE: dict[str, Any] = {"kubernetes": {}}
OF_TOKEN = "a Machine that is created with a bootstrap token"
REFUSALS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    (
        "an address",
        {},
        {"ssh": {"host": "10.0.0.1", "privateKeyRef": {"name": "key", "namespace": "unbounded-kube"}}},
        f"{OF_TOKEN} may have only spec.kubernetes and spec.agent.image",
    ),
    ("a provider", {}, {"provider": "Azure"}, f"{OF_TOKEN} may have only spec.kubernetes and spec.agent.image"),
    ("another join", {}, {"joinCounter": 3}, f"{OF_TOKEN} may have only spec.kubernetes and spec.agent.image"),
    (
        "an agent from elsewhere",
        {},
        {"agent": {"url": "http://a/x"}},
        f"{OF_TOKEN} may have only spec.kubernetes and spec.agent.image",
    ),
    ("a label", {"labels": {"team": "a"}}, MADE, f"{OF_TOKEN} may have only the label unbounded-cloud.io/site"),
    (
        "a provider by annotation",
        {"annotations": {"unbounded-cloud.io/provider": "Azure"}},
        MADE,
        f"{OF_TOKEN} may have only the label unbounded-cloud.io/site",
    ),
    ("a finalizer", {"finalizers": ["a/b"]}, MADE, f"{OF_TOKEN} may have only the label unbounded-cloud.io/site"),
    (
        "another token",
        {},
        {"kubernetes": {"bootstrapTokenRef": {"name": "bootstrap-token-zzzzzz"}}},
        f"spec.kubernetes.bootstrapTokenRef of {OF_TOKEN} must name that token",
    ),
    *(
        (
            f"the label {label}",
            {},
            {"kubernetes": {"nodeLabels": {label: "x"}}},
            f"{OF_TOKEN} may have only labels for its Node that kubelet accepts",
        )
        for label in ("node-role.kubernetes.io/x", "tenant.node-restriction.kubernetes.io/x", "kubernetes.io/x")
    ),
]


async def test_bootstrap_token_may_create_only_a_machine_for_its_agent(served: tuple[ApiServer, Client]) -> None:
    server, _ = served
    told = {}
    async with with_token(config_of(server)) as api:
        for what, metadata, spec, said in REFUSALS:
            with pytest.raises(Forbidden) as refused:
                await api.create(MACHINES, {"metadata": {"name": "m1", **metadata}, "spec": spec})
            told[what] = (said, str(refused.value).partition(REFUSED)[2].startswith(said))
        assert all(right for _said, right in told.values()), told
        labels = dict.fromkeys((*KUBELET_LABELS, "node.kubernetes.io/x", "tier", "example.com/kubernetes.io"), "x")
        made = {"name": "m1", "labels": {"unbounded-cloud.io/site": "lab"}}
        await api.create(MACHINES, {"metadata": made, "spec": {"kubernetes": {"nodeLabels": labels}}})


async def test_a_token_that_was_made_for_a_machine_makes_no_other(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    made = await make_machine(admin)
    await make_token(admin, machine_group(made["metadata"]["uid"]), token="bbbbbb.0123456789abcdef")
    async with with_token(config_of(server, token="bbbbbb.0123456789abcdef")) as api:
        for name in ("m1", "m2"):
            refused = await register(api, config_of(server, name))
            assert "a bootstrap token of one Machine may not create another" in str(refused)
    assert (await admin.ask("GET", f"{OURS}/machines/m2")).status == 404


async def test_denied_host_without_a_machine_gets_a_remedy(served: tuple[ApiServer, Client], paths: HostPaths) -> None:
    server, admin = served
    made = await make_machine(admin)
    await make_token(admin, machine_group(made["metadata"]["uid"]), token="bbbbbb.0123456789abcdef")
    remedy = "create it, or use a bootstrap token of the site: this host may not create it"
    config = config_of(server, token="bbbbbb.0123456789abcdef")
    async with approving(admin, "Denied"):
        with pytest.raises(Rejected, match=f"was denied: .*; if the Machine does not exist, {remedy}"):
            await join(paths, config)
    async with approving(admin):
        await join(paths, config)
        await admin.ask("DELETE", f"{OURS}/machines/m1")
        with pytest.raises(Rejected, match=f"Machine m1 does not exist any more; {remedy}"):
            await join(paths, config)


async def test_a_token_can_do_nothing_else(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    await make_machine(admin)
    tried = {}
    anybody = client_context(ca=(server.data_dir / "pki" / "ca.crt").read_bytes())
    async with client_with(server, anybody, Authorization=f"Bearer {TOKEN}") as joining:
        for method, path, body in (
            ("GET", f"{OURS}/machines", None),
            ("GET", f"{OURS}/machines/m1", None),
            ("GET", f"{OURS}/machines/other", None),
            ("PATCH", f"{OURS}/machines/m1", {"spec": {"joinCounter": 1}}),
            ("PATCH", f"{OURS}/machines/m1/status", {"status": {"agent": {"version": "v1"}}}),
            ("DELETE", f"{OURS}/machines/m1", None),
            ("GET", f"{OURS}/machineoperations", None),
            ("GET", "/api/v1/nodes", None),
            ("GET", "/api/v1/namespaces/kube-system/secrets", None),
            ("GET", "/api/v1/namespaces/kube-node-lease/leases", None),
            ("PUT", f"{REQUESTS}/x/approval", {}),
        ):
            merge = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
            tried[method, path] = (await joining.ask(method, path, body, headers=merge)).status
    assert set(tried.values()) == {403}, tried
