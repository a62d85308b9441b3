"""Unusable keys, tokens and host keys: reported before anything is sent, and not offered repeatedly."""

from __future__ import annotations

import asyncio

import pytest

from tests.machina.machines.world import BASTION, HOST, KEY, Cluster, shown, story
from tests.support.machina import FakeHost
from unbounded.api.names import NAMESPACE


@pytest.mark.slow
@story
async def test_a_refused_key_is_not_offered_again_before_the_secret_changes(cluster: Cluster) -> None:
    await cluster.secrets()
    machine = await cluster.machine()
    host = cluster.hosts[HOST]
    host.refused.add(await cluster.version())
    async with cluster.machina():
        machine = await cluster.phase("Failed")
        assert shown(machine)["Provisioning"] == "False/CredentialsRefused"
        assert machine.status.active_operation is None
        await asyncio.sleep(3600)
        assert host.offered == 1
        await cluster.key(KEY + "\n")
        await cluster.phase("Joining", within_s=5 + 62)
        assert host.offered == 2


@pytest.mark.slow
@story
async def test_rejected_key_is_offered_again_after_an_edit_despite_a_restart(cluster: Cluster) -> None:
    await cluster.registered()
    host = cluster.hosts[HOST]
    host.refused.add(await cluster.version())
    async with cluster.machina():
        await cluster.phase("Failed")
    async with cluster.machina():
        await asyncio.sleep(1000)
        assert host.offered == 1
        host.refused.clear()
        await cluster.edit(ssh={"username": "root"})
        await cluster.phase("Joining", within_s=5 + 62)
    assert [login.partition("@")[0] for login in host.logins] == ["root"]


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["key", "token"])
@story
async def test_missing_secret_is_reported_before_any_login_and_used_when_created(
    cluster: Cluster, missing: str
) -> None:
    await (cluster.token() if missing == "key" else cluster.key())
    await cluster.machine()
    async with cluster.machina():
        machine = await cluster.phase("Failed")
        reason = {"key": "SecretMissing", "token": "TokenNotRenewable"}[missing]
        assert shown(machine)["Provisioning"] == f"False/{reason}"
        assert "does not exist" in (machine.status.message or "")
        await asyncio.sleep(300)
        assert cluster.hosts[HOST].offered == 0
        await cluster.secrets()
        await cluster.phase("Provisioning", within_s=5)


@story
async def test_an_expired_token_is_said_before_anything_is_sent(cluster: Cluster) -> None:
    await cluster.key()
    await cluster.token(expiration="2029-12-31T23:00:00Z")
    await cluster.machine()
    async with cluster.machina():
        machine = await cluster.phase("Failed")
        assert shown(machine)["Provisioning"] == "False/TokenNotRenewable"
        assert "expired" in (machine.status.message or "")
        await cluster.token(expiration="2031-01-01T00:00:00Z")
        await cluster.phase("Joining", within_s=5 + 62)


@pytest.mark.slow
@story
async def test_changed_host_key_prevents_logins_until_its_pin_is_removed(
    cluster: Cluster,
) -> None:
    await cluster.registered()
    await cluster.status(ssh={"fingerprint": "SHA256:another"})
    async with cluster.machina():
        machine = await cluster.phase("Failed")
        assert shown(machine)["Provisioning"] == "False/HostKeyChanged"
        assert machine.status.ssh is not None
        (other,) = machine.status.ssh.untrusted
        assert (other.hop, other.fingerprint) == ("host", cluster.hosts[HOST].fingerprint)
        await asyncio.sleep(3600)
        assert cluster.hosts[HOST].offered == 0
        await cluster.status(ssh={"fingerprint": None})
        machine = await cluster.phase("Joining", within_s=5 + 62)
        assert machine.status.ssh is not None
        assert machine.status.ssh.untrusted == ()


@pytest.mark.slow
@story
async def test_machines_with_missing_secrets_delay_no_others(cluster: Cluster) -> None:
    await cluster.secrets()
    names = [f"w{number}" for number in range(150)]
    for number, name in enumerate(names):
        cluster.hosts[f"10.0.1.{number}:22"] = FakeHost()
        ref = {"privateKeyRef": {"name": f"key-{name}", "namespace": NAMESPACE}}
        await cluster.machine(name, host=f"10.0.1.{number}:22", ssh=ref)
    async with cluster.machina():
        for name in names[:5]:
            await cluster.until(lambda one: one.status.phase is not None, name, within_s=60)
            await asyncio.sleep(1)  # many wait for their turn to be read
            await cluster.node(name)
            await cluster.phase("Ready", name, within_s=2)
        await cluster.until(lambda one: one.status.phase == "Failed", names[-1], within_s=60)
        ref = {"privateKeyRef": {"name": "key-of-its-own", "namespace": NAMESPACE}}
        await cluster.key(name="key-of-its-own")
        await cluster.machine(ssh=ref)
        await cluster.phase("Provisioning", within_s=5)


@pytest.mark.slow
@story
async def test_a_secret_that_cannot_be_read_is_asked_for_ever_more_rarely(cluster: Cluster) -> None:
    await cluster.registered()
    cluster.api.broken = True
    async with cluster.machina():
        await asyncio.sleep(600)
        assert 5 < cluster.secret_reads < 30
        cluster.api.broken = False
        await cluster.phase("Joining", within_s=400)


BASTION_SPEC = {"bastion": {"host": BASTION, "privateKeyRef": {"name": "bastion", "namespace": NAMESPACE}}}


@pytest.mark.slow
@story
async def test_what_is_wrong_at_the_bastion_shows_on_reachability(cluster: Cluster) -> None:
    bastion = cluster.hosts[BASTION] = FakeHost(fingerprint="SHA256:bastion")
    await cluster.secrets()
    await cluster.machine(ssh=BASTION_SPEC)
    async with cluster.machina():
        machine = await cluster.until(lambda one: shown(one).get("SSHReachable") == "False/SecretMissing")
        assert machine.status.phase == "Pending"
        await cluster.key(name="bastion")
        bastion.refused.add(await cluster.version("bastion"))
        await cluster.until(lambda one: shown(one).get("SSHReachable") == "False/CredentialsRefused", within_s=10)
        await asyncio.sleep(600)
        assert bastion.offered == 1
        await cluster.key(KEY + "\n", name="bastion")
        machine = await cluster.phase("Joining", within_s=5 + 62)
        assert machine.status.ssh is not None
        assert (machine.status.ssh.fingerprint, machine.status.ssh.bastion_fingerprint) == (
            "SHA256:made-up",
            "SHA256:bastion",
        )
