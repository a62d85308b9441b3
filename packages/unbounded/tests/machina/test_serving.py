"""Serving certificates on a real API server: under machina's rights, from a kubelet's request to what clients trust."""

from __future__ import annotations

import asyncio
import base64

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.machina.asking import pem
from tests.machina.test_approval import Host, approving, decided, issued, joined, new_machine, with_token
from tests.machina.test_serving_plan import USAGES, alternative
from tests.support.waiting import eventually
from unbounded.api.core import CERTIFICATE_REQUESTS, EVENTS, NODES, SERVICES, CertificateRequest
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import GROUP_NODES
from unbounded.cli.servers import publish_cluster_info
from unbounded.kube.client import HttpApi

pytestmark = pytest.mark.slow
DNS = "10.97.0.10"


@pytest.fixture
async def cluster(admin: HttpApi) -> HttpApi:
    """The server, whose address hosts can learn."""
    await publish_cluster_info(admin, admin.config.server, admin.config.ca or b"")
    return admin


async def ask(host: Host, node: str, *names: str, name: str) -> tuple[CertificateRequest, ec.EllipticCurvePrivateKey]:
    """Request a certificate as a kubelet does."""
    key = ec.generate_private_key(ec.SECP256R1())
    text = pem(f"system:node:{node}", organizations=(GROUP_NODES,), alternative=alternative(*names), key=key)
    spec = {
        "request": base64.b64encode(text).decode(),
        "signerName": "kubernetes.io/kubelet-serving",
        "usages": list(USAGES),
    }
    return await host.api.create(CERTIFICATE_REQUESTS, {"metadata": {"name": name}, "spec": spec}), key


async def reports(api: HttpApi, node: str, *addresses: str) -> None:
    """Write the status of a Node, as its kubelet does."""
    listed = [{"type": "InternalIP", "address": one} for one in addresses]
    await api.patch(NODES, node, {"status": {"addresses": listed}}, subresource="status")


async def made_node(kubelet: Host, machine: Machine, *addresses: str) -> None:
    await kubelet.api.create(NODES, {"metadata": {"name": machine.name}})
    await reports(kubelet.api, machine.name, *addresses)


def outcome(request: CertificateRequest) -> tuple[str, str]:
    """Return whether the request was approved or denied, with the reason."""
    (said,) = (one for one in request.status.conditions if one.type in ("Approved", "Denied"))
    return said.type, said.reason


async def test_a_kubelet_gets_a_certificate_that_clients_trust_for_its_node(cluster: HttpApi) -> None:
    async with approving(cluster), joined(cluster) as (machine, _agent, kubelet):
        await made_node(kubelet, machine, "10.0.3.1")
        request, key = await ask(kubelet, machine.name, machine.name, "10.0.3.1", name=f"serve-{machine.name}")
        found = await decided(cluster, request.name)
        assert outcome(found) == ("Approved", "ServingAllowed")
        words = f"the kubelet of Machine {machine.name} serves {machine.name}, 10.0.3.1"
        assert found.status.conditions[0].message == words
        leaf = x509.load_pem_x509_certificate((await issued(cluster, request.name, key)).chain)
        named = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert sorted(map(str, (one.value for one in named))) == sorted([machine.name, "10.0.3.1"])
        used = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(used) == [ExtendedKeyUsageOID.SERVER_AUTH]


async def test_serving_request_is_approved_once_the_node_reports_its_address(cluster: HttpApi) -> None:
    async with approving(cluster), joined(cluster) as (machine, _agent, kubelet):
        request, _ = await ask(kubelet, machine.name, machine.name, "10.0.1.1", name=f"early-{machine.name}")
        await asyncio.sleep(1)
        assert not (await cluster.get(CERTIFICATE_REQUESTS, request.name)).status.conditions
        await made_node(kubelet, machine, "10.0.1.1")
        assert outcome(await decided(cluster, request.name)) == ("Approved", "ServingAllowed")


async def test_no_kubelet_serves_as_another_node_or_as_the_cluster(cluster: HttpApi) -> None:
    service = {"metadata": {"name": "kube-dns"}, "spec": {"clusterIP": DNS, "ports": [{"port": 53}]}}
    await cluster.create(SERVICES, service, namespace="kube-system")
    ssh = {"host": "10.0.2.9", "username": "u", "privateKeyRef": {"name": "k", "namespace": "unbounded-kube"}}
    other = await new_machine(cluster)
    await cluster.patch(MACHINES, other.name, {"spec": {"ssh": ssh}})
    foreign = {"metadata": {"name": "foreign"}}
    await cluster.create(NODES, foreign)
    await reports(cluster, "foreign", "10.0.2.8")
    server = cluster.config.server.removeprefix("https://").rpartition(":")[0]
    async with approving(cluster), joined(cluster) as (machine, agent, kubelet):
        await made_node(kubelet, machine, "10.0.2.1", "10.0.2.8", "10.0.2.9", DNS, server)
        for number, (name, words) in enumerate(
            (
                (other.name, f"Machine {other.name}"),
                ("10.0.2.9", f"Machine {other.name}"),
                ("10.0.2.8", "Node foreign"),
                (DNS, "the cluster's DNS server"),
                ("kubernetes.default.svc", "a name of the cluster itself"),
            )
        ):
            request, _ = await ask(kubelet, machine.name, machine.name, name, name=f"as-{machine.name}-{number}")
            found = await decided(cluster, request.name)
            assert outcome(found) == ("Denied", "ForeignName")
            assert words in found.status.conditions[0].message
        request, _ = await ask(kubelet, machine.name, machine.name, "else.example.com", name=f"else-{machine.name}")
        assert outcome(await decided(cluster, request.name)) == ("Denied", "UnknownName")
        request, _ = await ask(agent, machine.name, machine.name, name=f"agent-{machine.name}")
        assert outcome(await decided(cluster, request.name)) == ("Denied", "ForeignIdentity")

        async def told() -> bool:
            there = (await cluster.list(EVENTS, namespace="default")).items
            its = (one for one in there if one.involved_object.name == machine.name and one.reason == "ServingRefused")
            return any(f"10.0.2.9 belongs to Machine {other.name}" in one.message for one in its)

        await eventually(told, within_s=30)


async def test_serving_request_by_token_is_denied_and_foreign_one_ignored(cluster: HttpApi) -> None:
    machine = await new_machine(cluster)
    async with approving(cluster), with_token(cluster, machine) as host:
        request, _ = await ask(host, machine.name, machine.name, name=f"token-{machine.name}")
        assert outcome(await decided(cluster, request.name)) == ("Denied", "ForeignIdentity")
        left, _ = await ask(Host(cluster), machine.name, machine.name, name=f"admin-{machine.name}")
        await asyncio.sleep(1)
        assert not (await cluster.get(CERTIFICATE_REQUESTS, left.name)).status.conditions
