"""Clusters and MachinePools on a real API server, by the controllers with the rights of their account."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
import pytest

from tests.containercloud.objects import Raw, cluster, machine, machine_body, project, release
from tests.support.waiting import eventually
from unbounded.api.configuration import MACHINE_CONFIGURATIONS, MachineConfiguration
from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES, CLUSTERS, MACHINE_POOLS, Cluster, MachinePool
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES
from unbounded.cli.servers import component_runtime
from unbounded.containercloud.caches import ControllerContext, container_cloud_caches
from unbounded.containercloud.cluster_plan import claim_labels
from unbounded.containercloud.clusters import ClusterController, ReleaseController
from unbounded.containercloud.controller import Runnable
from unbounded.containercloud.machines import report
from unbounded.containercloud.machines.controller import ContainerCloudMachineController
from unbounded.containercloud.pools import PoolController
from unbounded.kube.api import InvalidObject, NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process import running_caches
from unbounded.kube.process_epoch import ProcessEpoch

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
T = TypeVar("T")


@pytest.fixture
async def running(admin: HttpApi) -> AsyncIterator[HttpApi]:
    """The controllers at work, as the account of container-cloud."""
    async with at_work(admin, ReleaseController, ClusterController, PoolController):
        yield admin


@asynccontextmanager
async def at_work(admin: HttpApi, *controllers: Callable[[ControllerContext], Runnable]) -> AsyncIterator[None]:
    async with component_runtime("container-cloud", admin, metrics=ControllerMetrics()) as runtime:
        caches = container_cloud_caches(runtime.api)
        async with running_caches(runtime, *caches.followed), asyncio.TaskGroup() as group:
            context = ControllerContext(api=runtime.api, caches=caches, epoch=ProcessEpoch())
            tasks = [group.create_task(controller(context).run()) for controller in controllers]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()


async def until(read: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    async def found() -> T | None:
        try:
            one = await read()
        except NotFound:
            return None
        return one if holds(one) else None

    result: T = await eventually(found, within_s=PATIENCE_S)
    return result


async def gone(read: Callable[[], Awaitable[Any]]) -> None:
    async def absent() -> bool | None:
        try:
            await read()
        except NotFound:
            return True
        return None

    await eventually(absent, within_s=PATIENCE_S)


async def cluster_that(api: HttpApi, namespace: str, holds: Callable[[Cluster], bool]) -> Cluster:
    return await until(lambda: api.get(CLUSTERS, "example-cluster", namespace=namespace), holds)


async def machine_that(
    api: HttpApi, namespace: str, name: str, holds: Callable[[ContainerCloudMachine], bool]
) -> ContainerCloudMachine:
    return await until(lambda: api.get(CONTAINER_CLOUD_MACHINES, name, namespace=namespace), holds)


async def configuration_that(
    api: HttpApi, name: str, holds: Callable[[MachineConfiguration], bool]
) -> MachineConfiguration:
    return await until(lambda: api.get(MACHINE_CONFIGURATIONS, name), holds)


async def pool_that(api: HttpApi, namespace: str, holds: Callable[[MachinePool], bool]) -> MachinePool:
    return await until(lambda: api.get(MACHINE_POOLS, "pool", namespace=namespace), holds)


async def test_a_cluster_waits_for_its_release_and_then_writes_its_objects(running: HttpApi) -> None:
    namespace, name = await project(running), "release-later"
    await cluster(running, namespace, release=name, maxWorkerUpgradeCount=2)
    found = await cluster_that(running, namespace, lambda one: bool(one.provider_status.conditions))
    assert f"ClusterRelease {name} does not exist" in (found.provider_status.conditions[0].message or "")
    made = await running.get(CLUSTER_RELEASES, await release(running))
    body = {"metadata": {"name": name}, "spec": msgspec.to_builtins(made.spec)}
    await running.create(CLUSTER_RELEASES, body)
    found = await cluster_that(running, namespace, lambda one: one.provider_status.releases.current is not None)
    current = found.provider_status.releases.current
    assert current is not None
    assert (current.name, [one.key for one in current.allowed_node_labels]) == (name, ["stacklight", "rack"])
    scoped = f"example-cluster.{namespace}"
    one = await configuration_that(running, scoped, lambda _one: True)
    assert one.spec.template.kubernetes is not None
    assert one.spec.template.kubernetes.version == "v1.34.0"
    limits = [
        (await running.get(MACHINE_DISRUPTION_BUDGETS, f"{scoped}.{role}")).spec.max_unavailable
        for role in ("managers", "workers")
    ]
    assert limits == [1, 2]
    usable = await until(lambda: running.get(CLUSTER_RELEASES, name), lambda one: bool(one.status.conditions))
    assert [(each.type, each.status) for each in usable.status.conditions] == [("Usable", "True")]


async def test_a_strict_controller_has_machines_without_a_distribution_rejected(admin: HttpApi) -> None:
    namespace, name = await project(admin), await release(admin)
    async with at_work(admin, partial(ClusterController, strict_distribution=True)):
        await cluster(admin, namespace, release=name)
        await cluster_that(admin, namespace, lambda one: one.provider_status.distribution_required)
    with pytest.raises(InvalidObject, match="distribution must be one of ubuntu/jammy, ubuntu/focal: container-cloud"):
        await machine(admin, namespace, "m")
    await machine(admin, namespace, "m", distribution="ubuntu/jammy")
    async with at_work(admin, ClusterController):
        await cluster_that(admin, namespace, lambda one: not one.provider_status.distribution_required)
    await machine(admin, namespace, "n")


async def test_each_machine_of_a_cluster_gets_a_number_of_its_own(
    admin: HttpApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "NEWS_S", 0.01)
    monkeypatch.setattr(report, "FACTS_S", 0.01)
    namespace = await project(admin)
    names = [f"worker-{number}" for number in range(12)]
    for name in names:
        await machine(admin, namespace, name)
    await machine(admin, namespace, "manager", manager=True)
    await machine(admin, namespace, "given", upgradeIndex=7)
    async with at_work(admin, ContainerCloudMachineController):
        await cluster(admin, namespace, release=await release(admin))
        found = {
            name: (
                await machine_that(admin, namespace, name, lambda one: one.provider_status.upgrade_index is not None)
            )
            for name in (*names, "manager", "given")
        }
    numbers = {name: one.provider_status.upgrade_index for name, one in found.items()}
    assert (numbers["manager"], numbers["given"]) == (1, 7)
    assert sorted(filter(None, numbers.values())) == list(range(1, 15))


async def test_a_host_that_no_machine_has_any_more_loses_its_labels(running: HttpApi) -> None:
    namespace = await project(running)
    await cluster(running, namespace, release=await release(running))
    await machine(running, namespace, "worker")
    host = f"h1.{namespace}"
    execution = {"stage": "Ready", "machine": host, "host": {"namespace": namespace, "name": "h1", "uid": "1"}}
    status = {"status": {"execution": execution}}
    await running.patch(CONTAINER_CLOUD_MACHINES, "worker", status, namespace=namespace, subresource="status")
    worker = await running.get(CONTAINER_CLOUD_MACHINES, "worker", namespace=namespace)
    labels = {"rack": "7", **claim_labels(worker, 1)}
    await running.create(MACHINES, {"metadata": {"name": host, "labels": labels}, "spec": {}})
    await running.delete(CONTAINER_CLOUD_MACHINES, "worker", namespace=namespace)
    await until(lambda: running.get(MACHINES, host), lambda one: one.metadata.labels == {"rack": "7"})


async def test_a_settled_cluster_costs_no_write(running: HttpApi) -> None:
    namespace = await project(running)
    await cluster(running, namespace, release=await release(running))
    await machine(running, namespace, "worker")
    settled = await cluster_that(
        running,
        namespace,
        lambda one: one.provider_status.nodes is not None and one.provider_status.nodes.requested == 1,
    )
    before = (await running.get(MACHINE_CONFIGURATIONS, f"example-cluster.{namespace}")).metadata.resource_version
    await running.patch(CLUSTERS, "example-cluster", {"metadata": {"annotations": {"a": "b"}}}, namespace=namespace)
    await machine(running, namespace, "second")
    await cluster_that(
        running,
        namespace,
        lambda one: one.provider_status.nodes is not None and one.provider_status.nodes.requested == 2,
    )
    after = await running.get(MACHINE_CONFIGURATIONS, f"example-cluster.{namespace}")
    assert after.metadata.resource_version == before
    assert settled.provider_status.maintenance is False


async def test_maintenance_pauses_the_update(running: HttpApi) -> None:
    namespace = await project(running)
    await cluster(running, namespace, release=await release(running))
    scoped = f"example-cluster.{namespace}"
    await configuration_that(running, scoped, lambda _one: True)
    for maintained in (True, False):
        value: Raw = {"spec": {"providerSpec": {"value": {"maintenance": maintained}}}}
        await running.patch(CLUSTERS, "example-cluster", value, namespace=namespace)

        def is_paused(one: MachineConfiguration, maintained: bool = maintained) -> bool:
            rolling = one.spec.update_strategy.rolling_update
            return rolling is not None and rolling.paused == maintained

        await configuration_that(running, scoped, is_paused)

        def is_reported(one: Cluster, maintained: bool = maintained) -> bool:
            return one.provider_status.maintenance == maintained

        await cluster_that(running, namespace, is_reported)


async def test_a_deleted_cluster_takes_machines_and_objects_along(running: HttpApi) -> None:
    namespace = await project(running)
    await cluster(running, namespace, release=await release(running))
    await machine(running, namespace, "worker")
    scoped = f"example-cluster.{namespace}"
    await configuration_that(running, scoped, lambda _one: True)
    await running.delete(CLUSTERS, "example-cluster", namespace=namespace)
    await gone(lambda: running.get(CLUSTERS, "example-cluster", namespace=namespace))
    for kind, name, where in (
        (CONTAINER_CLOUD_MACHINES, "worker", namespace),
        (MACHINE_CONFIGURATIONS, scoped, ""),
        (MACHINE_DISRUPTION_BUDGETS, f"{scoped}.managers", ""),
        (MACHINE_DISRUPTION_BUDGETS, f"{scoped}.workers", ""),
    ):
        await gone(lambda kind=kind, name=name, where=where: running.get(kind, name, namespace=where))  # type: ignore[misc]


async def pool(api: HttpApi, namespace: str, replicas: int, **value: Any) -> MachinePool:
    body: Raw = {
        "metadata": {"name": "pool", "labels": {"cluster.sigs.k8s.io/cluster-name": "example-cluster"}},
        "spec": {"replicas": replicas, "machineSpec": machine_body("m", **value)["spec"]},
    }
    return await api.create(MACHINE_POOLS, body, namespace=namespace)


def waits_for(reason: str) -> Callable[[MachinePool], bool]:
    return lambda one: bool(one.status.conditions) and one.status.conditions[0].reason == reason


def complete(replicas: int) -> Callable[[MachinePool], bool]:
    return lambda one: one.status.replicas == replicas and one.status.conditions[0].status == "True"


async def test_a_pool_creates_members_which_follow_its_template(running: HttpApi) -> None:
    namespace = await project(running)
    await pool(running, namespace, 2, deletionPolicy="graceful", distribution="ubuntu/jammy")
    waiting = await pool_that(running, namespace, lambda one: bool(one.status.conditions))
    assert waiting.status.conditions[0].reason == "ClusterMissing"
    await cluster(running, namespace, release=await release(running))
    await pool_that(running, namespace, complete(2))
    first = await machine_that(running, namespace, "pool-0", lambda _one: True)
    assert (first.pool, first.cluster, first.value.deletion_policy) == ("pool", "example-cluster", "graceful")
    own = {"spec": {"providerSpec": {"value": {"maintenance": True, "delete": True, "deletionPolicy": "unsafe"}}}}
    await running.patch(CONTAINER_CLOUD_MACHINES, "pool-0", own, namespace=namespace)
    value: Raw = {"distribution": None, "upgradeIndex": 5, "nodeLabels": [{"key": "rack", "value": "7"}]}
    change = {"spec": {"replicas": 3, "machineSpec": {"providerSpec": {"value": value}}}}
    await running.patch(MACHINE_POOLS, "pool", change, namespace=namespace)
    changed = await machine_that(running, namespace, "pool-0", lambda one: one.value.upgrade_index == 5)
    assert (changed.value.distribution, [one.key for one in changed.value.node_labels]) == (None, ["rack"])
    assert (changed.value.maintenance, changed.value.delete, changed.value.deletion_policy) == (True, True, "unsafe")
    last = await pool_that(running, namespace, complete(3))
    assert last.status.observed_generation == last.metadata.generation


async def test_a_pool_that_shrinks_deletes_nothing_and_says_so(running: HttpApi) -> None:
    namespace = await project(running)
    await cluster(running, namespace, release=await release(running))
    await pool(running, namespace, 2)
    await pool_that(running, namespace, complete(2))
    await running.patch(MACHINE_POOLS, "pool", {"spec": {"replicas": 1}}, namespace=namespace)
    found = await pool_that(running, namespace, waits_for("MoreThanReplicas"))
    assert "2 Machines for 1 replica: a pool deletes none" in found.status.conditions[0].message
    members = (await running.list(CONTAINER_CLOUD_MACHINES, namespace=namespace)).items
    assert [(one.name, one.metadata.deletion_timestamp) for one in members] == [("pool-0", None), ("pool-1", None)]
    await running.delete(CONTAINER_CLOUD_MACHINES, "pool-0", namespace=namespace)
    await pool_that(running, namespace, complete(1))


async def test_a_claimed_member_keeps_its_host_selector(running: HttpApi) -> None:
    namespace = await project(running)
    await cluster(running, namespace, release=await release(running))
    await pool(running, namespace, 1)
    await pool_that(running, namespace, complete(1))
    execution = {"stage": "Planning", "host": {"namespace": namespace, "name": "h1", "uid": "1"}}
    status = {"status": {"execution": execution}}
    await running.patch(CONTAINER_CLOUD_MACHINES, "pool-0", status, namespace=namespace, subresource="status")
    value = {"hostSelector": {"matchLabels": {"rack": "7"}}, "upgradeIndex": 3}
    change = {"spec": {"machineSpec": {"providerSpec": {"value": value}}}}
    await running.patch(MACHINE_POOLS, "pool", change, namespace=namespace)
    found = await pool_that(running, namespace, waits_for("HostSelectorFixed"))
    assert "hostSelector of pool-0 stays as it was" in found.status.conditions[0].message
    member = await machine_that(running, namespace, "pool-0", lambda one: one.value.upgrade_index == 3)
    assert member.value.host_selector is None


async def test_a_member_that_is_rejected_is_named(running: HttpApi) -> None:
    namespace, name = await project(running), "release-of-pool"
    await cluster(running, namespace, release=name)
    await pool(running, namespace, 0, nodeLabels=[{"key": "ceph"}])
    made = await running.get(CLUSTER_RELEASES, await release(running))
    await running.create(CLUSTER_RELEASES, {"metadata": {"name": name}, "spec": msgspec.to_builtins(made.spec)})
    await cluster_that(running, namespace, lambda one: one.provider_status.releases.current is not None)
    await running.patch(MACHINE_POOLS, "pool", {"spec": {"replicas": 1}}, namespace=namespace)
    found = await pool_that(running, namespace, waits_for("MemberRejected"))
    assert "nodeLabels: ceph is not among allowedNodeLabels" in found.status.conditions[0].message
    cured: Raw = {"spec": {"machineSpec": {"providerSpec": {"value": {"nodeLabels": None}}}}}
    await running.patch(MACHINE_POOLS, "pool", cured, namespace=namespace)
    await pool_that(running, namespace, complete(1))
