"""Attempts that were given up on while the host went on, and edits and pauses that come in between. In virtual time."""

from __future__ import annotations

import asyncio

import pytest

from tests.machina.machines.world import BASTION, HOST, Cluster, shown, story
from tests.support.machina import FakeHost
from tests.support.virtual_time import run_virtual
from unbounded.api.core import CONFIG_MAPS, SECRETS
from unbounded.api.names import NAMESPACE
from unbounded.machina.provisioning.model import Finished
from unbounded.machina.ssh.model import SshReason

OTHER_HOST = "10.0.0.2:22"
WITH_BASTION = {"bastion": {"host": BASTION, "privateKeyRef": {"name": "bastion", "namespace": NAMESPACE}}}


async def _cut_off_during_the_install(cluster: Cluster) -> None:
    """Break the connection until the attempt is abandoned; the host itself continues."""
    await cluster.until(lambda one: "step" in (one.status.message or ""))
    cluster.hosts[HOST].down = SshReason.TIMED_OUT
    cluster.hosts[HOST].cut()
    await cluster.until(
        lambda one: one.status.provisioning is not None and bool(one.status.provisioning.failure), within_s=900
    )


@pytest.mark.slow
@story
async def test_host_that_joined_during_a_connection_loss_is_not_reinstalled(cluster: Cluster) -> None:
    await cluster.registered()
    async with cluster.machina():
        await _cut_off_during_the_install(cluster)
        assert shown(await cluster.get())["Provisioning"] == "False/TimedOut"
        await cluster.node()
        machine = await cluster.until(lambda one: shown(one)["Provisioned"] == "True/Provisioned", within_s=1)
        assert shown(machine)["Provisioning"] == "False/Completed"
        assert machine.status.provisioning is not None
        assert (machine.status.provisioning.failures, machine.status.provisioning.failure) == (0, None)
        cluster.hosts[HOST].down = None
        await cluster.edit(agent={"image": "ghcr.io/example/node:v2"})
        machine = await cluster.phase("Ready", within_s=60)
        assert next(one.message for one in machine.status.conditions if one.type == "Provisioning") == (
            "Node m1 has joined since: the install has succeeded"
        )
        await asyncio.sleep(3600)
    assert len((await cluster.installs()).begun) == 1
    assert cluster.told == ["HostKeyTrusted", "ProvisioningFailed", "Provisioned"]


@pytest.mark.slow
@pytest.mark.parametrize("joins", ["not yet", "not Ready"])
@story
async def test_host_that_reports_a_completed_install_is_not_reinstalled(cluster: Cluster, joins: str) -> None:
    await cluster.registered()
    async with cluster.machina():
        await _cut_off_during_the_install(cluster)
        if joins == "not Ready":
            await cluster.node(ready=False)
        await asyncio.sleep(900)
        cluster.hosts[HOST].down = None
        machine = await cluster.until(lambda one: shown(one)["Provisioned"] == "True/Provisioned", within_s=4000)
        assert machine.status.provisioning is not None
        assert machine.status.provisioning.failure is None
        await asyncio.sleep(3600)
    installs = await cluster.installs()
    assert len(installs.begun) == 1
    assert machine.status.provisioning.attempt == f"{installs.attempts[0]}-2"


@pytest.mark.slow
@story
async def test_an_install_that_ended_badly_meanwhile_is_begun_again(cluster: Cluster) -> None:
    installs = await cluster.registered()
    installs.status = 1
    async with cluster.machina():
        await _cut_off_during_the_install(cluster)
        await asyncio.sleep(100)
        assert installs.now() == Finished(installs.attempts[0], 1)
        cluster.hosts[HOST].down, installs.status = None, 0
        await cluster.phase("Joining", within_s=4000)
    assert len(installs.begun) == 2


@pytest.mark.slow
@story
async def test_one_who_lets_it_join_anew_has_it_installed_anew(cluster: Cluster) -> None:
    await cluster.registered()
    async with cluster.machina():
        await _cut_off_during_the_install(cluster)
        await asyncio.sleep(100)
        await cluster.edit(joinCounter=1)
        cluster.hosts[HOST].down = None
        await cluster.phase("Joining", within_s=4000)
    assert len((await cluster.installs()).begun) == 2


@pytest.mark.slow
@pytest.mark.parametrize("joins", [True, False])
@story
async def test_secret_missing_at_a_restart_causes_no_second_install(cluster: Cluster, joins: bool) -> None:
    await cluster.registered()
    async with cluster.machina():
        await cluster.until(lambda one: "step" in (one.status.message or ""))
    await cluster.api.delete(SECRETS, "key", namespace=NAMESPACE)
    async with cluster.machina():
        await cluster.until(lambda one: shown(one)["Provisioning"] == "False/SecretMissing")
        await asyncio.sleep(100)
        if joins:
            await cluster.node()
        await cluster.key()
        await cluster.until(lambda one: shown(one)["Provisioned"] == "True/Provisioned", within_s=10)
        await asyncio.sleep(3600)
    assert len((await cluster.installs()).begun) == 1


