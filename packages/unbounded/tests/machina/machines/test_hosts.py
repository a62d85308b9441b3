"""The real machina, with its rights, on a real API server and real SSH servers: only the agent is a stand-in."""

from __future__ import annotations

import asyncio
import itertools
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from tests.join.releases import Releases, releases, tarball
from tests.support.spans import SpanList
from tests.support.ssh.sshd import Fleet, Server, fingerprint_of, keygen, missing, sshd_fleet
from tests.support.waiting import eventually
from unbounded.api.core import EVENTS, NODES, SECRETS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import LABEL_MACHINE, NAMESPACE
from unbounded.cli.servers import component_runtime, publish_cluster_info
from unbounded.join.bootstrap_tokens import site_token_manifest
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import utc_now
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.tracing import Tracer
from unbounded.machina.controller import run
from unbounded.machina.settings import ProvisioningSettings

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=f"needs {missing()}")]

NAMES: Final = (f"ssh{number}" for number in itertools.count(1))
PATIENCE_S: Final = 60.0
SINCE: Final = "2030-01-01T00:00:00Z"
TOKEN_GOOD_FOR: Final = timedelta(hours=1)
ROLE: Final = "node-role.kubernetes.io/worker"  # no kubelet may register with it
AGENT: Final = """\
#!/bin/sh
echo "agent: start: it runs"
cp "$UNBOUNDED_AGENT_CONFIG_FILE" /srv/told
echo started >> /srv/starts
while [ -e /srv/wait ]; do sleep 0.1; done
exit "$(cat /srv/exit 2>/dev/null || echo 0)"
"""
RELEASE: Final = tarball(AGENT)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with sshd_fleet(tmp_path_factory.mktemp("hosts"), 4, bastion=True) as made:
        yield made


@pytest.fixture(scope="module")
def served() -> Iterator[Releases]:
    with releases() as server:
        for arch in ("amd64", "arm64"):
            server.files[f"/latest/download/unbounded-agent-linux-{arch}.tar.gz"] = RELEASE
        yield server


class Site:
    """A cluster's administrator, hosts, and machina."""

    def __init__(self, admin: HttpApi, kubeconfig: Path, fleet: Fleet, served: Releases) -> None:
        self.admin = admin
        self.kubeconfig = kubeconfig
        self.fleet = fleet
        self.spans = SpanList()
        self.settings = ProvisioningSettings(agent_base_url=served.base, agent_sha256=sha256(RELEASE).hexdigest())

    @asynccontextmanager
    async def machina(self) -> AsyncIterator[None]:
        """The whole process, under its own account."""
        async with (
            component_runtime("machina", self.admin, metrics=ControllerMetrics(), tracer=Tracer(self.spans)) as runtime,
            asyncio.TaskGroup() as group,
        ):
            tasks = [group.create_task(run(runtime, settings=self.settings))]
            if runtime.events is not None:
                tasks.append(group.create_task(runtime.events.run()))
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def publish(self) -> None:
        config = from_kubeconfig(self.kubeconfig)
        await publish_cluster_info(self.admin, config.server, config.ca or b"")
        token = site_token_manifest("lab", now=utc_now(), good_for=TOKEN_GOOD_FOR, default=True)
        await self.admin.create(SECRETS, token, namespace="kube-system")

    async def key(self, name: str, private: Path) -> None:
        data = {"ssh-privatekey": b64encode(await asyncio.to_thread(private.read_bytes)).decode()}
        if any(one.metadata.name == name for one in (await self.admin.list(SECRETS, namespace=NAMESPACE)).items):
            await self.admin.patch(SECRETS, name, {"data": data}, namespace=NAMESPACE)
        else:
            await self.admin.create(SECRETS, {"metadata": {"name": name}, "data": data}, namespace=NAMESPACE)

    async def register(self, server: Server, *, key: Path | None = None, **more: Any) -> str:
        """A Machine on this host, which was never one before; the name of its key's Secret is its own."""
        for left in ("told", "starts", "wait", "exit"):
            (server.folder / left).unlink(missing_ok=True)
        for other in (await self.admin.list(MACHINES)).items:
            if other.spec.ssh is not None and other.spec.ssh.host == server.at:
                await self.admin.delete(MACHINES, other.name)
        name = next(NAMES)
        await self.key(name, key or self.fleet.key)
        ssh = {"host": server.at, "username": "ubuntu", "privateKeyRef": {"name": name, "namespace": NAMESPACE}}
        spec = {"ssh": ssh, "kubernetes": {}, **more}
        labels = {"unbounded-cloud.io/site": "lab"}
        await self.admin.create(MACHINES, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        return name

    async def joins(self, name: str) -> None:
        """Do what a kubelet would do."""
        body = {"metadata": {"name": name, "labels": {LABEL_MACHINE: name}}}
        await self.admin.create(NODES, body)
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Up",
            "message": "",
            "lastTransitionTime": SINCE,
        }
        await self.admin.patch(NODES, name, {"status": {"conditions": [ready]}}, subresource="status")

    async def until(self, name: str, done: Callable[[Machine], bool]) -> Machine:
        machine = await self.admin.get(MACHINES, name)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not done(machine):
                    await asyncio.sleep(0.05)
                    machine = await self.admin.get(MACHINES, name)
        except TimeoutError:
            raise AssertionError(f"not so within {PATIENCE_S} s: {machine.status}") from None
        return machine

    async def phase(self, name: str, phase: str) -> Machine:
        return await self.until(name, lambda machine: machine.status.phase == phase)


