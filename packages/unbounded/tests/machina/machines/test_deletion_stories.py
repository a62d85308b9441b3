"""Machines that are deleted with resetOnDelete, and Nodes that follow, with the loop at work, in virtual time."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.machina.machines.world import HOST, KEY, Cluster, T, shown, story
from tests.operations.world import steward_of
from tests.support.virtual_time import run_virtual
from unbounded.api.core import NODES
from unbounded.api.failures import Failure, Transient
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.names import FINALIZER_RESET
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import NotFound
from unbounded.machina.machines.deletion import CLAIM_S, requested_reset
from unbounded.machina.machines.model import PassIntervals
from unbounded.machina.provisioning.model import ANOTHER_MACHINE, HostRefuses
from unbounded.machina.ssh.model import SshReason

SOAK = bool(os.environ.get("UNBOUNDED_SOAK"))
STEP = 5  # between the awaits at which a process is cut off, where not all are tried


@asynccontextmanager
async def stewarded(cluster: Cluster) -> AsyncIterator[None]:
    task = asyncio.create_task(steward_of(cluster.api))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def ready(cluster: Cluster, *, agent: bool = True) -> Machine:
    """A Machine that is set up, and held by its finalizer."""
    await cluster.secrets()
    await cluster.machine(resetOnDelete=True)
    async with cluster.machina():
        await cluster.phase("Joining")
        await cluster.node()
        await cluster.phase("Ready")
        machine = await cluster.until(lambda machine: FINALIZER_RESET in machine.metadata.finalizers)
    return await cluster.status(agent={"version": "v1"}) if agent else machine


async def gone(cluster: Cluster, *, within_s: float) -> float:
    """Seconds until the Machine is gone."""
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(within_s):
        while True:
            try:
                await cluster.get()
            except NotFound:
                return asyncio.get_running_loop().time() - began
            await asyncio.sleep(0.1)


async def operations(cluster: Cluster) -> tuple[MachineOperation, ...]:
    return (await cluster.api.list(MACHINE_OPERATIONS)).items


async def asked(cluster: Cluster, machine: Machine) -> MachineOperation:
    async with asyncio.timeout(20):
        while True:
            if (operation := requested_reset(machine, await operations(cluster))) is not None:
                return operation
            await asyncio.sleep(0.1)


def is_refused(machine: Machine) -> bool:
    """Its attempt has ended so, and it is held."""
    before = machine.status.provisioning
    return FINALIZER_RESET in machine.metadata.finalizers and before is not None and before.failure is not None


def resets(cluster: Cluster) -> int:
    return sum(host.resets for host in cluster.installer.hosts.values())


@pytest.mark.slow
@story
async def test_an_agent_resets_its_host_and_then_the_machine_goes(cluster: Cluster) -> None:
    machine = await ready(cluster)
    async with cluster.machina():
        await cluster.api.delete(MACHINES, "m1")
        operation = await asked(cluster, machine)
        assert (operation.spec.operation_kind, operation.metadata.owner_references) == ("AgentReset", ())
        await asyncio.sleep(30)
        there = await cluster.get()
        assert f"its agent is resetting the host: AgentReset {operation.name}" in (there.status.message or "")
        status = {"phase": "Complete", "reason": "Succeeded"}
        await cluster.api.patch(MACHINE_OPERATIONS, operation.name, {"status": status}, subresource="status")
        assert await gone(cluster, within_s=5) < 5
    assert resets(cluster) == 0
    assert "ResetIncomplete" not in cluster.told


@pytest.mark.slow
@story
async def test_where_no_agent_claims_it_the_host_is_reset_over_ssh(cluster: Cluster) -> None:
    await ready(cluster)
    async with cluster.machina(), stewarded(cluster):
        await cluster.api.delete(MACHINES, "m1")
        assert await gone(cluster, within_s=CLAIM_S + 60) >= CLAIM_S
    assert resets(cluster) == 1
    (operation,) = await operations(cluster)
    assert (operation.status.phase, operation.status.reason) == ("Failed", "NotStarted")
    assert "ResetIncomplete" not in cluster.told


@pytest.mark.slow
@story
async def test_host_is_reset_with_the_original_uid_after_a_migration(cluster: Cluster) -> None:
    await ready(cluster, agent=False)
    await cluster.status(originalUID="the UID on the server where it was made")
    async with cluster.machina():
        await cluster.api.delete(MACHINES, "m1")
        await gone(cluster, within_s=60)
    assert [uid for uid, host in cluster.installer.hosts.items() if host.resets] == [
        "the UID on the server where it was made"
    ]


@pytest.mark.slow
@story
async def test_unreachable_host_is_released_after_the_limit_with_an_event(cluster: Cluster) -> None:
    await ready(cluster, agent=False)
    cluster.hosts[HOST].down = SshReason.TIMED_OUT
    async with cluster.machina():
        await cluster.api.delete(MACHINES, "m1")
        machine = await cluster.until(lambda one: shown(one).get("HostReset") == "False/TimedOut", within_s=60)
        assert machine.status.phase == "Failed"  # seen: Ready, for all of these 15 minutes
        assert machine.status.message is not None
        assert machine.status.message.startswith("being deleted; retrying the reset over SSH: ")
        took_s = await gone(cluster, within_s=PassIntervals().reset_s + 60)
    assert took_s >= PassIntervals().reset_s - 61
    assert cluster.phases[-1] == "Failed"
    assert resets(cluster) == 0
    (told,) = {message for _, reason, message in cluster.events if reason == "ResetIncomplete"}
    assert told.startswith("the host of Machine m1 was not reset: over SSH: ")


@pytest.mark.slow
@story
async def test_unreadable_secrets_delay_a_deletion_only_until_the_reset_limit(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await ready(cluster, agent=False)
    get = cluster.api.get

    async def without_secrets(kind: Kind[T], name: str, *, namespace: str = "") -> T:
        if kind.kind == "Secret":
            raise Transient("the server has an error of its own")
        return await get(kind, name, namespace=namespace)

    monkeypatch.setattr(cluster.api, "get", without_secrets)
    async with cluster.machina():
        await cluster.api.delete(MACHINES, "m1")
        took_s = await gone(cluster, within_s=PassIntervals().reset_s + 60)
    assert took_s >= PassIntervals().reset_s - 1
    assert resets(cluster) == 0
    assert "ResetIncomplete" in cluster.told


@story
async def test_a_host_that_is_reachable_again_is_reset_within_a_minute(cluster: Cluster) -> None:
    await ready(cluster, agent=False)
    cluster.hosts[HOST].down = SshReason.TIMED_OUT
    async with cluster.machina():
        await cluster.api.delete(MACHINES, "m1")
        await asyncio.sleep(200)
        cluster.hosts[HOST].down = None
        await gone(cluster, within_s=120)
    assert resets(cluster) == 1


@story
async def test_host_without_any_login_does_not_delay_a_deletion(cluster: Cluster) -> None:
    await cluster.secrets()
    host = cluster.hosts[HOST]
    host.refused.add(await cluster.version())
    await cluster.machine(resetOnDelete=True)
    async with cluster.machina():
        machine = await cluster.until(is_refused)
        assert machine.status.provisioning is not None
        assert machine.status.provisioning.untouched
        await cluster.api.delete(MACHINES, "m1")
        await gone(cluster, within_s=5)
    assert (host.offered, resets(cluster)) == (1, 0)
    assert "ResetIncomplete" not in cluster.told


@pytest.mark.parametrize("why", [HostRefuses("sudo requires a password"), Transient("no further session")], ids=str)
@story
async def test_a_host_that_takes_no_command_holds_nothing_up(cluster: Cluster, why: Failure) -> None:
    await cluster.secrets()
    await cluster.machine(resetOnDelete=True)
    installs = await cluster.installs()
    installs.takes_nothing = why
    async with cluster.machina():
        machine = await cluster.until(lambda machine: str(why) in (machine.status.message or ""))
        assert machine.status.provisioning is not None
        assert machine.status.provisioning.untouched
        await cluster.api.delete(MACHINES, "m1")
        await gone(cluster, within_s=5)
    assert resets(cluster) == 0


@pytest.mark.slow
@story
async def test_rejected_key_is_offered_once_for_a_reset_until_replaced(cluster: Cluster) -> None:
    await ready(cluster, agent=False)
    host = cluster.hosts[HOST]
    host.refused.add(await cluster.version())
    before = host.offered
    async with cluster.machina():
        await cluster.api.delete(MACHINES, "m1")
        await asyncio.sleep(300)
        assert host.offered == before + 1
    async with cluster.machina():  # which knows it from the status
        await asyncio.sleep(300)
        assert host.offered == before + 1
        there = await cluster.get()
        assert "the host rejected user name and key" in (there.status.message or "")
        await cluster.key(KEY.replace("made up", "another"))
        await gone(cluster, within_s=15)
    assert resets(cluster) == 1


@pytest.mark.slow
@story
async def test_the_host_of_another_machine_is_left_alone_and_that_is_said(cluster: Cluster) -> None:
    await ready(cluster, agent=False)
    installs = await cluster.installs()
    installs.reset_status, installs.tail = ANOTHER_MACHINE, "this host is Machine m2"
    async with cluster.machina():
        await cluster.api.delete(MACHINES, "m1")
        await gone(cluster, within_s=20)
    (told,) = (message for _, reason, message in cluster.events if reason == "ResetIncomplete")
    assert told == "Machine m1: no host was reset: this host is Machine m2, and stays as it is"


@pytest.mark.parametrize("before", [True, False], ids=["before", "while it waits"])
@story
async def test_who_takes_reset_on_delete_back_keeps_the_host_as_it_is(cluster: Cluster, before: bool) -> None:
    await ready(cluster, agent=False)
    cluster.hosts[HOST].down = SshReason.TIMED_OUT
    async with cluster.machina():
        if before:
            await cluster.edit(resetOnDelete=False)
            await cluster.until(lambda machine: not machine.metadata.finalizers)
        await cluster.api.delete(MACHINES, "m1")
        await asyncio.sleep(5)
        if not before:
            await cluster.edit(resetOnDelete=False)
        await gone(cluster, within_s=5)
    assert resets(cluster) == 0
    assert "ResetIncomplete" not in cluster.told


@story
async def test_a_host_that_is_being_set_up_is_reset_too(cluster: Cluster) -> None:
    await cluster.secrets()
    await cluster.machine(resetOnDelete=True)
    async with cluster.machina():
        await cluster.phase("Provisioning")
        await asyncio.sleep(5)
        await cluster.api.delete(MACHINES, "m1")
        await gone(cluster, within_s=60)
    assert (resets(cluster), len(next(iter(cluster.installer.hosts.values())).begun)) == (1, 1)


@pytest.mark.slow
def test_crash_at_any_await_still_resets_the_host_before_release() -> None:
    async def awaits() -> int:
        cluster = Cluster()
        await ready(cluster)
        async with stewarded(cluster):
            running = cluster.process()
            await cluster.api.delete(MACHINES, "m1")
            await gone(cluster, within_s=300)
            await running.stop()
        return running.life.awaits

    count = run_virtual(awaits())
    for crash_at in range(1, count + 1, 1 if SOAK else STEP):

        async def story(crash_at: int = crash_at) -> None:
            cluster = Cluster(chance=random.Random(crash_at))
            await ready(cluster)
            async with stewarded(cluster):
                await cluster.api.delete(MACHINES, "m1")
                first = cluster.process(crash_at=crash_at)
                await asyncio.wait({asyncio.create_task(first.life.dead.wait())}, timeout=300)
                await first.stop()
                async with cluster.machina():
                    await gone(cluster, within_s=600)
            assert resets(cluster) >= 1, crash_at
            assert len(await operations(cluster)) == 1, crash_at
            assert "ResetIncomplete" not in cluster.told, crash_at

        run_virtual(story())


@story
async def test_a_node_gets_and_keeps_what_its_machine_wants(cluster: Cluster) -> None:
    role = "node-role.kubernetes.io/worker"
    await cluster.secrets()
    await cluster.machine(
        kubernetes={"bootstrapTokenRef": {"name": "bootstrap-token-abc123"}, "nodeLabels": {role: ""}}
    )

    async def labels() -> dict[str, str]:
        return (await cluster.api.get(NODES, "m1")).metadata.labels

    async with cluster.machina():
        await cluster.phase("Joining")
        await cluster.node()
        machine = await cluster.phase("Ready", within_s=2)
        await asyncio.sleep(1)
        assert role in await labels()
        machine = await cluster.get()
        assert machine.spec.kubernetes is not None
        assert machine.spec.kubernetes.node_ref is not None
        assert machine.spec.kubernetes.node_ref.name == "m1"
        await cluster.api.patch(NODES, "m1", {"metadata": {"labels": {role: None, "theirs": "x"}}})
        await asyncio.sleep(1)
        assert role in await labels()
        writes = cluster.api.writes
        await asyncio.sleep(1000)
        assert cluster.api.writes == writes
        await cluster.edit(kubernetes={"nodeLabels": {role: None}})
        await asyncio.sleep(1)
        assert set(await labels()) == {"unbounded-cloud.io/machine", "theirs"}
