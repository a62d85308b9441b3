"""Child processes of the benchmark of Container Cloud.

`hosts N CA`: as many simulated BMCs with hosts that boot, whose virtual media chain to the certificate in the file CA;
its first line has their logins. `controllers KUBECONFIG [--claims]`: the process `container-cloud`, or a leader beside
others that only claims hosts.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from benchmarks import children
from unbounded.cli.servers import component_runtime
from unbounded.containercloud import controller
from unbounded.containercloud.caches import container_cloud_caches
from unbounded.containercloud.settings import COMPONENT, ContainerCloudSettings
from unbounded.kube import logs
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process import Runtime, running_caches
from unbounded.kube.process_tuning import freeze_imports, raise_gc_threshold
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostPower

TURN_S = 0.2  # of a host: to boot, and to shut down


class BootingHost(msgspec.Struct, frozen=True):
    """Login and identity of one simulated host."""

    name: str
    url: str
    username: str
    password: str
    mac: str
    disk: str  # serial number


async def hosts(count: int, authority: str) -> None:
    async with AsyncExitStack() as stack:
        made: list[BootingHost] = []
        for number in range(count):
            bmc = LabBmc(
                f"host-{number}",
                power=HostPower.OFF,
                boot_s=TURN_S,
                shutdown_s=TURN_S,
                media_ca=authority,
                boots=True,
            )
            await stack.enter_async_context(bmc)
            disk = bmc.boards["1"].disks[0].serial_number
            made.append(BootingHost(bmc.name, bmc.url, bmc.username, bmc.password, bmc.identity.mac(0), disk))
        await children.serve({"hosts": made})


async def controllers(kubeconfig: Path, *, only_claims: bool) -> None:
    metrics = ControllerMetrics()
    async with (
        HttpApi(from_kubeconfig(kubeconfig)) as admin,
        component_runtime(COMPONENT, admin, metrics=metrics, elects=not only_claims) as runtime,
        asyncio.TaskGroup() as group,
    ):
        work = claims(runtime) if only_claims else controller.run(runtime, ContainerCloudSettings())
        tasks = [group.create_task(work)]
        if runtime.events is not None:
            tasks.append(group.create_task(runtime.events.run()))
        await children.serve({}, metrics)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def claims(runtime: Runtime) -> None:
    """Lead, whoever else does, and claim."""
    caches = container_cloud_caches(runtime.api)
    async with running_caches(runtime, *caches.followed):
        every = controller.controllers(runtime, caches, ContainerCloudSettings(), runtime.epoch)
        await every["claims"].run()


def main(arguments: Sequence[str]) -> None:
    logs.configure(json=True, stream=sys.stderr)
    raise_gc_threshold()
    with freeze_imports():
        pass
    if arguments[0] == "hosts":
        asyncio.run(hosts(int(arguments[1]), Path(arguments[2]).read_text()))
    else:
        asyncio.run(controllers(Path(arguments[1]), only_claims="--claims" in arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
