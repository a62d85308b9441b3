"""The daemon on an embedded server with the shipped rights: its watches, writes, operations, and reports to systemd."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509

from tests.agent.daemon.joining import OURS, approving, make_token
from tests.agent.daemon.light import STARTED_S, LightHost, all_requests_noted, kubelets, order, requests_of
from tests.apiserver.support import Client
from tests.cli.deployed import deployed
from tests.support.waiting import eventually
from unbounded.agent.cluster_access import ClusterAccess, access_of_config, fingerprint
from unbounded.agent.daemon import daemon, reporting
from unbounded.agent.daemon.cluster_sync import published_access
from unbounded.agent.daemon.daemon import AgentDaemon
from unbounded.agent.daemon.identity import connected, join
from unbounded.agent.daemon.reporting import SystemdNotifier, observe_system
from unbounded.agent.durations import Durations, TimedWork
from unbounded.agent.model import Slot
from unbounded.agent.operations.node_reboot import EVIDENCE_BOOTED, EVIDENCE_RENEWED
from unbounded.agent.paths import HostPaths
from unbounded.agent.recreation.state_store import DiskStore, RecreationPhase, Transition
from unbounded.api.failures import Rejected
from unbounded.api.machine_status import HostSystem
from unbounded.cli.servers import publish_cluster_info
from unbounded.join.csr import certificate_file
from unbounded.kube.api import Api, ServerUnreachable
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import rfc3339
from unbounded.kube.config import from_kubeconfig
from unbounded_apiserver.server import ApiServer

AGENT = "system:node:m1"
SINCE: Final = "2030-01-01T00:00:00Z"


@pytest.fixture
async def joined(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client, LightHost]]:
    """A server, its administrator, and a host that has joined and is a node."""
    async with deployed(tmp_path / "server") as (server, admin):
        await make_token(admin)
        host = LightHost(tmp_path / "host", server)
        async with approving(admin):
            await join(host.paths, host.config)
        await host.become_node(admin)
        yield server, admin, host


@pytest.mark.slow
async def test_an_agent_may_read_what_the_cluster_publishes(joined: tuple[ApiServer, Client, LightHost]) -> None:
    server, _, host = joined
    used = access_of_config(host.config)
    async with connected(host.paths, host.config) as api:
        assert (await published_access(api)).server == ""
        async with HttpApi(from_kubeconfig(server.kubeconfig_path)) as admin:
            await publish_cluster_info(admin, server.url, used.ca_pem.encode())
        assert (await published_access(api)).same(ClusterAccess(server.url, used.ca_pem))


@asynccontextmanager
async def running(host: LightHost, notifier: SystemdNotifier | None = None) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(daemon.run(host.parts(notifier)))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled(), task.exception()


async def machine(admin: Client) -> Any:
    return await admin.get(f"{OURS}/machines/m1")


async def reported(admin: Client) -> bool:
    return bool((await machine(admin)).get("status", {}).get("agent", {}).get("version"))


async def settled(admin: Client) -> bool:
    """Return whether the Machine has all that its agent writes at the start: in two writes, of two controllers."""
    status = (await machine(admin)).get("status", {})
    agent, conditions = status.get("agent", {}), {one["type"] for one in status.get("conditions", ())}
    return bool(agent.get("version")) and agent.get("stage") == "Running" and "RepavePending" in conditions


def test_a_pending_reboot_is_reported_with_its_packages(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    assert observe_system(paths) == HostSystem(hostname=socket.gethostname())
    for path, text in {
        "/etc/os-release": 'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\n',
        "/proc/sys/kernel/osrelease": "6.8.0-31-generic\n",
        "/run/reboot-required": "*** System restart required ***\n",
        "/run/reboot-required.pkgs": "linux-image-6.8.0-40-generic\nlinux-base\nlinux-base\n",
    }.items():
        paths.at(path).parent.mkdir(parents=True, exist_ok=True)
        paths.at(path).write_text(text)
    system = observe_system(paths, "https://127.0.0.1:6443")
    assert (system.os_id, system.os_version, system.os_codename) == ("ubuntu", "24.04", "noble")
    assert (system.kernel, system.address) == ("6.8.0-31-generic", "127.0.0.1")
    assert system.reboot_required
    assert system.reboot_packages == ("linux-base", "linux-image-6.8.0-40-generic")


@pytest.mark.slow
async def test_the_end_of_a_pending_reboot_is_reported(
    joined: tuple[ApiServer, Client, LightHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    _server, admin, host = joined
    monkeypatch.setattr(reporting, "HOST_EVERY_S", 0.1)
    required = [host.paths.at(path) for path in (reporting.REBOOT_REQUIRED, reporting.REBOOT_PACKAGES)]
    required[0].parent.mkdir(parents=True, exist_ok=True)
    for one in required:
        one.write_text("linux-base\n")

    async def packages() -> list[str] | None:
        reported_host = (await machine(admin)).get("status", {}).get("agent", {}).get("host", {})
        return reported_host.get("rebootPackages") if reported_host.get("rebootRequired", False) else None

    async def none() -> bool:
        reported_host = (await machine(admin))["status"]["agent"]["host"]
        return "rebootRequired" not in reported_host and "rebootPackages" not in reported_host

    async with running(host):
        assert await eventually(packages) == ["linux-base"]
        for one in required:
            one.unlink()
        await eventually(none)


@pytest.mark.slow
async def test_an_idle_daemon_has_three_watches_and_asks_for_nothing(
    joined: tuple[ApiServer, Client, LightHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, admin, host = joined
    all_requests_noted(monkeypatch)

    async def quiet() -> bool:
        calls = len(requests_of(server, AGENT))
        await asyncio.sleep(1)
        return len(requests_of(server, AGENT)) == calls

    async with running(host):
        await eventually(lambda: settled(admin))
        await eventually(quiet)
        calls = len(requests_of(server, AGENT))
        await asyncio.sleep(5)
        assert len(requests_of(server, AGENT)) == calls
        said = (await machine(admin))["status"]["agent"]
        used = access_of_config(host.config)
        reported_access = {"apiServer": used.server, "clusterCA": fingerprint(used.ca_pem)}
        held = x509.load_pem_x509_certificate(certificate_file(host.paths.identity, "agent").read_bytes())
        system: dict[str, Any] = {"hostname": socket.gethostname(), "address": "127.0.0.1"}
        system["hardware"] = {"cpus": 2, "processor": {"cores": 1, "sockets": 1}}
        system["certificateExpires"] = rfc3339(held.not_valid_after_utc)
        assert said.pop("host").items() >= system.items()
        known = {"version": "1.2.3", "hostBootID": "host-boot-1", "waitsForGrants": True, "stage": "Running"}
        assert said == known | reported_access
    watches = [urlsplit(uri) for verb, uri in requests_of(server, AGENT) if verb == "watch"]
    selected = {one.path.rpartition("/")[2]: parse_qs(one.query).get("fieldSelector") for one in watches}
    assert len(watches) == 3
    assert selected == {
        "machines": ["metadata.name=m1"],
        "nodes": ["metadata.name=m1"],
        "machineoperations": ["spec.machineRef=m1"],
    }
    patches = [uri for verb, uri in requests_of(server, AGENT, conflicts=False) if verb == "patch"]
    assert set(patches) == {f"{OURS}/machines/m1/status"}
    assert len(patches) <= 2, patches  # what it is, and what becomes of its node


@pytest.mark.slow
async def test_the_status_is_written_when_it_says_something_else_and_only_then(
    joined: tuple[ApiServer, Client, LightHost],
) -> None:
    _server, admin, host = joined
    async with running(host):
        await eventually(lambda: settled(admin))
        await asyncio.sleep(1)
    before = await machine(admin)
    async with running(host):
        await asyncio.sleep(2)
        assert await machine(admin) == before
        await admin.merge(f"{OURS}/machines/m1/status", {"status": {"agent": None}})
        await eventually(lambda: reported(admin))
        await follows_its_labels(admin)
        await says_that_its_machine_was_deleted(admin, host)


async def follows_its_labels(admin: Client) -> None:
    async def labelled() -> bool:
        labels = (await admin.get("/api/v1/nodes/m1"))["metadata"]["labels"]
        return bool(labels.get("tier") == "a")

    wanted = {"tier": "a", "node-role.kubernetes.io/x": ""}
    await admin.merge(f"{OURS}/machines/m1", {"spec": {"kubernetes": {"nodeLabels": wanted}}})
    await eventually(labelled)


async def says_that_its_machine_was_deleted(admin: Client, host: LightHost) -> None:
    assert not host.paths.machine_missing.exists()
    there = await machine(admin)
    await admin.ask("DELETE", f"{OURS}/machines/m1")

    async def told() -> bool:
        return host.paths.machine_missing.exists()

    async def taken_back() -> bool:
        return not host.paths.machine_missing.exists()

    await eventually(told)
    assert "was deleted: run `unbounded-agent reset`" in host.paths.machine_missing.read_text()
    body = {key: there[key] for key in ("apiVersion", "kind", "spec")}
    await admin.create(f"{OURS}/machines", body | {"metadata": {"name": "m1"}})
    await eventually(taken_back)
    await eventually(lambda: reported(admin))


class Hiccups:
    """An API that does not take the first writes of the Machine's slot."""

    def __init__(self, api: Api, failures: int) -> None:
        self._api = api
        self.left = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def patch(self, kind: Any, name: str, patch: Any, **given: Any) -> Any:
        if self.left and (patch.get("status") or {}).get("activeOperation", {}).get("kind") == "NodeRecreation":
            self.left -= 1
            raise ServerUnreachable("connection refused")
        return await self._api.patch(kind, name, patch, **given)


