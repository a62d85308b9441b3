"""Machines over SSH from registration on, in virtual time: phases, conditions, and the times of requests."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.machina.machines.world import FACTS, HOST, SETTINGS, SINCE, Cluster, KnownFacts, said, shown, story
from tests.support.machina import FakeHost
from tests.support.virtual_time import run_virtual
from unbounded.api.conditions import ConditionType
from unbounded.api.core import CONFIG_MAPS, NODES
from unbounded.api.names import NAMESPACE
from unbounded.machina.ssh.model import SshReason


@story
async def test_without_kubernetes_a_machine_is_ready_once_it_is_reachable(cluster: Cluster) -> None:
    await cluster.machine(kubernetes=None)
    async with cluster.machina():
        machine = await cluster.phase("Ready", within_s=5)
        assert machine.status.message == "Machine is reachable"
        assert shown(machine) == {
            "SSHReachable": "True/Reachable",
            "Provisioning": "Unknown/NotRun",
            "Provisioned": "Unknown/NotRun",
        }
        assert cluster.hosts[HOST].logins == []


@story
async def test_a_host_is_set_up_joins_and_is_ready(cluster: Cluster) -> None:
    await cluster.registered()
    async with cluster.machina():
        machine = await cluster.phase("Provisioning", within_s=5)
        assert machine.status.provisioning is not None
        slot = machine.status.active_operation
        assert slot is not None
        assert (slot.kind, slot.executor, slot.uid) == (
            "Provisioning",
            "machina",
            machine.status.provisioning.attempt,
        )
        machine = await cluster.phase("Joining", within_s=90)
        assert machine.status.active_operation is None
        assert shown(machine) == {
            "SSHReachable": "True/Reachable",
            "Provisioning": "False/Completed",
            "Provisioned": "True/Provisioned",
        }
        await cluster.node()
        machine = await cluster.phase("Ready", within_s=1)
        assert machine.status.message == "Node m1 joined"
    assert cluster.phases == ["Pending", "Provisioning", "Joining", "Ready"]
    installs = await cluster.installs()
    assert (len(installs.begun), installs.cleared) == (1, 1)
    sent = [command for command, _ in cluster.hosts[HOST].commands]
    assert list(dict.fromkeys(sent)) == ["begin", "tail", "clear"]  # and no question before the first one
    assert '"BootstrapToken": "abc123.0123456789abcdef"' in installs.begun[0].config.reveal()
    assert cluster.told == ["HostKeyTrusted", "Provisioned"]
    count = cluster.registry.get_sample_value
    assert count("unbounded_provisioning_attempts_total", {"result": "Completed"}) == 1
    assert count("unbounded_provisioning_seconds_sum", {"result": "Completed"}) == pytest.approx(61, abs=3)
    assert (count("unbounded_ssh_probes_total", {"result": "Reachable"}) or 0) >= 2
    assert count("unbounded_provisioning_running") == 0


@pytest.mark.slow
@story
async def test_outage_lost_node_and_restart_cause_no_second_install(cluster: Cluster) -> None:
    await cluster.registered()
    async with cluster.machina():
        await cluster.phase("Joining")
        await cluster.node()
        await cluster.phase("Ready")
        cluster.hosts[HOST].down = SshReason.TIMED_OUT
        machine = await cluster.until(lambda one: shown(one)["SSHReachable"] == "False/TimedOut", within_s=301)
        assert (machine.status.phase, machine.status.message) == ("Ready", "Node m1 joined")
        cluster.hosts[HOST].down = None
        await cluster.until(lambda one: shown(one)["SSHReachable"] == "True/Reachable", within_s=31)
        await cluster.api.delete(NODES, "m1")
        await cluster.phase("Joining", within_s=31)
        await cluster.edit(agent={"image": "ghcr.io/example/node:v2"})
        await asyncio.sleep(400)
    async with cluster.machina():
        await asyncio.sleep(400)
        await cluster.node()
        await cluster.phase("Ready")
        await asyncio.sleep(400)
    assert (len((await cluster.installs()).begun), len(cluster.hosts[HOST].logins)) == (1, 1)
    assert cluster.phases == ["Pending", "Provisioning", "Joining", "Ready", "Joining", "Ready"]


@story
async def test_a_ready_machine_costs_a_probe_in_five_minutes_and_nothing_else(cluster: Cluster) -> None:
    await cluster.registered()
    async with cluster.machina():
        await cluster.phase("Joining")
        await cluster.node()
        await cluster.phase("Ready")
        await asyncio.sleep(310)
        writes, probes, logins = cluster.api.writes, len(cluster.ssh.probes), len(cluster.hosts[HOST].logins)
        reads = cluster.secret_reads
        await asyncio.sleep(3600)
        assert cluster.api.writes == writes
        assert 11 <= len(cluster.ssh.probes) - probes <= 12
        assert len(cluster.hosts[HOST].logins) == logins
        assert cluster.secret_reads == reads


def test_facts_that_are_missing_are_waited_for() -> None:
    async def story() -> None:
        cluster = Cluster(facts=KnownFacts(None, "ConfigMap kube-public/cluster-info does not exist"))
        await cluster.secrets()
        await cluster.machine()
        async with cluster.machina():
            machine = await cluster.until(lambda one: "cluster-info" in (one.status.message or ""))
            assert machine.status.phase == "Pending"
            cluster.facts.facts = FACTS
            await cluster.phase("Provisioning", within_s=5)

    run_virtual(story())


@story
async def test_a_pause_holds_back_and_its_end_is_noticed_at_once(cluster: Cluster) -> None:
    await cluster.secrets()
    await cluster.pause()
    await cluster.machine()
    async with cluster.machina():
        machine = await cluster.until(lambda one: "paused" in (one.status.message or ""))
        assert machine.status.phase == "Pending"
        await asyncio.sleep(100)
        await cluster.api.delete(CONFIG_MAPS, "unbounded-operations", namespace=NAMESPACE)
        await cluster.phase("Provisioning", within_s=1)


@story
async def test_an_operation_that_has_the_machine_is_waited_for(cluster: Cluster) -> None:
    await cluster.registered()
    slot = {"uid": "u1", "name": "off", "kind": "HostPowerOff", "executor": "metalman/lab", "since": SINCE}
    await cluster.status(activeOperation=slot)
    async with cluster.machina():
        await cluster.until(lambda one: "HostPowerOff off" in (one.status.message or ""))
        await asyncio.sleep(300)
        assert cluster.hosts[HOST].offered == 0
        await cluster.status(activeOperation=None)
        await cluster.phase("Provisioning", within_s=1)


@pytest.mark.slow
@story
async def test_join_counter_reinstalls_the_host_after_a_reset(cluster: Cluster) -> None:
    installs = await cluster.registered()
    async with cluster.machina():
        await cluster.phase("Joining")
        reset = {"name": "r", "uid": "u", "kind": "AgentReset", "phase": "Complete"}
        await cluster.status(recentOperations=[reset])
        machine = await cluster.phase("Pending", within_s=1)
        assert shown(machine)["Provisioned"] == "False/Reset"
        assert "allow-join" in (machine.status.message or "")
        await asyncio.sleep(1000)
        assert len(installs.begun) == 1
        await cluster.edit(joinCounter=1)
        machine = await cluster.phase("Joining", within_s=90)
        assert shown(machine)["Provisioned"] == "True/Provisioned"
        await asyncio.sleep(1000)
    assert len(installs.begun) == 2


@pytest.mark.slow
def test_provisioning_obeys_the_concurrency_limit_and_completes_all_hosts() -> None:
    async def story() -> None:
        cluster = Cluster(settings=replace(SETTINGS, attempts_at_once=5, probe_workers=7))
        await cluster.secrets()
        names = [f"m{number}" for number in range(30)]
        for number, name in enumerate(names):
            cluster.hosts[f"10.0.1.{number}:22"] = FakeHost()
            await cluster.machine(name, host=f"10.0.1.{number}:22")
        most = 0
        async with cluster.machina():
            for _ in range(600):
                await asyncio.sleep(1)
                most = max(most, sum(host.open for host in cluster.hosts.values()))
            phases = {(await cluster.get(name)).status.phase for name in names}
        assert phases == {"Joining"}
        assert most == 5

    run_virtual(story())


@story
async def test_a_host_that_has_joined_by_itself_is_left_alone(cluster: Cluster) -> None:
    await cluster.secrets()
    await cluster.node()
    await cluster.machine()
    async with cluster.machina():
        machine = await cluster.phase("Ready", within_s=5)
        assert shown(machine)["Provisioned"] == "Unknown/NotRun"
        await cluster.api.patch(NODES, "m1", {"status": {"conditions": []}}, subresource="status")
        await asyncio.sleep(600)
        assert cluster.hosts[HOST].offered == 0


@story
async def test_host_provisioned_by_image_gets_no_ssh_install(cluster: Cluster) -> None:
    await cluster.secrets()
    await cluster.machine(pxe={"image": "i"})
    await cluster.status(operations={"repaveCounter": 1, "rebootCounter": 1})
    async with cluster.machina():
        await cluster.until(
            lambda one: "image" in said(one, ConditionType.PROVISIONING).message if one.status.conditions else False
        )
        await asyncio.sleep(600)
        assert cluster.hosts[HOST].offered == 0
