"""Rolling updates that replace hosts, as stories: machina, the gate and metalman's own stages, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.machina.test_rolling_updates import Fleet, why_of
from tests.metalman.support.netboot_host import NetbootHost, Story
from tests.operations.disruption.cluster import cluster_of
from tests.operations.netboot import NetbootWorld
from tests.operations.staging import Kinds
from tests.operations.world import Running
from tests.support.stories import told_in
from tests.support.virtual_time import virtual_now
from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.join.labels_and_taints import read_bound_version
from unbounded.kube.clock import rfc3339


@dataclass
class HostFleet(Fleet):
    """Machines with a BMC, a Node, and the image os:v1 on their disks.

    Args:
        joinless: images of a host whose Node does not become Ready.
        metalman: its process, once it has started.
    """

    joinless: set[str] = field(default_factory=set)
    metalman: Running | None = None

    async def add_machine(self, name: str, labels: dict[str, str]) -> None:
        world = self.cluster.world
        assert isinstance(world, NetbootWorld)
        redfish = {"url": f"https://{name}", "username": "u", "passwordRef": {"name": "s", "namespace": "n"}}
        spec: dict[str, Any] = {"kubernetes": {"nodeRef": {"name": name}}, "labels": labels}
        spec["pxe"] = {"image": "os:v1", "redfish": redfish}
        await world.netboot(name, Story(image_s=5.0, writes_s=30.0, node=False), **spec)
        written = {"image": "os:v1", "digest": "sha256:1", "boot": "b", "at": rfc3339(virtual_now())}
        await self._report(name, {"image": written})
        self.agents.append(asyncio.create_task(self._kubelet(name), name=f"installs of {name}"))

    def netboot_host(self, name: str) -> NetbootHost:
        """Return the simulated host of a Machine."""
        world = self.cluster.world
        assert isinstance(world, NetbootWorld)
        return world.netboots[name]

    async def image(self, image: str, *names: str) -> None:
        """Request another image for the hosts of some Machines; of all, without names."""
        for name in names or [one.name for one in (await self.api.list(MACHINES)).items]:
            await self.api.patch(MACHINES, name, {"spec": {"pxe": {"image": image}}})

    async def images(self) -> dict[str, str]:
        """Return what metalman has written to the hosts."""
        machines = (await self.api.list(MACHINES)).items
        return {one.name: one.status.image.image if one.status.image else "" for one in machines}

    async def replacements(self) -> dict[str, list[str]]:
        """Return the names of the HostReplaces of each Machine."""
        found = dict[str, list[str]]()
        for one in (await self.api.list(MACHINE_OPERATIONS)).items:
            found.setdefault(one.spec.machine_ref or "", []).append(one.name)
        return found

    async def _kubelet(self, name: str) -> None:
        """Stop the kubelet during an install; it starts after cloud-init, and its agent reports the present version."""
        while True:
            await asyncio.sleep(1.0)
            machine = await self.machine(name)
            active, netboot, pxe = machine.status.active_operation, machine.status.netboot, machine.spec.pxe
            if active is None or active.kind != "HostReplace" or netboot is None or netboot.boot != active.uid:
                continue
            if netboot.milestone != "ImageWritten" or not _has_cloud_init(machine):
                self.cluster.down.add(name)
            elif name in self.cluster.down and pxe is not None and pxe.image not in self.joinless:
                await self._join(machine)

    async def _join(self, machine: Machine) -> None:
        name, ref = machine.name, machine.spec.configuration_ref
        assert ref is not None
        version = (await read_bound_version(self.api, ref)).metadata
        await asyncio.sleep(2.0)
        self.cluster.down.discard(name)
        await asyncio.sleep(5.0)
        self.created.append((name, version.name))
        made = {"name": ref.name, "version": int(version.name.rpartition("-v")[2]), "versionName": version.name}
        await self._report(name, {"configuration": made})


def _has_cloud_init(machine: Machine) -> bool:
    return any(one.type == "CloudInitDone" and one.status == "True" for one in machine.status.conditions)


@told_in
@asynccontextmanager
async def host_story() -> AsyncIterator[HostFleet]:
    """A test whose Machines have a BMC: metalman's own stages replace their hosts."""
    world = NetbootWorld(random.Random(1), kinds=Kinds())
    cluster = cluster_of(world)
    fleet = HostFleet(cluster)
    for process in (cluster.disrupter(), world.steward(), fleet.controllers()):
        process.start()
    fleet.metalman = world.metalman().start()
    try:
        yield fleet
    finally:
        for task in (*cluster.kubelets.values(), *fleet.agents):
            task.cancel()
    world.judge()


