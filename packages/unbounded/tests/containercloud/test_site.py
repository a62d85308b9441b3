"""The Machine of the API reference on a site in virtual time: from `kubectl apply` to Ready, and back to stock."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any, Final

import pytest

from tests.api.test_container_cloud_rules import SEED
from tests.containercloud.site import Site, site, site_story
from tests.support.virtual_time import run_virtual
from tests.support.waiting import eventually
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.container_cloud.network import IPAM_HOSTS, SUBNETS
from unbounded.api.core import NODES
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.containercloud.settings import ContainerCloudSettings
from unbounded.kube.api import NotFound

NAME: Final = "example-control-plane"
TARGET: Final = "master-0.default"
LONE: Final = ContainerCloudSettings(site="lab", min_other_managers=0)
ORDER: Final = ["Provision", "Uninitialized", "Pending", "Prepare", "Deploy", "Reconfigure", "Ready"]
HOST: Final = """
apiVersion: metal3.io/v1alpha1
kind: BareMetalHost
metadata: {name: host-NUMBER, namespace: example-ns}
spec:
  bmc: {address: "redfish://192.0.2.1/redfish/v1/Systems/2NUMBER", credentialsName: bmc-2}
  bootMACAddress: 02:00:00:00:00:2NUMBER
"""
MANAGER: Final = """
apiVersion: cluster.k8s.io/v1alpha1
kind: Machine
metadata:
  name: NAME
  namespace: example-ns
  labels:
    kaas.mirantis.com/provider: baremetal
    cluster.sigs.k8s.io/cluster-name: example-cluster
    cluster.sigs.k8s.io/control-plane: ""
spec:
  providerSpec:
    value:
      apiVersion: baremetal.k8s.io/v1alpha1
      kind: BareMetalMachineProviderSpec
      l2TemplateSelector: {name: one-nic}
