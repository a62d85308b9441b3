"""Light agents: the daemon's real parts in this process, on hosts whose nodes are simulated."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import pytest

from tests.agent.daemon.joining import OURS, config_of
from tests.agent.operations.simulated import SimulatedHost, SimulatedNodes
from tests.agent.scripted import ScriptedCommands
from tests.apiserver.support import Client
from tests.operations.faults import FAIR, Incarnation
from unbounded.agent.daemon.daemon import DaemonParts
from unbounded.agent.daemon.reporting import SystemdNotifier
from unbounded.agent.host_hardware import LSCPU
from unbounded.agent.interfaces import HostCommandResult, Units
from unbounded.agent.paths import HostPaths
from unbounded.agent.settings import store_config
from unbounded.api.names import LABEL_MACHINE
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded_apiserver.http import app
from unbounded_apiserver.server import ApiServer

PACE: Final = 0.05
STARTED_S: Final = 50.0


class Untouched:
    """A port of the host that these tests have no use for."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked of the host")


class LightHost:
    """A host below a folder, with a simulated node, as its daemon finds it."""

    def __init__(self, folder: Path, server: ApiServer, machine: str = "m1") -> None:
        self.paths = HostPaths(folder)
        self.machine = machine
        self.config = config_of(server, machine)
        self.host = SimulatedHost(machine=machine, pace=PACE)
        life = Incarnation(f"agent {machine}", random.Random(0), FAIR)
        self.nodes = SimulatedNodes(self.host, life)
        for path, text in (("/proc/sys/kernel/random/boot_id", "host-boot-1"), ("/etc/machine-id", f"id-{machine}")):
            self.paths.at(path).parent.mkdir(parents=True, exist_ok=True)
            self.paths.at(path).write_text(f"{text}\n")
        store_config(self.paths, self.config)

    def parts(self, notifier: SystemdNotifier | None = None) -> DaemonParts:
        return DaemonParts(
            paths=self.paths,
            commands=ScriptedCommands({LSCPU: [HostCommandResult(LSCPU, 0, "0,0,0\n1,0,0\n", "")]}),
            units=cast("Units", Untouched()),
            nodes=self.nodes,
            running=Path("/nowhere/unbounded-agent"),
            version="1.2.3",
            notifier=notifier or SystemdNotifier(),
            started_s=STARTED_S,
        )

    async def become_node(self, admin: Client) -> None:
        """The Node that this slot has registered."""
        node = {"metadata": {"name": self.machine, "labels": {LABEL_MACHINE: self.machine}}}
        made = await admin.create("/api/v1/nodes", node)
        self.host.applied = msgspec.structs.replace(self.host.applied, node_uid=made["metadata"]["uid"])


@asynccontextmanager
async def kubelets(server: ApiServer, hosts: Iterable[SimulatedHost]) -> AsyncIterator[None]:
    """Each renews the lease of its Node as long as it runs."""
    async with HttpApi(from_kubeconfig(server.kubeconfig_path)) as api:
        tasks = [asyncio.create_task(host.kubelet_forever(api)) for host in hosts]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


def all_requests_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit log has every request, reads and watches too; these when they have ended."""
    monkeypatch.setattr(app, "is_logged", lambda *_args, **_more: True)


def audited(server: ApiServer) -> list[dict[str, Any]]:
    """The audit log, with the part of it that is full."""
    files = [path for name in ("audit.log.1", "audit.log") if (path := server.data_dir / name).exists()]
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def requests_of(server: ApiServer, user: str, *, conflicts: bool = True) -> list[tuple[str, str]]:
    """Return the requests of a user, as (verb, URI), in the order of their answers."""
    found = [one for one in audited(server) if one["user"]["username"] == user]
    return [(one["verb"], one["requestURI"]) for one in found if conflicts or one["responseStatus"]["code"] != 409]


async def order(admin: Client, name: str, kind: str, machine: str = "m1", **spec: Any) -> None:
    body = {
        "apiVersion": "unbounded-cloud.io/v1alpha3",
        "kind": "MachineOperation",
        "metadata": {"name": name},
        "spec": {"machineRef": machine, "operationKind": kind, **spec},
    }
    await admin.create(f"{OURS}/machineoperations", body)