@host_story
async def test_hosts_are_replaced_one_after_the_other_within_a_budget(fleet: HostFleet) -> None:
    await fleet.start(3, maxUnavailable=3, rollingUpdate={"host": True})
    await fleet.cluster.budget("one", 1)
    await fleet.image("os:v2")
    await fleet.until(lambda one: len(one.updating) == 3)
    status = await fleet.until(lambda one: one.phase == "Complete" and one.updated == 3, within_s=7200)
    assert status.failed == ()
    assert await fleet.images() == dict.fromkeys(("m0", "m1", "m2"), "os:v2")
    assert fleet.cluster.most_unavailable == 1
    assert sorted(node for _at, node, _pod in fleet.cluster.api.evictions) == ["m0", "m1", "m2"]
    assert [len(one) for one in (await fleet.replacements()).values()] == [1, 1, 1]
    await fleet.quiet()
    assert await fleet.cluster.granted("one") == set()


@host_story
async def test_one_replacement_brings_both_image_and_version(fleet: HostFleet) -> None:
    await fleet.start(2, rollingUpdate={"host": True})
    await fleet.image("os:v2", "m0")
    await fleet.want("v1.34.0")
    await fleet.phase("Complete", 2, within_s=7200)
    assert fleet.created == [("m0", "c-v2"), ("m1", "c-v2")]
    assert await fleet.images() == {"m0": "os:v2", "m1": "os:v1"}
    assert {name: len(one) for name, one in (await fleet.replacements()).items()} == {"m0": 1}


@host_story
async def test_a_host_of_an_earlier_metalman_is_left_alone_and_named(fleet: HostFleet) -> None:
    await fleet.start(2, rollingUpdate={"host": True})
    await fleet.api.patch(MACHINES, "m1", {"status": {"image": None}}, subresource="status")
    await fleet.image("os:v2")
    await fleet.until(lambda one: one.updated == 1)
    status = await fleet.until(lambda one: one.phase == "Complete" and one.updated == 2, within_s=7200)
    command = "`kubectl unbounded machine replace m1`"
    assert f"m1 is left alone until its next HostReplace, as the image on its disk is not known: {command}" in (
        status.message or ""
    )
    assert await fleet.images() == {"m0": "os:v2", "m1": ""}
    (link,) = await why_of(fleet, "m1")
    assert f"leave its host alone until its next HostReplace, as the image on its disk is not known: {command}" in (
        link.what
    )
    (link,) = await why_of(fleet, "m0")
    assert "HostReplace" not in link.what


@host_story
async def test_a_host_whose_image_is_missing_lets_the_next_one_go(fleet: HostFleet) -> None:
    await fleet.start(2, rollingUpdate={"host": True})
    host = fleet.netboot_host("m0")
    await asyncio.sleep(10)
    await host.condition("NetbootImageReady", "False", "PullFailed", "registry: 404")
    await fleet.image("os:v2")
    await fleet.until(lambda one: one.updating == ("m0",))
    await fleet.until(lambda one: one.updating == ("m1",), within_s=900)
    (link,) = await why_of(fleet, "m0")
    assert "metalman downloads os:v2 since " in link.what
    assert link.what.endswith(": registry: 404; meanwhile, other Machines take its turn")
    assert link.fixes[-1].does == "sets another image"
    status = await fleet.until(lambda one: one.updated == 1 and not one.updating, within_s=7200)
    assert status.waiting is not None
    assert (status.phase, status.waiting.held_by) == ("InProgress", "metalman of Machine m0")
    assert await fleet.images() == {"m0": "os:v1", "m1": "os:v2"}
    await host.condition("NetbootImageReady", "True", "Pulled", "")
    await fleet.until(lambda one: one.phase == "Complete" and one.updated == 2, within_s=7200)
    assert await fleet.images() == {"m0": "os:v2", "m1": "os:v2"}


