"""machina is a process of its own, and is killed during provisioning: the next one resumes the running scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.deployed import deployed
from tests.conformance.test_controllers import Controller, controller
from tests.e2e.standin import SHA256, behave, half_arrived, standin_agent, started, unpack_half
from tests.e2e.test_faults import at_work, go_on
from tests.support.hosts import until
from tests.support.prepared_cluster import account_kubeconfig
from tests.support.ssh.sshd import USER, Server, missing, sshd_fleet
from unbounded.api.core import LEASES, SECRETS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import LEASE_SUPERVISOR, NAMESPACE
from unbounded.cli.servers import publish_cluster_info
from unbounded.join.bootstrap_tokens import site_token_manifest
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

ABSENT: Final = missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(ABSENT is not None, reason=f"needs {ABSENT}"),
]
WITHIN_S: Final = 60.0
# It waits twice; its output in between is reported by the machina that follows it then.
SAYS: Final = """touch /srv/at-work
until [ -e /srv/say ]; do sleep 0.1; done; echo 'containerd: fetching: 70 %' >&2
until [ -e /srv/go-on ]; do sleep 0.1; done"""


async def test_next_machina_follows_running_installs_without_a_second_start(tmp_path: Path) -> None:
    """The script of one runs; half of what another is sent has arrived there, and the other half never does."""
    with sshd_fleet(tmp_path / "fleet", 2) as fleet, standin_agent(tmp_path / "agent") as url:
        working, half = fleet.servers
        behave(working, SAYS)
        unpack_half(half)
        async with _cluster(tmp_path, fleet.key) as api:
            account = await account_kubeconfig(api, "machina", tmp_path)
            for host in fleet.servers:
                await api.create(MACHINES, _machine(host))
            async with _machina(account, url) as first:
                await asyncio.gather(at_work(working), _has_half(half))
                before = {host.name: await _attempt(api, host.name) for host in fleet.servers}
                first.process.kill()
                await first.process.wait()
            # so that the next one does not wait for its end
            await api.delete(LEASES, LEASE_SUPERVISOR, namespace=NAMESPACE)
            async with _machina(account, url) as second:
                await second.says("leading")
                (working.folder / "say").touch()
                await _until(api, working.name, lambda machine: "70 %" in (machine.status.message or ""))
                go_on(working)
                for host in fleet.servers:
                    await _until(api, host.name, lambda machine: machine.status.phase == "Joining")
                    assert started(host) == [host.name]
                    assert len([*host.install.glob("*/run-*")]) == 1
                assert {host.name: await _attempt(api, host.name) for host in fleet.servers} == before
                assert [entry for entry in second.logged if entry["level"] == "error"] == []


@asynccontextmanager
async def _cluster(folder: Path, key: Path) -> AsyncIterator[HttpApi]:
    """An API server with everything of deploy/, the key of hosts, and what they join with."""
    async with deployed(folder / "data") as (server, _):
        config = from_kubeconfig(server.kubeconfig_path)
        async with HttpApi(config) as api:
            secret = {"metadata": {"name": "ssh"}, "stringData": {"ssh-privatekey": key.read_text()}}
            await api.create(SECRETS, secret, namespace=NAMESPACE)
            token = site_token_manifest("lab", now=datetime.now(UTC), good_for=timedelta(hours=1), default=True)
            await api.create(SECRETS, token, namespace="kube-system")
            await publish_cluster_info(api, server.url, config.ca or b"")
            yield api


def _machine(host: Server) -> dict[str, Any]:
    key = {"name": "ssh", "namespace": NAMESPACE}
    spec = {"ssh": {"host": host.at, "username": USER, "privateKeyRef": key}, "kubernetes": {}}
    return {"metadata": {"name": host.name}, "spec": spec}


@asynccontextmanager
async def _machina(account: Path, url: str) -> AsyncIterator[Controller]:
    ports = ("--metrics-addr", "0", "--probe-addr", "127.0.0.1:0")
    told = ("--kubeconfig", str(account), "--agent-url", url, "--agent-sha256", SHA256, *ports)
    async with controller("unbounded.machina.main", *told) as running:
        yield running


async def _has_half(host: Server) -> None:
    async def so() -> bool:
        return half_arrived(host)

    await until(so, within_s=WITHIN_S)


async def _attempt(api: HttpApi, name: str) -> str:
    provisioning = (await api.get(MACHINES, name)).status.provisioning
    assert provisioning is not None
    return provisioning.attempt


async def _until(api: HttpApi, name: str, wanted: Any) -> Machine:
    found: list[Machine] = []

    async def so() -> bool:
        found[:] = [await api.get(MACHINES, name)]
        return bool(wanted(found[0]))

    try:
        await until(so, within_s=WITHIN_S)
    except AssertionError as error:
        error.add_note(f"{name}: {found}")
        raise
    return found[0]
