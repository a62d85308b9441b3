"""Controllers of Clusters and ClusterReleases: they observe, and carry out what `cluster_plan` decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, assert_never

import msgspec

from unbounded.api.conditions import set_condition
from unbounded.api.configuration import MACHINE_CONFIGURATIONS
from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES, CLUSTERS, Cluster, ClusterRelease
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.container_cloud.names import FINALIZER_CLUSTER, scoped_name
from unbounded.api.core import Node
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS, MachineDisruptionBudget
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind, Object
from unbounded.api.names import LABEL_MACHINE
from unbounded.containercloud.caches import (
    INDEX_CLUSTER,
    INDEX_HOST_MACHINE,
    INDEX_RELEASE,
    INDEX_SCOPED_NAME,
    ControllerContext,
    by_cluster_label,
)
from unbounded.containercloud.cluster_plan import (
    ClusterAction,
    ClusterReason,
    ClusterView,
    CreateBudget,
    CreateConfiguration,
    DeleteBudget,
    DeleteConfiguration,
    DeleteMachine,
    PatchBudget,
    PatchConfiguration,
    SetClusterFinalizer,
    UnlabelHost,
    WriteClusterStatus,
    plan_cluster,
)
from unbounded.containercloud.hosts.adoption import leaves_as_is
from unbounded.containercloud.refused import RefusalEvents, RefusedWrites, WriteAttempt
from unbounded.containercloud.releases import release_fault
from unbounded.kube.api import AlreadyExists, NotFound, ObjectKey, key_of
from unbounded.kube.clock import rfc3339
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.status_writer import StatusDebounce, StatusWriter
from unbounded.operations.caches import node_of

Raw = dict[str, Any]
SETTLE_S: Final = 0.2  # before a pass, as changes of many Machines come together
COUNTS_S: Final = 5.0  # from a change of the number of ready Machines until it is written, as more will follow
WRITE_STATUS: Final = "write the status of this Cluster"
CONDITION_USABLE: Final = "Usable"

log = Log("clusters")


class ReleaseController:
    """Controller of the condition Usable of ClusterReleases."""

    def __init__(self, context: ControllerContext) -> None:
        self._releases = releases = context.caches.releases
        self._status = StatusWriter(context.api, CLUSTER_RELEASES, fields=("conditions",), cache=releases)
        self._now = context.now
        self._unwritten = RefusalEvents(context.emit_event)
        self._controller: Controller[str] = Controller("releases", self._reconcile, workers=1, metrics=context.metrics)
        self._controller.follow(releases, lambda release: (release.name,))

    async def run(self) -> None:
        """Run until cancelled."""
        await self._controller.run()

    async def _reconcile(self, name: str) -> float | None:
        release = self._releases.get(name)
        if release is None or release.metadata.deletion_timestamp is not None:
            self._unwritten.forget(ObjectKey("", name))
            return None
        fault = release_fault(release)
        conditions = set_condition(
            [msgspec.to_builtins(one) for one in release.status.conditions],
            CONDITION_USABLE,
            "False" if fault else "True",
            ClusterReason.UNSUPPORTED_IMAGE if fault else ClusterReason.USABLE,
            fault or "all images can be used",
            rfc3339(self._now()),
        )
        if conditions is not None:
            with self._unwritten.recorded(release, "write the status of this ClusterRelease"):
                await self._status.write(release, {"conditions": conditions})
        return None


class ClusterController:
    """Controller of Clusters: releases, budgets, the order of their Machines, and their status.

    Args:
        strict_distribution: whether Machines have to name their distribution.
    """

    def __init__(self, context: ControllerContext, *, strict_distribution: bool = False) -> None:
        self._api = api = context.api
        self._strict_distribution = strict_distribution
        self._epoch, self._now = context.epoch, context.now
        self._caches = caches = context.caches
        self._debounce = StatusDebounce()
        self._refused = RefusedWrites()  # for Clusters
        self._unwritten = RefusalEvents(context.emit_event)  # about the status itself
        self._status = StatusWriter(api, CLUSTERS, fields=("providerStatus",), cache=caches.clusters)
        self._controller: Controller[ObjectKey] = Controller("clusters", self._reconcile, metrics=context.metrics)
        self._refused.subscribe(self._controller.enqueue)
        follow = partial(self._controller.follow, delay_s=SETTLE_S)
        follow(caches.clusters, lambda cluster: (key_of(cluster),))
        follow(caches.releases, self._of_release, parts=lambda release: release.spec)
        follow(caches.machines, _clusters_of, parts=_parts_of_machine)
        follow(caches.host_machines, self._of_host, parts=_parts_of_host)
        follow(caches.nodes, self._of_node, parts=lambda node: node.status.node_info)
        follow(caches.configurations, lambda configuration: self._named(configuration.name))
        follow(caches.budgets, self._of_budget, parts=lambda budget: (budget.spec, budget.metadata.annotations))

    async def run(self) -> None:
        """Run until cancelled."""
        await self._controller.run()

    # ---- what wakes a Cluster

    def _named(self, scoped: str) -> Iterable[ObjectKey]:
        return map(key_of, self._caches.clusters.by(INDEX_SCOPED_NAME, scoped))

    def _of_release(self, release: ClusterRelease) -> Iterable[ObjectKey]:
        return map(key_of, self._caches.clusters.by(INDEX_RELEASE, release.name))

    def _of_host(self, host: Machine) -> Iterator[ObjectKey]:
        for name in by_cluster_label(host):
            yield from self._named(name)
        yield from self._of_claimed(host.name)

    def _of_node(self, node: Node) -> Iterable[ObjectKey]:
        return self._of_claimed(node.metadata.labels.get(LABEL_MACHINE, node.name))

    def _of_claimed(self, host: str) -> Iterator[ObjectKey]:
        for machine in self._caches.machines.by(INDEX_HOST_MACHINE, host):
            yield from _clusters_of(machine)

    def _of_budget(self, budget: MachineDisruptionBudget) -> Iterable[ObjectKey]:
        return self._named(budget.name.rpartition(".")[0])

    # ---- one Cluster

    async def _reconcile(self, key: ObjectKey) -> float | None:
        cluster = self._caches.clusters.get(key.name, key.namespace)
        if cluster is None:
            self._refused.forget(key)
            self._unwritten.forget(key)
            return None
        with self._refused.recorded(key, "clusters") as attempt:
            return await self._pass(key, cluster, attempt)

    async def _pass(self, key: ObjectKey, cluster: Cluster, attempt: WriteAttempt) -> float | None:
        left_s = 0.0
        with suppress(NotFound, AlreadyExists):  # the watch delivers the change
            for action in plan_cluster(self._observe(cluster)):
                self._epoch.check_leads()
                if isinstance(action, WriteClusterStatus):
                    left_s = self._debounce.left_s(key, self._now(), waits_s=COUNTS_S if action.counts else 0.0)
                attempt.what = _write_of(action)
                if not left_s or not isinstance(action, WriteClusterStatus):
                    await self._perform(cluster, action)
        return left_s or None

    def _observe(self, cluster: Cluster) -> ClusterView:
        caches, name = self._caches, scoped_name(cluster.metadata.namespace or "", cluster.name)
        machines = caches.machines.by(INDEX_CLUSTER, str(key_of(cluster)))
        named = (one.status.execution.machine for one in machines if one.status.execution is not None)
        claimed = (caches.host_machines.get(one) for one in named if one is not None)
        hosts = {one.name: one for one in (*caches.host_machines.by(INDEX_CLUSTER, name), *claimed) if one is not None}
        nodes = {one: node_of(caches.nodes, one) for one in hosts}
        budgets = {one: caches.budgets.get(one) for one in (f"{name}.managers", f"{name}.workers")}
        return ClusterView(
            cluster=cluster,
            release=caches.releases.get(cluster.value.release),
            machines=sorted(machines, key=lambda one: one.name),
            hosts=hosts,
            nodes={one: node for one, node in nodes.items() if node is not None},
            configuration=caches.configurations.get(name),
            budgets={one: budget for one, budget in budgets.items() if budget is not None},
            kept=frozenset(one.name for one in machines if self._is_kept(one)),
            strict_distribution=self._strict_distribution,
            refused=self._refused.of(key_of(cluster)),
        )

    def _is_kept(self, machine: ContainerCloudMachine) -> bool:
        """Return whether others have installed the host of a Machine; that cannot change while it has the host."""
        execution = machine.status.execution
        claimed = None if execution is None else execution.host
        host = None if claimed is None else self._caches.hosts.get(claimed.name, claimed.namespace)
        target = None if execution is None else self._caches.host_machines.get(execution.machine or "")
        return leaves_as_is(host, target)

    async def _perform(self, cluster: Cluster, action: ClusterAction) -> None:
        api, caches = self._api, self._caches
        match action:
            case SetClusterFinalizer(present=present):
                others = [one for one in cluster.metadata.finalizers if one != FINALIZER_CLUSTER]
                patch = {"metadata": _version(cluster) | {"finalizers": [*others, *[FINALIZER_CLUSTER] * present]}}
                key = key_of(cluster)
                caches.clusters.observe(await api.patch(CLUSTERS, key.name, patch, namespace=key.namespace))
            case DeleteMachine(machine=machine):
                key = key_of(machine)
                await self._delete(CONTAINER_CLOUD_MACHINES, machine)
                log.info("machine deleted with its cluster", namespace=key.namespace, machine=key.name)
            case UnlabelHost(host=host, labels=labels):
                patch = {"metadata": {"uid": host.metadata.uid, "labels": dict(labels)}}
                caches.host_machines.observe(await api.patch(MACHINES, host.name, patch))
            case CreateConfiguration(body=body):
                caches.configurations.observe(await api.create(MACHINE_CONFIGURATIONS, body))
                log.info("configuration created", cluster=cluster.name, configuration=body["metadata"]["name"])
            case PatchConfiguration(configuration=configuration, patch=patch):
                body = patch | {"metadata": _version(configuration)}
                caches.configurations.observe(await api.patch(MACHINE_CONFIGURATIONS, configuration.name, body))
                log.info("configuration changed", cluster=cluster.name, configuration=configuration.name)
            case DeleteConfiguration(configuration=configuration):
                await self._delete(MACHINE_CONFIGURATIONS, configuration)
            case CreateBudget(body=body):
                caches.budgets.observe(await api.create(MACHINE_DISRUPTION_BUDGETS, body))
            case PatchBudget(budget=budget, patch=patch):
                body = patch | {"metadata": _version(budget)}
                caches.budgets.observe(await api.patch(MACHINE_DISRUPTION_BUDGETS, budget.name, body))
            case DeleteBudget(budget=budget):
                await self._delete(MACHINE_DISRUPTION_BUDGETS, budget)
            case WriteClusterStatus(provider_status=status):
                with self._unwritten.recorded(cluster, WRITE_STATUS):
                    await self._status.write(cluster, {"providerStatus": status})
            case _:
                assert_never(action)

    async def _delete(self, kind: Kind[Any], item: Object) -> None:
        key = key_of(item)
        with suppress(NotFound):
            await self._api.delete(kind, key.name, namespace=key.namespace, uid=item.metadata.uid)


def _write_of(action: ClusterAction) -> str:
    """Return an action in words, as a verb with its object."""
    match action:
        case SetClusterFinalizer(present=present):
            return f"{'add' if present else 'remove'} the finalizer of this Cluster"
        case DeleteMachine(machine=machine):
            return f"delete Machine {key_of(machine)}"
        case UnlabelHost(host=host):
            return f"change the labels of Machine {host.name}"
        case CreateConfiguration(body=body):
            return f"create MachineConfiguration {body['metadata']['name']}"
        case PatchConfiguration(configuration=configuration):
            return f"change MachineConfiguration {configuration.name}"
        case DeleteConfiguration(configuration=configuration):
            return f"delete MachineConfiguration {configuration.name}"
        case CreateBudget(body=body):
            return f"create MachineDisruptionBudget {body['metadata']['name']}"
        case PatchBudget(budget=budget):
            return f"change MachineDisruptionBudget {budget.name}"
        case DeleteBudget(budget=budget):
            return f"delete MachineDisruptionBudget {budget.name}"
        case WriteClusterStatus():
            return WRITE_STATUS


def _version(item: Object) -> Raw:
    """Return the precondition of a patch: the version that was read."""
    return {"resourceVersion": item.metadata.resource_version}


def _clusters_of(machine: ContainerCloudMachine) -> tuple[ObjectKey, ...]:
    return (ObjectKey(machine.metadata.namespace or "", machine.cluster),) if machine.cluster else ()


def _parts_of_machine(machine: ContainerCloudMachine) -> object:
    """Return the parts of a Machine that the plan of its Cluster depends on."""
    execution, value, status = machine.status.execution, machine.value, machine.provider_status
    claim = None if execution is None else (execution.machine, execution.stage)
    return (
        (machine.cluster, machine.is_manager, machine.metadata.deletion_timestamp is None, claim),
        (value.distribution, status.ready),
    )


def _parts_of_host(host: Machine) -> object:
    """Return the parts of a host's Machine that the plan of its Cluster depends on."""
    agent, image = host.status.agent, host.status.image
    return host.metadata.labels, None if agent is None else agent.image, image
