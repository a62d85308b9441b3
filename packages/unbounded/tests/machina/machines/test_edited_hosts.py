"""A Machine with an edited spec is observed at once, and earlier observations of the host do not count any more."""

from __future__ import annotations

import asyncio

from tests.machina.machines.world import HOST, Cluster, shown, story
from tests.support.machina import FakeHost
from tests.support.virtual_time import run_virtual
from unbounded.api.machine import MACHINES
from unbounded.machina.ssh.model import SshReason

OTHER = "10.0.0.2:22"


@story
async def test_a_corrected_address_is_tried_at_once(cluster: Cluster) -> None:
    await cluster.secrets()
    await cluster.machine(host="10.0.0.9:22")
    async with cluster.machina():
        await cluster.until(lambda one: shown(one).get("SSHReachable", "").startswith("False"), within_s=5)
        await cluster.edit(ssh={"host": HOST})
        await cluster.phase("Provisioning", within_s=2)


@story
async def test_an_address_that_becomes_a_wrong_one_is_said_at_once(cluster: Cluster) -> None:
    await cluster.machine(kubernetes=None)
    async with cluster.machina():
        await cluster.phase("Ready", within_s=5)
        await asyncio.sleep(10)
        await cluster.edit(ssh={"host": "10.0.0.9:22"})
        await cluster.phase("Pending", within_s=2)


def slow_and_down() -> Cluster:
    """A host that answers after a minute, and one that is down."""
    cluster = Cluster()
    cluster.hosts[HOST].slow_s = 60
    cluster.hosts[OTHER] = FakeHost(down=SshReason.REFUSED)
    return cluster


async def never_reached(cluster: Cluster) -> None:
    await cluster.until(lambda one: shown(one).get("SSHReachable", "").startswith("False"), within_s=5)
    await asyncio.sleep(120)
    assert cluster.phases == ["Pending"]


def test_probe_of_the_former_host_is_ignored_after_an_edit() -> None:
    async def story() -> None:
        cluster = slow_and_down()
        await cluster.machine(kubernetes=None)
        async with cluster.machina():
            await asyncio.sleep(20)
            assert cluster.ssh.probes == [HOST]
            await cluster.edit(ssh={"host": OTHER})
            await never_reached(cluster)

    run_virtual(story())


def test_probe_of_a_deleted_machine_is_not_used_for_its_namesake() -> None:
    async def story() -> None:
        cluster = slow_and_down()
        await cluster.machine(kubernetes=None)
        async with cluster.machina():
            await asyncio.sleep(20)
            await cluster.api.delete(MACHINES, "m1")
            await cluster.machine(host=OTHER, kubernetes=None)
            await never_reached(cluster)

    run_virtual(story())


@story
async def test_bastion_login_is_retried_after_the_user_name_is_corrected(
    cluster: Cluster,
) -> None:
    await cluster.secrets()
    bastion = cluster.hosts["192.0.2.1:22"] = FakeHost("SHA256:bastion")
    key = {"name": "key", "namespace": "unbounded-kube"}
    await cluster.machine(ssh={"bastion": {"host": "192.0.2.1:22", "username": "typo", "privateKeyRef": key}})
    bastion.refused.add(await cluster.version())
    async with cluster.machina():
        refused = "False/CredentialsRefused"
        await cluster.until(lambda one: shown(one).get("SSHReachable") == refused, within_s=5)
        await asyncio.sleep(10)
        bastion.refused.clear()
        await cluster.edit(ssh={"bastion": {"username": "jump"}})
        await cluster.phase("Provisioning", within_s=5)
