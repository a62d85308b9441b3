"""From a TPM to a Node: metalman under its own rights on a real server, and a machine that joins with its token."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec

from tests.apiserver.support import Client, client_with
from tests.apiserver.test_certificates import REQUESTS, decide, identity, node_asking, signed
from tests.cli.deployed import deployed
from tests.cli.running import KUBECTL
from tests.explain.staging import commands
from tests.fetch.registries import served
from tests.support.software_tpm import SoftwareTpm, needs_tpm, software_tpm
from tests.support.token_groups import machine_of
from tests.support.waiting import eventually
from unbounded.api.core import EVENTS, SECRETS
from unbounded.api.failures import Rejected
from unbounded.api.machine import MACHINES
from unbounded.cli.servers import component_runtime, publish_cluster_info
from unbounded.explain.chain import explain
from unbounded.explain.links import Topic
from unbounded.join.attest_client import attest
from unbounded.join.bootstrap_tokens import site_token_manifest
from unbounded.join.cluster_facts import FactsFollower
from unbounded.join.tpm import socket_tpm
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.tls import client_context
from unbounded.metalman.attest.challenge import Challenges
from unbounded.metalman.attest.quote import QUOTED
from unbounded.metalman.attest.service import AttestationService
from unbounded.metalman.netboot.model import FactUnknown
from unbounded.metalman.netboot.template_data import ClusterTemplateContext
from unbounded_apiserver.server import ApiServer

pytestmark = [pytest.mark.slow, needs_tpm]


@dataclass
class Site:
    """The embedded API server, its administrator, and metalman's attestation for Machine m1 at `url`."""

    server: ApiServer
    admin: Client
    root: HttpApi
    url: str
    files: ClusterTemplateContext


@asynccontextmanager
async def site(folder: Path) -> AsyncIterator[Site]:
    async with deployed(folder) as (server, admin):
        config = from_kubeconfig(server.kubeconfig_path)
        async with (
            HttpApi(config) as root,
            component_runtime("metalman", root, metrics=ControllerMetrics()) as metalman,
        ):
            await publish_cluster_info(root, server.url, config.ca or b"")
            for name in ("m1", "m2"):
                await root.create(MACHINES, {"metadata": {"name": name}})
            follower = FactsFollower(metalman.api, metalman.api.version)
            attestation = AttestationService(
                metalman.api, lambda: follower.facts, Challenges(b"k" * 32), events=metalman.events
            )

            async def handle(request: web.BaseRequest) -> web.StreamResponse:
                machine = await metalman.api.get(MACHINES, "m1")
                answer = await attestation.answer(machine, await request.read(), "boot", None)
                headers = {"Retry-After": "0"} if answer.retry_after_s is not None else {}
                return web.json_response(dict(answer.body), status=answer.code, headers=headers)

            assert metalman.events is not None
            tasks = [asyncio.create_task(follower.run()), asyncio.create_task(metalman.events.run())]
            try:
                async with served(handle) as host:
                    yield Site(server, admin, root, f"http://{host}", ClusterTemplateContext(metalman.api, follower))
            finally:
                for task in tasks:
                    task.cancel()


@pytest.fixture
def tpm(tmp_path: Path) -> Iterator[SoftwareTpm]:
    with software_tpm(tmp_path / "tpm") as running:
        yield running


async def test_a_machine_joins_with_its_tpm_as_itself(tmp_path: Path, tpm: SoftwareTpm) -> None:
    async with site(tmp_path / "data") as lab:
        token = await attest(lab.url, socket_tpm(tpm.address))
        machine = await lab.root.get(MACHINES, "m1")
        assert machine.status.tpm is not None
        assert machine.status.tpm.ek_public_key is not None
        conditions = [(one.type, one.status) for one in machine.status.conditions]
        assert conditions == [("Attested", "True"), ("BootChanged", "False")]
        assert machine.status.tpm.reference is not None
        assert len(machine.status.tpm.reference.pcrs) == len(QUOTED)

        trusted = client_context(ca=token.authority.encode())
        async with client_with(lab.server, trusted, Authorization=f"Bearer {token.text}") as newcomer:
            key: list[ec.EllipticCurvePrivateKey] = []
            asked = node_asking("csr-m1", "m1", key)
            asked |= {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest"}
            await newcomer.create(REQUESTS, asked)
            for path in (
                "/api/v1/nodes",
                "/api/v1/namespaces/kube-system/secrets",
                "/apis/unbounded-cloud.io/v1alpha3/machines",
                "/apis/unbounded-cloud.io/v1alpha3/machines/m1",
                "/apis/unbounded-cloud.io/v1alpha3/machines/m2",
            ):
                assert (await newcomer.ask("GET", path)).status == 403
            assert (await decide(newcomer, "csr-m1", "Approved")).status == 403

        found = await lab.admin.get(f"{REQUESTS}/csr-m1")
        assert machine_of(tuple(found["spec"]["groups"])) == machine.metadata.uid  # by which an approver knows it
        assert (await decide(lab.admin, "csr-m1", "Approved")).status == 200
        certificate = await signed(lab.admin, "csr-m1")
        async with client_with(lab.server, identity(lab.server.data_dir, certificate, key[0])) as node:
            await node.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "m1"}})
            other = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "m2"}}
            assert (await node.ask("POST", "/api/v1/nodes", other)).status == 403


