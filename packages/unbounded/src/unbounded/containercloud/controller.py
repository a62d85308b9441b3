"""Controllers of Container Cloud's kinds, behind one Lease."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from unbounded.api.container_cloud.names import LEASE_CONTAINER_CLOUD
from unbounded.containercloud.caches import ContainerCloudCaches, ControllerContext, container_cloud_caches
from unbounded.containercloud.claims import ClaimController
from unbounded.containercloud.clusters import ClusterController, ReleaseController
from unbounded.containercloud.hosts.controller import HostController
from unbounded.containercloud.hosts.credentials import CredentialController
from unbounded.containercloud.machines.controller import ContainerCloudMachineController
from unbounded.containercloud.network.controller import NetworkController
from unbounded.containercloud.pools import PoolController
from unbounded.containercloud.profiles.controller import ProfileController
from unbounded.containercloud.settings import ContainerCloudSettings
from unbounded.kube.events import event_sink
from unbounded.kube.process import Runtime, running_caches
from unbounded.kube.process_epoch import ProcessEpoch


class Runnable(Protocol):
    """A controller, which runs until it is cancelled."""

    async def run(self) -> None: ...


async def run(runtime: Runtime, settings: ContainerCloudSettings) -> None:
    """Run the controllers until cancelled, whenever this process leads."""
    caches = container_cloud_caches(runtime.api)

    async def lead(epoch: ProcessEpoch) -> None:
        async with asyncio.TaskGroup() as group:
            for name, controller in controllers(runtime, caches, settings, epoch).items():
                group.create_task(controller.run(), name=name)

    async with running_caches(runtime, *caches.followed):
        await runtime.lead(LEASE_CONTAINER_CLOUD, lead, settings.election)


def controllers(
    runtime: Runtime, caches: ContainerCloudCaches, settings: ContainerCloudSettings, epoch: ProcessEpoch
) -> Mapping[str, Runnable]:
    """Return the controllers of one leadership term by their names. Each starts with an empty state."""
    shared, strict = frozenset(settings.shared_host_namespaces), settings.strict_distribution
    context = ControllerContext(
        api=runtime.api,
        caches=caches,
        epoch=epoch,
        now=runtime.now,
        emit_event=event_sink(runtime.events),
        metrics=runtime.metrics,
    )
    return {
        "credentials": CredentialController(context),
        "hosts": HostController(context, site=settings.site),
        "claims": ClaimController(context, shared=shared, strict_distribution=strict),
        "machines": ContainerCloudMachineController(
            context,
            shared=shared,
            policy=settings.default_deletion_policy,
            min_other_managers=settings.min_other_managers,
            strict_distribution=strict,
        ),
        "releases": ReleaseController(context),
        "clusters": ClusterController(context, strict_distribution=strict),
        "networks": NetworkController(context),
        "profiles": ProfileController(context),
        "pools": PoolController(context),
    }
