"""As many hosts are set up, or reset, as may be at once; who waits begins when there is room, and none is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.machina.machines.world import SETTINGS, Cluster
from tests.support.machina import FakeHost
from tests.support.virtual_time import run_virtual
from unbounded.api.failures import Transient
from unbounded.api.machine import MACHINES
from unbounded.api.names import NAMESPACE
from unbounded.machina.machines.host_runs import HostRun, HostRuns
from unbounded.machina.provisioning.model import Finished, ObservedRun


class Woken:
    """Runs, and the ones that were woken at once since the last call."""

    def __init__(self, at_once: int) -> None:
        self.runs = HostRuns(at_once, self._wake)
        self._names: list[str] = []

    def _wake(self, machine: str, after_s: float) -> None:
        if after_s == 0:
            self._names.append(machine)

    def since(self) -> set[str]:
        names, self._names = set(self._names), []
        return names

    def begin(self, group: asyncio.TaskGroup, machine: str, work: Callable[[HostRun], Awaitable[ObservedRun]]) -> None:
        with self.runs.reserve(machine):
            self.runs.start(group, machine, "a", work)


async def five_seconds(_run: HostRun) -> ObservedRun:
    await asyncio.sleep(5)
    return Finished("a", 0)


async def never_ends(_run: HostRun) -> ObservedRun:
    await asyncio.Event().wait()
    raise AssertionError


def test_when_one_ends_the_first_in_the_queue_is_woken() -> None:
    async def story() -> None:
        woken = Woken(1)
        async with asyncio.TaskGroup() as group:
            woken.begin(group, "m1", five_seconds)
            assert woken.runs.free == 0
            woken.runs.enqueue("m2")
            woken.runs.enqueue("m3")
            await asyncio.sleep(4)
            assert woken.since() == set()
            await asyncio.sleep(2)
            assert woken.since() == {"m1", "m2"}

    run_virtual(story())


def test_dequeued_machine_wakes_the_next_one_in_the_queue() -> None:
    woken = Woken(1)
    woken.runs.enqueue("m2")
    woken.runs.enqueue("m3")
    woken.runs.dequeue("m2")
    assert woken.since() == {"m3"}
    woken.runs.dequeue("m4")  # was never there
    assert woken.since() == set()


def test_a_place_that_was_kept_and_not_used_is_the_next_ones() -> None:
    woken = Woken(1)
    with suppress(Transient), woken.runs.reserve("m1"):
        assert woken.runs.free == 0
        woken.runs.enqueue("m2")
        assert woken.since() == set()
        raise Transient("the intent could not be written")
    assert woken.since() == {"m2"}


def test_who_is_stopped_while_it_waits_is_in_nobodys_way() -> None:
    async def story() -> None:
        woken = Woken(1)
        async with asyncio.TaskGroup() as group:
            woken.begin(group, "m1", never_ends)
            woken.runs.enqueue("m2")
            woken.runs.enqueue("m3")
            await woken.runs.stop("m2")
            await woken.runs.stop("m1")
        assert woken.since() == {"m3"}

    run_virtual(story())


def test_as_many_are_woken_as_have_room() -> None:
    woken = Woken(2)
    for name in ("m1", "m2", "m3"):
        woken.runs.enqueue(name)
    woken.runs.forget("m0")
    assert woken.since() == {"m1", "m2"}


def test_a_run_that_was_cut_off_is_at_work_no_more() -> None:
    async def story() -> None:
        woken = Woken(1)
        group = asyncio.create_task(_cut_off(woken))
        await asyncio.sleep(1)
        assert woken.runs.active == 1
        group.cancel()
        await asyncio.wait({group})
        assert woken.runs.active == 0

    run_virtual(story())


async def _cut_off(woken: Woken) -> None:
    async with asyncio.TaskGroup() as group:
        woken.begin(group, "m1", never_ends)
        await asyncio.sleep(60)


# ---- with the loop at work


async def several(count: int, *, at_once: int, **spec: object) -> Cluster:
    """Machines m1, m2 and so on, each with its host, whose install takes 20 s."""
    cluster = Cluster(settings=replace(SETTINGS, attempts_at_once=at_once))
    await cluster.secrets()
    for number in range(1, count + 1):
        await add(cluster, number, **spec)
    return cluster


async def add(cluster: Cluster, number: int, **spec: object) -> None:
    at = f"10.0.0.{number}:22"
    cluster.hosts[at] = FakeHost()
    await cluster.machine(f"m{number}", host=at, **spec)
    (await cluster.installs(f"m{number}")).takes_s = 20


def test_freed_capacity_is_used_at_once_despite_observed_ready_hosts() -> None:
    async def story() -> None:
        cluster = await several(3, at_once=1)
        for number in (1, 2, 3):
            await cluster.node(f"m{number}")  # they serve already
        async with cluster.machina():
            for number in (1, 2, 3):
                await cluster.phase("Ready", f"m{number}")
            await add(cluster, 4)
            await cluster.phase("Provisioning", "m4", within_s=5)
            for number in (1, 2, 3):
                await cluster.edit(f"m{number}", agent={"image": "ghcr.io/example/node:v2"})
            await asyncio.sleep(1)
            await add(cluster, 5)
            machine = await cluster.until(lambda one: "waiting for capacity" in (one.status.message or ""), "m5")
            assert machine.status.phase == "Pending"
            await cluster.phase("Joining", "m4", within_s=30)
            await cluster.phase("Provisioning", "m5", within_s=2)

    run_virtual(story())


def test_machine_deleted_while_waiting_blocks_no_others() -> None:
    async def story() -> None:
        cluster = await several(1, at_once=1)
        async with cluster.machina():
            await cluster.phase("Provisioning", "m1", within_s=5)
            for number in (2, 3):
                await add(cluster, number)
                await cluster.until(lambda one: "waiting for capacity" in (one.status.message or ""), f"m{number}")
            await cluster.api.delete(MACHINES, "m2")
            await cluster.phase("Joining", "m1", within_s=30)
            await cluster.phase("Provisioning", "m3", within_s=2)

    run_virtual(story())


def test_who_is_set_up_or_lacks_a_secret_does_not_queue_up() -> None:
    async def story() -> None:
        cluster = await several(1, at_once=1)
        async with cluster.machina():
            await cluster.phase("Provisioning", "m1", within_s=5)
            await add(cluster, 2, ssh={"privateKeyRef": {"name": "missing", "namespace": NAMESPACE}})
            machine = await cluster.phase("Failed", "m2", within_s=10)
            assert "Secret unbounded-kube/missing does not exist" in (machine.status.message or "")

    run_virtual(story())


@pytest.mark.slow
def test_who_is_woken_keeps_its_place_while_its_secrets_are_read() -> None:
    async def story() -> None:
        cluster = await several(1, at_once=1)
        async with cluster.machina():
            await cluster.phase("Provisioning", "m1", within_s=5)
            await asyncio.sleep(10)
            for number in range(2, 22):
                await cluster.key(name=f"key{number}")
                await add(cluster, number, ssh={"privateKeyRef": {"name": f"key{number}", "namespace": NAMESPACE}})
            for number in range(2, 22):
                await cluster.until(lambda one: "waiting for capacity" in (one.status.message or ""), f"m{number}")
            await cluster.until(lambda one: one.status.phase != "Provisioning", "m1", within_s=20)
            reads = cluster.secret_reads
            await cluster.phase("Provisioning", "m2", within_s=2)
            assert cluster.secret_reads - reads < 10  # the others were not observed

    run_virtual(story())


@pytest.mark.slow
def test_ssh_resets_have_a_concurrency_limit_outside_their_time_limit() -> None:
    async def story() -> None:
        count = 6
        cluster = await several(count, at_once=2, resetOnDelete=True)
        for name in [f"m{number}" for number in range(1, count + 1)]:
            (await cluster.installs(name)).reset_takes_s = 400
        async with cluster.machina():
            for number in range(1, count + 1):
                await cluster.phase("Joining", f"m{number}")
                await cluster.until(lambda one: bool(one.metadata.finalizers), f"m{number}")
            for number in range(1, count + 1):
                await cluster.api.delete(MACHINES, f"m{number}")
            most = 0
            async with asyncio.timeout(1300):
                while (await cluster.api.list(MACHINES)).items:
                    most = max(most, sum(host.open for host in cluster.hosts.values()))
                    await asyncio.sleep(0.1)
        assert most == 2
        assert sum(host.resets for host in cluster.installer.hosts.values()) == count
        assert "ResetIncomplete" not in cluster.told

    run_virtual(story())


def test_a_process_that_has_stopped_shows_no_hosts_that_are_set_up() -> None:
    async def story() -> None:
        cluster = await several(1, at_once=1)
        async with cluster.machina():
            await cluster.phase("Provisioning", "m1", within_s=5)
            await asyncio.sleep(3)
            assert cluster.registry.get_sample_value("unbounded_provisioning_running") == 1
        assert cluster.registry.get_sample_value("unbounded_provisioning_running") == 0

    run_virtual(story())