async def kubectl(server: ApiServer, *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        KUBECTL or "kubectl", "--kubeconfig", str(server.kubeconfig_path), *arguments
    )
    async with asyncio.timeout(60):
        assert await process.wait() == 0, arguments


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
async def test_named_token_is_in_the_agent_config_once_metalman_may_read_it(tmp_path: Path) -> None:
    async with site(tmp_path / "data") as lab:
        token = site_token_manifest("lab", now=datetime.now(UTC), good_for=timedelta(hours=1), default=False)
        await lab.root.create(SECRETS, token, namespace="kube-system")
        named = {"spec": {"kubernetes": {"bootstrapTokenRef": {"name": token["metadata"]["name"]}}}}
        machine = await lab.root.patch(MACHINES, "m1", named)

        async def told() -> str | None:
            with suppress(FactUnknown):
                return (await lab.files.template_context(machine, lab.url, private=True)).agent_config_json
            return None

        with pytest.raises(Rejected, match="may not be read by metalman") as refused:
            await eventually(told)
        for command in re.findall(r"`kubectl ([^`]*)`", str(refused.value)):
            await kubectl(lab.server, *command.split())
        config = json.loads(await eventually(told))
        text = config["Kubelet"]["Auth"]["BootstrapToken"]
        assert text.partition(".")[0] == base64.b64decode(token["data"]["token-id"]).decode()
        assert "Attest" not in config
        required = {"spec": {"pxe": {"image": "r/i:v1", "attestation": {"pcrPolicy": "Required"}}}}
        machine = await lab.root.patch(MACHINES, "m1", required)
        with pytest.raises(Rejected, match="a token without attestation, which the PCR policy Required excludes"):
            await told()


async def test_another_tpm_gets_nothing_and_is_told_of(tmp_path: Path, tpm: SoftwareTpm) -> None:
    async with site(tmp_path / "data") as lab:
        await attest(lab.url, socket_tpm(tpm.address))
        refused = pytest.raises(Rejected, match="403: the TPM's endorsement key is SHA256:")
        with software_tpm(tmp_path / "other") as other, refused:
            await attest(lab.url, socket_tpm(other.address))
        condition, _ = (await lab.root.get(MACHINES, "m1")).status.conditions
        assert (condition.status, condition.reason) == ("False", "ForeignEK")
        (link,) = (await explain(lab.root, Topic.MACHINE, "m1")).links
        assert condition.message in link.what
        assert link.next_step == "metalman challenges it again at its next boot"
        pin = """'{"status": {"tpm": {"ekPublicKey": null}}}'"""
        assert commands([link]) == [f"kubectl patch mach m1 --subresource=status --type=merge -p {pin}"]

        async def told() -> bool:
            events = (await lab.root.list(EVENTS, namespace="default")).items
            return {"EndorsementKeyPinned", "AttestationRefused"} == {event.reason for event in events}

        await eventually(told)
        await attest(lab.url, socket_tpm(tpm.address))
        condition, _ = (await lab.root.get(MACHINES, "m1")).status.conditions
        assert (condition.status, condition.reason) == ("True", "Succeeded")


@pytest.mark.parametrize("policy", ["Required", "Recorded"])
async def test_another_credential_of_the_kernel_is_a_deviation(tmp_path: Path, tpm: SoftwareTpm, policy: str) -> None:
    """systemd's stub extends PCR 12 with each credential beside the kernel."""
    async with site(tmp_path / "data") as lab:
        spec = {"spec": {"pxe": {"image": "r/i:v1", "attestation": {"pcrPolicy": policy}}}}
        await lab.root.patch(MACHINES, "m1", spec)
        await attest(lab.url, socket_tpm(tpm.address))
        token = (await lab.root.get(MACHINES, "m1")).status.bootstrap_token_id
        tpm.tools("pcrextend", f"12:sha256={hashlib.sha256(b'UUID=another').hexdigest()}")
        if policy == "Required":
            with pytest.raises(Rejected, match=r"403: .*PCR 12 \(kernel command line and credentials"):
                await attest(lab.url, socket_tpm(tpm.address))
        else:
            await attest(lab.url, socket_tpm(tpm.address))
        status = (await lab.root.get(MACHINES, "m1")).status
        found = {one.type: (one.status, one.reason, one.message or "") for one in status.conditions}
        assert found["BootChanged"][:2] == ("True", "PCRMismatch")
        assert "PCR 12 (kernel command line and credentials of a unified kernel image) is " in found["BootChanged"][2]
        assert found["BootChanged"][2].count("PCR 1") == 1
        attested = ("False", "PCRMismatch") if policy == "Required" else ("True", "Succeeded")
        assert found["Attested"][:2] == attested
        assert (status.bootstrap_token_id == token) is (policy == "Required")
