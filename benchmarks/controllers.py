"""A child process with the controllers that carry out host operations: the steward and metalman, nothing else.

`python -m benchmarks.controllers --kubeconfig FILE --site SITE --concurrent N`. At its end it says what it has used:
seconds of CPU since it was ready, and its requests to the Kubernetes API by verb and resource.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from benchmarks import children
from unbounded.api.core import CONFIG_MAPS, NODES
from unbounded.api.machine import MACHINES
from unbounded.api.names import CONFIGMAP_OPERATIONS, LABEL_MACHINE, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube import logs
from unbounded.kube.cache import Cache
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.metrics import Metrics
from unbounded.kube.port import Api
from unbounded.metalman.access import BmcAccess
from unbounded.metalman.executor import RedfishExecutor
from unbounded.metalman.redfish.pool import BmcPool
from unbounded.operations.engine import INDEX_MACHINE, Caches, Engine, by_machine
from unbounded.operations.steward import INDEX_EXECUTOR, INDEX_PARENT, Steward, StewardCaches, by_executor, by_parent

SYNCED_S: Final = 60.0


async def main(kubeconfig: Path, site: str, concurrent: int) -> None:
    metrics = Metrics()
    async with HttpApi(from_kubeconfig(kubeconfig), metrics=metrics) as api, BmcPool() as pool:
        caches = _caches(api)
        executor = RedfishExecutor(api, pool, BmcAccess(api, pool), site=site)
        engine = Engine(
            api,
            executor,
            Caches(caches.operations, caches.machines, caches.pause),
            incarnation="benchmark",
            concurrent=concurrent,
        )
        async with _running(caches, engine, Steward(api, caches)):
            began_s = children.cpu_s()
            children.say({"ready": True})
            await children.told_to_stop()
    children.say({"cpu_s": children.cpu_s() - began_s, "requests": requests(metrics)})


def _caches(api: Api) -> StewardCaches:
    """One watch for each kind, shared by both controllers."""
    indexes = {INDEX_MACHINE: by_machine, INDEX_PARENT: by_parent, INDEX_EXECUTOR: by_executor}
    return StewardCaches(
        operations=Cache(api, MACHINE_OPERATIONS, indexes=indexes),
        machines=Cache(api, MACHINES),
        nodes=Cache(api, NODES, indexes={INDEX_MACHINE: lambda node: (node.metadata.labels.get(LABEL_MACHINE, ""),)}),
        pause=Cache(api, CONFIG_MAPS, namespace=NAMESPACE, fields=f"metadata.name={CONFIGMAP_OPERATIONS}"),
    )


@contextlib.asynccontextmanager
async def _running(caches: StewardCaches, engine: Engine, steward: Steward) -> AsyncIterator[None]:
    followed: tuple[Cache[Any], ...] = (caches.operations, caches.machines, caches.nodes, caches.pause)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(cache.run()) for cache in followed]
        async with asyncio.timeout(SYNCED_S):
            for cache in followed:
                await cache.synced.wait()
        tasks += [group.create_task(engine.run()), group.create_task(steward.run())]
        yield
        for task in tasks:
            task.cancel()


def requests(metrics: Metrics) -> dict[str, int]:
    """Requests to the API as `{"patch machines": 12}`, whatever their answers."""
    counted: dict[str, int] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "unbounded_api_requests_total":
                what = f"{sample.labels['verb']} {sample.labels['kind']}"
                counted[what] = counted.get(what, 0) + int(sample.value)
    return counted


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.controllers")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--site", required=True)
    parser.add_argument("--concurrent", type=int, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    logs.configure(json=True, stream=sys.stderr)
    asyncio.run(main(given.kubeconfig, given.site, given.concurrent))
