"""The process `container-cloud` of the benchmark, or a leader beside others that only claims hosts.

`python -m benchmarks.container_cloud_processes KUBECONFIG [--claims]`
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

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
    asyncio.run(controllers(Path(arguments[0]), only_claims="--claims" in arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