@host_story
async def test_an_image_whose_node_does_not_return_halts(fleet: HostFleet) -> None:
    fleet.joinless.add("os:v2")
    await fleet.start(3, rollingUpdate={"host": True, "onFailure": "Rollback"})
    await fleet.image("os:v2")
    status = await fleet.until(lambda one: one.phase == "Halted", within_s=14400)
    assert [one.machine for one in status.failed] == ["m0"]
    assert "NodeNotReady" in (status.failed[0].message or "")
    assert not (await fleet.api.get(MACHINE_CONFIGURATION_VERSIONS, "c-v1")).bad
    await asyncio.sleep(3600)
    assert await fleet.images() == {"m0": "os:v2", "m1": "os:v1", "m2": "os:v1"}
    await fleet.image("os:v1")  # back to the former image: m0 alone is outdated
    await fleet.until(lambda one: one.phase == "Complete" and one.updated == 3, within_s=14400)
    assert await fleet.images() == dict.fromkeys(("m0", "m1", "m2"), "os:v1")
    assert {name: len(one) for name, one in (await fleet.replacements()).items()} == {"m0": 2}


@host_story
async def test_a_replacement_that_no_metalman_starts_halts_after_an_hour(fleet: HostFleet) -> None:
    await fleet.start(2, rollingUpdate={"host": True})
    await asyncio.sleep(10)
    assert fleet.metalman is not None
    await fleet.metalman.stop()
    await fleet.image("os:v2")
    begun = virtual_now()
    await fleet.until(lambda one: one.waiting is not None and one.waiting.reason == "ExecutorSilent", within_s=600)
    status = await fleet.until(lambda one: one.phase == "Halted", within_s=7200)
    assert 3600 <= (virtual_now() - begun).total_seconds() < 5400
    assert [one.machine for one in status.failed] == ["m0"]
    assert "NotStarted" in (status.failed[0].message or "")
    await fleet.quiet()
    assert await fleet.images() == {"m0": "os:v1", "m1": "os:v1"}


@host_story
async def test_a_pause_cancels_a_replacement_that_waits_for_its_drain(fleet: HostFleet) -> None:
    await fleet.start(2, rollingUpdate={"host": True})
    fleet.cluster.api.guarded.add("pod-m0")
    await fleet.image("os:v2")
    blocker = "PodDisruptionBudget default/web"
    await fleet.until(lambda one: one.waiting is not None and one.waiting.held_by == blocker)
    (link, *_more) = await why_of(fleet, "m0")
    assert link.held_by == blocker or any(one.held_by == blocker for one in _more)
    await fleet.rolling(paused=True)
    await fleet.phase("Paused", 1)
    await fleet.quiet()
    assert await fleet.images() == {"m0": "os:v1", "m1": "os:v1"}
    fleet.cluster.api.guarded.clear()
    await fleet.rolling(paused=False)
    await fleet.until(lambda one: one.phase == "Complete" and one.updated == 2, within_s=7200)
    assert {name: len(one) for name, one in (await fleet.replacements()).items()} == {"m0": 2, "m1": 1}


@pytest.mark.parametrize("seed", range(10))
def test_crashes_replace_no_host_twice(seed: int) -> None:
    @told_in
    @asynccontextmanager
    async def hosts() -> AsyncIterator[HostFleet]:
        world = NetbootWorld(random.Random(seed), kinds=Kinds())
        fleet = HostFleet(cluster_of(world))
        world.steward().start()
        async with fleet.crashing(seed, world.metalman()):
            yield fleet
        world.judge()

    @hosts
    async def told(fleet: HostFleet) -> None:
        await fleet.start(4, maxUnavailable=2, rollingUpdate={"host": True})
        await fleet.image("os:v2")
        await fleet.until(lambda one: bool(one.updating))
        await fleet.until(lambda one: one.phase == "Complete" and one.updated == 4, within_s=14400)
        await fleet.quiet()
        assert fleet.cluster.most_unavailable <= 2
        assert set((await fleet.images()).values()) == {"os:v2"}
        assert [len(one) for one in (await fleet.replacements()).values()] == [1, 1, 1, 1]

    told()
