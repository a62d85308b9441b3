"""A site with real HTTPS lab BMCs, an in-memory API, and metalman's parts as its process puts them together."""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.memory_api import MemoryApi
from unbounded.api.core import CONFIG_MAPS, NODES, SECRETS
from unbounded.api.kinds import Kind
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock
from unbounded.lab import machines as lab_machines
from unbounded.lab.bmc.local import LabBmc
from unbounded.metalman.access import BmcAccess
from unbounded.metalman.executor import RedfishExecutor
from unbounded.metalman.redfish.pool import BmcPool
from unbounded.metalman.redfish.ports import Limits
from unbounded.operations.caches import (
    INDEX_EXECUTOR,
    INDEX_MACHINE,
    INDEX_PARENT,
    Caches,
    StewardCaches,
    by_executor,
    by_machine,
    by_parent,
    node_by_machine,
)
from unbounded.operations.engine import Engine
from unbounded.operations.steward import Steward

TERMINAL: Final = ("Complete", "Failed")
Body = dict[str, Any]


@dataclass(frozen=True)
class Written:
    """A write that was stored, and when, on the loop's clock."""

    at: float
    kind: str
    name: str
    old: Body | None
    new: Body


@dataclass
class Site:
    """One metalman and its Machines."""

    api: MemoryApi
    pool: BmcPool
    engine: Engine
    written: list[Written]
    bmcs: dict[str, LabBmc] = field(default_factory=dict)  # by the name of their (first) Machine

    async def add(self, bmc: LabBmc, *, with_secret: bool = True, **redfish: Any) -> str:
        """Apply a BMC's Secret and its first Machine, with some fields of spec.pxe.redfish set; gives its name."""
        if with_secret:
            await self.api.create(SECRETS, lab_machines.secret(bmc), namespace=NAMESPACE)
        manifest = next(lab_machines.machines(bmc))
        manifest["spec"]["pxe"]["redfish"].update(redfish)
        name: str = manifest["metadata"]["name"]
        await self.api.create(MACHINES, manifest)
        self.bmcs[name] = bmc
        return name

    async def set_password(self, bmc: LabBmc, password: str) -> None:
        """What the Secret of a BMC holds, from now on."""
        data = {lab_machines.PASSWORD_KEY: b64encode(password.encode()).decode()}
        await self.api.patch(SECRETS, lab_machines.secret_name(bmc), {"data": data}, namespace=NAMESPACE)

    async def ask(self, kind: str, machine: str, *, name: str = "", **spec: Any) -> str:
        """Create an operation; gives its name."""
        name = name or f"{machine}-{kind.lower()}"
        body = {"metadata": {"name": name}, "spec": {"operationKind": kind, "machineRef": machine, **spec}}
        return (await self.api.create(MACHINE_OPERATIONS, body)).name

    async def ended(self, name: str, *, within_s: float = 3600.0) -> MachineOperation:
        """The operation when it is terminal and its Machine's slot is free again."""
        operation: MachineOperation | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    operation = await self.api.get(MACHINE_OPERATIONS, name)
                    if operation.terminal and not await self._holds(operation):
                        return operation
                    await asyncio.sleep(0.1)
        raise AssertionError(f"{name} has not ended after {within_s:g} s: {operation}")

    async def _holds(self, operation: MachineOperation) -> bool:
        active = (await self.machine(operation.spec.machine_ref or "")).status.active_operation
        return active is not None and active.uid == operation.metadata.uid

    async def done(self, kind: str, machine: str, **spec: Any) -> MachineOperation:
        """Ask for an operation and wait for its end."""
        return await self.ended(await self.ask(kind, machine, **spec))

    async def machine(self, name: str) -> Machine:
        return await self.api.get(MACHINES, name)

    async def condition(self, machine: str, kind: str) -> tuple[str, str] | None:
        """Status and reason of a Machine's condition."""
        for condition in (await self.machine(machine)).status.conditions:
            if condition.type == kind:
                return condition.status, condition.reason
        return None

    def ended_at(self, name: str) -> float:
        """When the operation's terminal phase was written, on the loop's clock."""
        return next(
            write.at
            for write in self.written
            if write.kind == "MachineOperation"
            and write.name == name
            and write.new.get("status", {}).get("phase") in TERMINAL
        )


@asynccontextmanager
async def site(
    *, now: WallClock, concurrent: int = 10, limits: Limits | None = None, name: str = lab_machines.SITE
) -> AsyncIterator[Site]:
    """Run a metalman and a steward on an API of their own; all sessions are given back at the end."""
    written: list[Written] = []

    def note(kind: Kind[Any], old: Body | None, new: Body) -> None:
        written.append(Written(asyncio.get_running_loop().time(), kind.kind, new["metadata"].get("name", ""), old, new))

    api = MemoryApi(defaults=_defaults, admit=note, now=now)
    operations = Cache(
        api,
        MACHINE_OPERATIONS,
        indexes={INDEX_MACHINE: by_machine, INDEX_PARENT: by_parent, INDEX_EXECUTOR: by_executor},
    )
    machines, pause = Cache(api, MACHINES), Cache(api, CONFIG_MAPS, namespace=NAMESPACE)
    nodes = Cache(api, NODES, indexes={INDEX_MACHINE: node_by_machine})
    async with BmcPool(limits) as pool:
        executor = RedfishExecutor(api, pool, BmcAccess(api, pool), site=name, now=now)
        caches = Caches(operations=operations, machines=machines, pause=pause)
        engine = Engine(api, executor, caches, incarnation="metalman-1", concurrent=concurrent, now=now)
        steward = Steward(api, StewardCaches(operations, machines, nodes, pause), now=now)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(cache.run()) for cache in (operations, machines, pause, nodes)]
            for cache in (operations, machines, pause, nodes):
                await cache.synced.wait()
            running += [tasks.create_task(engine.run()), tasks.create_task(steward.run())]
            try:
                yield Site(api, pool, engine, written)
            finally:
                for task in running:
                    task.cancel()


def _defaults(kind: Kind[Any], new: Body) -> None:
    """The schema's defaults that the controllers read."""
    if kind.kind == "MachineOperation":
        for name, value in (("startDeadlineSeconds", 3600), ("maxConcurrent", 10), ("maxFailures", 1)):
            new.setdefault("spec", {}).setdefault(name, value)
