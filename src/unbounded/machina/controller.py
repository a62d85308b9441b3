"""machina's controllers: the steward, behind its Lease."""

from __future__ import annotations

from unbounded.api.core import CONFIG_MAPS, NODES
from unbounded.api.machine import MACHINES
from unbounded.api.names import CONFIGMAP_OPERATIONS, LEASE_STEWARD, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.cache import Cache
from unbounded.kube.port import Api
from unbounded.kube.process import Runtime, followed
from unbounded.operations.announcing import announcer
from unbounded.operations.caches import (
    INDEX_EXECUTOR,
    INDEX_MACHINE,
    INDEX_PARENT,
    StewardCaches,
    by_executor,
    by_machine,
    by_parent,
    node_by_machine,
)
from unbounded.operations.metrics import OperationMetrics
from unbounded.operations.steward import Steward


def caches_of(api: Api) -> StewardCaches:
    """What the steward reads; executors in the same process can share it."""
    indexes = {INDEX_MACHINE: by_machine, INDEX_PARENT: by_parent, INDEX_EXECUTOR: by_executor}
    return StewardCaches(
        operations=Cache(api, MACHINE_OPERATIONS, indexes=indexes),
        machines=Cache(api, MACHINES),
        nodes=Cache(api, NODES, indexes={INDEX_MACHINE: node_by_machine}),
        pause=Cache(api, CONFIG_MAPS, namespace=NAMESPACE, fields=f"metadata.name={CONFIGMAP_OPERATIONS}"),
    )


async def run(
    runtime: Runtime, *, caches: StewardCaches | None = None, metrics: OperationMetrics | None = None
) -> None:
    """Run the steward until cancelled, whenever this process leads.

    Args:
        caches, metrics: those of the process, which runs the caches; None for own ones.
    """
    metrics = metrics or OperationMetrics(runtime.metrics.registry)
    if caches is not None:
        await runtime.lead(LEASE_STEWARD, Term(runtime, caches, metrics).run)
        return
    caches = caches_of(runtime.api)
    async with followed(runtime, caches.operations, caches.machines, caches.nodes, caches.pause):
        await runtime.lead(LEASE_STEWARD, Term(runtime, caches, metrics).run)


class Term:
    """What runs while this process leads. Every term begins anew: ages are counted from its own first sight."""

    def __init__(self, runtime: Runtime, caches: StewardCaches, metrics: OperationMetrics) -> None:
        self._runtime = runtime
        self._caches = caches
        self._metrics = metrics

    async def run(self) -> None:
        runtime = self._runtime
        steward = Steward(
            runtime.api,
            self._caches,
            announce=announcer(runtime.events),
            metrics=self._metrics,
            loop_metrics=runtime.metrics,
        )
        await steward.run()