@pytest.mark.slow
@story
async def test_a_bastion_that_refused_is_asked_again_once_its_user_is_corrected(cluster: Cluster) -> None:
    bastion = cluster.hosts[BASTION] = FakeHost(fingerprint="SHA256:bastion")
    await cluster.secrets()
    await cluster.key(name="bastion")
    bastion.refused.add(await cluster.version("bastion"))
    await cluster.machine(ssh=WITH_BASTION)
    async with cluster.machina():
        await cluster.until(lambda one: shown(one).get("SSHReachable") == "False/CredentialsRefused", within_s=40)
        await asyncio.sleep(100)
        await cluster.edit(ssh={"bastion": {"username": "wrong as well"}})
        await asyncio.sleep(600)
        assert bastion.offered == 2
        bastion.refused.clear()
        await cluster.edit(ssh={"bastion": {"username": "right"}})
        await cluster.phase("Joining", within_s=5 + 62)


@story
async def test_user_name_corrected_during_a_rejected_login_is_used_at_once(cluster: Cluster) -> None:
    await cluster.secrets()
    host = cluster.hosts[HOST]
    host.refused.add(await cluster.version())
    host.slow_s = 5.0
    await cluster.machine()
    async with cluster.machina():
        await cluster.until(lambda one: one.status.provisioning is not None)
        await asyncio.sleep(2)
        await cluster.edit(ssh={"username": "right"})
        await cluster.until(lambda _: host.offered == 1, within_s=10)
        host.refused.clear()
        machine = await cluster.phase("Joining", within_s=5 + 5 + 80)
        assert (host.offered, machine.status.ssh and machine.status.ssh.refused) == (2, ())
    assert [login.partition("@")[0] for login in host.logins] == ["right"]


@story
async def test_host_edit_during_install_ends_the_attempt_and_starts_another(
    cluster: Cluster,
) -> None:
    cluster.hosts[OTHER_HOST] = FakeHost()
    installs = await cluster.registered()
    installs.takes_s = 300
    async with cluster.machina():
        machine = await cluster.until(lambda one: "step" in (one.status.message or ""))
        assert machine.status.provisioning is not None
        assert machine.status.provisioning.host == HOST
        await cluster.edit(ssh={"host": "10.0.0.2"})
        await cluster.until(lambda one: one.status.provisioning != machine.status.provisioning, within_s=1)
        assert ("Warning", "ProvisioningFailed", f"spec.ssh.host changed during the setup of {HOST}") in (
            cluster.events
        )
        machine = await cluster.until(
            lambda one: one.status.provisioning is not None and one.status.provisioning.host == OTHER_HOST
        )


def test_an_attempt_never_goes_on_with_another_host() -> None:
    """The connection breaks and the host is edited at the same time: in either order, nothing is sent to the other
    host.
    """

    async def story() -> None:
        cluster = Cluster()
        other = cluster.hosts[OTHER_HOST] = FakeHost()
        await cluster.secrets()
        await cluster.machine()
        (await cluster.installs()).takes_s = 3000
        async with cluster.machina():
            await cluster.until(lambda one: "step" in (one.status.message or ""))
        await cluster.pause()
        await cluster.edit(ssh={"host": "10.0.0.2"})
        async with cluster.machina():
            machine = await cluster.until(
                lambda one: one.status.provisioning is not None and bool(one.status.provisioning.failure)
            )
            assert machine.status.active_operation is None
            await asyncio.sleep(600)
        assert other.offered == 0

    run_virtual(story())


@pytest.mark.slow
def test_pause_defers_new_installs_and_running_ones_are_followed() -> None:
    async def story(begun: bool) -> None:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        installs = await cluster.installs()
        cluster.hosts[HOST].slow_s = 5.0
        async with cluster.machina():
            await cluster.until(lambda _: bool(installs.begun) if begun else bool(cluster.hosts[HOST].offered))
        cluster.hosts[HOST].slow_s = 0.0
        await cluster.pause()
        async with cluster.machina():
            if begun:
                await cluster.until(lambda one: shown(one)["Provisioned"] == "True/Provisioned", within_s=100)
                return
            await cluster.until(lambda one: "paused" in (one.status.message or ""), within_s=10)
            await asyncio.sleep(600)
            machine = await cluster.get()
            assert (machine.status.phase, machine.status.active_operation) == ("Pending", None)
            assert (installs.begun, cluster.told) == ([], ["HostKeyTrusted"])
            await cluster.api.delete(CONFIG_MAPS, "unbounded-operations", namespace=NAMESPACE)
            await cluster.phase("Joining", within_s=5 + 62)

    run_virtual(story(True))
    run_virtual(story(False))