@pytest.fixture
async def site(server: Path, admin: HttpApi, fleet: Fleet, served: Releases) -> Site:
    made = Site(admin, server, fleet, served)
    await made.publish()
    return made


async def test_a_machine_is_set_up_joins_and_becomes_ready(site: Site) -> None:
    host = site.fleet.servers[0]
    kubernetes = {"nodeLabels": {"rack": "r1", ROLE: ""}}
    async with site.machina():
        name = await site.register(host, kubernetes=kubernetes)
        machine = await site.phase(name, "Joining")
        assert machine.status.ssh is not None
        assert machine.status.ssh.fingerprint == host.fingerprint
        assert (host.folder / "starts").read_text() == "started\n"
        assert f'"MachineName": "{name}"' in (host.folder / "told").read_text()
        await site.joins(name)
        await site.phase(name, "Ready")
        await site.until(name, _has_node_ref)

        async def role() -> bool:
            labels = (await site.admin.get(NODES, name)).metadata.labels
            return ROLE in labels and labels["rack"] == "r1"

        await eventually(role)
    events = (await site.admin.list(EVENTS, namespace="default")).items
    assert {"HostKeyTrusted", "Provisioned"} <= {one.reason for one in events if one.involved_object.name == name}
    assert list(host.install.rglob("*.json")) == []
    (root,) = [one for one in site.spans.named("Provisioning") if one.attributes["unbounded.machine"] == name]
    calls = [one for one in site.spans.spans if one.trace_id == root.trace_id and one is not root]
    assert {one.name for one in calls} == {"SSH login", "SSH command"}
    assert {one.parent_id for one in calls if one.name == "SSH login"} == {root.span_id}
    assert {f"{one.attributes['server.address']}:{one.attributes['server.port']}" for one in calls} == {f"{host.at}:22"}
    assert root.error is None


def _has_node_ref(machine: Machine) -> bool:
    return machine.spec.kubernetes is not None and machine.spec.kubernetes.node_ref is not None


async def test_machine_without_kubernetes_gets_no_login(site: Site) -> None:
    host = site.fleet.servers[3]
    async with site.machina():
        logins = host.log.count("Accepted publickey")
        name = await site.register(host, kubernetes=None)
        machine = await site.phase(name, "Ready")
        assert machine.status.message == "Machine is reachable"
        assert host.log.count("Accepted publickey") == logins


async def test_rejected_key_is_offered_once_and_its_replacement_is_used(site: Site, tmp_path: Path) -> None:
    host = site.fleet.servers[1]
    stranger = keygen(tmp_path / "stranger", "ed25519")
    offered = "Connection closed by authenticating user ubuntu"
    before = host.log.count(offered)
    async with site.machina():
        name = await site.register(host, key=stranger)
        machine = await site.phase(name, "Failed")
        shown = fingerprint_of(stranger.with_suffix(".pub"))  # by ssh-keygen
        assert f"rejects the key {shown} of Secret unbounded-kube/{name}" in (machine.status.message or "")
        assert machine.status.ssh is not None
        assert [one.fingerprint for one in machine.status.ssh.refused] == [shown]
        await site.key(name, site.fleet.key)
        await site.phase(name, "Joining")
        assert host.log.count(offered) == before + 1


async def test_a_run_is_taken_up_by_the_next_process(site: Site) -> None:
    host = site.fleet.servers[2]
    async with site.machina():
        name = await site.register(host)
        (host.folder / "wait").touch()
        await site.until(name, lambda one: "it runs" in (one.status.message or ""))
    (host.folder / "exit").write_text("0")
    async with site.machina():
        await site.until(name, lambda one: one.status.phase == "Provisioning")
        (host.folder / "wait").unlink()
        machine = await site.phase(name, "Joining")
    assert (host.folder / "starts").read_text() == "started\n"
    assert machine.status.active_operation is None


async def test_another_host_key_stops_before_ours_is_offered(site: Site) -> None:
    host = site.fleet.servers[3]
    async with site.machina():
        name = await site.register(host, kubernetes=None)
        await site.phase(name, "Ready")
        pin = {"status": {"ssh": {"fingerprint": site.fleet.servers[0].fingerprint}}}
        await site.admin.patch(MACHINES, name, pin, subresource="status")
        logins = host.log.count("Accepted publickey")
        await site.admin.patch(MACHINES, name, {"spec": {"kubernetes": {}}})
        machine = await site.phase(name, "Failed")
        assert host.fingerprint in (machine.status.message or "")
        assert host.log.count("Accepted publickey") == logins
        assert "Postponed publickey" not in host.log
        await site.admin.patch(MACHINES, name, {"status": {"ssh": {"fingerprint": None}}}, subresource="status")
        await site.phase(name, "Joining")
