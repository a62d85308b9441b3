"""`machina controller` and `metalman controller` as processes, on an API server that neither of them started."""

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

from tests.cli.running import watches
from tests.support.embedded_server import account_kubeconfig, embedded_server, install_crds
from unbounded.api.core import LEASES
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.cli import lab
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.port import Api
from unbounded.lab.bmc.fleet import start_fleet

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


async def _holder(api: Api, lease: str) -> str | None:
    return (await api.get(LEASES, lease, namespace="unbounded-kube")).spec.holder_identity


def _read(url: str) -> str:
    with urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


async def test_both_carry_out_an_operation_by_selector_and_give_their_leases_back(tmp_path: Path) -> None:
    with embedded_server(tmp_path / "data") as kubeconfig:
        await install_crds(kubeconfig)
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(HttpApi(from_kubeconfig(kubeconfig)))
            fleet = await stack.enter_async_context(start_fleet(2, shutdown_s=0.2, boot_s=0.2))
            await lab.apply(api, fleet)
            accounts = [await account_kubeconfig(kubeconfig, name) for name in ("machina", "metalman")]
            as_machina, as_metalman = (("--kubeconfig", str(path)) for path in accounts)
            health_at = ("--health-bind", "127.0.0.1", "--health-port", "0")
            ports = ("--metrics-addr", "127.0.0.1:0", "--probe-addr", "127.0.0.1:0")
            machina = await stack.enter_async_context(controller("unbounded.machina.main", *as_machina, *ports))
            metalman = await stack.enter_async_context(
                controller("unbounded.metalman.main", *as_metalman, "--site", "lab", *health_at)
            )
            spec = {
                "machineSelector": {"matchLabels": {"unbounded-cloud.io/site": "lab"}},
                "operationKind": "HostReboot",
            }
            await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "reboot"}, "spec": spec})
            operation = await _ended(api, "reboot")
            assert (operation.status.phase, len(operation.status.targets)) == ("Complete", 2)

            health = f"http://127.0.0.1:{(await metalman.says('serving health and metrics'))['port']}"
            assert "[+]machines cache ok" in await asyncio.to_thread(_read, f"{health}/readyz")
            metrics = await asyncio.to_thread(_read, f"{health}/metrics")
            ended = 'unbounded_operations_total{kind="HostReboot",phase="Complete",reason="Succeeded"} 2.0'
            assert ended in metrics
            assert 'unbounded_leading{lease="metalman-lab"} 1.0' in metrics
            assert watches(metrics) == dict.fromkeys(("machineoperations", "machines", "configmaps"), 1)
            assert 'unbounded_reconciles_total{controller="operations metalman/lab",result="done"}' in metrics

            health = f"http://127.0.0.1:{(await machina.says('serving health and metrics'))['port']}"
            metrics = await asyncio.to_thread(_read, f"{health}/metrics")
            assert ended.replace("2.0", "1.0") in metrics  # the parent; its children are metalman's
            assert watches(metrics) == dict.fromkeys(("machineoperations", "machines", "nodes", "configmaps"), 1)

            for process, lease in ((machina, "unbounded-operations"), (metalman, "metalman-lab")):
                assert await _holder(api, lease)
                assert await process.stops() == 0
                assert await _holder(api, lease) is None
            for bmc in fleet:
                assert (await bmc.truth())["sessions"] == 0


async def test_a_standby_takes_over_when_the_leader_stops(tmp_path: Path) -> None:
    with embedded_server(tmp_path / "data") as kubeconfig:
        await install_crds(kubeconfig)
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(HttpApi(from_kubeconfig(kubeconfig)))
            account = await account_kubeconfig(kubeconfig, "machina")
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
            await api.create(MACHINES, {"metadata": {"name": "m1"}, "spec": {}})
            spec = {"machineRef": "m1", "operationKind": "HostPowerOff"}
            await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "off"}, "spec": spec})
            assert (await _ended(api, "off")).status.reason == "UnsupportedTarget"


def _is_ready(url: str) -> bool:
    try:
        return "not" not in _read(url)
    except OSError:
        return False
