"""The controllers as processes, under their own accounts, on an API server that none of them started.

They are left out on a cluster that has the project's definitions already: see `tests.support.prepared_cluster`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.cli.running import MACHINA_WATCHES, watches
from tests.conformance.support import unique
from tests.support.prepared_cluster import InUse, account_kubeconfig, prepared
from unbounded.api.core import LEASES, SECRETS
from unbounded.api.machine import MACHINES
from unbounded.api.names import LABEL_SITE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import Api
from unbounded.kube.client import HttpApi
from unbounded.machineops.reasons import AUTH_NOT_FOUND
from unbounded.machineops.settings import Settings
from unbounded_lab.bmc.fleet import Fleet, start_fleet
from unbounded_lab.machines import manifests

LIMIT_S = 60.0

pytestmark = pytest.mark.slow


class Controller:
    """A controller process that logs JSON."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.logged: list[dict[str, object]] = []
        self._more = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.logged.append(json.loads(line))
            self._more.set()
        self._more.set()

    async def says(self, message: str) -> dict[str, object]:
        """Wait for a log line with this message."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for entry in self.logged:
                    if entry["message"] == message:
                        return entry
                assert not self._reader.done(), self.logged
                self._more.clear()
                await self._more.wait()

    async def stops(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(LIMIT_S):
            await self._reader
            return await self.process.wait()


@asynccontextmanager
async def controller(module: str, *arguments: str) -> AsyncIterator[Controller]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, "controller", *arguments, stdin=DEVNULL, stderr=PIPE, env=dict(os.environ)
    )
    try:
        yield Controller(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _ended(api: Api, name: str) -> MachineOperation:
    async with asyncio.timeout(LIMIT_S):
        while True:
            operation = await api.get(MACHINE_OPERATIONS, name)
            if operation.terminal:
                return operation
            await asyncio.sleep(0.1)


def _of_azure(site: str) -> str:
    return Settings(site=site, provider="AzureVM").lease


async def _holder(api: Api, lease: str) -> str | None:
    return (await api.get(LEASES, lease, namespace="unbounded-kube")).spec.holder_identity


def _read(url: str) -> str:
    with urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


async def _counted(health: str, *lines: str) -> str:
    """The metrics of a controller, with these lines: it counts once the answer to what it wrote has come."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            metrics = await asyncio.to_thread(_read, f"{health}/metrics")
            if all(line in metrics for line in lines):
                return metrics
            await asyncio.sleep(0.1)


@pytest.fixture
def site() -> str:
    return unique("conformance")


@pytest.fixture
async def admin(server: Path, site: str) -> AsyncIterator[HttpApi]:
    """An administrator of a server that has all that the controllers need."""
    try:
        async with prepared(server, leases=(f"metalman-{site}", _of_azure(site))) as api:
            yield api
    except InUse as found:
        pytest.skip(f"a control plane may be at work on the cluster: {found}")


@asynccontextmanager
async def _known(api: Api, fleet: Fleet, site: str) -> AsyncIterator[None]:
    """The fleet's Machines and the passwords of its BMCs, while entered."""
    objects = manifests(fleet, site=site)
    passwords = [obj for obj in objects if obj["kind"] == "Secret"]
    for password in passwords:
        await api.create(SECRETS, password)
    for machine in objects:
        if machine["kind"] == "Machine":
            await api.create(MACHINES, machine)
    try:
        yield
    finally:  # Machines go with their definition
        for password in passwords:
            await api.delete(SECRETS, password["metadata"]["name"], namespace=password["metadata"]["namespace"])


