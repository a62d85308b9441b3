"""A control plane and one host in virtual time: agents that are cut off, hosts that lose their power, and a judge."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tests.agent.goals import goal
from tests.agent.recreation.simulated import LEASE_NAMESPACE, SimHost, SimNodes
from tests.operations.faults import Incarnation
from tests.operations.simulated import Violation
from tests.operations.world import Process, World
from tests.support.stories import told_in
from tests.support.virtual_time import virtual_now
from unbounded.agent.durations import Durations
from unbounded.agent.interfaces import OnProgress
from unbounded.agent.model import BuildRecord, KubeletAccess, Slot, TokenAccess
from unbounded.agent.paths import HostPaths
from unbounded.agent.recreation.controller import RecreationCaches, RecreationController
from unbounded.agent.recreation.plan import RecreationLimits
from unbounded.agent.recreation.report import ConditionReport
from unbounded.agent.recreation.state_store import Transition
from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS
from unbounded.api.core import NAMESPACES, NODES, Node
from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.api import Api, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.logs import SecretStr

OLD: Final = "1.33.1"
NEW: Final = "1.34.2"
LIMITS: Final = RecreationLimits(
    build_s=600, start_s=120, verify_s=90, join_s=300, poll_s=2, retry_s=300, retry_max_s=1200, attempts=3, resolve_s=60
)


@contextlib.asynccontextmanager
async def _unlocked(_who: str) -> AsyncIterator[None]:
    yield


@dataclass
class NodeWorld(World):
    """One Machine, its host, and whatever agents live on it."""

    host: SimHost = field(init=False)
    life: Incarnation | None = None
    durations: Durations = field(default_factory=Durations)
    more: tuple[ConditionReport, ...] = ()
    uids: Any = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.host = SimHost("m1", self.api)

    async def joined(self, version: str = OLD, *, registered: bool = True) -> None:
        """m1 with a node of this version in kube1, as `start` leaves it behind."""
        redfish = {"url": "https://bmc", "username": "u", "passwordRef": {"name": "s", "namespace": "n"}}
        await self.machine("m1", kubernetes={"version": f"v{version}"}, pxe={"image": "i", "redfish": redfish})
        await self.api.create(NAMESPACES, {"metadata": {"name": LEASE_NAMESPACE}})
        host, home = self.host, self.host.slots[Slot.KUBE1]
        home.exists, home.enabled = True, True
        labels = {"unbounded-cloud.io/machine": "m1", "unbounded-cloud.io/site": "lab"}
        home.applied = BuildRecord(goal=goal(kubernetes_version=version, labels=labels))
        host.boot_machine(Slot.KUBE1)
        home.containerd = True
        if registered:
            host.start_kubelet(Slot.KUBE1)
            home.kubelet_since -= 100.0
        asyncio.create_task(host.live(), name="kubelets").add_done_callback(self._broken)
        if registered:
            node = await self.node_ready()
            home.applied = msgspec.structs.replace(home.applied, node_uid=node.metadata.uid)
            await self.reached(lambda: home.proven, within_s=60)

    def _broken(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            raise task.exception() or AssertionError

    def node_agent(self) -> Process:
        return Process(self, "unbounded-agent/m1", self._agent)

    async def _agent(self, life: Incarnation, api: Api) -> None:
        self.life = life
        caches = RecreationCaches(
            machines=Cache(api, MACHINES, fields="metadata.name=m1"), nodes=Cache(api, NODES, fields="metadata.name=m1")
        )
        nodes = SimNodes(self.host, life)

        async def access(source: Slot, attempt: int, _tell: OnProgress) -> KubeletAccess:
            held = await nodes.kubelet_certificate(source) if attempt == 1 else None
            return held or TokenAccess(SecretStr("token"))

        recreation = RecreationController(
            api,
            "m1",
            nodes,
            HostPaths(root=HostPaths().at("/nonexistent")),
            caches,
            access,
            limits=LIMITS,
            now=virtual_now,
            lock=_unlocked,
            store=_Guarded(self, life),
            durations=self.durations,
            more=lambda _types: self.more,
            new_uid=lambda: f"recreation-{next(self.uids)}",
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(caches.machines.run())
            tasks.create_task(caches.nodes.run())
            await caches.machines.synced.wait()
            await caches.nodes.synced.wait()
            await recreation.resume()
            tasks.create_task(recreation.run())

    # Actions of users

    async def delete_node(self) -> str:
        """The UID of the Node that is gone."""
        node = await self.api.get(NODES, "m1")
        await self.api.delete(NODES, "m1")
        self.host.note(f"Node {node.metadata.uid} deleted")
        return node.metadata.uid

    async def want(self, version: str) -> None:
        await self.api.patch(MACHINES, "m1", {"spec": {"kubernetes": {"version": f"v{version}"}}})

    async def configure(self, number: int, version: str) -> None:
        """A version of the configuration `workers`."""
        body = {
            "metadata": {
                "name": f"workers-v{number}",
                "labels": {"unbounded-cloud.io/machine-configuration": "workers"},
            },
            "spec": {"version": number, "template": {"kubernetes": {"version": f"v{version}"}}},
        }
        await self.api.create(MACHINE_CONFIGURATION_VERSIONS, body)

    # Existing objects

    async def m1(self) -> Machine:
        return await self.api.get(MACHINES, "m1")

    async def condition(self, kind: str) -> tuple[str, str, str]:
        found = [one for one in (await self.m1()).status.conditions if one.type == kind]
        return (found[0].status, found[0].reason, found[0].message) if found else ("", "", "")

    async def node(self) -> Node | None:
        try:
            return await self.api.get(NODES, "m1")
        except NotFound:
            return None

    async def node_ready(self, within_s: float = 300) -> Node:
        await self.reached(lambda: True, within_s=0.1)
        async with asyncio.timeout(within_s):
            while True:
                node = await self.node()
                if node is not None and node.ready:
                    return node
                await asyncio.sleep(1)

    async def reached(self, seen: Callable[[], Any], *, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                while True:
                    found = seen()
                    if await found if asyncio.iscoroutine(found) else found:
                        return
                    await asyncio.sleep(0.5)
        except TimeoutError:
            told = f"not reached within {within_s} s: {self.host.slots}\n{self.host.store.current()}"
            log = "\n".join(self.host.log[-40:])
            raise AssertionError(f"{told}\n{(await self.m1()).status}\n{await self.node()}\n{log}") from None

    async def settled(self, *, within_s: float = 3 * 3600) -> None:
        """No recreation is under way, and one node works, which is known to be ours."""
        await self.reached(self.works, within_s=within_s)

    async def works(self) -> bool:
        node, whole = await self.node(), [slot for slot in Slot if self.host.slots[slot].applied is not None]
        if node is None or not node.ready or len(whole) != 1 or self.host.store.current() is not None:
            return False
        it, machine = self.host.slots[whole[0]], await self.m1()
        info = node.status.node_info
        known = it.applied is not None and it.applied.node_uid == node.metadata.uid
        return bool(it.kubelet and info and info.boot_id == it.boot_id and known
                    and machine.status.active_operation is None)  # fmt: skip

    @property
    def phases(self) -> list[str]:
        return [str(transition.phase) for transition in self.host.store.written]

    def home(self) -> Slot:
        return next(slot for slot in Slot if self.host.slots[slot].applied is not None)

    def version(self) -> str:
        applied = self.host.slots[self.home()].applied
        assert applied is not None
        return applied.goal.kubernetes_version


class _Guarded:
    """The store of one incarnation: from its crash on it has no effect, and a write is a point where it can come."""

    def __init__(self, world: NodeWorld, life: Incarnation) -> None:
        self._store = world.host.store
        self._life = life

    def _cut(self) -> None:
        self._life.hold_if_dead()
        self._life.awaits += 1
        if self._life.awaits - 1 == self._life.crash_at:
            self._life.crash()
            raise asyncio.CancelledError

    def current(self) -> Transition | None:
        return self._store.current()

    def write(self, transition: Transition) -> None:
        self._cut()
        self._store.write(transition)
        self._cut()

    def clear(self) -> None:
        self._cut()
        self._store.clear()
        self._cut()

    def failed(self) -> Any:
        return self._store.failed()

    def fail(self, failed: Any) -> None:
        self._cut()
        self._store.fail(failed)
        self._cut()

    def forget(self) -> None:
        self._cut()
        self._store.forget()
        self._cut()


async def power_cuts(world: NodeWorld, process: Process, cuts: list[int], *, host: bool) -> None:
    """The agent lives, and is cut off at the given awaits, each counted from its start; with its host or alone."""
    for crash_at in cuts:
        running = process.start(crash_at=crash_at)
        try:
            await running.life.dead.wait()
            if host:
                world.host.cut()
        finally:
            await running.stop()
        await asyncio.sleep(world.chance.uniform(0.5, 40.0))
        if host:
            world.host.boot()
            await asyncio.sleep(world.chance.uniform(0.5, 10.0))  # kubelets are up before the agent is
    running = process.start()
    try:
        await running.task
    finally:
        await running.stop()


def random_world(seed: int, **how: Any) -> NodeWorld:
    return NodeWorld(random.Random(seed), **how)


@told_in
@contextlib.asynccontextmanager
async def story() -> AsyncIterator[NodeWorld]:
    """A test from an `async def test(world, …)`; nothing that must not happen to a host has happened after it."""
    world = random_world(1)
    yield world
    assert not world.host.violations


__all__ = ["LIMITS", "NEW", "OLD", "NodeWorld", "Violation", "power_cuts", "random_world", "story"]
