"""A selector operation on two hundred agents at once: every one ends, and each agent requests only its own objects.

Server, supervisor and agents share one process here; two hundred are a soak, and CI has time for sixty of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.agent.daemon.joining import OURS
from tests.agent.daemon.light import LightHost, all_requests_noted, audited, kubelets
from tests.apiserver.support import Client
from tests.cli.deployed import deployed
from unbounded.agent.daemon.daemon import AgentDaemon
from unbounded.agent.daemon.identity import client_config
from unbounded.api.names import GROUP_AGENTS
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.credentials import AuthInfo, StaticCredentials
from unbounded.kube.process import Runtime
from unbounded.kube.tls import ClientCertificate
from unbounded.machina import controller as machina
from unbounded_apiserver.pki import CertificateAuthority
from unbounded_apiserver.server import ApiServer

AGENTS = 200 if os.environ.get("UNBOUNDED_SOAK") else 60
WITHIN_S = 240.0


@asynccontextmanager
async def agents(server: ApiServer, admin: Client, folder: Path) -> AsyncIterator[list[LightHost]]:
    """So many of them at work, each with its own certificate, Machine and Node."""
    authority = CertificateAuthority(server.data_dir)
    hosts = [LightHost(folder / f"m{number}", server, f"m{number}") for number in range(AGENTS)]
    async with AsyncExitStack() as stack:
        tasks = []
        for host in hosts:
            host.host.pace, host.host.renews_s = 1.0, 3600.0  # its kubelet renews the lease when it starts
            meta = {"name": host.machine, "labels": {"pool": "all"}}
            body = {"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": "Machine", "metadata": meta, "spec": {}}
            await admin.create(f"{OURS}/machines", body)
            await host.become_node(admin)
            issued = authority.issue_client(f"system:node:{host.machine}", (GROUP_AGENTS,))
            login = AuthInfo(certificate=ClientCertificate(issued.certificate, issued.key))
            api = await stack.enter_async_context(HttpApi(client_config(host.config, StaticCredentials(login))))
            tasks.append(asyncio.create_task(AgentDaemon(host.parts(), host.config, api).run()))
        try:
            yield hosts
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


@pytest.mark.slow
@pytest.mark.timeout(600, func_only=True)
async def test_many_agents_reboot_their_nodes_at_once_and_read_their_own_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_requests_noted(monkeypatch)
    async with (
        deployed(tmp_path / "server") as (server, admin),
        HttpApi(from_kubeconfig(server.kubeconfig_path)) as api,
    ):
        steward = asyncio.create_task(machina.run(Runtime(api)))
        async with agents(server, admin, tmp_path) as hosts, kubelets(server, [one.host for one in hosts]):
            selector = {"matchLabels": {"pool": "all"}}
            spec = {"machineSelector": selector, "operationKind": "NodeReboot", "maxConcurrent": AGENTS}
            body = {"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": "MachineOperation", "spec": spec}
            await admin.create(f"{OURS}/machineoperations", body | {"metadata": {"name": "all"}})
            parent = await ended(admin, "all")
        steward.cancel()
        await asyncio.wait({steward})
        assert parent["status"]["phase"] == "Complete", parent["status"]["message"]
        assert [one["phase"] for one in parent["status"]["targets"]] == ["Complete"] * AGENTS
        assert [one.host.boot for one in hosts] == [2] * AGENTS
        foreign = [entry for entry in audited(server) if not is_own(entry)]
        assert foreign == []
        users = {entry["user"]["username"] for entry in audited(server) if "patch" in entry["verb"]}
        assert {f"system:node:{one.machine}" for one in hosts} <= users


async def ended(admin: Client, name: str) -> Any:
    async with asyncio.timeout(WITHIN_S):
        while True:
            operation = await admin.get(f"{OURS}/machineoperations/{name}")
            if operation.get("status", {}).get("phase") in {"Complete", "Failed"}:
                return operation
            await asyncio.sleep(0.5)  # it is large


def is_own(entry: dict[str, Any]) -> bool:
    """Return whether the request is no agent's, or an allowed one for the agent's own objects."""
    user = entry["user"]["username"]
    if not user.startswith("system:node:"):
        return True
    machine, uri = user.removeprefix("system:node:"), urlsplit(entry["requestURI"])
    if entry["responseStatus"]["code"] not in {0, 200, 201, 404, 409}:
        return False
    selected = parse_qs(uri.query).get("fieldSelector", [""])[0]
    if entry["verb"] in {"watch", "list"}:
        return selected in {f"metadata.name={machine}", f"spec.machineRef={machine}"}
    place = uri.path.split("/")
    own = {machine, f"all-{machine}", "unbounded-operations", "unbounded-releases"}
    return bool(own.intersection(place)) or (entry["verb"] == "create" and place[-1] == "events")
