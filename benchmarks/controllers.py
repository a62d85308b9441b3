"""A child process with the controllers that carry out host operations: machina's steward and metalman, as deployed.

`python -m benchmarks.controllers --kubeconfig FILE --site SITE --concurrent N`
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from benchmarks import children
from unbounded.kube import logs
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.events import EventRecorder
from unbounded.kube.metrics import Metrics
from unbounded.kube.process import Runtime, followed
from unbounded.machina import controller as machina_controller
from unbounded.metalman import controller as metalman_controller
from unbounded.metalman.settings import Settings
from unbounded.operations.caches import Caches
from unbounded.operations.metrics import OperationMetrics


async def main(kubeconfig: Path, settings: Settings) -> None:
    metrics = Metrics()
    async with HttpApi(from_kubeconfig(kubeconfig), metrics=metrics) as api, asyncio.TaskGroup() as group:
        events = EventRecorder(api, "benchmark", metrics=metrics)
        runtime = Runtime(api, metrics, events, elects=True)
        caches = machina_controller.caches_of(api)
        shared = Caches(caches.operations, caches.machines, caches.pause)
        ended = OperationMetrics(metrics.registry)
        async with followed(runtime, caches.operations, caches.machines, caches.nodes, caches.pause):
            tasks = (
                group.create_task(events.run()),
                group.create_task(machina_controller.run(runtime, caches=caches, metrics=ended)),
                group.create_task(metalman_controller.run(runtime, settings, caches=shared, metrics=ended)),
            )
            await children.serve({"site": settings.site}, metrics)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.controllers")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--site", required=True)
    parser.add_argument("--concurrent", type=int, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    logs.configure(json=True, stream=sys.stderr)
    asyncio.run(main(given.kubeconfig, Settings(site=given.site, concurrent=given.concurrent)))
