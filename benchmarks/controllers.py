"""A child process with machina's supervisor and metalman, each under its own service account.

`python -m benchmarks.controllers --kubeconfig FILE --site SITE --concurrent N [--events]`

Idle BMCs are not read, as the benchmark counts the requests of its operations.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from benchmarks import children
from unbounded.cli.servers import component_runtime
from unbounded.kube import logs
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process import running_caches
from unbounded.kube.process_tuning import freeze_imports, raise_gc_threshold
from unbounded.machina import controller as machina_controller
from unbounded.metalman import controller as metalman_controller
from unbounded.metalman.settings import MetalmanSettings
from unbounded.operations.caches import Caches
from unbounded.operations.telemetry import OperationMetrics


async def main(kubeconfig: Path, settings: MetalmanSettings) -> None:
    metrics = ControllerMetrics()
    async with (
        HttpApi(from_kubeconfig(kubeconfig)) as admin,
        component_runtime("machina", admin, metrics=metrics, elects=True) as as_machina,
        component_runtime("metalman", admin, metrics=metrics, elects=True) as as_metalman,
        asyncio.TaskGroup() as group,
    ):
        caches = machina_controller.create_machina_caches(as_machina.api)
        ended = OperationMetrics(metrics.registry)
        operation_caches = Caches(caches.operations, caches.machines, caches.pause)
        shared = metalman_controller.SharedCaches(operation_caches, caches.nodes, ended)
        writers = [runtime.events for runtime in (as_machina, as_metalman) if runtime.events is not None]
        async with running_caches(as_machina, *caches.each()):
            tasks = [
                group.create_task(machina_controller.run(as_machina, caches=caches, metrics=ended)),
                group.create_task(metalman_controller.run(as_metalman, settings, shared=shared)),
                *(group.create_task(events.run()) for events in writers),
            ]
            await children.serve({"site": settings.site}, metrics)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.controllers")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--site", required=True)
    parser.add_argument("--concurrent", type=int, default=10)
    parser.add_argument("--events", action="store_true", help="follow the events of the BMCs")
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    logs.configure(json=True, stream=sys.stderr)
    raise_gc_threshold()  # both as metalman does
    with freeze_imports():
        pass
    wanted = MetalmanSettings(site=given.site, concurrent=given.concurrent, power_reads_per_s=0.0, events=given.events)
    asyncio.run(main(given.kubeconfig, wanted))
