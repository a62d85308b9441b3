"""Machines with one SSH host, as `kubectl apply` can create them: both report it, and one of them is set up."""

from __future__ import annotations

import pytest

from tests.explain.staging import commands, why
from tests.machina.machines.world import HOST, Cluster, shown, story
from unbounded.api.machine import MACHINES
from unbounded.explain.links import Topic
from unbounded.machina.ssh.model import SshReason


async def both(cluster: Cluster) -> None:
    await cluster.secrets()
    await cluster.machine("m1")
    await cluster.machine("m2", host=f"{HOST.partition(':')[0]}")


@story
async def test_both_say_so_and_the_first_is_set_up(cluster: Cluster) -> None:
    """Seen: two installs on one host at the same time, and two Machines that were Ready for one Node."""
    await both(cluster)
    async with cluster.machina():
        machine = await cluster.phase("Joining")
        other = await cluster.until(lambda one: shown(one).get("Provisioning") == "Unknown/DuplicateHost", "m2")
        assert (shown(machine)["HostExclusive"], shown(other)["HostExclusive"]) == ("False/DuplicateHost",) * 2
        words = "Machine m1, which is set up, or in setup, names the same SSH host, 10.0.0.1:22"
        await cluster.until(lambda one: words in str(one.status.conditions), "m2")
        (link,) = await why(cluster.api, "m2", topic=Topic.MACHINE)
        assert "kubectl delete mach m2" in commands([link])
        await cluster.api.delete(MACHINES, "m1")
        other = await cluster.phase("Joining", "m2", within_s=120)
        assert shown(other)["HostExclusive"] == "True/Resolved"


@story
async def test_a_host_that_is_away_is_named_twice_all_the_same(cluster: Cluster) -> None:
    cluster.hosts[HOST].down = SshReason.REFUSED
    await both(cluster)
    async with cluster.machina():
        await cluster.until(lambda one: shown(one).get("Provisioning") == "Unknown/DuplicateHost", "m2")
        (link,) = await why(cluster.api, "m2", topic=Topic.MACHINE)
        assert "Machine m1, which is older, names the same SSH host" in link.what
        (link,) = await why(cluster.api, "m1", topic=Topic.MACHINE)
        assert "kubectl delete mach m1" not in commands([link])


@story
async def test_another_host_ends_it(cluster: Cluster) -> None:
    await both(cluster)
    async with cluster.machina():
        await cluster.until(lambda one: shown(one).get("HostExclusive") == "False/DuplicateHost")
        await cluster.edit("m2", ssh={"host": "10.0.0.2"})
        await cluster.until(lambda one: shown(one).get("HostExclusive") == "True/Resolved")
        await cluster.until(lambda one: shown(one).get("HostExclusive") == "True/Resolved", "m2")


@story
async def test_one_that_was_set_up_goes_before_an_older_one(cluster: Cluster) -> None:
    await cluster.secrets()
    await cluster.machine("m1", kubernetes=None)
    await cluster.machine("m2")
    async with cluster.machina():
        await cluster.phase("Joining", "m2")
        await cluster.edit(kubernetes={})
        await cluster.until(lambda one: shown(one).get("Provisioning") == "Unknown/DuplicateHost")


@pytest.mark.slow
@story
async def test_hosts_behind_different_bastions_are_different_ones(cluster: Cluster) -> None:
    await cluster.secrets()
    await cluster.machine("m1", ssh={"bastion": {"host": "192.0.2.1", "username": "u"}})
    await cluster.machine("m2", ssh={"bastion": {"host": "192.0.2.2", "username": "u"}})
    async with cluster.machina():
        for name in ("m1", "m2"):
            machine = await cluster.until(lambda one: bool(one.status.conditions), name)
            assert "HostExclusive" not in shown(machine)