@pytest.mark.slow
async def test_nothing_is_claimed_before_the_slot_of_a_recreation_is_taken_back(
    joined: tuple[ApiServer, Client, LightHost],
) -> None:
    _server, admin, host = joined
    goal = host.host.applied.goal
    DiskStore(host.paths).write(
        Transition(
            uid="rec", phase=RecreationPhase.CLEARING, source=Slot.KUBE1, goal=goal, why="Node m1 is gone", since=SINCE
        )
    )
    await order(admin, "reboot", "NodeReboot")
    async with connected(host.paths, host.config) as api:
        hiccups = Hiccups(api, 2)
        task = asyncio.create_task(AgentDaemon(host.parts(), host.config, cast("Api", hiccups)).run())

        async def held() -> Any:
            status = (await machine(admin)).get("status", {})
            return status.get("activeOperation")

        holder = await eventually(held)
        task.cancel()
        await asyncio.wait({task})
    assert (holder["kind"], holder["uid"]) == ("NodeRecreation", "rec")
    assert hiccups.left == 0


@pytest.mark.slow
async def test_a_node_reboot_is_carried_out_with_the_rights_of_an_agent(
    joined: tuple[ApiServer, Client, LightHost],
) -> None:
    server, admin, host = joined

    async def ended() -> Any:
        operation = await admin.get(f"{OURS}/machineoperations/reboot")
        return operation if operation.get("status", {}).get("phase") in {"Complete", "Failed"} else None

    async def freed() -> bool:
        return "activeOperation" not in (await machine(admin))["status"]

    async with running(host), kubelets(server, [host.host]):
        await eventually(lambda: reported(admin))
        await order(admin, "reboot", "NodeReboot")
        operation = await eventually(ended, within_s=30)
        await eventually(freed)
    status = operation["status"]
    assert (status["phase"], status["reason"]) == ("Complete", "Succeeded"), status
    assert [one["what"] for one in status["evidence"]] == [EVIDENCE_BOOTED, EVIDENCE_RENEWED]
    assert status["execution"]["executor"] == "unbounded-agent/m1"
    assert host.host.boot == 2
    assert Durations(host.paths).limit(TimedWork.DAEMON) == 3 * STARTED_S
    (recent,) = (await machine(admin))["status"]["recentOperations"]
    assert recent["name"] == "reboot"


