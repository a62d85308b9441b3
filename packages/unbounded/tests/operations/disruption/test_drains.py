"""Drains before operations, and maintenance, as stories with all controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypeVar
from unittest import mock

import msgspec
import pytest

from tests.operations.building import slot_of
from tests.operations.disruption.cluster import Cluster, cluster_story
from tests.operations.faults import Incarnation
from tests.operations.simulated import BOOTED
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import EPOCH
from unbounded.api.core import LEASES, NODES, PODS, Pod
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS, DisruptionStage
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import ANNOTATION_CORDONED_BY, ANNOTATION_PAUSED, LABEL_MACHINE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import ApiError, Forbidden, ServerError
from unbounded.operations import reasons
from unbounded.operations.batch_plan import child_manifest
from unbounded.operations.disruption.drained_nodes import PodEvictions

T = TypeVar("T")
MANAGED: Final[dict[str, Any]] = {
    "pxe": {
        "image": "i",
        "redfish": {"url": "https://m1", "username": "u", "passwordRef": {"name": "s", "namespace": "n"}},
    }
}
ALWAYS: Final[dict[str, Any]] = {"drain": {"mode": "Always"}}


async def _machine(cluster: Cluster, *pods: str, name: str = "m1") -> None:
    await cluster.world.machine(name)
    await cluster.node(name, *pods)


@cluster_story
async def test_a_reboot_drains_its_node_first_and_uncordons_it_after(cluster: Cluster) -> None:
    await _machine(cluster, "web-1", "web-2")
    created = await cluster.world.operation("op", "HostReboot", "m1", **ALWAYS)
    await cluster.stage("m1", DisruptionStage.WORKING)
    assert await cluster.pods_on("m1") == []
    assert await cluster.is_cordoned("m1")
    node = await cluster.api.get(NODES, "m1")
    assert node.metadata.annotations[ANNOTATION_CORDONED_BY] == created.metadata.uid
    conditions = await cluster.conditions("m1")
    assert conditions["Drained"] == ("True", "UnboundedHostReboot")
    assert conditions["DrainInProgress"][0] == "False"
    assert all(one.last_heartbeat_time for one in node.status.conditions)
    operation = await cluster.world.ended("op")
    assert operation.status.phase == "Complete"
    await cluster.stage("m1", None)
    assert not await cluster.is_cordoned("m1")
    assert {status for status, _reason in (await cluster.conditions("m1")).values()} == {"False"}
    claimed_at = cluster.world.stories[created.metadata.uid].claimed_at
    assert claimed_at is not None
    assert all(at < claimed_at for at, _node, _pod in cluster.api.evictions)


@cluster_story
async def test_a_drained_reboot_makes_at_most_eighteen_api_writes(cluster: Cluster) -> None:
    await _machine(cluster, *(f"web-{number}" for number in range(20)))
    await cluster.world.machine("m2")
    await cluster.node("m2")
    await cluster.budget("one", 1)
    await cluster.world.operation("first", "HostPowerOn", "m1")  # the first one adds the Machine's finalizer
    await cluster.world.ended("first")
    await asyncio.sleep(60)
    cluster.api.grace_s = 12.0
    cluster.writes.by.clear()
    await cluster.world.operation("op", "HostReboot", "m1")
    assert (await cluster.world.ended("op")).status.phase == "Complete"
    await cluster.stage("m1", None)
    await asyncio.sleep(60)
    assert len(cluster.api.evictions) == 20
    assert cluster.writes.by == {
        "patch Machine by disruption": 4,  # Draining, Drained, Returning, and its end
        "patch MachineDisruptionBudget by disruption": 2,
        "patch Node by disruption": 5,  # cordon and uncordon, and three of conditions
        "patch Machine by metalman/lab": 2,
        "patch MachineOperation by metalman/lab": 4,
        "patch MachineOperation by steward": 1,
    }
    assert cluster.writes.by.total() <= 18


@cluster_story
async def test_a_slow_release_of_a_lock_has_no_conflict_with_the_return(cluster: Cluster) -> None:
    await _machine(cluster, "web")
    await cluster.budget("one", 1)
    released = list[str]()

    async def before(life: Incarnation, call: str, name: str) -> None:
        if call != "patch Machine" or not life.name.startswith("metalman"):
            return
        active = (await cluster.world.api.get(MACHINES, name)).status.active_operation
        if active is None:
            return
        operation = await cluster.world.api.get(MACHINE_OPERATIONS, active.name)
        if operation.terminal:
            released.append(name)
            await asyncio.sleep(3)

    with mock.patch.object(cluster.writes, "before", before):
        await cluster.world.operation("op", "HostReboot", "m1")
        assert (await cluster.world.ended("op")).status.phase == "Complete"
        await cluster.stage("m1", None)
    assert released == ["m1"]  # and not again, after a Conflict


class _CountingApi(MemoryApi):
    """An API server that takes its time for each creation."""

    running, most = 0, 0

    async def create(self, kind: Kind[T], body: Mapping[str, Any], *, namespace: str = "") -> T:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return kind.type()


async def test_evictions_from_all_nodes_share_a_limit() -> None:
    api, limiter = _CountingApi(), asyncio.Semaphore(5)
    metas = [{"name": f"p{number}", "namespace": "default", "uid": f"u{number}"} for number in range(12)]
    pods = [msgspec.convert({"metadata": meta}, Pod) for meta in metas]
    nodes = [tuple(pods[:6]), tuple(pods[6:])]
    await asyncio.gather(*(PodEvictions().evict(api, one, lambda: None, limiter) for one in nodes))
    assert api.most == 5


@cluster_story
async def test_an_operation_that_has_its_lock_works_on_a_drained_node(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    created = await cluster.world.operation("op", "HostReboot", "m1", **ALWAYS)
    await cluster.stage("m1", DisruptionStage.WORKING)
    machine = await cluster.api.get(MACHINES, "m1")
    assert machine.status.active_operation is not None
    assert machine.status.active_operation.uid == created.metadata.uid
    assert (await cluster.conditions("m1"))["Drained"] == ("True", "UnboundedHostReboot")
    assert (await cluster.world.ended("op")).status.phase == "Complete"
    await cluster.stage("m1", None)


@pytest.mark.parametrize("refusal", [Forbidden, ServerError])
@cluster_story
async def test_a_node_whose_cordon_is_refused_stays_granted_and_is_not_drained(
    cluster: Cluster, refusal: type[ApiError]
) -> None:
    await _machine(cluster, "web-1")
    await cluster.budget("one", 1)
    cluster.api.refuses = refusal
    await cluster.world.operation("op", "HostReboot", "m1")
    await cluster.stage("m1", DisruptionStage.GRANTED)
    await asyncio.sleep(60)
    record = await cluster.disruption("m1")
    assert record is not None
    assert (record.stage, record.reason, record.cordoned) == ("Granted", reasons.WAITING_FOR_DRAIN, False)
    assert "is not cordoned yet" in (record.message or "")
    assert 'webhook "nodes.example.com" denied' in (record.message or "")
    assert "denied" in ((await cluster.world.get("op")).status.message or "")
    assert await cluster.granted("one") == {"m1"}
    assert await cluster.pods_on("m1") == ["web-1"]
    cluster.api.refuses = None
    assert (await cluster.world.ended("op")).status.phase == "Complete"
    await cluster.stage("m1", None)
    assert await cluster.granted("one") == set()


@cluster_story
async def test_a_cordon_that_is_refused_for_too_long_fails_the_operation(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    cluster.api.refuses = Forbidden
    drain = {"mode": "Always", "timeoutSeconds": 60, "onTimeout": "Proceed"}  # with a cordon alone
    await cluster.world.operation("op", "HostReboot", "m1", drain=drain)
    operation = await cluster.world.ended("op", within_s=90)
    assert operation.status.reason == reasons.DRAIN_TIMED_OUT
    assert "is not cordoned yet" in (operation.status.message or "")
    await cluster.stage("m1", None)
    assert await cluster.pods_on("m1") == ["web-1"]


@cluster_story
async def test_without_a_drain_no_node_is_cordoned(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    await cluster.world.operation("op", "HostReboot", "m1")
    assert (await cluster.world.ended("op")).status.phase == "Complete"
    assert await cluster.pods_on("m1") == ["web-1"]
    assert not await cluster.is_cordoned("m1")
    assert await cluster.disruption("m1") is None


@cluster_story
async def test_a_pod_budget_is_named_and_the_drain_waits_for_it(cluster: Cluster) -> None:
    await _machine(cluster, "web-1", "free-1")
    cluster.api.guarded.add("web-1")
    await cluster.world.operation("op", "HostReboot", "m1", startDeadlineSeconds=60, **ALWAYS)
    operation = await cluster.world.until(
        "op", lambda one: "default/web-1 is blocked" in (one.status.message or ""), within_s=30
    )
    assert "PodDisruptionBudget default/web" in (operation.status.message or "")
    assert operation.status.reason == reasons.WAITING_FOR_DRAIN
    await asyncio.sleep(600)  # the start deadline rests
    assert await cluster.pods_on("m1") == ["web-1"]
    cluster.api.guarded.clear()
    assert (await cluster.world.ended("op", within_s=120)).status.phase == "Complete"


@cluster_story
async def test_a_drain_that_times_out_fails_the_operation_and_uncordons(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    cluster.api.guarded.add("web-1")
    await cluster.world.operation("op", "HostReboot", "m1", drain={"mode": "Always", "timeoutSeconds": 60})
    operation = await cluster.world.ended("op", within_s=90)
    assert (operation.status.phase, operation.status.reason) == ("Failed", reasons.DRAIN_TIMED_OUT)
    assert "default/web-1" in (operation.status.message or "")
    assert "PodDisruptionBudget default/web" in (operation.status.message or "")
    await cluster.stage("m1", None)
    assert not await cluster.is_cordoned("m1")
    assert not cluster.world.outside.acts


@cluster_story
async def test_with_proceed_a_drain_that_times_out_lets_the_operation_start(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    cluster.api.guarded.add("web-1")
    drain = {"mode": "Always", "timeoutSeconds": 60, "onTimeout": "Proceed"}
    await cluster.world.operation("op", "HostReboot", "m1", drain=drain)
    await cluster.stage("m1", DisruptionStage.WORKING)
    conditions = await cluster.conditions("m1")
    assert conditions["Drained"] == ("False", "UnboundedHostReboot")
    assert conditions["MaintenanceInProgress"][0] == "True"
    node = await cluster.api.get(NODES, "m1")
    (message,) = [one.message for one in node.status.conditions if one.type == "Drained"]
    assert message == "1 pod is left as HostReboot op starts"
    assert (await cluster.world.ended("op")).status.phase == "Complete"
    await cluster.stage("m1", None)
    node = await cluster.api.get(NODES, "m1")
    assert {one.message for one in node.status.conditions if one.type != "Ready"} == {""}


@cluster_story
async def test_a_cancel_in_the_drain_uncordons(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    cluster.api.guarded.add("web-1")
    await cluster.world.operation("op", "HostReboot", "m1", **ALWAYS)
    await cluster.stage("m1", DisruptionStage.DRAINING)
    await cluster.world.cancel("op")
    operation = await cluster.world.ended("op", within_s=10)
    assert operation.status.reason == reasons.CANCELLED
    await cluster.stage("m1", None, within_s=10)
    assert not await cluster.is_cordoned("m1")


@cluster_story
async def test_a_deleted_holder_leaves_no_cordon(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    cluster.api.guarded.add("web-1")
    await cluster.world.operation("op", "HostReboot", "m1", **ALWAYS)
    await cluster.stage("m1", DisruptionStage.DRAINING)
    await cluster.api.delete(MACHINE_OPERATIONS, "op")
    await cluster.stage("m1", None, within_s=30)
    assert not await cluster.is_cordoned("m1")


@cluster_story
async def test_a_deleted_machine_leaves_no_cordon(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    cluster.api.guarded.add("web-1")
    await cluster.world.operation("op", "HostReboot", "m1", **ALWAYS)
    await cluster.stage("m1", DisruptionStage.DRAINING)
    await cluster.world.take_away("m1")
    await asyncio.sleep(30)
    assert not await cluster.is_cordoned("m1")
    assert ANNOTATION_CORDONED_BY not in (await cluster.api.get(NODES, "m1")).metadata.annotations


@cluster_story
async def test_a_cordon_of_others_is_kept(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    await cluster.cordon("m1")
    await cluster.world.operation("op", "HostReboot", "m1", **ALWAYS)
    assert (await cluster.world.ended("op")).status.phase == "Complete"
    await cluster.stage("m1", None)
    assert await cluster.is_cordoned("m1")
    assert ANNOTATION_CORDONED_BY not in (await cluster.api.get(NODES, "m1")).metadata.annotations


@cluster_story
async def test_a_hold_of_an_application_delays_the_drain(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    hold = {"metadata": {"annotations": {"hold.unbounded-cloud.io/ceph": "rebalancing"}}}
    await cluster.api.patch(NODES, "m1", hold)
    await cluster.world.operation("op", "HostReboot", "m1", **ALWAYS)
    operation = await cluster.world.until("op", lambda one: one.status.reason == reasons.WAITING_FOR_HOLD, within_s=30)
    assert "hold.unbounded-cloud.io/ceph" in (operation.status.message or "")
    await asyncio.sleep(120)
    assert await cluster.pods_on("m1") == ["web-1"]
    await cluster.api.patch(NODES, "m1", {"metadata": {"annotations": {"hold.unbounded-cloud.io/ceph": None}}})
    assert (await cluster.world.ended("op", within_s=120)).status.phase == "Complete"


@cluster_story
async def test_maintenance_of_another_controller_delays_the_grant(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    node = await cluster.api.get(NODES.raw(), "m1")
    foreign = {"type": "MaintenanceInProgress", "status": "True", "reason": "Kured", "message": "reboot"}
    conditions = [*node["status"]["conditions"], foreign]
    await cluster.api.patch(NODES, "m1", {"status": {"conditions": conditions}}, subresource="status")
    await cluster.world.operation("op", "HostReboot", "m1", **ALWAYS)
    await cluster.world.until("op", lambda one: one.status.reason == reasons.FOREIGN_MAINTENANCE, within_s=30)
    assert not await cluster.is_cordoned("m1")
    done = [*node["status"]["conditions"], foreign | {"status": "False"}]
    await cluster.api.patch(NODES, "m1", {"status": {"conditions": done}}, subresource="status")
    assert (await cluster.world.ended("op", within_s=120)).status.phase == "Complete"
    await cluster.stage("m1", None)
    assert (await cluster.conditions("m1"))["MaintenanceInProgress"] == ("False", "UnboundedHostReboot")


@cluster_story
async def test_maintenance_of_another_controller_delays_no_override(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    await cluster.budget("one", 1)
    node = await cluster.api.get(NODES.raw(), "m1")
    foreign = {"type": "MaintenanceInProgress", "status": "True", "reason": "Kured", "message": "reboot"}
    conditions = [*node["status"]["conditions"], foreign]
    await cluster.api.patch(NODES, "m1", {"status": {"conditions": conditions}}, subresource="status")
    await asyncio.sleep(5)  # until the controller knows that
    drains = {"drain": {"mode": "Always"}, "override": "it burns"}
    await cluster.world.operation("drains", "HostPowerOff", "m1", **drains)
    await cluster.world.until("drains", lambda one: one.status.reason == reasons.FOREIGN_MAINTENANCE, within_s=60)
    await cluster.api.patch(MACHINE_OPERATIONS, "drains", {"spec": {"cancel": True}})
    await cluster.world.ended("drains", within_s=60)
    await cluster.world.operation("op", "HostPowerOff", "m1", drain={"mode": "Never"}, override="it burns")
    assert (await cluster.world.ended("op", within_s=120)).status.phase == "Complete"
    assert not await cluster.is_cordoned("m1")
    assert await cluster.pods_on("m1") == ["web-1"]


@cluster_story
async def test_a_node_that_does_not_return_stays_cordoned_until_it_does(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    await cluster.world.operation("op", "HostReboot", "m1", **ALWAYS)
    await cluster.stage("m1", DisruptionStage.WORKING)
    cluster.down.add("m1")
    await cluster.world.ended("op")
    await asyncio.sleep(600)
    found = await cluster.disruption("m1")
    assert found is not None
    assert found.stage == DisruptionStage.RETURNING
    assert "waiting for Node m1 to be Ready" in (found.message or "")
    assert await cluster.is_cordoned("m1")
    cluster.down.clear()
    at = asyncio.get_running_loop().time()
    await cluster.stage("m1", None)
    assert 10 <= asyncio.get_running_loop().time() - at <= 25
    assert not await cluster.is_cordoned("m1")


@cluster_story
async def test_a_lease_renewed_before_the_host_went_off_proves_no_return(cluster: Cluster) -> None:
    await _machine(cluster)
    await cluster.budget("one", 1, minReadySeconds=60)
    await cluster.world.operation("reboot", "HostReboot", "m1")
    assert (await cluster.world.ended("reboot")).status.phase == "Complete"
    await cluster.stage("m1", DisruptionStage.RETURNING)
    await asyncio.sleep(30)
    await cluster.world.operation("off", "HostPowerOff", "m1")
    await cluster.stage("m1", DisruptionStage.WORKING)
    cluster.kubelets.pop("m1").cancel()  # the Node is Ready until its lease is too old
    assert (await cluster.world.ended("off")).status.phase == "Complete"
    await asyncio.sleep(300)
    found = await cluster.disruption("m1")
    assert found is not None
    assert found.stage == DisruptionStage.RETURNING
    assert await cluster.is_cordoned("m1")


@cluster_story
async def test_a_node_that_turns_not_ready_as_it_returns_stays_cordoned(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    await cluster.world.operation("op", "HostReboot", "m1", **ALWAYS)
    await cluster.stage("m1", DisruptionStage.RETURNING)

    async def before(life: Incarnation, call: str, _name: str) -> None:
        if call == "patch Node" and life.name.startswith("disruption") and not cluster.down:
            cluster.down.add("m1")
            await asyncio.sleep(5)

    with mock.patch.object(cluster.writes, "before", before):
        await asyncio.sleep(60)
        assert cluster.down == {"m1"}
        assert await cluster.is_cordoned("m1")
    cluster.down.clear()
    await cluster.stage("m1", None)
    assert not await cluster.is_cordoned("m1")


@cluster_story
async def test_the_next_operation_repairs_a_node_that_does_not_return(cluster: Cluster) -> None:
    await _machine(cluster)
    await cluster.world.operation("off", "HostPowerOff", "m1", **ALWAYS)
    assert (await cluster.world.ended("off")).status.phase == "Complete"
    await cluster.stage("m1", DisruptionStage.RETURNING)
    await cluster.world.operation("reboot", "HostReboot", "m1", **ALWAYS)
    assert (await cluster.world.ended("reboot", within_s=300)).status.phase == "Complete"
    await cluster.stage("m1", None)
    assert not await cluster.is_cordoned("m1")


@cluster_story
async def test_a_drained_node_whose_operation_nobody_starts_is_usable_again(cluster: Cluster) -> None:
    assert cluster.executor is not None
    await cluster.executor.stop()
    await _machine(cluster, "web-1")
    created_at = asyncio.get_running_loop().time()
    await cluster.world.operation("op", "HostReboot", "m1", startDeadlineSeconds=1000, **ALWAYS)
    await cluster.stage("m1", DisruptionStage.DRAINED)
    await cluster.stage("m1", DisruptionStage.WAITING, within_s=200)
    assert not await cluster.is_cordoned("m1")
    operation = await cluster.world.ended("op", within_s=3000)
    assert operation.status.reason == reasons.NOT_STARTED
    assert asyncio.get_running_loop().time() - created_at > 1000
    await cluster.stage("m1", None)
    assert not await cluster.is_cordoned("m1")


@cluster_story
async def test_maintenance_drains_and_operations_within_need_no_grant(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    on = {"spec": {"maintenance": {"enabled": True, "reason": "new memory"}}}
    await cluster.api.patch(MACHINES, "m1", on)
    await cluster.world.operation("op", "HostReboot", "m1")
    assert (await cluster.world.ended("op")).status.phase == "Complete"
    assert [pod for _at, _node, pod in cluster.api.evictions] == ["web-1"]
    await asyncio.sleep(300)
    found = await cluster.disruption("m1")
    assert found is not None
    assert (found.stage, found.message) == (DisruptionStage.DRAINED, "Machine m1 is in maintenance: new memory")
    assert await cluster.is_cordoned("m1")
    assert (await cluster.conditions("m1"))["MaintenanceInProgress"] == ("True", "UnboundedMaintenance")
    await cluster.api.patch(MACHINES, "m1", {"spec": {"maintenance": {"enabled": False}}})
    await cluster.stage("m1", None)
    assert not await cluster.is_cordoned("m1")


@cluster_story
async def test_a_pod_that_nobody_manages_blocks_unless_it_may_be_evicted(cluster: Cluster) -> None:
    await _machine(cluster)
    await cluster.pod("m1", "own", ownerReferences=[])
    await cluster.world.operation("op", "HostReboot", "m1", **ALWAYS)
    await cluster.world.until("op", lambda one: "drain.evictUnmanaged" in (one.status.message or ""), within_s=30)
    await cluster.api.delete(PODS, "own", namespace="default")
    assert (await cluster.world.ended("op", within_s=120)).status.phase == "Complete"


@cluster_story
async def test_a_node_made_anew_in_its_drain_is_drained_again(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    cluster.api.guarded.add("web-1")
    await cluster.world.operation("op", "HostReboot", "m1", **ALWAYS)
    await cluster.stage("m1", DisruptionStage.DRAINING)
    cluster.kubelets.pop("m1").cancel()
    await cluster.api.delete(NODES, "m1")
    await cluster.api.delete(PODS, "web-1", namespace="default")
    await cluster.api.delete(LEASES, "m1", namespace="kube-node-lease")
    await cluster.node("m1", "web-2")
    assert (await cluster.world.ended("op", within_s=120)).status.phase == "Complete"
    assert [pod for _at, _node, pod in cluster.api.evictions][-1:] in (["web-2"], [])
    await cluster.stage("m1", None)
    assert not await cluster.is_cordoned("m1")


@cluster_story
async def test_a_user_uncordons_in_the_drain_and_it_begins_again(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    cluster.api.guarded.add("web-1")
    await cluster.world.operation("op", "HostReboot", "m1", **ALWAYS)
    await cluster.stage("m1", DisruptionStage.DRAINING)
    await cluster.cordon("m1", unschedulable=False)
    await asyncio.sleep(5)
    assert await cluster.is_cordoned("m1")
    cluster.api.guarded.clear()
    assert (await cluster.world.ended("op", within_s=120)).status.phase == "Complete"


@pytest.mark.parametrize("mode", ["Always", "Never"])
def test_children_of_a_selector_operation_drain_as_it_does(mode: str) -> None:
    body = {"metadata": {"name": "all"}, "spec": {"operationKind": "HostReboot", "drain": {"mode": mode}}}
    parent = msgspec.convert(body, MachineOperation)
    child = msgspec.convert(child_manifest(parent, "m1"), MachineOperation)
    assert child.spec.drain == parent.spec.drain


@cluster_story
async def test_a_lost_lock_of_an_earlier_operation_does_not_prevent_a_drain(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    lost = slot_of("gone") | {"lost": True}
    await cluster.api.patch(MACHINES, "m1", {"status": {"activeOperation": lost}}, subresource="status")
    await cluster.world.operation("op", "HostReboot", "m1", **ALWAYS)
    assert (await cluster.world.ended("op", within_s=1500)).status.phase == "Complete"
    assert await cluster.pods_on("m1") == []


@cluster_story
async def test_the_end_of_maintenance_does_not_uncordon_below_an_operation(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    await cluster.api.patch(MACHINES, "m1", {"spec": {"maintenance": {"enabled": True}}})
    await cluster.stage("m1", DisruptionStage.DRAINED)
    assert cluster.executor is not None
    await cluster.world.operation("op", "HostReboot", "m1")
    await cluster.world.until("op", lambda one: one.claimed, within_s=60)
    await cluster.executor.stop()
    await cluster.api.patch(MACHINES, "m1", {"spec": {"maintenance": {"enabled": False}}})
    await asyncio.sleep(60)
    assert await cluster.is_cordoned("m1")
    cluster.world.redfish().start()
    await cluster.world.ended("op")
    await cluster.stage("m1", None)
    assert not await cluster.is_cordoned("m1")


@cluster_story
async def test_a_pause_of_the_machine_stops_the_evictions(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    cluster.api.guarded.add("web-1")
    await cluster.world.operation("op", "HostReboot", "m1", **ALWAYS)
    await cluster.stage("m1", DisruptionStage.DRAINING)
    await cluster.api.patch(MACHINES, "m1", {"metadata": {"annotations": {ANNOTATION_PAUSED: "true"}}})
    await asyncio.sleep(10)
    cluster.api.guarded.clear()
    await asyncio.sleep(30)
    assert await cluster.pods_on("m1") == ["web-1"]
    assert not await cluster.is_cordoned("m1")
    await cluster.api.patch(MACHINES, "m1", {"metadata": {"annotations": {ANNOTATION_PAUSED: None}}})
    assert (await cluster.world.ended("op", within_s=300)).status.phase == "Complete"


@cluster_story
async def test_a_node_of_another_name_is_drained_by_its_label(cluster: Cluster) -> None:
    await _machine(cluster)
    await cluster.api.delete(NODES, "m1")
    body = {"metadata": {"name": "host-7", "labels": {LABEL_MACHINE: "m1"}}}
    made = await cluster.api.create(NODES, body)
    status = {"conditions": [{"type": "Ready", "status": "True", "reason": "Kubelet"}]}
    await cluster.api.patch(NODES, made.metadata.name, {"status": status}, subresource="status")
    await cluster.pod("host-7", "web-1")
    cluster.api.guarded.add("web-1")
    await cluster.world.operation("op", "HostReboot", "m1", **ALWAYS)
    await cluster.stage("m1", DisruptionStage.DRAINING, within_s=30)
    assert await cluster.is_cordoned("host-7")
    await cluster.world.cancel("op")
    await cluster.stage("m1", None, within_s=30)
    assert not await cluster.is_cordoned("host-7")


@cluster_story
async def test_a_canary_that_cannot_be_drained_halts_the_rollout(cluster: Cluster) -> None:
    for name in ("m1", "m2", "m3"):
        await _machine(cluster, f"web-{name}", name=name)
    cluster.api.guarded.add("web-m1")
    stages = [{"name": "canary", "size": 1, "soakSeconds": 60}, {"name": "rest", "size": "100%"}]
    selector = {"matchLabels": {"unbounded-cloud.io/site": "lab"}}
    drain = {"mode": "Always", "timeoutSeconds": 60}
    strategy = {"stages": stages, "onFailure": "Halt"}
    await cluster.world.operation("all", "HostReboot", machineSelector=selector, strategy=strategy, drain=drain)
    halted = await cluster.world.until("all", lambda one: one.status.reason == reasons.HALTED, within_s=300)
    canary = halted.status.targets[0]
    assert (canary.machine_ref, canary.phase, canary.reason) == ("m1", "Failed", reasons.DRAIN_TIMED_OUT)
    await cluster.stage("m1", None)
    await asyncio.sleep(600)
    assert cluster.api.evictions == []
    assert [await cluster.is_cordoned(name) for name in ("m1", "m2", "m3")] == [False] * 3
    cluster.api.guarded.clear()
    await cluster.api.patch(MACHINE_OPERATIONS, "all", {"spec": {"retryFailed": 1}})
    ended = await cluster.world.ended("all")
    assert [target.phase for target in ended.status.targets] == ["Complete"] * 3
    at = {node: when for when, node, _pod in cluster.api.evictions}
    completed = datetime.fromisoformat(ended.status.targets[0].completed_at or "") - EPOCH
    assert at.keys() == {"m1", "m2", "m3"}
    assert min(at["m2"], at["m3"]) >= completed.total_seconds() + 60
    for name in at:
        await cluster.stage(name, None)
        assert not await cluster.is_cordoned(name)


@cluster_story
async def test_the_grant_of_a_reset_ends_once_its_node_is_gone(cluster: Cluster) -> None:
    await cluster.world.machine("m1", kubernetes={"nodeRef": {"name": "m1"}}, **MANAGED)
    await cluster.node("m1", "web-1")
    await cluster.budget("one", 1)
    created = await cluster.world.operation("op", "AgentReset", "m1")
    await cluster.stage("m1", DisruptionStage.DRAINED)
    cluster.world.outside.host("m1").boot += 1
    execution = {"executor": "unbounded-agent/m1", "incarnation": "i", "machineUID": "m", "binding": "b"}
    status = {
        "phase": "Complete",
        "execution": execution,
        "evidence": [{"what": BOOTED, "where": "x", "at": "2030-01-01T00:00:20Z"}],
    }
    await cluster.api.patch(MACHINE_OPERATIONS, "op", {"status": status | {"message": "reset"}}, subresource="status")
    assert created.metadata.uid in cluster.world.stories
    await asyncio.sleep(5)
    found = await cluster.disruption("m1")
    assert found is not None
    assert "or to be deleted, as AgentReset op has removed it" in (
        found.message or ""
    )  # kubelet's end is not known yet
    cluster.down.add("m1")
    await cluster.stage("m1", None, within_s=10)
    assert await cluster.granted("one") == set()
    assert not await cluster.is_cordoned("m1")
    budget = await cluster.api.get(MACHINE_DISRUPTION_BUDGETS, "one")
    assert (budget.status.allowed, budget.status.groups[0].unavailable) == (0, 1)  # it counts until it has a Node again


@cluster_story
async def test_the_deadline_of_a_queued_operation_rests_while_another_drains(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    cluster.api.guarded.add("web-1")
    await cluster.world.operation("first", "HostReboot", "m1", **ALWAYS)
    await asyncio.sleep(1)
    await cluster.world.operation("next", "HostReboot", "m1", startDeadlineSeconds=60)
    await cluster.world.until("next", lambda one: one.status.reason == reasons.WAITING_FOR_OLDER, within_s=30)
    await asyncio.sleep(600)
    cluster.api.guarded.clear()
    assert (await cluster.world.ended("first", within_s=120)).status.phase == "Complete"
    assert (await cluster.world.ended("next", within_s=120)).status.phase == "Complete"


@cluster_story
async def test_an_executor_has_its_five_seconds_from_the_drained_node_on(cluster: Cluster) -> None:
    assert cluster.executor is not None
    await cluster.executor.stop()
    await _machine(cluster, "web-1")
    cluster.api.grace_s = 20.0
    await cluster.world.operation("op", "HostReboot", "m1", **ALWAYS)
    await cluster.world.until("op", lambda one: one.status.reason == reasons.WAITING_FOR_DRAIN, within_s=20)
    await cluster.stage("m1", DisruptionStage.DRAINED)
    await asyncio.sleep(3)
    assert (await cluster.world.get("op")).status.reason == reasons.WAITING_FOR_DRAIN
    await cluster.world.until("op", lambda one: "has not claimed it" in (one.status.message or ""), within_s=5)
    cluster.world.redfish().start()
    assert (await cluster.world.ended("op", within_s=120)).status.phase == "Complete"


async def _guarded_drain(cluster: Cluster) -> None:
    """Begin a drain under a budget that a pod's own budget blocks, with its Machine's Node m1."""
    await _machine(cluster, "web-1")
    await cluster.budget("one", 1)
    cluster.api.guarded.add("web-1")
    await cluster.world.operation("op", "HostReboot", "m1")
    await cluster.stage("m1", DisruptionStage.DRAINING)
    await asyncio.sleep(20)


def _without_budget(message: str | None) -> bool:
    cause = "as MachineDisruptionBudget one no longer covers the Machine"
    return message == f"HostReboot op started before Node m1 was drained, {cause}"


@cluster_story
async def test_a_budget_that_is_deleted_in_a_drain_leaves_no_cordon(cluster: Cluster) -> None:
    await _guarded_drain(cluster)
    await cluster.api.delete(MACHINE_DISRUPTION_BUDGETS, "one")
    await cluster.stage("m1", DisruptionStage.WORKING, within_s=30)
    record = await cluster.disruption("m1")
    assert record is not None
    assert _without_budget(record.message)
    assert (await cluster.world.ended("op")).status.phase == "Complete"
    await cluster.stage("m1", None)
    assert not await cluster.is_cordoned("m1")


@cluster_story
async def test_a_machine_relabelled_in_its_drain_gives_its_grant_back(cluster: Cluster) -> None:
    await _guarded_drain(cluster)
    await cluster.api.patch(MACHINES, "m1", {"metadata": {"labels": {"unbounded-cloud.io/site": "other"}}})
    await cluster.stage("m1", DisruptionStage.RETURNING, within_s=120)
    await cluster.stage("m1", None)
    assert not await cluster.is_cordoned("m1")
    assert await cluster.granted("one") == set()


@cluster_story
async def test_a_node_relabelled_in_its_drain_keeps_no_cordon_of_ours(cluster: Cluster) -> None:
    await _guarded_drain(cluster)
    await cluster.world.machine("m2")
    await cluster.node("m2")
    await cluster.api.patch(NODES, "m1", {"metadata": {"labels": {LABEL_MACHINE: "m2"}}})
    await asyncio.sleep(20)
    node = await cluster.api.get(NODES, "m1")
    assert not node.spec.unschedulable
    assert ANNOTATION_CORDONED_BY not in node.metadata.annotations
    assert {status for status, _reason in (await cluster.conditions("m1")).values()} == {"False"}
    events = [reason for name, _type, reason in cluster.world.announced if name == "m1"]
    assert "DrainRestarted" in events


@cluster_story
async def test_a_node_created_anew_in_its_drain_is_reported(cluster: Cluster) -> None:
    await _guarded_drain(cluster)
    cluster.kubelets.pop("m1").cancel()
    await cluster.api.delete(NODES, "m1")
    await cluster.api.delete(LEASES, "m1", namespace="kube-node-lease")
    await cluster.node("m1")
    await cluster.api.delete(PODS, "web-1", namespace="default")
    assert (await cluster.world.ended("op", within_s=120)).status.phase == "Complete"
    assert ("m1", "Warning", "DrainRestarted") in cluster.world.announced
    await cluster.stage("m1", None)
    assert not await cluster.is_cordoned("m1")


@cluster_story
async def test_an_agent_that_does_not_wait_for_drains_is_not_drained_for(cluster: Cluster) -> None:
    await _machine(cluster, "web-1")
    old = {"status": {"agent": {"version": "0.0.9"}}}
    await cluster.api.patch(MACHINES, "m1", old, subresource="status")
    await cluster.world.operation("op", "NodeReboot", "m1", **ALWAYS)
    operation = await cluster.world.ended("op", within_s=10)
    assert (operation.status.phase, operation.status.reason) == ("Failed", reasons.AGENT_OUTDATED)
    assert "version 0.0.9, which starts NodeReboot without waiting" in (operation.status.message or "")
    assert cluster.api.evictions == []
    assert not await cluster.is_cordoned("m1")
    await cluster.world.operation("host", "HostReboot", "m1", **ALWAYS)
    assert (await cluster.world.ended("host")).status.phase == "Complete"  # its executor is not the agent
