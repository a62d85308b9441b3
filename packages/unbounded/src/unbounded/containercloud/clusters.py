"""Controllers of Clusters and ClusterReleases: they observe, and carry out what `cluster_plan` decides."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Any, Final, assert_never

import msgspec

from unbounded.api.conditions import set_condition
from unbounded.api.configuration import MACHINE_CONFIGURATIONS, MachineConfiguration
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
    ContainerCloudCaches,
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
    LabelHost,
    PatchBudget,
    PatchConfiguration,
    SetClusterFinalizer,
    SetUpgradeIndex,
    WriteClusterStatus,
    plan_cluster,
    release_fault,
)
from unbounded.kube.api import AlreadyExists, Api, NotFound, ObjectKey, key_of
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.status_writer import StatusWriter
from unbounded.operations.caches import node_of

Raw = dict[str, Any]
SETTLE_S: Final = 0.2  # before a pass, as changes of many Machines come together
CONDITION_USABLE: Final = "Usable"

log = Log("clusters")


class ReleaseController:
    """Controller of the condition Usable of ClusterReleases."""

    def __init__(
        self,
        api: Api,
        caches: ContainerCloudCaches,
        *,
        now: WallClock = utc_now,
        loop_metrics: ControllerMetrics | None = None,
    ) -> None:
        self._releases = caches.releases
        self._status = StatusWriter(api, CLUSTER_RELEASES, fields=("conditions",), cache=caches.releases)
        self._now = now
        self._controller: Controller[str] = Controller("releases", self._reconcile, workers=1, metrics=loop_metrics)

    async def run(self) -> None:
        """Run until cancelled."""
        with self._releases.subscribed(self._changed):
            await self._controller.run()

    def _changed(self, _old: ClusterRelease | None, new: ClusterRelease | None) -> None:
        if new is not None:
            self._controller.enqueue(new.name)

    async def _reconcile(self, name: str) -> float | None:
        release = self._releases.get(name)
        if release is None or release.metadata.deletion_timestamp is not None:
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
            await self._status.write(release, {"conditions": conditions})
        return None


class ClusterController:
    """Controller of Clusters: releases, budgets, the order of their Machines, and their status."""

    def __init__(
        self, api: Api, caches: ContainerCloudCaches, *, loop_metrics: ControllerMetrics | None = None
    ) -> None:
        self._api = api
        self._caches = caches
        self._status = StatusWriter(api, CLUSTERS, fields=("providerStatus",), cache=caches.clusters)
        self._machine_status = StatusWriter(
            api, CONTAINER_CLOUD_MACHINES, fields=("providerStatus",), cache=caches.machines
        )
        self._controller: Controller[ObjectKey] = Controller("clusters", self._reconcile, metrics=loop_metrics)

    async def run(self) -> None:
        """Run until cancelled."""
        caches = self._caches
        with ExitStack() as stack:
            stack.enter_context(caches.clusters.subscribed(self._cluster_changed))
            stack.enter_context(caches.releases.subscribed(self._release_changed))
            stack.enter_context(caches.machines.subscribed(self._machine_changed))
            stack.enter_context(caches.host_machines.subscribed(self._host_changed))
            stack.enter_context(caches.nodes.subscribed(self._node_changed))
            stack.enter_context(caches.configurations.subscribed(self._configuration_changed))
            stack.enter_context(caches.budgets.subscribed(self._budget_changed))
            await self._controller.run()

    # ---- what wakes a Cluster

    def _enqueue(self, keys: Iterable[ObjectKey]) -> None:
        for key in keys:
            self._controller.queue.add_after(key, SETTLE_S)

    def _named(self, *scoped: str) -> Iterable[ObjectKey]:
        return (key_of(one) for name in scoped for one in self._caches.clusters.by(INDEX_SCOPED_NAME, name))

    def _cluster_changed(self, _old: Cluster | None, new: Cluster | None) -> None:
        if new is not None:
            self._enqueue((key_of(new),))

    def _release_changed(self, old: ClusterRelease | None, new: ClusterRelease | None) -> None:
        either = new or old
        if either is not None and (old is None or new is None or old.spec != new.spec):
            self._enqueue(map(key_of, self._caches.clusters.by(INDEX_RELEASE, either.name)))

    def _machine_changed(self, old: ContainerCloudMachine | None, new: ContainerCloudMachine | None) -> None:
        if old is None or new is None or _parts_of_machine(old) != _parts_of_machine(new):
            self._enqueue({_cluster_of(one) for one in (old, new) if one is not None and one.cluster})

    def _host_changed(self, old: Machine | None, new: Machine | None) -> None:
        if old is not None and new is not None and _parts_of_host(old) == _parts_of_host(new):
            return
        for one in (old, new):
            if one is not None:
                self._enqueue(self._named(*by_cluster_label(one)))
                self._enqueue(map(_cluster_of, self._caches.machines.by(INDEX_HOST_MACHINE, one.name)))

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is not None and new is not None and old.status.node_info == new.status.node_info:
            return
        for one in (old, new):
            if one is not None:
                name = one.metadata.labels.get(LABEL_MACHINE, one.name)
                self._enqueue(map(_cluster_of, self._caches.machines.by(INDEX_HOST_MACHINE, name)))

    def _configuration_changed(self, old: MachineConfiguration | None, new: MachineConfiguration | None) -> None:
        self._enqueue(self._named(*(one.name for one in (old, new) if one is not None)))

    def _budget_changed(self, old: MachineDisruptionBudget | None, new: MachineDisruptionBudget | None) -> None:
        if old is None or new is None or (old.spec, old.metadata.annotations) != (new.spec, new.metadata.annotations):
            self._enqueue(self._named(*(one.name.rpartition(".")[0] for one in (old, new) if one is not None)))

    # ---- one Cluster

    async def _reconcile(self, key: ObjectKey) -> float | None:
        cluster = self._caches.clusters.get(key.name, key.namespace)
        if cluster is None:
            return None
        try:
            for action in plan_cluster(self._observe(cluster)):
                await self._perform(cluster, action)
        except (NotFound, AlreadyExists):  # the watch delivers the change
            return None
        return None

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
        )

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
            case SetUpgradeIndex(machine=machine, index=index):
                await self._machine_status.write(machine, {"providerStatus": {"upgradeIndex": index}})
            case LabelHost(host=host, labels=labels):
                patch = {"metadata": _version(host) | {"labels": dict(labels)}}
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
                await self._status.write(cluster, {"providerStatus": status})
            case _:
                assert_never(action)

    async def _delete(self, kind: Kind[Any], item: Object) -> None:
        key = key_of(item)
        with suppress(NotFound):
            await self._api.delete(kind, key.name, namespace=key.namespace, uid=item.metadata.uid)


def _version(item: Object) -> Raw:
    """Return the precondition of a patch: the version that was read."""
    return {"resourceVersion": item.metadata.resource_version}


def _cluster_of(machine: ContainerCloudMachine) -> ObjectKey:
    return ObjectKey(machine.metadata.namespace or "", machine.cluster)


def _parts_of_machine(machine: ContainerCloudMachine) -> object:
    """Return the parts of a Machine that the plan of its Cluster depends on."""
    execution, value, status = machine.status.execution, machine.value, machine.provider_status
    claim = None if execution is None else (execution.machine, execution.stage)
    return (
        (machine.cluster, machine.is_manager, machine.metadata.deletion_timestamp is None, claim),
        (value.upgrade_index, value.distribution, status.upgrade_index, status.ready),
    )


def _parts_of_host(host: Machine) -> object:
    """Return the parts of a host's Machine that the plan of its Cluster depends on."""
    agent, image = host.status.agent, host.status.image
    return host.metadata.labels, None if agent is None else agent.image, image