async def test_both_carry_out_an_operation_by_selector_and_give_their_leases_back(
    admin: HttpApi, site: str, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(start_fleet(2, shutdown_s=0.2, boot_s=0.2, prefix=site))
        await stack.enter_async_context(_known(admin, fleet, site))
        accounts = [await account_kubeconfig(admin, name, tmp_path) for name in ("machina", "metalman")]
        as_machina, as_metalman = (("--kubeconfig", str(path)) for path in accounts)
        health_at = ("--health-bind", "127.0.0.1", "--health-port", "0")
        ports = ("--metrics-addr", "127.0.0.1:0", "--probe-addr", "127.0.0.1:0")
        machina = await stack.enter_async_context(controller("unbounded.machina.main", *as_machina, *ports))
        metalman = await stack.enter_async_context(
            controller("unbounded.metalman.main", *as_metalman, "--site", site, *health_at)
        )
        spec = {
            "machineSelector": {"matchLabels": {"unbounded-cloud.io/site": site}},
            "operationKind": "HostReboot",
        }
        await admin.create(MACHINE_OPERATIONS, {"metadata": {"name": "reboot"}, "spec": spec})
        operation = await _ended(admin, "reboot")
        assert (operation.status.phase, len(operation.status.targets)) == ("Complete", 2)

        health = f"http://127.0.0.1:{(await metalman.says('serving health and metrics'))['port']}"
        assert "[+]machines cache ok" in await asyncio.to_thread(_read, f"{health}/readyz")
        ended = 'unbounded_operations_total{kind="HostReboot",phase="Complete",reason="Succeeded"} 2.0'
        reconciled = f'unbounded_reconciles_total{{controller="operations metalman/{site}",result="done"}}'
        metrics = await _counted(health, ended, reconciled)
        assert f'unbounded_leading{{lease="metalman-{site}"}} 1.0' in metrics
        assert watches(metrics) == dict.fromkeys(("machineoperations", "machines", "configmaps", "nodes"), 1)

        health = f"http://127.0.0.1:{(await machina.says('serving health and metrics'))['port']}"
        metrics = await _counted(health, ended.replace("2.0", "1.0"))  # the parent; its children are metalman's
        assert watches(metrics) == MACHINA_WATCHES

        for process, lease in ((machina, "unbounded-operations"), (metalman, f"metalman-{site}")):
            assert await _holder(admin, lease)
            assert await process.stops() == 0
            assert await _holder(admin, lease) is None
        for bmc in fleet:
            assert (await bmc.truth())["sessions"] == 0


async def test_a_standby_takes_over_when_the_leader_stops(admin: HttpApi, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        account = await account_kubeconfig(admin, "machina", tmp_path)
        arguments = ("--kubeconfig", str(account), "--metrics-addr", "0", "--probe-addr", "127.0.0.1:0")
        first = await stack.enter_async_context(controller("unbounded.machina.main", *arguments))
        await first.says("leading")
        second = await stack.enter_async_context(controller("unbounded.machina.main", *arguments))
        health = f"http://127.0.0.1:{(await second.says('serving health and metrics'))['port']}"
        async with asyncio.timeout(LIMIT_S):
            while True:
                if await asyncio.to_thread(_is_ready, f"{health}/readyz"):
                    break
                await asyncio.sleep(0.1)
        assert not any(entry["message"] == "leading" for entry in second.logged)
        assert await first.stops() == 0
        await second.says("leading")
        await admin.create(MACHINES, {"metadata": {"name": "m1"}, "spec": {}})
        spec = {"machineRef": "m1", "operationKind": "HostPowerOff"}
        await admin.create(MACHINE_OPERATIONS, {"metadata": {"name": "off"}, "spec": spec})
        assert (await _ended(admin, "off")).status.reason == "UnsupportedTarget"


async def test_machine_ops_controller_names_the_missing_credential_and_releases_its_lease(
    admin: HttpApi, site: str, tmp_path: Path
) -> None:
    account = await account_kubeconfig(admin, "machine-ops-controller", tmp_path)
    ports = ("--metrics-bind-address", "0", "--health-probe-bind-address", "127.0.0.1:0")
    arguments = ("--kubeconfig", str(account), "--site", site, "--provider", "AzureVM", *ports)
    subscription = "/subscriptions/5f0c2a34-7d1e-4b6f-9a54-2f1f0a9f3c11/resourceGroups/rg"
    spec = {
        "provider": "AzureVM",
        "providerID": f"azure://{subscription}/providers/Microsoft.Compute/virtualMachines/m1",
    }
    await admin.create(MACHINES, {"metadata": {"name": "m1", "labels": {LABEL_SITE: site}}, "spec": spec})
    async with controller("unbounded.machineops.main", *arguments) as machine_ops:
        spec = {"machineRef": "m1", "operationKind": "HostPowerOff"}
        await admin.create(MACHINE_OPERATIONS, {"metadata": {"name": "off"}, "spec": spec})
        operation = await _ended(admin, "off")
        assert operation.status.reason == AUTH_NOT_FOUND
        assert f"spec.siteName '{site}' and spec.provider 'AzureVM'" in (operation.status.message or "")
        health = f"http://127.0.0.1:{(await machine_ops.says('serving health and metrics'))['port']}"
        assert "[+]machineoperationcredentials cache ok" in await asyncio.to_thread(_read, f"{health}/readyz")
        metrics = await _counted(
            health, 'unbounded_operations_total{kind="HostPowerOff",phase="Failed",reason="AuthNotFound"} 1.0'
        )
        lease = _of_azure(site)
        assert f'unbounded_leading{{lease="{lease}"}} 1.0' in metrics
        assert 'code="403"' not in metrics
        assert await _holder(admin, lease)
        assert await machine_ops.stops() == 0
        assert await _holder(admin, lease) is None


def _is_ready(url: str) -> bool:
    try:
        return "not" not in _read(url)
    except OSError:
        return False
