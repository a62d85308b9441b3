"""Networks of Machines as stories: from the claim to the configuration, and back at the release."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

import pytest
import yaml

from tests.containercloud.network.support import EXAMPLE, MACS, NAMESPACE
from tests.containercloud.network.world import NetworkWorld, netplan_of, networks, status_of
from tests.operations.faults import STORM, Weather
from tests.support.stories import told_in
from tests.support.virtual_time import run_virtual
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.container_cloud.names import ANNOTATION_IPAM_HOST, LABEL_NETWORK_CONFIG
from unbounded.api.container_cloud.network import IPAM_HOSTS, L2_TEMPLATES, SUBNETS, Subnet
from unbounded.api.core import CONFIG_MAPS
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_FOR_BOOT
from unbounded.containercloud.network.controller import network_view
from unbounded.containercloud.network.plan import config_name, plan_network
from unbounded.containercloud.network.subnets import parse_allocation
from unbounded.kube.api import NotFound
from unbounded.kube.status_writer import StatusWriter

story: Final = told_in(networks)
ADDRESS: Final = "10.0.0.100"


async def prepared(world: NetworkWorld, **value: Any) -> None:
    await world.subnet()
    await world.template()
    await world.machine(**value)
    await world.claim()


@story
async def test_the_network_of_the_example_is_handed_over(world: NetworkWorld) -> None:
    await prepared(world)
    waiting = await world.reason("AwaitingHardware")
    assert status_of(waiting) == {"AddressesAllocated": "True", "Rendered": "False"}
    assert waiting.spec.if_mapping_override == ("eno1", "enp0s0")
    assert waiting.spec.l2_template_selector is not None
    assert waiting.spec.l2_template_selector.label == "l2-template1-label-1"
    pxe = (await world.target()).spec.pxe
    assert pxe is not None
    (lease,) = pxe.dhcp_leases
    assert (lease.ipv4, lease.mac, lease.subnet_mask, lease.gateway) == (ADDRESS, MACS[0], "255.255.255.0", "10.0.0.1")
    assert await world.configs() == []

    await world.report()
    ipam = await world.reason("Rendered")
    assert ipam.status.state == "OK"
    assert [one.ip_address for one in ipam.status.service_map["ipam/SVC-k8s-lcm"]] == [f"{ADDRESS}/24"]
    assert netplan_of(ipam)["network"]["bridges"]["k8s-lcm"]["addresses"] == [f"{ADDRESS}/24"]
    assert [(one.name, one.mac, one.primary) for one in ipam.spec.nic_mac_map] == [
        ("eno1", MACS[0], True),
        ("eth1", MACS[1], False),
    ]
    config = await world.config()
    assert config is not None
    assert yaml.safe_load(config.data["network-config"]) == netplan_of(ipam)["network"]
    assert config.metadata.annotations[ANNOTATION_FOR_BOOT] == "b1"
    pxe = (await world.target()).spec.pxe
    assert pxe is not None
    assert pxe.cloud_init is not None
    reference = pxe.cloud_init.network_config_config_map_ref
    assert reference is not None
    assert (reference.name, reference.namespace, reference.key) == (config.name, "unbounded-kube", "network-config")
    subnet = await world.subnet_now()
    assert subnet.status.allocated_ips == (f"{ADDRESS}:{ipam.metadata.uid}/k8s-lcm",)
    assert (subnet.status.capacity, subnet.status.allocatable, subnet.status.state) == (4, 3, "OK")


@story
async def test_what_an_install_needs_is_left_to_its_plan(world: NetworkWorld) -> None:
    await prepared(world)
    await world.stage("Planning")
    await world.reason("AwaitingHardware")
    await asyncio.sleep(5)
    pxe = (await world.target()).spec.pxe
    assert pxe is not None
    assert pxe.dhcp_leases == ()
    handover = plan_network(network_view(world.caches, NAMESPACE, "m")).handover
    assert [one["ipv4"] for one in handover["dhcpLeases"]] == [ADDRESS]
    assert handover["cloudInit"]["networkConfigConfigMapRef"]["name"] == config_name(await world.ipam())


@story
async def test_at_rest_nothing_is_written(world: NetworkWorld) -> None:
    await prepared(world)
    await world.report()
    await world.reason("Rendered")
    await asyncio.sleep(5)
    writes, calls = world.api.writes, world.life.awaits
    await world.api.patch(MACHINES, "master-0.default", {"spec": {"pxe": {"targetDisk": "/dev/sda"}}})
    await asyncio.sleep(7200)
    assert (world.api.writes, world.life.awaits) == (writes + 1, calls)


@story
async def test_selector_and_override_are_copied_once(world: NetworkWorld) -> None:
    await prepared(world)
    await world.report()
    await world.reason("Rendered")
    value = {"value": {"l2TemplateSelector": {"name": "other"}, "l2TemplateIfMappingOverride": ["enp0s0"]}}
    await world.edit(CONTAINER_CLOUD_MACHINES, "m", providerSpec=value)
    await asyncio.sleep(60)
    ipam = await world.ipam()
    assert ipam.spec.if_mapping_override == ("eno1", "enp0s0")
    assert (ipam.spec.l2_template_selector and ipam.spec.l2_template_selector.name) is None
    await world.edit(IPAM_HOSTS, "m", ifMappingOverride=["enp0s0", "eno1"])
    changed = await world.until(world.ipam, lambda one: "enp0s0" in netplan_of(one)["network"]["ethernets"])
    assert netplan_of(changed)["network"]["ethernets"]["enp0s0"]["match"] == {"macaddress": MACS[1]}
    assert netplan_of(changed)["network"]["bridges"]["k8s-lcm"]["addresses"] == [f"{ADDRESS}/24"]


@story
async def test_another_report_makes_another_configuration(world: NetworkWorld) -> None:
    await prepared(world)
    await world.report()
    await world.reason("Rendered")
    await world.report(nics=[{"name": "eno1", "mac": MACS[2]}], boot="b2")

    async def macs() -> Any:
        config = await world.config()
        return config and (config.metadata.annotations[ANNOTATION_FOR_BOOT], MACS[2] in config.data["network-config"])

    await world.until(macs, lambda found: found == ("b2", True))


@story
async def test_an_address_by_number_belongs_to_the_card(world: NetworkWorld) -> None:
    await world.subnet()
    await world.template(EXAMPLE.replace("k8s-lcm:lcm", "0:lcm"))
    await world.machine()
    await world.claim()
    await world.reason("AwaitingHardware")
    await world.report()
    ipam = await world.reason("Rendered")
    key = MACS[0].replace(":", "-")
    assert (await world.subnet_now()).status.allocated_ips == (f"{ADDRESS}:{ipam.metadata.uid}/{key}",)
    pxe = (await world.target()).spec.pxe
    assert pxe is not None
    assert [one.ipv4 for one in pxe.dhcp_leases] == [ADDRESS]


@story
async def test_release_gives_everything_back(world: NetworkWorld) -> None:
    await prepared(world)
    await world.report()
    await world.reason("Rendered")
    await world.release()
    await world.gone()
    assert (await world.subnet_now()).status.allocated_ips == ()
    assert await world.configs() == []
    pxe = (await world.target()).spec.pxe
    assert pxe is not None
    assert pxe.dhcp_leases == ()
    assert pxe.cloud_init is None or pxe.cloud_init.network_config_config_map_ref is None


@story
async def test_an_address_that_a_frozen_leader_allocates_too_late_comes_back(world: NetworkWorld) -> None:
    await prepared(world)
    owner = (await world.reason("AwaitingHardware")).metadata.uid
    await world.release()
    await world.gone()
    late, unknown = f"{ADDRESS}:{owner}/k8s-lcm", "10.0.0.101:of-a-restored-cluster/k8s-lcm"
    await world.api.patch(
        SUBNETS, "lcm", {"status": {"allocatedIPs": [late, unknown]}}, namespace=NAMESPACE, subresource="status"
    )
    await world.until(world.subnet_now, lambda subnet: subnet.status.allocated_ips == (unknown,))


@story
async def test_a_configuration_that_a_frozen_leader_writes_too_late_is_deleted(world: NetworkWorld) -> None:
    await prepared(world)
    await world.report()
    name = config_name(await world.reason("Rendered"))
    await world.release()
    await world.gone()
    notes = {ANNOTATION_IPAM_HOST: f"{NAMESPACE}/m"}
    late = {"metadata": {"name": name, "labels": {LABEL_NETWORK_CONFIG: "true"}, "annotations": notes}}
    await world.api.create(CONFIG_MAPS, late, namespace="unbounded-kube")
    await world.until(world.configs, lambda found: found == [])


@story
async def test_a_released_host_does_not_get_its_network_again(world: NetworkWorld) -> None:
    await prepared(world)
    await world.report()
    await world.reason("Rendered")
    await world.edit(BARE_METAL_HOSTS, "master-0", namespace="default", consumerRef=None)
    await world.api.patch(MACHINES, "master-0.default", {"spec": {"pxe": {"dhcpLeases": None, "cloudInit": None}}})
    await asyncio.sleep(60)
    pxe = (await world.target()).spec.pxe
    assert pxe is not None
    assert (pxe.dhcp_leases, pxe.cloud_init) == ((), None)


@story
async def test_a_machine_that_is_gone_takes_its_network_with_it(world: NetworkWorld) -> None:
    await prepared(world)
    await world.reason("AwaitingHardware")
    await world.api.delete(CONTAINER_CLOUD_MACHINES, "m", namespace=NAMESPACE)
    await world.gone()
    await world.until(world.subnet_now, lambda one: one.status.allocated_ips == ())


@story
async def test_addresses_of_a_host_that_may_still_run_stay(world: NetworkWorld) -> None:
    await prepared(world)
    await world.report()
    await world.reason("Rendered")
    since = "2030-01-01T00:00:00Z"
    dirty = {"type": "Dirty", "status": "True", "reason": "NotSeenOff", "lastTransitionTime": since}
    for conditions in ([dirty], []):
        await world.api.patch(
            BARE_METAL_HOSTS,
            "master-0",
            {"status": {"conditions": conditions}},
            namespace="default",
            subresource="status",
        )
        if conditions:
            await world.release()
            held = await world.reason("HostDirty")
            assert "default/master-0 was not seen Off" in (held.status.state or "")
            await asyncio.sleep(3600)
            assert (await world.subnet_now()).status.allocated_ips != ()
    await world.gone()
    assert (await world.subnet_now()).status.allocated_ips == ()


@story
async def test_addresses_wait_for_the_status_of_a_host_that_was_released(world: NetworkWorld) -> None:
    """Its condition Dirty follows the release, and the deletion of the IpamHost may be faster."""
    await world.subnet()
    await world.template()
    await world.machine()
    await world.claim()
    await world.report()
    await world.reason("Rendered")

    async def state(word: str) -> None:
        status = {"status": {"provisioning": {"state": word}}}
        await world.api.patch(BARE_METAL_HOSTS, "master-0", status, namespace="default", subresource="status")

    await state("provisioned")
    await world.api.patch(BARE_METAL_HOSTS, "master-0", {"spec": {"consumerRef": None}}, namespace="default")
    await world.release()
    await world.reason("HostDirty")
    await asyncio.sleep(3600)
    assert (await world.subnet_now()).status.allocated_ips != ()
    await state("deprovisioning")
    await world.gone()
    assert (await world.subnet_now()).status.allocated_ips == ()


@story
async def test_a_full_subnet_is_named_and_waited_for(world: NetworkWorld) -> None:
    await world.subnet(includeRanges=["10.0.0.100"])
    await world.template()
    for number in (0, 1):
        await world.machine(f"m{number}")
        await world.claim(f"m{number}", number)
        await world.until(partial(world.ipam, f"m{number}"), lambda one: one and one.status.conditions)
    full = await world.reason("SubnetFull", "m1")
    assert full.status.state == f"ERR: Subnet {NAMESPACE}/lcm: all addresses are in use"
    assert status_of(full) == {"AddressesAllocated": "False", "Rendered": "False"}
    await world.release("m0")
    await world.reason("AwaitingHardware", "m1")


@story
async def test_what_is_missing_is_named_and_then_goes_on(world: NetworkWorld) -> None:
    await world.machine()
    await world.stage("Claiming")
    unclaimed = await world.reason("NotClaimed")
    assert unclaimed.status.state is None
    await world.claim()
    await world.reason("NoTemplate")
    await world.template(EXAMPLE.replace("nic 0", "nick 0"))
    missing = await world.reason("SubnetMissing")
    assert "spec.l3Layout[0]: scope namespace has no Subnet lcm" in (missing.status.state or "")
    await world.subnet()
    invalid = await world.reason("TemplateInvalid")
    assert 'npTemplate:3: function "nick" not defined' in (invalid.status.state or "")
    broken = await world.until(
        lambda: world.api.get(L2_TEMPLATES, "one-nic", namespace=NAMESPACE), lambda one: one.status.state == "ERR"
    )
    assert 'npTemplate:3: function "nick" not defined; macros: cidr_from_subnet' in broken.status.reason
    await world.edit(L2_TEMPLATES, "one-nic", npTemplate=EXAMPLE)
    await world.reason("AwaitingHardware")
    await world.until(
        lambda: world.api.get(L2_TEMPLATES, "one-nic", namespace=NAMESPACE), lambda one: one.status.state == "OK"
    )
    await world.report(nics=[{"name": "eth9", "mac": MACS[2]}])
    absent = await world.reason("CardMissing")
    assert f"no network card eno1; its cards: eth9 ({MACS[2]})" in (absent.status.state or "")
    names = [{"name": "eno1", "mac": MACS[2]}]
    await world.edit(IPAM_HOSTS, "m", nicMACmap=names)
    await world.reason("Rendered")


@story
async def test_an_edit_of_the_network_of_a_running_host_counts_at_the_next_install(world: NetworkWorld) -> None:
    def needs_restart(ipam: Any) -> str:
        return next((one.status for one in ipam.status.conditions if one.type == "RestartNeeded"), "")

    await prepared(world)
    await world.report()
    await world.reason("Rendered")
    await world.installed("b1")
    await asyncio.sleep(5)
    assert needs_restart(await world.ipam()) == "False"
    await world.edit(L2_TEMPLATES, "one-nic", npTemplate=f"{EXAMPLE}renderer: networkd\n")
    await world.until(world.ipam, lambda one: needs_restart(one) == "True")
    await world.installed("b2")
    await world.until(world.ipam, lambda one: needs_restart(one) == "False")


@story
async def test_the_last_card_has_the_last_name_of_the_override(world: NetworkWorld) -> None:
    await prepared(world)
    await world.report(nics=[{"name": "eth0", "mac": MACS[0]}, {"name": "enp0s0", "mac": MACS[1]}])
    ipam = await world.reason("Rendered")
    assert netplan_of(ipam)["network"]["ethernets"]["eno1"]["match"] == {"macaddress": MACS[0]}
    two_unknown = [{"name": "eth0", "mac": MACS[0]}, {"name": "eth1", "mac": MACS[2]}]
    await world.report(nics=two_unknown, boot="b2")
    held = await world.reason("CardMissing")
    assert "no network card eno1; its cards: eth0" in (held.status.state or "")


@story
async def test_a_card_that_vanished_is_looked_for_at_the_next_boot(world: NetworkWorld) -> None:
    await prepared(world)
    await world.report()
    addresses = (await world.reason("Rendered")).status.service_map
    await world.report(nics=[{"name": "eth1", "mac": MACS[1]}], boot="b2")
    vanished = await world.reason("CardMissing")
    assert status_of(vanished) == {"AddressesAllocated": "True", "Rendered": "False"}
    assert await world.configs() == []
    await world.report(boot="b3")
    ipam = await world.reason("Rendered")
    assert (ipam.status.state, ipam.status.service_map) == ("OK", addresses)


@story
async def test_a_fault_after_an_edit_keeps_an_install_from_the_old_network(world: NetworkWorld) -> None:
    await prepared(world)
    await world.report()
    await world.reason("Rendered")
    await world.edit(L2_TEMPLATES, "one-nic", npTemplate=EXAMPLE.replace('"k8s-lcm:lcm"', '"k8s-lcm:other"'))
    await world.reason("SubnetMissing")
    assert await world.configs() == []
    assert len((await world.subnet_now()).status.allocated_ips) == 1


@story
async def test_a_subnet_in_use_outlasts_its_deletion(world: NetworkWorld) -> None:
    await prepared(world)
    await world.reason("AwaitingHardware")
    await world.api.delete(SUBNETS, "lcm", namespace=NAMESPACE)
    await asyncio.sleep(60)
    assert (await world.subnet_now()).status.allocated_ips != ()
    await world.release()
    await world.until(world.subnet_now, lambda found: found is None)


@story
async def test_leases_come_from_the_subnet_for_them(world: NetworkWorld) -> None:
    await world.subnet(
        "pxe", "default", labels={"ipam/SVC-dhcp-range": "1"}, cidr="10.9.0.0/24", includeRanges=[], gateway="10.9.0.1"
    )
    await prepared(world)
    await world.reason("AwaitingHardware")
    pxe = (await world.target()).spec.pxe
    assert pxe is not None
    assert [(one.ipv4, one.mac) for one in pxe.dhcp_leases] == [("10.9.0.2", MACS[0])]
    await world.release()
    await world.gone()
    assert (await world.subnet_now("pxe", "default")).status.allocated_ips == ()


@story
async def test_a_lease_that_others_made_stays(world: NetworkWorld) -> None:
    lease = {"ipv4": "10.5.0.9", "mac": MACS[0], "subnetMask": "255.255.255.0", "gateway": "10.5.0.1"}
    await world.subnet()
    await world.template()
    await world.machine()
    await world.claim(dhcpLeases=[lease])
    await world.reason("AwaitingHardware")
    await world.release()
    await world.gone()
    pxe = (await world.target()).spec.pxe
    assert pxe is not None
    assert [one.ipv4 for one in pxe.dhcp_leases] == ["10.5.0.9"]


@story
async def test_a_declared_network_of_the_machine_is_not_overwritten(world: NetworkWorld) -> None:
    await prepared(world)
    network = {"ethernets": [{"name": "one", "mac": MACS[0], "dhcp4": True}]}
    await world.api.patch(MACHINES, "master-0.default", {"spec": {"network": network}})
    held = await world.reason("MachineHasNetwork")
    assert "Machine master-0.default has spec.network" in (held.status.state or "")


async def race(world: NetworkWorld, hosts: int, *, leaders: int = 1) -> None:
    """Claim hosts at once, release a third of them, and judge the addresses; with one leader also what hosts have."""
    await world.subnet(includeRanges=[f"10.0.0.10-10.0.0.{9 + hosts}"])
    await world.template()
    for number in range(hosts):
        await world.machine(f"m{number}")
        await world.claim(f"m{number}", number)
    ipams = [await world.reason("AwaitingHardware", f"m{number}") for number in range(hosts)]
    judge(await world.subnet_now(), {one.metadata.uid for one in ipams})
    for number in range(0, hosts, 3):
        await world.api.delete(CONTAINER_CLOUD_MACHINES, f"m{number}", namespace=NAMESPACE)
    for number in range(0, hosts, 3):
        await world.gone(f"m{number}")
    left = {one.metadata.uid for number, one in enumerate(ipams) if number % 3}
    if leaders > 1:  # one that was frozen may allocate for what the other one has released, until it sees the deletion
        await world.until(world.subnet_now, lambda subnet: {one.uid for one in allocated(subnet)} == left)
    judge(await world.subnet_now(), left)
    for number, ipam in enumerate(ipams if leaders == 1 else ()):
        pxe = (await world.target(number)).spec.pxe
        assert pxe is not None
        leases = [one.ipv4 for one in pxe.dhcp_leases]
        owned = [one.address for one in allocated(await world.subnet_now()) if one.uid == ipam.metadata.uid]
        assert leases == owned
        reference = None if pxe.cloud_init is None else pxe.cloud_init.network_config_config_map_ref
        assert (reference.name if reference is not None else "") == (config_name(ipam) if number % 3 else "")


def allocated(subnet: Any) -> list[Any]:
    return [one for one in map(parse_allocation, subnet.status.allocated_ips) if one is not None]


def judge(subnet: Any, owners: set[str]) -> None:
    found = allocated(subnet)
    assert sorted(one.uid for one in found) == sorted(owners)
    assert len({one.address for one in found}) == len(found)


@story
async def test_hosts_that_race_get_one_address_each(world: NetworkWorld) -> None:
    await race(world, 30)


@pytest.fixture
def subnet_writes(monkeypatch: pytest.MonkeyPatch) -> list[Subnet]:
    """Each Subnet whose status was written, as it was before."""
    written: list[Subnet] = []
    write = StatusWriter.write

    async def counted(self: StatusWriter[Any], base: object, status: Any) -> object:
        if isinstance(base, Subnet):
            written.append(base)
        return await write(self, base, status)

    monkeypatch.setattr(StatusWriter, "write", counted)
    return written


def test_hosts_that_ask_at_the_same_time_share_a_write(subnet_writes: list[Subnet]) -> None:
    async def told() -> None:
        world = NetworkWorld()
        world.start(weather=Weather(latency_s=0.2))
        await race(world, 30)
        await world.stop()

    run_virtual(told())
    assert len(subnet_writes) < 30  # of 30 allocations and 10 releases


def test_hosts_that_ask_one_after_the_other_share_a_write(subnet_writes: list[Subnet]) -> None:
    count = 6

    async def told() -> None:
        world = NetworkWorld()
        world.start()
        await world.subnet(includeRanges=[f"10.0.0.10-10.0.0.{9 + count}"])
        await world.template()
        for number in range(count):
            await world.machine(f"m{number}")
        await asyncio.sleep(5)
        subnet_writes.clear()
        for number in range(count):
            await world.claim(f"m{number}", number)
            await asyncio.sleep(0.15)
        await world.until(world.subnet_now, lambda subnet: len(allocated(subnet)) == count)
        await world.stop()

    run_virtual(told())
    assert len(subnet_writes) == 1


@pytest.mark.parametrize("weather", [STORM, Weather(latency_s=0.2, staleness_s=1.0)], ids=["storm", "late"])
@pytest.mark.parametrize("seed", range(3))
def test_two_leaders_give_no_address_twice(seed: int, weather: Weather) -> None:
    async def told() -> None:
        world = NetworkWorld(seed)
        for _ in range(2):
            world.start(weather=weather)
        await race(world, 9, leaders=2)
        await world.stop()

    run_virtual(told())


def test_a_crash_at_any_await_loses_and_doubles_no_address() -> None:
    """The controller is cut off at each of its awaits in turn; the next life completes the work."""
    crashes = 0
    for at in range(0, 1000):
        crashed = False

        async def told(at: int = at) -> None:
            nonlocal crashed
            world = NetworkWorld()
            first = world.start(crash_at=at)

            async def restart() -> None:
                await first.dead.wait()
                world.start()

            task = asyncio.create_task(restart())
            await prepared(world)
            await world.reason("AwaitingHardware")
            await world.report()
            await world.reason("Rendered")
            ipam = await world.ipam()
            judge(await world.subnet_now(), {ipam.metadata.uid})
            await world.release()
            await world.gone()
            judge(await world.subnet_now(), set())
            assert await world.configs() == []
            with pytest.raises(NotFound):
                await world.ipam("none")
            crashed = first.dead.is_set()
            task.cancel()
            await world.stop()

        run_virtual(told())
        crashes += crashed
        if not crashed:
            break
    assert crashes > 30
