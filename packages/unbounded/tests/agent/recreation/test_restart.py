"""A node that is down and should run is started again, for any cause; others are not touched."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.agent.operations.simulated import NAMESPACE, SimulatedHost, SimulatedNodes, unlocked
from tests.agent.recreation.simulated import MemoryBook
from tests.operations.faults import Incarnation, Weather
from tests.operations.world import Process, World, run_engine
from tests.support.memory_api import MemoryApi
from tests.support.stories import told_in
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.agent.executor import AgentExecutor
from unbounded.agent.interfaces import OnProgress
from unbounded.agent.model import KubeletAccess, Slot, SlotFacts
from unbounded.agent.operations.node_reboot import NodeReboot
from unbounded.agent.paths import HostPaths
from unbounded.agent.recreation.controller import RecreationCaches, RecreationController
from unbounded.agent.recreation.node_sync import NodeRestarter, stopped_part
from unbounded.agent.recreation.plan import RecreationLimits
from unbounded.api.core import NODES
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_PAUSED
from unbounded.api.operation import OperationKind
from unbounded.kube.api import Api
from unbounded.kube.cache import Cache

LIMITS = RecreationLimits(check_s=300, down_s=10)


class Home:
    """A Machine and its host, whose agent reboots the node on request, and keeps it running."""

    def __init__(self, paths: HostPaths | None = None) -> None:
        self.world = World(random.Random(1))
        namespaces = ("default", "unbounded-kube", NAMESPACE)
        self.world.api = MemoryApi(admit=self.world._write_down, now=virtual_now, namespaces=namespaces)
        self.host = SimulatedHost()
        self.paths = paths or HostPaths(HostPaths().at("/nonexistent"))
        self.held = asyncio.Lock()
        self.agent = Process(self.world, "unbounded-agent/m1", self._agent)

    async def _agent(self, life: Incarnation, api: Api) -> None:
        @asynccontextmanager
        async def lock(_who: str) -> AsyncIterator[None]:
            async with self.held:
                yield

        async def access(_source: Slot, _attempt: int, _tell: OnProgress) -> KubeletAccess:
            raise AssertionError("the node is not made anew")

        nodes = SimulatedNodes(self.host, life)
        caches = RecreationCaches(Cache(api, MACHINES), Cache(api, NODES))
        recreation = RecreationController(
            api, "m1", nodes, self.paths, caches, access, limits=LIMITS, now=virtual_now, lock=lock, store=MemoryBook()
        )
        works = {OperationKind.NODE_REBOOT: NodeReboot(api, "m1", nodes, lock)}
        executor = AgentExecutor("m1", works, host_id="host")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(caches.machines.run())
            tasks.create_task(caches.nodes.run())
            await caches.machines.synced.wait()
            await caches.nodes.synced.wait()
            tasks.create_task(recreation.run())
            announce = self.world.announce
            await run_engine(life, api, executor, announce, concurrent=1, alone=True, watches_pause=False)

    async def begin(self) -> None:
        redfish = {"url": "https://m1", "username": "u", "passwordRef": {"name": "s", "namespace": "n"}}
        await self.world.machine("m1", kubernetes={"version": "v1.34.0"}, pxe={"image": "i", "redfish": redfish})
        node = await self.world.api.create(NODES, {"metadata": {"name": "m1"}})
        self.host.applied = msgspec.structs.replace(self.host.applied, node_uid=node.metadata.uid)
        self._kubelet = asyncio.create_task(self.host.kubelet_forever(self.world.api))
        self.steward = self.world.steward().start()

    @property
    def serves(self) -> bool:
        return self.host.running and self.host.containerd and self.host.kubelet and self.host.enabled

    async def seen(self, so: Callable[[], bool], *, within_s: float) -> None:
        async with asyncio.timeout(within_s):
            while True:
                if so():
                    return
                await asyncio.sleep(0.1)

    async def rebooting(self, **spec: Any) -> None:
        """Until its machine is down, and would stay down at boot."""
        await self.world.operation("reboot", "NodeReboot", "m1", startDeadlineSeconds=3600, **spec)
        await self.seen(lambda: not self.host.running and not self.host.enabled, within_s=60)

    def crash(self) -> None:
        for life in self.world.lives:
            if life.name.startswith("unbounded-agent"):
                life.crash()

    async def lose_power(self, off_s: float) -> None:
        self.crash()
        await asyncio.sleep(off_s)
        self.host.cut()
        self.agent.start()


@told_in
@asynccontextmanager
async def story() -> AsyncIterator[Home]:
    """A test from an `async def test(home)`, on a host that serves."""
    home = Home()
    await home.begin()
    home.agent.start()
    await asyncio.sleep(30)
    assert home.serves
    yield home


@pytest.mark.slow
@story
async def test_node_with_preempted_reboot_serves_again_after_host_power_on(home: Home) -> None:
    home.world.redfish().start()
    await home.rebooting()
    home.crash()
    await home.world.operation("off", "HostPowerOff", "m1", startDeadlineSeconds=3600)
    assert (await home.world.ended("reboot", within_s=600)).status.reason == "Preempted"
    assert (await home.world.ended("off", within_s=600)).status.phase == "Complete"
    home.host.cut()
    assert not home.host.running, "it is not enabled"
    await home.world.operation("on", "HostPowerOn", "m1", startDeadlineSeconds=3600)
    assert (await home.world.ended("on", within_s=600)).status.phase == "Complete"
    home.agent.start()
    await home.seen(lambda: home.serves, within_s=60)


@pytest.mark.slow
@story
async def test_a_node_whose_reboot_ran_out_of_time_serves_again(home: Home) -> None:
    home.host.refuses_start = 5
    await home.rebooting(deadlineSeconds=8)
    assert (await home.world.ended("reboot", within_s=60)).status.reason == "DeadlineExceeded"
    await home.seen(lambda: home.serves, within_s=1200)


@story
async def test_node_serves_again_after_its_reboot_failed_without_host_power(home: Home) -> None:
    await home.rebooting(deadlineSeconds=60)
    await home.lose_power(off_s=1000)
    assert (await home.world.ended("reboot", within_s=1)).status.phase == "Failed"
    assert not home.serves
    await home.seen(lambda: home.serves, within_s=60)


@story
async def test_a_machine_that_was_powered_off_from_inside_is_started_again(home: Home) -> None:
    home.host.running = home.host.kubelet = home.host.containerd = False
    await home.seen(lambda: home.serves, within_s=LIMITS.check_s + 60)


@story
async def test_node_that_becomes_unready_is_observed_at_once(home: Home) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    await home.world.api.patch(NODES, "m1", {"status": {"conditions": [ready]}}, subresource="status")
    await asyncio.sleep(5)
    home.host.kubelet = False
    unknown = ready | {"status": "Unknown", "reason": "NodeStatusUnknown"}
    await home.world.api.patch(NODES, "m1", {"status": {"conditions": [unknown]}}, subresource="status")
    await home.seen(lambda: home.serves, within_s=30)


@pytest.mark.slow
@story
async def test_a_node_that_does_not_stay_up_is_started_ever_more_rarely(home: Home) -> None:
    starts = home.host.acts.count("start kubelet")
    for _ in range(3600):
        home.host.kubelet = False
        await asyncio.sleep(1)
    assert 5 <= home.host.acts.count("start kubelet") - starts <= 20


@story
async def test_stopped_node_is_not_restarted_while_locked_or_paused(home: Home) -> None:
    slot = {
        "uid": "x",
        "name": "op",
        "kind": "HostPowerOff",
        "executor": "metalman/lab",
        "since": "2030-01-01T00:00:00Z",
    }
    paused = {"metadata": {"annotations": {ANNOTATION_PAUSED: "true"}}}
    await home.steward.stop()  # which knows of no such operation
    await home.world.api.patch(MACHINES, "m1", {"status": {"activeOperation": slot}}, subresource="status")
    await asyncio.sleep(5)
    home.host.running = home.host.kubelet = home.host.containerd = False
    await asyncio.sleep(1000)
    assert not home.host.running
    await home.world.api.patch(MACHINES, "m1", paused)
    await home.world.api.patch(MACHINES, "m1", {"status": {"activeOperation": None}}, subresource="status")
    await asyncio.sleep(1000)
    assert not home.host.running
    await home.world.api.patch(MACHINES, "m1", {"metadata": {"annotations": {ANNOTATION_PAUSED: None}}})
    await home.seen(lambda: home.serves, within_s=30)


@story
async def test_what_changed_while_the_host_was_held_counts(home: Home) -> None:
    """A stop that is under way ends first; and an operation that was claimed meanwhile is not fought."""
    await home.held.acquire()
    home.host.running = home.host.kubelet = home.host.containerd = False
    await asyncio.sleep(LIMITS.check_s + 60)
    assert not home.host.running
    paused = {"metadata": {"annotations": {ANNOTATION_PAUSED: "true"}}}
    await home.world.api.patch(MACHINES, "m1", paused)
    await asyncio.sleep(5)
    home.held.release()
    await asyncio.sleep(60)
    assert not home.host.running


@story
async def test_a_node_that_is_down_is_started_while_the_api_is_away(home: Home) -> None:
    """Its desired state would have to be read."""
    for life in home.world.lives:
        life.weather = Weather(unreachable=1.0)
    await home.world.api.patch(MACHINES, "m1", {"spec": {"configurationRef": {"name": "workers"}}})
    await asyncio.sleep(5)
    home.host.running = home.host.kubelet = home.host.containerd = False
    await home.seen(lambda: home.serves, within_s=LIMITS.check_s + 60)


def test_start_on_a_full_disk_is_retried_with_backoff() -> None:
    class FullDisk:
        starts = 0

        async def observe(self, slot: Slot) -> SlotFacts:
            return SlotFacts(slot, exists=True)

        async def start(self, _slot: Slot) -> None:
            self.starts += 1
            raise OSError(errno.ENOSPC, "No space left on device")

    async def told() -> None:
        disk: Any = FullDisk()
        keeper = NodeRestarter(disk, unlocked, LIMITS, lambda: "")
        for _ in range(6):
            await asyncio.sleep(await keeper.ensure_running(Slot.KUBE1) + 0.01)
        assert disk.starts == 5
        assert asyncio.get_running_loop().time() >= sum(10.0 * 2**tries for tries in range(5))

    run_virtual(told())


@pytest.mark.parametrize(
    ("runs", "containerd", "kubelet", "words"),
    [
        (True, True, True, ""),
        (False, False, False, "its machine is not running"),
        (True, False, False, "containerd and kubelet are not running"),
        (True, True, False, "kubelet is not running"),
    ],
    ids=["serves", "machine", "both", "kubelet"],
)
def test_what_is_down_is_said(runs: bool, containerd: bool, kubelet: bool, words: str) -> None:
    facts = SlotFacts(Slot.KUBE1, exists=True, running=runs, containerd=containerd, kubelet=kubelet)
    assert stopped_part(facts) == words
