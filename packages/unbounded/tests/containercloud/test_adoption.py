"""Hosts that others have installed, in virtual time: adopted by a Machine, Ready, and given back as they were."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import msgspec
import pytest

from tests.containercloud.site import Site, site, site_story
from tests.containercloud.test_site import LONE, ORDER
from tests.support.virtual_time import run_virtual
from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES, CLUSTERS
from unbounded.api.container_cloud.host import BARE_METAL_HOST_PROFILES, BARE_METAL_HOSTS, BareMetalHost
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.core import Node
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.api import NotFound

RACK: Final = "rack1-02"
OWN: Final[dict[str, Any]] = {
    "nodeLabels": {"rack": "r1", "stacklight": "own"},
    "registerWithTaints": ["own=yes:NoSchedule"],
    "bootstrapTokenRef": {"name": "bootstrap-token-owners"},
}
BMC: Final = {"address": "redfish://192.0.2.1/redfish/v1/Systems/22", "credentialsName": "bmc-2"}
WORKER: Final = {"cluster.sigs.k8s.io/cluster-name": "example-cluster"}
CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"


async def adopted(world: Site) -> Machine:
    """Create a Machine with a Node, and the host that adopts it as it is; return the Machine."""
    await world.surroundings()
    default = {"metadata": {"labels": {"kaas.mirantis.com/defaultBMHProfile": "true"}, "name": "default"}}
    spec = msgspec.to_builtins((await world.api.get(BARE_METAL_HOST_PROFILES, "default", namespace="default")).spec)
    await world.api.create(BARE_METAL_HOST_PROFILES, default | {"spec": spec}, namespace="example-ns")
    await world.joined(RACK, **OWN)
    await world.adopted("h1", RACK)
    await world.state("externally provisioned", "h1", "example-ns")
    return await world.machine(RACK)


async def pinned(world: Site, name: str = "m1", *, manager: bool = False, **value: Any) -> ContainerCloudMachine:
    """Create a Machine that pins the host."""
    labels = WORKER | ({"cluster.sigs.k8s.io/control-plane": ""} if manager else {})
    stacklight = [{"key": "stacklight", "value": "enabled"}]
    return await world.claimant(name, pin="example-ns/h1", labels=labels, nodeLabels=stacklight, **value)


async def node_of(world: Site) -> Node:
    node = await world.node(RACK)
    assert node is not None
    return node


async def host_of(world: Site) -> BareMetalHost:
    return await world.read("h1", "example-ns")


async def in_stock(world: Site, before: Machine, node: Node) -> None:
    """Wait until the host is in stock again, and assert that nothing has changed by the claim."""
    host = await world.until(
        lambda one: one.state == "externally provisioned" and one.spec.consumer_ref is None, "h1", "example-ns"
    )
    await world.settle()
    after, stays = await world.machine(RACK), await node_of(world)
    assert after.spec == before.spec
    assert after.metadata.labels == before.metadata.labels
    assert after.metadata.annotations == before.metadata.annotations
    assert host.metadata.annotations == {"unbounded-cloud.io/machine": RACK}
    assert host.metadata.labels == {}
    assert stays.metadata.uid == node.metadata.uid
    assert (stays.ready, stays.spec.unschedulable, stays.metadata.labels) == (True, False, node.metadata.labels)
    assert [one.key for one in stays.spec.taints] == ["own"]
    assert world.power[RACK] == "On"
    assert after.status.disruption is None
    assert (await world.api.list(MACHINE_OPERATIONS)).items == ()


@pytest.mark.parametrize("policy", ["graceful", "unsafe", "forced"])
@pytest.mark.parametrize("by_kubectl", [False, True], ids=["delete: true", "kubectl delete"])
def test_a_running_node_becomes_ready_and_goes_back_as_it_was(policy: str, by_kubectl: bool) -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            before = await adopted(world)
            await world.settle()
            joined = await node_of(world)
            await pinned(world, manager=True, deletionPolicy=policy)
            machine = await world.until_word("Ready", "m1")
            assert world.words["m1"] == ORDER
            assert machine.provider_status.ready
            claimed, node = await world.machine(RACK), await node_of(world)
            assert claimed.spec.pxe == before.spec.pxe
            assert claimed.spec.configuration_ref is None
            assert node.metadata.labels.items() >= {"rack": "r1", "stacklight": "enabled", CONTROL_PLANE: ""}.items()
            assert {one.key for one in node.spec.taints} == {"own", CONTROL_PLANE}
            drained = list[bool]()
            world.caches.nodes.subscribe(lambda _old, new: drained.append(new is not None and new.spec.unschedulable))
            if by_kubectl:
                await world.api.delete(CONTAINER_CLOUD_MACHINES, "m1", namespace="example-ns")
            else:
                await world.change("m1", delete=True)
            await world.until_gone("m1")
            await in_stock(world, before, joined)
            assert any(drained) == (policy == "graceful")
            assert world.operated == []
            await pinned(world, "m2")
            await world.until_word("Ready", "m2")
            await world.change("m2", delete=True)
            await world.until_gone("m2")
            await in_stock(world, before, joined)

    run_virtual(scene())


@site_story
async def test_an_update_of_the_cluster_ends_without_an_adopted_host(world: Site) -> None:
    before = await adopted(world)
    await pinned(world)
    await world.until_word("Ready", "m1")
    release = await world.api.get(CLUSTER_RELEASES.raw(), "mke-17-3-0")
    later: dict[str, Any] = {"version": "17.4.0", "kubernetes": {"version": "v1.35.0"}}
    await world.api.create(CLUSTER_RELEASES, {"metadata": {"name": "later"}, "spec": release["spec"] | later})
    value: dict[str, Any] = {"spec": {"providerSpec": {"value": {"release": "later"}}}}
    await world.api.patch(CLUSTERS, "example-cluster", value, namespace="example-ns")
    await world.settle()
    cluster = await world.api.get(CLUSTERS, "example-cluster", namespace="example-ns")
    references = cluster.provider_status.releases
    assert references.current is not None
    assert (references.current.name, references.next) == ("later", None)
    claimed = await world.machine(RACK)
    assert (claimed.spec.pxe, claimed.spec.configuration_ref) == (before.spec.pxe, None)
    assert world.operated == []


def test_an_aborted_deletion_keeps_the_host() -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            before = await adopted(world)
            await world.settle()
            joined = await node_of(world)
            world.stuck_pods.add(RACK)
            await pinned(world, deletionPolicy="graceful")
            await world.until_word("Ready", "m1")
            await world.change("m1", delete=True)
            await world.until_machine(lambda one: one.provider_status.prepare_deletion_phase == "started", "m1")
            await world.settle()
            await world.change("m1", delete=False)
            await world.until_machine(
                lambda one: one.status.execution is not None and one.status.execution.stage == "Ready", "m1"
            )
            await world.change("m1", delete=True, deletionPolicy="forced")
            await world.until_gone("m1")
            await in_stock(world, before, joined)

    run_virtual(scene())


@site_story
async def test_a_host_with_its_own_bmc_is_only_switched_on_and_off(world: Site) -> None:
    """It adopts no earlier Machine: people have installed the host, and joined it under the name of its Machine."""
    await world.surroundings()
    await world.host("h2", "example-ns", bmc=BMC, externallyProvisioned=True)
    await world.state("externally provisioned", "h2", "example-ns")
    await world.claimant("m1", pin="example-ns/h2", labels=WORKER)
    await world.until_machine(lambda one: one.status.error_reason == "JoinClusterTimeoutError", "m1")
    assert world.operated == []
    world.power["h2.example-ns"] = "On"
    await world.join("h2.example-ns")
    await world.until_word("Ready", "m1")
    await world.edit("h2", "example-ns", online=False)
    await world.until(lambda host: host.status.powered_on is False, "h2", "example-ns")
    await world.edit("h2", "example-ns", online=True)
    await world.until(lambda host: host.status.powered_on is True, "h2", "example-ns")
    await world.change("m1", delete=True)
    await world.until_gone("m1")
    host = await world.state("externally provisioned", "h2", "example-ns")
    await world.settle()
    assert (host.spec.consumer_ref, host.status.operational_status) == (None, "OK")
    assert world.power["h2.example-ns"] == "On"
    assert await world.node("h2.example-ns") is not None
    assert world.operated == ["HostPowerOff", "HostPowerOn"]


@site_story
async def test_a_machine_over_ssh_is_adopted_and_given_back(world: Site) -> None:
    await world.surroundings()
    ssh = {"host": "192.0.2.7", "privateKeyRef": {"name": "k", "namespace": "unbounded-kube", "key": "key"}}
    await world.api.create(MACHINES, {"metadata": {"name": RACK}, "spec": {"ssh": ssh, "kubernetes": {}}})
    await world.join(RACK)
    await world.adopted("h1", RACK)
    await world.state("externally provisioned", "h1", "example-ns")
    before = await world.machine(RACK)
    await pinned(world, deletionPolicy="graceful")
    await world.until_word("Ready", "m1")
    await world.change("m1", delete=True)
    await world.until_gone("m1")
    await world.state("externally provisioned", "h1", "example-ns")
    await world.settle()
    after = await world.machine(RACK)
    assert (after.spec.ssh, after.spec.pxe) == (before.spec.ssh, None)
    assert after.metadata.annotations == before.metadata.annotations
    node = await node_of(world)
    assert (node.ready, node.spec.unschedulable, "stacklight" in node.metadata.labels) == (True, False, False)


@site_story
async def test_the_deletion_of_a_cluster_gives_its_adopted_hosts_back(world: Site) -> None:
    before = await adopted(world)
    await world.settle()
    joined = await node_of(world)
    await pinned(world, manager=True)
    await world.until_word("Ready", "m1")
    await world.api.delete(CLUSTERS, "example-cluster", namespace="example-ns")
    await world.until_gone("m1")
    await in_stock(world, before, joined)
    assert world.operated == []
    assert (await world.api.list(CLUSTERS)).items == ()


@site_story
async def test_a_machine_without_a_pin_does_not_get_an_adopted_host(world: Site) -> None:
    await adopted(world)
    await world.claimant("m1", labels=WORKER)
    await world.until_machine(lambda one: one.status.error_reason == "InsufficientResources", "m1")
    await world.settle()
    assert (await host_of(world)).spec.consumer_ref is None


@site_story
async def test_an_adopted_host_of_another_project_is_refused_by_name(world: Site) -> None:
    await world.surroundings()
    await world.joined(RACK, **OWN)
    await world.adopted("h1", RACK, "other-ns")
    await world.state("externally provisioned", "h1", "other-ns")
    await world.claimant("m1", pin="other-ns/h1", labels=WORKER)
    machine = await world.until_machine(lambda one: one.status.error_message is not None, "m1")
    assert machine.status.error_message is not None
    assert "Machines of other namespaces may use hosts of: default" in machine.status.error_message


@site_story
async def test_a_claim_that_is_removed_by_hand_leaves_nothing_on_an_adopted_machine(world: Site) -> None:
    before = await adopted(world)
    await world.settle()
    joined = await node_of(world)
    await pinned(world)
    await world.until_word("Ready", "m1")
    await world.change("m1", maintenance=True)
    await world.until_word("Maintenance", "m1")
    finalizers: dict[str, Any] = {"metadata": {"finalizers": None}}
    await world.api.patch(CONTAINER_CLOUD_MACHINES, "m1", finalizers, namespace="example-ns")
    await world.api.delete(CONTAINER_CLOUD_MACHINES, "m1", namespace="example-ns")
    with contextlib.suppress(NotFound):  # unless the controller has written it again meanwhile
        await world.api.patch(CONTAINER_CLOUD_MACHINES, "m1", finalizers, namespace="example-ns")
    await world.until_gone("m1")
    assert "remove spec.consumerRef" in await world.reason("ConsumerMissing", "h1", "example-ns")
    host: dict[str, Any] = {
        "metadata": {"labels": None, "annotations": {"unbounded-cloud.io/consumer-uid": None}},
        "spec": {"consumerRef": None},
    }
    await world.api.patch(BARE_METAL_HOSTS, "h1", host, namespace="example-ns")
    await in_stock(world, before, joined)


@site_story
async def test_a_deleted_host_leaves_its_adopted_machine_as_it_was(world: Site) -> None:
    before = await adopted(world)
    await pinned(world)
    await world.until_word("Ready", "m1")
    await world.api.delete(BARE_METAL_HOSTS, "h1", namespace="example-ns")
    await world.api.delete(CONTAINER_CLOUD_MACHINES, "m1", namespace="example-ns")
    await world.settle()
    assert (await world.api.list(BARE_METAL_HOSTS, namespace="example-ns")).items == ()
    after = await world.machine(RACK)
    assert (after.spec, after.metadata.annotations) == (before.spec, {})
    assert (await node_of(world)).ready
    assert world.operated == []


@site_story
async def test_a_host_that_is_forced_away_leaves_its_adopted_machine_running(world: Site) -> None:
    before = await adopted(world)
    await world.settle()
    joined = await node_of(world)
    await pinned(world)
    await world.until_word("Ready", "m1")
    await world.api.delete(BARE_METAL_HOSTS, "h1", namespace="example-ns")
    await world.api.patch(BARE_METAL_HOSTS, "h1", {"metadata": {"finalizers": None}}, namespace="example-ns")
    await world.until_machine(lambda one: one.status.error_message is not None, "m1")
    await world.change("m1", delete=True, deletionPolicy="graceful")
    await world.until_gone("m1")
    await world.settle()
    assert world.operated == []
    assert (await node_of(world)).ready
    await world.adopted("h1", RACK)
    await in_stock(world, before, joined)


@site_story
async def test_a_running_node_is_not_given_to_claims_that_install(world: Site) -> None:
    await adopted(world)
    await world.api.patch(MACHINES, RACK, {"status": {"phase": "Ready"}}, subresource="status")
    await world.edit("h1", "example-ns", externallyProvisioned=False)
    assert f"Machine {RACK} is a Node; set externallyProvisioned" in await world.reason(
        "MachineUnsuitable", "h1", "example-ns"
    )
    await world.settle()
    assert (await host_of(world)).state == "registering"
    await world.edit("h1", "example-ns", externallyProvisioned=True)
    await world.state("externally provisioned", "h1", "example-ns")


@site_story
async def test_a_machine_that_does_not_exist_or_has_a_host_is_not_adopted(world: Site) -> None:
    await adopted(world)
    await world.adopted("h2", "rack1-03")
    missing = await world.reason("MachineMissing", "h2", "example-ns")
    assert missing == "annotation unbounded-cloud.io/machine: no Machine rack1-03"
    await world.joined("rack1-03")
    await world.state("externally provisioned", "h2", "example-ns")
    await world.adopted("h3", RACK, "other-ns")
    assert f"example-ns/h1 adopts the same Machine, {RACK}" in await world.reason("DuplicateHost", "h3", "other-ns")
    assert f"Machine {RACK} is that of BareMetalHost example-ns/h1" in await world.reason(
        "DuplicateHost", "h3", "other-ns"
    )
