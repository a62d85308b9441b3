"""The agents of a rolling update, and machina's controllers of configurations, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.operations.disruption.cluster import Cluster
from tests.operations.faults import Incarnation
from tests.operations.world import live
from tests.support.virtual_time import virtual_now
from unbounded.api.core import NODES
from unbounded.api.machine import MACHINES, Machine, NodeUpdatePhase
from unbounded.join.labels_and_taints import read_bound_version
from unbounded.kube.api import Api, Conflict, NotFound
from unbounded.kube.clock import rfc3339
from unbounded.machina.configuration_binding import BindingController
from unbounded.machina.configuration_versions import VersionController
from unbounded.machina.controller import create_machina_caches
from unbounded.machina.rolling_updates import RollingUpdateController


@dataclass
class NodeAgents:
    """Agents that download versions, and create a deleted Node again; each works while its host is On.

    Args:
        broken: versions that no node can be created from, by name; the old node serves again.
        unfetchable: versions that cannot be downloaded.
        stuck: Machines whose agents create no Node.
    """

    cluster: Cluster
    broken: set[str] = field(default_factory=set)
    unfetchable: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    agents: list[asyncio.Task[None]] = field(default_factory=list)
    created: list[tuple[str, str]] = field(default_factory=list)  # Machine and version, in order
    numbers: int = 0

    @property
    def api(self) -> Api:
        return self.cluster.api

    async def start_agent(self, name: str, version: str) -> None:
        """Start the agent of a Machine, whose node has been created from this version."""
        await self._report(name, {"configuration": _made(version)})
        self.agents.append(asyncio.create_task(self._agent(name), name=f"agent {name}"))

    async def machine(self, name: str) -> Machine:
        return await self.api.get(MACHINES, name)

    async def _agent(self, name: str) -> None:
        while True:
            await asyncio.sleep(1.0)
            if self.cluster.world.outside.host(name).power != "On":
                continue
            await self._download(await self._introduced(name))
            try:
                await self.api.get(NODES, name)
            except NotFound:
                if name not in self.stuck:
                    await self._create(await self.machine(name))

    async def _introduced(self, name: str) -> Machine:
        """Return the Machine, with a first report of its agent."""
        machine = await self.machine(name)
        if machine.status.agent is None:
            await self._report(name, {"agent": {"version": "1.0.0", "waitsForGrants": True}})
        return machine

    async def _download(self, machine: Machine) -> None:
        update, agent = machine.status.node_update, machine.status.agent
        if update is None or update.phase != NodeUpdatePhase.PREPARING:
            return
        done, complete = None if agent is None else agent.prepared, update.version not in self.unfetchable
        prepared = {"version": update.version, "generation": update.generation, "complete": complete}
        if done is None or msgspec.to_builtins(done) != {k: v for k, v in prepared.items() if v is not False}:
            await asyncio.sleep(3.0)
            message = {} if complete else {"message": "404"}
            await self._report(machine.name, {"agent": {"prepared": prepared | message}})

    async def _create(self, machine: Machine) -> None:
        """Create the Node with the lock of its Machine; without it, not now."""
        name, ref = machine.name, machine.spec.configuration_ref
        assert ref is not None
        if machine.status.active_operation is not None:
            return
        version = await read_bound_version(self.api, ref)
        self.numbers += 1
        made, uid = version.metadata.name, f"recreation-{self.numbers}"
        active: dict[str, Any] = {
            "uid": uid,
            "name": f"{name}-recreation",
            "kind": "NodeRecreation",
            "executor": f"unbounded-agent/{name}",
            "since": rfc3339(virtual_now()),
            "configuration": _made(made),
        }
        if not await self._report(name, {"activeOperation": active}, machine.metadata.resource_version):
            return
        await asyncio.sleep(20.0)
        self.created.append((name, made))
        await self.api.create(NODES, {"metadata": {"name": name}})
        joining = {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]}
        await self.api.patch(NODES, name, {"status": joining}, subresource="status")
        phase = "Failed" if made in self.broken else "Complete"
        await asyncio.sleep(3.0)
        result = {
            "name": active["name"],
            "uid": uid,
            "kind": "NodeRecreation",
            "phase": phase,
            "message": f"{made}: no",
        }
        while True:
            found = await self.machine(name)
            recent = [msgspec.to_builtins(one) for one in found.status.recent_operations]
            status: dict[str, Any] = {"activeOperation": None, "recentOperations": [*recent, result][-10:]}
            if phase == "Complete":
                status["configuration"] = _made(made)
            if await self._report(name, status, found.metadata.resource_version):
                return

    async def _report(self, name: str, status: dict[str, Any], version: str | None = None) -> bool:
        """Write a part of a Machine's status; return whether the Machine still had this version, where one is given."""
        metadata = {} if version is None else {"resourceVersion": version}
        try:
            await self.api.patch(MACHINES, name, {"metadata": metadata, "status": status}, subresource="status")
        except Conflict:
            return False
        return True


def _made(version: str) -> dict[str, Any]:
    name, _, number = version.rpartition("-v")
    return {"name": name, "version": int(number), "versionName": version}


async def run_updates(life: Incarnation, api: Api, *, all_of_them: bool = True) -> None:
    """Run machina's controllers of configurations, or that of rolling updates alone."""
    caches = create_machina_caches(api)
    of_configurations = (api, caches.configurations, caches.versions, caches.machines)
    versions = VersionController(*of_configurations, now=virtual_now)
    binder = BindingController(*of_configurations, now=virtual_now)
    updates = RollingUpdateController(
        *of_configurations, caches.nodes, caches.operations, epoch=life.epoch, now=virtual_now
    )

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            for one in (versions, binder, updates) if all_of_them else (updates,):
                tasks.create_task(one.run())

    await live(run, (caches.configurations, caches.versions, caches.machines, caches.nodes, caches.operations))
