"""Controllers of Container Cloud's kinds, behind one Lease."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from unbounded.api.container_cloud.names import LEASE_CONTAINER_CLOUD
from unbounded.containercloud.caches import ContainerCloudCaches, container_cloud_caches
from unbounded.containercloud.clusters import ClusterController, ReleaseController
from unbounded.containercloud.pools import PoolController
from unbounded.containercloud.settings import ContainerCloudSettings
from unbounded.kube.process import Runtime, running_caches
from unbounded.kube.process_epoch import ProcessEpoch


class Runnable(Protocol):
    """A controller, which runs until it is cancelled."""

    async def run(self) -> None: ...


async def run(runtime: Runtime, settings: ContainerCloudSettings) -> None:
    """Run the controllers until cancelled, whenever this process leads."""
    caches = container_cloud_caches(runtime.api)

    async def lead(_epoch: ProcessEpoch) -> None:
        async with asyncio.TaskGroup() as group:
            for name, controller in controllers(runtime, caches).items():
                group.create_task(controller.run(), name=name)

    async with running_caches(runtime, *caches.followed):
        await runtime.lead(LEASE_CONTAINER_CLOUD, lead, settings.election)


def controllers(runtime: Runtime, caches: ContainerCloudCaches) -> Mapping[str, Runnable]:
    """Return the controllers of one leadership term by their names. Each starts with an empty state."""
    api, metrics = runtime.api, runtime.metrics
    return {
        "releases": ReleaseController(api, caches, now=runtime.now, loop_metrics=metrics),
        "clusters": ClusterController(api, caches, loop_metrics=metrics),
        "pools": PoolController(api, caches, now=runtime.now, loop_metrics=metrics),
    }