async def test_without_a_start_there_is_nothing_to_look_after(tmp_path: Path) -> None:
    parts = daemon.DaemonParts(HostPaths(tmp_path), None, None, None, Path("/x"), "1")  # type: ignore[arg-type]
    with pytest.raises(Rejected, match=r"run `unbounded-agent start` first"):
        await daemon.run(parts)


@pytest.mark.slow
async def test_systemd_hears_that_the_daemon_is_up_whatever_the_api_server_does(
    joined: tuple[ApiServer, Client, LightHost], tmp_path: Path
) -> None:
    server, _admin, host = joined
    await server.stop()
    loop, heard = asyncio.get_running_loop(), list[str]()
    with listening(tmp_path / "notify") as line:
        begun = loop.time()
        async with running(host, SystemdNotifier(str(tmp_path / "notify"), 0.3)), asyncio.timeout(60):
            while len(heard) < 5:
                await asyncio.sleep(0.05)
                heard += received(line)
        most = 1 + (loop.time() - begun) / 0.1
    assert heard[0] == "READY=1\nWATCHDOG=1"
    assert set(heard[1:]) == {"WATCHDOG=1"}
    assert len(heard) <= most, heard
    await server.start()


@pytest.mark.slow
async def test_a_loop_that_hangs_sends_no_sign_of_life(tmp_path: Path) -> None:
    with listening(tmp_path / "notify") as line:
        alive = asyncio.create_task(SystemdNotifier(str(tmp_path / "notify"), 0.15).keep_alive())
        heard = list[str]()

        def signs(count: int) -> bool:
            heard.extend(received(line))
            return len(heard) >= count

        await eventually(lambda: signs(2))
        import time

        time.sleep(0.5)  # noqa: ASYNC251  # a loop that hangs is what is tested
        assert received(line) == []
        await eventually(lambda: signs(3))
        alive.cancel()


async def test_without_a_watchdog_systemd_hears_once(tmp_path: Path) -> None:
    with listening(tmp_path / "notify") as line:
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        await asyncio.wait_for(SystemdNotifier.from_environment(environ).keep_alive(), 1)
        assert received(line) == ["READY=1\nWATCHDOG=1"]


def listening(path: Path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    line.bind(str(path))
    line.setblocking(False)
    return line


def received(line: socket.socket) -> list[str]:
    heard = []
    try:
        while True:
            heard.append(line.recv(4096).decode())
    except BlockingIOError:
        return heard
