"""The command `machine serial` on a terminal, an API server with the deployed rights, metalman and a lab BMC."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import termios
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.apiserver.support import Client
from tests.cli.deployed import deployed
from tests.support.waiting import eventually
from unbounded.api.machine import MACHINES
from unbounded.cli.plugin import parsing
from unbounded.cli.plugin.command import CliInvocation
from unbounded.cli.plugin.main import run_command
from unbounded.cli.plugin.parsing import commands
from unbounded.cli.servers import component_runtime
from unbounded.kube.api import Api
from unbounded.kube.cache import Cache
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process import Runtime, running_caches
from unbounded.metalman import controller as metalman
from unbounded.metalman.bmc_access import BmcAccess
from unbounded.metalman.redfish.pool import BmcPool
from unbounded.metalman.serial_server import SerialLimits, SerialServer
from unbounded.metalman.settings import SERIAL_ADDRESS, MetalmanSettings
from unbounded.metalman.shared_consoles import SharedConsoles
from unbounded_apiserver.server import ApiServer
from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostPower
from unbounded_lab.machines import machines, secret

LIMIT_S: Final = 60.0
OURS: Final = "/apis/unbounded-cloud.io/v1alpha3"
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/unbounded-kube/leases"
PROMPT: Final = "lab-01 login: "


class Terminal:
    """The command on a terminal of its own, beside the test."""

    def __init__(self, server: ApiServer, *words: str) -> None:
        self.master, slave = pty.openpty()
        self._slave = slave
        self.stdin = os.fdopen(slave, "r")
        self.out, self.err = io.StringIO(), io.StringIO()
        command, args = parsing.parse(commands(), ["machine", "serial", *words], program="kubectl unbounded", others={})
        environ = {"KUBECONFIG": str(server.kubeconfig_path)}
        invocation = CliInvocation(args, environ, self.out, self.err, self.stdin, colour=False, terminal=False)
        self.before = termios.tcgetattr(self._slave)
        self.task = asyncio.create_task(run_command(command, invocation))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    async def prints(self, text: str, *, times: int = 1) -> None:
        async def printed() -> bool:
            assert not self.task.done(), self.err.getvalue()
            return (self.out.getvalue() + self.err.getvalue()).count(text) >= times

        await eventually(printed, within_s=LIMIT_S)

    async def ended(self) -> tuple[int, str]:
        """Return the exit status and the messages."""
        async with asyncio.timeout(LIMIT_S):
            status = await self.task
        assert termios.tcgetattr(self._slave) == self.before
        self.close()
        return status, self.err.getvalue()

    def close(self) -> None:
        self.stdin.close()
        os.close(self.master)


async def consoles(runtime: Runtime, limits: SerialLimits, environ: Mapping[str, str]) -> None:
    """Run the server of serial consoles with other limits than metalman's, or in an environment as of a Pod."""
    machines = Cache(runtime.api, MACHINES)
    async with running_caches(runtime, machines), BmcPool() as pool:
        shared = SharedConsoles(runtime.api, BmcAccess(runtime.api, pool), pool)
        server = SerialServer(
            runtime, machines, shared, site=None, address=SERIAL_ADDRESS, limits=limits, environ=environ
        )
        await server.run()


class SerialWorld:
    """An API server, a BMC with its Machine, and metalman, which can be restarted."""

    def __init__(self, server: ApiServer, admin: Client, api: HttpApi, bmc: LabBmc) -> None:
        self.server, self.admin, self.bmc = server, admin, bmc
        self._api = api

    @asynccontextmanager
    async def metalman(
        self, limits: SerialLimits | None = None, *, keeps_console_output: bool = True, **environ: str
    ) -> AsyncIterator[None]:
        """Run metalman with the rights of its account until the block is left; with limits, only its consoles."""
        settings = MetalmanSettings(
            site=None, power_reads_per_s=0, events=False, keeps_console_output=keeps_console_output
        )
        async with component_runtime("metalman", self._api, metrics=ControllerMetrics()) as runtime:
            assert runtime.events is not None
            async with asyncio.TaskGroup() as group:
                work = metalman.run(runtime, settings) if limits is None else consoles(runtime, limits, environ)
                tasks = [group.create_task(work), group.create_task(runtime.events.run())]
                try:
                    yield
                finally:
                    for task in tasks:
                        task.cancel()

    @asynccontextmanager
    async def account(self, name: str) -> AsyncIterator[Api]:
        """Yield the API as another controller's account."""
        async with component_runtime(name, self._api, metrics=ControllerMetrics()) as runtime:
            yield runtime.api

    async def published(self, *, other_than: str = "") -> str:
        """Return the published address of the server, once there is one."""

        async def there() -> Any:
            answer = await self.admin.ask("GET", f"{LEASES}/serial-console")
            if answer.status != 200:
                return None
            url = answer.json()["metadata"]["annotations"]["unbounded-cloud.io/serial-console-url"]
            return url if url != other_than else None

        return str(await eventually(there, within_s=LIMIT_S))

    async def grant(self, user: str, *rules: dict[str, Any]) -> None:
        meta = {"metadata": {"name": f"console-of-{user}"}}
        await self.admin.create(f"{RBAC}/clusterroles", {**meta, "rules": list(rules)})
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"console-of-{user}"}
        await self.admin.create(f"{RBAC}/clusterrolebindings", {**meta, "roleRef": role, "subjects": [subject]})

    def serial(self, *words: str) -> Terminal:
        return Terminal(self.server, "lab-01", *words)


@asynccontextmanager
async def serial_world(data: Path, faults: BmcFaults, *, power: HostPower = HostPower.ON) -> AsyncIterator[SerialWorld]:
    async with (
        deployed(data) as (server, admin),
        HttpApi(from_kubeconfig(server.kubeconfig_path)) as api,
        LabBmc(faults=faults, power=power, boot_s=0.1, shutdown_s=0.1) as bmc,
    ):
        await admin.create("/api/v1/namespaces/unbounded-kube/secrets", secret(bmc))
        (machine,) = machines(bmc)
        await admin.create(f"{OURS}/machines", machine)
        yield SerialWorld(server, admin, api, bmc)
