"""Installs that fail, hang, are cut off or taken up, and who gets the Machine back when."""

from __future__ import annotations

import asyncio

import pytest

from tests.machina.machines.world import HOST, Cluster, shown, story
from unbounded.api.machine import MACHINES
from unbounded.machina.ssh.model import SshReason


@pytest.mark.slow
@story
async def test_failed_install_is_reported_with_its_output_and_retried_with_backoff(cluster: Cluster) -> None:
    installs = await cluster.registered()
    installs.takes_s, installs.status, installs.tail = 5, 1, "unpacking\nerror: no space left on device\n"
    async with cluster.machina():
        machine = await cluster.phase("Failed")
        assert shown(machine)["Provisioning"] == "False/Failed"
        assert "status 1: error: no space left on device" in (machine.status.message or "")
        assert ("Warning", "ProvisioningFailed") in [event[:2] for event in cluster.events]
        assert "unpacking" in cluster.events[-1][2]
        assert machine.status.active_operation is None
        assert installs.cleared == 1
        await asyncio.sleep(3 * 3600)
        assert 7 <= len(installs.begun) <= 16
        installs.status = 0
        machine = await cluster.phase("Joining", within_s=1900)
        assert machine.status.provisioning is not None
        assert (machine.status.provisioning.failures, machine.status.provisioning.failure) == (0, None)


@pytest.mark.slow
@story
async def test_a_failed_install_is_tried_at_once_when_the_machine_is_edited(cluster: Cluster) -> None:
    installs = await cluster.registered()
    installs.refuses = "sudo wants a password"
    async with cluster.machina():
        await cluster.phase("Failed")
        await asyncio.sleep(1000)
        installs.refuses = None
        await cluster.edit(ssh={"username": "root"})
        await cluster.phase("Joining", within_s=5 + 62)


@pytest.mark.slow
@story
async def test_install_attempt_is_resumed_by_the_next_process(cluster: Cluster) -> None:
    installs = await cluster.registered()
    installs.takes_s = 600
    async with cluster.machina():
        await cluster.until(lambda _: bool(installs.begun))
        await asyncio.sleep(20)
    await asyncio.sleep(300)
    async with cluster.machina():
        await cluster.until(lambda one: "step 3" in (one.status.message or ""), within_s=60)
        await cluster.phase("Joining", within_s=400)
    assert len(installs.begun) == 1


@story
async def test_attempt_that_ended_without_machina_is_read_from_the_host(cluster: Cluster) -> None:
    installs = await cluster.registered()
    async with cluster.machina():
        await cluster.until(lambda _: bool(installs.begun))
    await asyncio.sleep(3600)
    async with cluster.machina():
        await cluster.phase("Joining", within_s=10)
    assert len(installs.begun) == 1


@pytest.mark.slow
@story
async def test_a_line_that_breaks_is_no_end_of_the_install(cluster: Cluster) -> None:
    installs, host = await cluster.registered(), cluster.hosts[HOST]
    installs.takes_s, installs.loses_answer = 120, True
    async with cluster.machina():
        await cluster.until(lambda _: bool(installs.begun))
        for _ in range(3):
            await asyncio.sleep(20)
            host.cut()
        await cluster.phase("Joining", within_s=300)
    assert len(installs.begun) == 1


@pytest.mark.slow
@story
async def test_a_host_that_reboots_meanwhile_is_set_up_by_the_next_attempt(cluster: Cluster) -> None:
    installs, host = await cluster.registered(), cluster.hosts[HOST]
    async with cluster.machina():
        await cluster.until(lambda _: bool(installs.begun))
        installs.reboot()
        host.down = SshReason.TIMED_OUT
        host.cut()
        await asyncio.sleep(60)
        host.down = None
        await cluster.phase("Joining", within_s=300)
        assert any("the host was rebooted" in message for _, _, message in cluster.events)
    assert len(installs.begun) == 2


@pytest.mark.slow
@story
async def test_timed_out_install_releases_the_lock_and_next_attempt_follows_it(
    cluster: Cluster,
) -> None:
    installs = await cluster.registered()
    installs.takes_s = 2100
    async with cluster.machina():
        machine = await cluster.phase("Failed", within_s=1950)
        assert shown(machine)["Provisioning"] == "False/TimedOut"
        assert machine.status.active_operation is None
        installs.takes_s = 10
        await cluster.phase("Joining", within_s=400)
    assert len(installs.begun) == 1  # the first has ended well: there was nothing to begin


@story
async def test_an_install_that_the_host_has_stopped_took_too_long(cluster: Cluster) -> None:
    installs = await cluster.registered()
    installs.takes_s, installs.status, installs.tail = 30, 124, "downloading\n"
    async with cluster.machina():
        machine = await cluster.phase("Failed", within_s=60)
        assert shown(machine)["Provisioning"] == "False/TimedOut"
        assert "exceeded its time limit and was stopped: downloading" in (machine.status.message or "")


@story
async def test_event_of_a_failed_install_contains_the_end_of_its_output(cluster: Cluster) -> None:
    installs = await cluster.registered()
    installs.takes_s, installs.status, installs.tail = 5, 1, "x" * 3000 + "\nerror: " + "y" * 290 + "\nthe end"
    async with cluster.machina():
        await cluster.phase("Failed")
        _, reason, message = cluster.events[-1]
        assert reason == "ProvisioningFailed"
        assert len(message) <= 1024
        assert message.endswith("the end")


@pytest.mark.slow
@story
async def test_a_host_that_says_nothing_for_long_gives_the_machine_back(cluster: Cluster) -> None:
    installs, host = await cluster.registered(), cluster.hosts[HOST]
    async with cluster.machina():
        await cluster.until(lambda _: bool(installs.begun))
        host.down = SshReason.TIMED_OUT
        host.cut()
        machine = await cluster.until(lambda one: one.status.active_operation is None, within_s=700)
        assert shown(machine)["Provisioning"] == "False/TimedOut"
        assert machine.status.phase == "Pending"
        host.down = None
        await cluster.phase("Joining", within_s=120)
    assert len(installs.begun) == 1


@story
async def test_ssh_that_is_taken_away_meanwhile_ends_the_attempt(cluster: Cluster) -> None:
    installs, host = await cluster.registered(), cluster.hosts[HOST]
    async with cluster.machina():
        await cluster.until(lambda _: bool(installs.begun))
        await cluster.edit(ssh=None)
        machine = await cluster.until(lambda one: one.status.active_operation is None, within_s=2)
        assert machine.status.provisioning is not None
        assert machine.status.provisioning.ended_at is not None
        await asyncio.sleep(1)
        assert host.open == 0


@story
async def test_a_machine_that_is_deleted_meanwhile_gives_its_slot_back(cluster: Cluster) -> None:
    await cluster.registered()
    await cluster.api.patch(MACHINES, "m1", {"metadata": {"finalizers": ["example.com/held"]}})
    installs, host = await cluster.installs(), cluster.hosts[HOST]
    async with cluster.machina():
        await cluster.until(lambda _: bool(installs.begun))
        await cluster.api.delete(MACHINES, "m1")
        await cluster.until(lambda one: one.status.active_operation is None, within_s=2)
        await asyncio.sleep(1)
        assert host.open == 0