"""


async def begun(world: Site) -> None:
    await world.surroundings()
    await world.apply(SEED)


async def is_draining(world: Site) -> None:
    """Request the deletion of the Machine, once it is Ready, whose drain does not end."""
    await begun(world)
    await world.until_word("Ready")
    world.stuck_pods.add("master-0.default")
    await world.change(delete=True)
    await world.until_machine(lambda one: one.provider_status.prepare_deletion_phase == "started")
    await asyncio.sleep(30)


async def in_stock(world: Site) -> None:
    """Wait until the host is in stock again, and assert that nothing of the Machine is left."""
    await world.until_gone()
    host = await world.state("available", "master-0")
    assert host.spec.consumer_ref is None
    await world.settle()
    target = await world.machine("master-0.default")
    assert target.spec.kubernetes is None
    assert target.spec.pxe is not None
    init = target.spec.pxe.cloud_init
    assert (target.spec.pxe.image, target.spec.pxe.profile_ref) == (None, None)
    assert init is None or init.network_config_config_map_ref is None
    assert world.power["master-0.default"] == "Off"
    assert (await world.api.list(NODES)).items == ()
    (subnet,) = (await world.api.list(SUBNETS)).items
    assert subnet.status.allocated_ips == ()


@site_story
async def test_the_machine_of_the_reference_becomes_ready(world: Site) -> None:
    await begun(world)
    machine = await world.until_word("Ready")
    assert world.words[NAME] == ORDER
    assert world.operated.count("HostReplace") == 1
    provider = machine.provider_status
    assert provider.ready
    assert provider.upgrade_index == 1
    assert provider.current_distribution == "ubuntu/jammy"
    assert provider.private_ip == "10.0.0.10"
    assert machine.status.node_ref is not None
    node = await world.node()
    assert node is not None
    assert node.metadata.labels["stacklight"] == "enabled"
    assert "node-role.kubernetes.io/control-plane" in node.metadata.labels
    assert [one.key for one in node.spec.taints] == ["node-role.kubernetes.io/control-plane"]
    host = await world.api.get(BARE_METAL_HOSTS, "master-0", namespace="default")
    assert host.state == "provisioned"


@site_story
async def test_an_operation_of_others_with_the_name_costs_one_attempt(
    world: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, asked = world.api.create, list[str]()

    async def too_late(kind: Kind[Any], body: dict[str, Any], **more: Any) -> Any:
        if kind is MACHINE_OPERATIONS:
            name = body["metadata"]["name"]
            asked.append(name)
            if len(asked) == 1:
                spec = {"machineRef": "other", "operationKind": "HostReboot"}
                await create(kind, {"metadata": {"name": name}, "spec": spec})
        return await create(kind, body, **more)

    await create(MACHINES, {"metadata": {"name": "other"}, "spec": {}})
    monkeypatch.setattr(world.api, "create", too_late)
    await begun(world)
    await world.until_machine(lambda one: "NameTaken: MachineOperation cc-" in _says(one))
    await world.until_word("Ready")
    assert len(asked) == len(set(asked)) == 2
    assert world.operated.count("HostReplace") == 1


def _says(machine: Any) -> str:
    return "" if machine.status.execution is None else machine.status.execution.message or ""


def test_delete_true_brings_the_host_back_to_stock() -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            await begun(world)
            await world.until_word("Ready")
            world.operated.clear()
            await world.change(delete=True)
            await in_stock(world)
            assert world.operated[:2] == ["AgentReset", "HostPowerOff"]

    run_virtual(scene())


@pytest.mark.parametrize("policy", ["unsafe", "forced"])
def test_kubectl_delete_goes_the_same_way(policy: str) -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            await begun(world)
            await world.until_word("Ready")
            world.operated.clear()
            await world.change(deletionPolicy=policy)
            await world.api.delete(CONTAINER_CLOUD_MACHINES, NAME, namespace="example-ns")
            await in_stock(world)
            assert world.operated[0] == "HostPowerOff"
            assert "AgentReset" not in world.operated

    run_virtual(scene())


def test_a_recreated_machine_waits_for_addresses_of_a_host_that_may_run() -> None:
    """It must have neither the network of the earlier Machine, nor none."""

    async def scene() -> None:
        async with site(LONE) as world:
            await world.surroundings()
            for number in ("0", "1"):
                await world.apply(HOST.replace("NUMBER", number))
            await world.apply(MANAGER.replace("NAME", "again"))
            first = await world.until_word("Ready", "again")
            assert first.status.execution is not None
            host = first.status.execution.host
            assert host is not None
            world.failing.add(f"{host.name}.example-ns")
            await world.change("again", deletionPolicy="forced")
            await world.api.delete(CONTAINER_CLOUD_MACHINES, "again", namespace="example-ns")
            await world.until_gone("again")
            await world.apply(MANAGER.replace("NAME", "again"))
            words = f"is still that of an earlier Machine of this name: the addresses stay in use: BareMetalHost {host}"
            await world.until_machine(lambda one: words in _says(one), "again")
            await asyncio.sleep(600)
            assert world.operated.count("HostReplace") == 1
            world.failing.clear()
            second = await world.until_word("Ready", "again")
            assert second.metadata.uid != first.metadata.uid
            assert second.status.execution is not None
            assert second.status.execution.host not in (None, host)
            (ipam,) = (await world.api.list(IPAM_HOSTS)).items
            assert [one.uid for one in ipam.metadata.owner_references] == [second.metadata.uid]
            target = await world.machine(second.status.execution.machine or "")
            assert target.spec.pxe is not None
            assert target.spec.pxe.cloud_init is not None

    run_virtual(scene())


@pytest.mark.parametrize("stage", ["claimed", "reported", "written"])
def test_an_old_reading_frees_nothing_of_a_host_whose_install_was_cut(stage: str) -> None:
    """The BMC fails while the install runs: the reading Off from the stock stays, and the host runs."""

    async def scene() -> None:
        async with site(LONE) as world:
            await begun(world)
            await eventually(lambda: _reaches(world, stage), lambda: world.words, within_s=20_000, every_s=0.05)
            assert (world.power[TARGET] == "On") is (stage != "claimed")
            world.unread.add(TARGET)
            world.failing.add(TARGET)
            await world.change(deletionPolicy="forced")
            await world.api.delete(CONTAINER_CLOUD_MACHINES, NAME, namespace="example-ns")
            await world.until_gone()
            for _ in range(2):  # also after another leader has begun
                await asyncio.sleep(120)
                await _is_kept(world)
                await world.stop()
                world.start()
            world.failing.clear()
            world.unread.clear()
            await in_stock(world)
            assert "Dirty" not in {one.type for one in (await world.read("master-0")).status.conditions}

    run_virtual(scene())


async def _reaches(world: Site, stage: str) -> bool:
    """Return whether the install is at work, and its installer has reported, or written the image."""
    with suppress(NotFound):
        status = (await world.machine(TARGET)).status
        is_at_work = status.active_operation is not None and status.active_operation.kind == "HostReplace"
        is_reported = status.hardware is not None and status.hardware.source == "Installer"
        return is_at_work and {"claimed": True, "reported": is_reported, "written": status.image is not None}[stage]
    return False


async def _is_kept(world: Site) -> None:
    """Assert that an old reading Off stands, and that the host is Dirty and keeps its addresses."""
    target, host = await world.machine(TARGET), await world.read("master-0")
    assert target.status.power is not None
    assert (target.status.power.state, target.status.active_operation) == ("Off", None)
    assert host.state == "deprovisioning"
    dirty = [(one.status, one.reason) for one in host.status.conditions if one.type == "Dirty"]
    assert dirty == [("True", "NotSeenOff")]
    (subnet,) = (await world.api.list(SUBNETS)).items
    assert [one.partition(":")[0] for one in subnet.status.allocated_ips] == ["10.0.0.10"]


def test_addresses_of_a_host_in_use_survive_its_deleted_ipam_host() -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            await begun(world)
            await world.until_word("Ready")
            await world.api.delete(IPAM_HOSTS, NAME, namespace="example-ns")
            await asyncio.sleep(600)
            (ipam,) = (await world.api.list(IPAM_HOSTS)).items
            assert "BareMetalHost default/master-0 belongs to the Machine still" in (ipam.status.state or "")
            (subnet,) = (await world.api.list(SUBNETS)).items
            assert [one.partition(":")[0] for one in subnet.status.allocated_ips] == ["10.0.0.10"]
            await world.change(delete=True)
            await in_stock(world)

    run_virtual(scene())


@site_story
async def test_a_lone_manager_is_not_deleted_until_that_is_withdrawn(world: Site) -> None:
    await begun(world)
    await world.until_word("Ready")
    await world.change(delete=True)
    await world.until_machine(lambda one: _waits(one) == "ManagersMissing")
    await world.change(delete=False)
    machine = await world.until_machine(lambda one: _stage(one) == "Ready")
    assert not machine.provider_status.delete
    assert "AgentReset" not in world.operated


def _waits(machine: Any) -> str | None:
    waiting = machine.status.execution.waiting if machine.status.execution is not None else None
    return None if waiting is None else str(waiting.reason)


def _stage(machine: Any) -> str | None:
    return None if machine.status.execution is None else str(machine.status.execution.stage)


def test_managers_are_deleted_one_by_one() -> None:
    async def scene() -> None:
        async with site(ContainerCloudSettings(site="lab", min_other_managers=1)) as world:
            await world.surroundings()
            names = [f"manager-{number}" for number in range(3)]
            for number, name in enumerate(names):
                await world.apply(HOST.replace("NUMBER", str(number)))
                await world.apply(MANAGER.replace("NAME", name).replace("NUMBER", str(number)))
            for name in names:
                await world.until_word("Ready", name)
            most = 0

            def count(_old: object, _new: object) -> None:
                nonlocal most
                most = max(most, sum(one.provider_status.delete for one in world.caches.machines.all()))

            world.caches.machines.subscribe(count)
            await asyncio.gather(*(world.change(name, delete=True, deletionPolicy="unsafe") for name in names))

            async def left() -> bool:
                machines = (await world.api.list(CONTAINER_CLOUD_MACHINES)).items
                return len(machines) == 1 and _waits(machines[0]) == "ManagersMissing"

            def state() -> object:
                return [(one.name, one.status.execution) for one in world.caches.machines.all()]

            await eventually(left, state, within_s=20_000, every_s=1)
            assert most == 1

    run_virtual(scene())


def test_a_deletion_is_aborted_while_its_drain_waits() -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            await is_draining(world)
            node = await world.node()
            assert node is not None
            assert node.spec.unschedulable
            await world.change(delete=False)
            machine = await world.until_machine(lambda one: _stage(one) == "Ready")
            assert (machine.provider_status.delete, machine.provider_status.prepare_deletion_phase) == (False, "")
            node = await world.node()
            assert node is not None
            assert not node.spec.unschedulable
            assert "AgentReset" not in world.operated

    run_virtual(scene())


@pytest.mark.parametrize("policy", ["unsafe", "forced"])
def test_a_looser_policy_ends_the_wait_for_a_drain(policy: str) -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            await is_draining(world)
            await world.change(deletionPolicy=policy)
            await in_stock(world)
            assert world.operated[-1] == "HostPowerOff"
            assert "AgentReset" not in world.operated

    run_virtual(scene())


@site_story
async def test_maintenance_drains_the_node_and_returns_it(world: Site) -> None:
    await begun(world)
    await world.until_word("Ready")
    await world.change(maintenance=True)
    machine = await world.until_word("Maintenance")
    assert machine.provider_status.maintenance
    await world.change(maintenance=False)
    machine = await world.until_word("Ready")
    assert not machine.provider_status.maintenance
    node = await world.node()
    assert node is not None
    assert not node.spec.unschedulable


@site_story
async def test_maintenance_that_is_withdrawn_leaves_no_message(world: Site) -> None:
    await begun(world)
    await world.until_word("Ready")
    world.stuck_pods.add("master-0.default")
    await world.change(maintenance=True)
    await world.until_machine(lambda one: _waits(one) == "EnteringMaintenance")
    await world.change(maintenance=False)
    machine = await world.until_machine(lambda one: _waits(one) is None)
    assert (machine.provider_status.status, _says(machine)) == ("Ready", "")


@site_story
async def test_an_install_that_fails_is_repeated_five_times_and_goes_on_after_a_retry(world: Site) -> None:
    world.failing.add("master-0.default")
    await begun(world)
    machine = await world.until_machine(lambda one: _waits(one) == "AttemptsExhausted")
    assert world.operated.count("HostReplace") == 5
    assert machine.status.error_reason == "CreateError"
    assert "no disk of this size" in (machine.status.error_message or "")
    world.failing.clear()
    patch = {"metadata": {"annotations": {"unbounded-cloud.io/retry": "1"}}}
    await world.api.patch(CONTAINER_CLOUD_MACHINES, NAME, patch, namespace="example-ns")
    await world.until_word("Ready")
    assert world.operated.count("HostReplace") == 6


@site_story
async def test_a_host_that_never_joins_is_an_error_that_ends_when_it_does(world: Site) -> None:
    world.silent_agents.add("master-0.default")
    await begun(world)
    machine = await world.until_machine(lambda one: one.status.error_reason is not None)
    assert machine.status.error_reason == "JoinClusterTimeoutError"
    world.silent_agents.clear()
    machine = await world.until_word("Ready")
    assert machine.status.error_reason is None


@site_story
async def test_what_is_missing_is_named_and_goes_on_by_itself(world: Site) -> None:
    await world.apply(SEED)
    await world.until_machine(lambda one: _waits(one) == "ClusterMissing")
    await world.surroundings()
    await world.until_word("Ready")


def test_a_process_that_is_cut_at_any_time_leaves_nothing_twice() -> None:
    """Each cut is at a random instant; the successor starts with empty caches."""

    async def scene(seed: int) -> None:
        chance = random.Random(seed)
        async with site(LONE) as world:
            await begun(world)
            done = asyncio.create_task(world.until_word("Ready"))
            while not done.done():
                await asyncio.sleep(chance.uniform(0, 6))
                await world.stop()
                world.start()
                await asyncio.sleep(chance.uniform(0, 3))
            assert world.operated.count("HostReplace") == 1
            owners = [
                one for one in (await world.api.list(BARE_METAL_HOSTS)).items if one.spec.consumer_ref is not None
            ]
            assert len(owners) == 1
            (subnet,) = (await world.api.list(SUBNETS)).items
            assert len(subnet.status.allocated_ips) == len(set(subnet.status.allocated_ips))
            await world.change(delete=True)
            gone = asyncio.create_task(world.until_gone())
            while not gone.done():
                await asyncio.sleep(chance.uniform(0, 6))
                await world.stop()
                world.start()
                await asyncio.sleep(chance.uniform(0, 3))
            await in_stock(world)
            assert world.operated.count("AgentReset") == 1
            assert (await world.api.list(MACHINES)).items

    for seed in range(20):
        run_virtual(scene(seed))
