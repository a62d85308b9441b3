"""A rotated CA, a moved API server and another DNS server reach a node that stays as it is; what is wrong does not."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tests.agent.goals import goal
from tests.join.signing import PUBLIC_KEY
from tests.support.memory_api import MemoryApi
from unbounded.agent.cluster_access import (
    ClusterAccess,
    access_of_config,
    desired_access,
    fingerprint,
    goal_with,
    kubeconfig_with,
    kubelet_config_with,
)
from unbounded.agent.daemon.cluster_sync import AccessSync
from unbounded.agent.model import BuildRecord, CertificateAccess, Slot
from unbounded.agent.paths import HostPaths
from unbounded.agent.recreation.status import RecreationStatusWriter
from unbounded.agent.settings import read_stored_config, store_config, with_release_key
from unbounded.api.core import CONFIG_MAPS, SERVICES
from unbounded.api.failures import Failure, Rejected, Transient
from unbounded.api.machine import MACHINES
from unbounded.cli.servers import publish_cluster_info
from unbounded.join.agent_config import AgentConfig, JoinedCluster, Kubelet, KubeletAuth
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import utc_now
from unbounded.kube.config import ClientConfig
from unbounded.kube.credentials import AuthInfo, StaticCredentials
from unbounded_apiserver.pki import CertificateAuthority, server_context

MACHINE = {"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": "Machine", "metadata": {"name": "m1"}, "spec": {}}


@dataclass
class Nodes:
    """Slots, as far as their kubelets follow."""

    made: dict[Slot, BuildRecord] = field(default_factory=dict)
    followed: list[ClusterAccess] = field(default_factory=list)

    def applied(self, slot: Slot) -> BuildRecord | None:
        return self.made.get(slot)

    async def follow_access(self, slot: Slot, access: ClusterAccess) -> None:
        self.followed.append(access)
        self.made[slot] = msgspec.structs.replace(self.made[slot], goal=goal_with(self.made[slot].goal, access))

    async def succeed(
        self, slot: Slot, access: ClusterAccess, kubelet_access: CertificateAccess | None, node_uid: str
    ) -> None:
        raise AssertionError("the cluster stays the same")


@dataclass
class Place:
    """One host and its cluster, whose API server speaks TLS with whichever CA."""

    paths: HostPaths
    api: MemoryApi
    config: AgentConfig
    nodes: Nodes
    restarts: int = 0
    held: str = ""

    def follower(self) -> AccessSync:
        @asynccontextmanager
        async def unlocked(_who: str) -> AsyncIterator[None]:
            yield

        async def restart() -> None:
            self.restarts += 1
            kept = read_stored_config(self.paths)
            assert kept is not None
            self.config = kept

        async def probe(config: AgentConfig) -> None:
            access = access_of_config(config)
            login = StaticCredentials(AuthInfo(token="t"))
            async with HttpApi(ClientConfig(access.server, login, ca=access.ca_pem.encode())) as api:
                await api.get(MACHINES, "m1")

        status = RecreationStatusWriter(self.api, "m1", now=utc_now)
        return AccessSync(
            self.api, self.paths, self.config, self.nodes, status,
            lock=unlocked, probe=probe, held_back=lambda: self.held, restart=restart,
        )  # fmt: skip

    async def look(self) -> None:
        await self.follower().poll()

    def use(self, server: str, ca_pem: str) -> None:
        ca = base64.b64encode(ca_pem.encode()).decode()
        self.config = AgentConfig(
            machine_name="m1",
            cluster=JoinedCluster(ca_cert_base64=ca, cluster_dns="10.0.0.10", version="1.34.0"),
            kubelet=Kubelet(api_server=server, auth=KubeletAuth(bootstrap_token="abcdef.0123456789abcdef")),
        )
        made = goal_with(goal(), access_of_config(self.config))
        self.nodes.made = {Slot.KUBE1: BuildRecord(goal=made, node_uid="n1")}

    async def condition(self) -> tuple[str, str, str]:
        machine = await self.api.get(MACHINES, "m1")
        (found,) = [one for one in machine.status.conditions if one.type == "ClusterAccessCurrent"]
        return found.status, found.reason, found.message


@asynccontextmanager
async def served(authority: CertificateAuthority, port: int = 0) -> AsyncIterator[int]:
    """An API server that has one Machine; yields its port."""
    body = json.dumps({**MACHINE, "metadata": {"name": "m1", "uid": "u1", "resourceVersion": "1"}}).encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    context = server_context(authority, ["127.0.0.1"])
    context.verify_mode = ssl.CERT_NONE
    server = await asyncio.start_server(answer, "127.0.0.1", port, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture
async def place(tmp_path: Path) -> Place:
    paths = HostPaths(tmp_path / "host")
    paths.etc.mkdir(parents=True)
    api = MemoryApi(namespaces=("default", "kube-public", "kube-system", "unbounded-kube"))
    await api.create(MACHINES, MACHINE)
    service = {"metadata": {"name": "kube-dns", "namespace": "kube-system"}, "spec": {"clusterIP": "10.0.0.10"}}
    await api.create(SERVICES, service, namespace="kube-system")
    return Place(paths, api, AgentConfig(machine_name="m1"), Nodes())


@pytest.fixture
def authorities(tmp_path: Path) -> tuple[CertificateAuthority, CertificateAuthority]:
    return CertificateAuthority(tmp_path / "old"), CertificateAuthority(tmp_path / "new")


async def test_what_follows_leaves_a_key_that_came_meanwhile(
    place: Place, authorities: tuple[CertificateAuthority, CertificateAuthority]
) -> None:
    old, new = (one.certificate for one in authorities)
    async with served(authorities[0]) as port:
        url = f"https://127.0.0.1:{port}"
        place.use(url, old.decode())
        store_config(place.paths, with_release_key(place.config, PUBLIC_KEY))
        await publish_cluster_info(place.api, url, old + new)
        await place.look()
    assert place.restarts == 1
    assert place.config.upgrade.public_key == PUBLIC_KEY


async def test_a_ca_is_rotated_in_the_documented_order(
    place: Place, authorities: tuple[CertificateAuthority, CertificateAuthority]
) -> None:
    old, new = (one.certificate.decode() for one in authorities)
    async with served(authorities[0]) as port:
        url = f"https://127.0.0.1:{port}"
        place.use(url, old)
        await publish_cluster_info(place.api, url, old.encode())
        await place.look()
        assert (place.restarts, await place.condition()) == (0, ("True", "Applied", (
            f"agent and kubelet use {url}, CA {fingerprint(old)}, DNS server 10.0.0.10"
        )))  # fmt: skip

        await publish_cluster_info(place.api, url, new.encode())  # too early: the server shows the old one
        with pytest.raises(Failure):
            await place.look()
        status, reason, message = await place.condition()
        assert (status, reason, place.restarts, place.nodes.followed) == ("False", "Pending", 0, [])
        assert f"the cluster publishes {url}, CA {fingerprint(new)}, DNS server 10.0.0.10: " in message
        assert read_stored_config(place.paths) is None

        await publish_cluster_info(place.api, url, (old + new).encode())
        await place.look()
        assert (place.restarts, access_of_config(place.config).ca_pem) == (1, old + new)
        await place.look()
        assert (await place.condition())[0] == "True"
    async with served(authorities[1], port):
        await publish_cluster_info(place.api, url, (new + old).encode())  # another order is no other bundle
        await place.look()
        assert place.restarts == 1
        await publish_cluster_info(place.api, url, new.encode())
        await place.look()
        assert (place.restarts, access_of_config(place.config).ca_pem) == (2, new)
    applied = place.nodes.applied(Slot.KUBE1)
    assert applied is not None
    assert (applied.goal.ca_pem, applied.node_uid) == (new, "n1")


async def test_moved_api_server_is_followed_and_host_local_one_kept(
    place: Place, authorities: tuple[CertificateAuthority, CertificateAuthority]
) -> None:
    ca = authorities[0].certificate
    async with served(authorities[0]) as before, served(authorities[0]) as after:
        own = f"https://127.0.0.1:{before}/"
        place.use(own, ca.decode())
        await publish_cluster_info(place.api, "https://api.example.com:6443", ca)
        await place.look()
        assert place.restarts == 0, "what the host was given stays, as long as what is published does"
        await publish_cluster_info(place.api, f"https://127.0.0.1:{after}", ca)
        await place.look()
        assert (place.restarts, place.config.kubelet.api_server) == (1, f"https://127.0.0.1:{after}")
        await publish_cluster_info(place.api, "https://127.0.0.1:1", ca)
        with pytest.raises(Failure):
            await place.look()
        assert place.config.kubelet.api_server == f"https://127.0.0.1:{after}"
        assert (await place.condition())[1] == "Pending"


async def test_another_dns_server_is_followed_but_not_while_the_machine_is_held(
    place: Place, authorities: tuple[CertificateAuthority, CertificateAuthority]
) -> None:
    async with served(authorities[0]) as port:
        url, ca = f"https://127.0.0.1:{port}", authorities[0].certificate
        place.use(url, ca.decode())
        await publish_cluster_info(place.api, url, ca)
        await place.look()
        await place.api.patch(SERVICES, "kube-dns", {"spec": {"clusterIP": "10.0.0.53"}}, namespace="kube-system")
        place.held = "NodeReboot r1 (unbounded-agent/m1) holds the lock of the Machine since 12:00"
        with pytest.raises(Transient, match="NodeReboot r1"):
            await place.look()
        assert "NodeReboot r1" in (await place.condition())[2]
        place.held = ""
        await place.look()
        assert (place.restarts, place.nodes.followed[-1].dns) == (1, "10.0.0.53")


async def test_a_cluster_that_publishes_nothing_is_followed_without_trouble(
    place: Place, authorities: tuple[CertificateAuthority, CertificateAuthority]
) -> None:
    place.use("https://127.0.0.1:1", authorities[0].certificate.decode())
    for _ in range(2):  # the second time, what was published before is known
        await place.look()
    assert (await place.condition())[:2] == ("True", "Applied")
    assert place.restarts == 0


async def test_a_slot_that_is_behind_its_agent_is_brought_up_to_date(
    place: Place, authorities: tuple[CertificateAuthority, CertificateAuthority]
) -> None:
    """As after a recreation that was decided on before the agent followed."""
    ca = authorities[0].certificate
    place.use("https://127.0.0.1:1", ca.decode())
    made = place.nodes.made[Slot.KUBE1]
    stale = goal_with(made.goal, ClusterAccess("https://127.0.0.1:1", authorities[1].certificate.decode(), ""))
    place.nodes.made[Slot.KUBE1] = msgspec.structs.replace(made, goal=stale)
    await publish_cluster_info(place.api, "https://127.0.0.1:1", ca)
    await place.look()
    assert [one.ca_pem for one in place.nodes.followed] == [ca.decode()]


@pytest.mark.parametrize("text", ["", "clusters: []", "clusters: [{cluster: {server: 'https://a'}}]"])
async def test_a_cluster_info_that_cannot_be_used_changes_nothing(place: Place, text: str) -> None:
    place.use("https://127.0.0.1:1", "")
    body = {"metadata": {"name": "cluster-info", "namespace": "kube-public"}, "data": {"kubeconfig": text}}
    await place.api.create(CONFIG_MAPS, body, namespace="kube-public")
    with pytest.raises(Rejected, match="cluster-info"):
        await place.look()
    assert place.restarts == 0


def test_a_bundle_without_certificates_is_refused() -> None:
    with pytest.raises(Rejected, match="not PEM certificates"):
        fingerprint("nothing")


@pytest.mark.parametrize(
    ("published", "known", "expected"),
    [
        (ClusterAccess(), None, ClusterAccess("s", "c", "d")),
        (ClusterAccess("s2", "c2", "d2"), None, ClusterAccess("s", "c2", "d")),
        (ClusterAccess("s2", "c2", "d2"), ClusterAccess("s2", "c", "d2"), ClusterAccess("s", "c2", "d")),
        (ClusterAccess("s2", "c", "d2"), ClusterAccess("s1", "c", "d1"), ClusterAccess("s2", "c", "d2")),
        (ClusterAccess("", "c2", ""), ClusterAccess("s1", "c", "d1"), ClusterAccess("s", "c2", "d")),
    ],
    ids=["nothing", "first look", "as before", "moved", "not published any more"],
)
def test_what_a_host_is_to_use(published: ClusterAccess, known: ClusterAccess | None, expected: ClusterAccess) -> None:
    assert desired_access(ClusterAccess("s", "c", "d"), published, known) == expected


def test_files_of_kubelet_keep_all_else() -> None:
    access = ClusterAccess("https://new", "PEM", "10.0.0.53")
    user: dict[str, Any] = {"name": "kubelet", "user": {"client-key": "/k"}}
    cluster = {"name": "c", "cluster": {"server": "https://old", "certificate-authority": "/ca"}}
    before = yaml.safe_dump({"kind": "Config", "clusters": [cluster], "users": [user]}).encode()
    after = json.loads(kubeconfig_with(before, access))
    assert after["users"] == [user]
    data = base64.b64encode(b"PEM").decode()
    assert after["clusters"] == [
        {"name": "c", "cluster": {"server": "https://new", "certificate-authority-data": data}}
    ]
    config = json.loads(kubelet_config_with(b'{"maxPods": 7, "clusterDNS": ["10.0.0.10"]}', access))
    assert config == {"maxPods": 7, "clusterDNS": ["10.0.0.53"]}


@pytest.mark.parametrize("content", [b"", b"[", b"clusters: 7", b"clusters: [{}]"])
def test_a_kubeconfig_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(Rejected, match="kubeconfig"):
        kubeconfig_with(content, ClusterAccess("https://new", "PEM"))
