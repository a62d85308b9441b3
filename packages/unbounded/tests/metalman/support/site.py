"""An in-memory cluster with Machines of real HTTPS lab BMCs, and metalman's parts as its process has them."""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tests.metalman.support.swift_time import swift_now
from tests.support.memory_api import MemoryApi
from unbounded.api.core import CONFIG_MAPS, NODES, SECRETS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.names import ANNOTATION_REQUESTED_BY, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import Forbidden
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock
from unbounded.kube.events import EventRecorder
from unbounded.kube.process import Runtime, running_caches
from unbounded.kube.process_epoch import ProcessEpoch
from unbounded.metalman.controller import LeaderTerm
from unbounded.metalman.media.tickets import MediaUrls
from unbounded.metalman.settings import MetalmanSettings
from unbounded.operations.caches import (
    INDEX_BMC,
    INDEX_EXECUTOR,
    INDEX_MACHINE,
    INDEX_PARENT,
    Caches,
    SupervisorCaches,
    by_bmc,
    by_executor,
    by_machine,
    by_parent,
    node_by_machine,
)
from unbounded.operations.supervisor import Supervisor
from unbounded.operations.telemetry import OperationMetrics
from unbounded_lab import machines as lab_machines
from unbounded_lab.bmc.local import LabBmc

TERMINAL: Final = ("Complete", "Failed")
Body = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Written:
    """A write that was stored, and when, on the loop's clock."""

    at: float
    kind: str
    name: str
    old: Body | None
    new: Body


class Cluster:
    """An API with its history; outlives the processes that work on it."""

    def __init__(self, *, now: WallClock = swift_now) -> None:
        self.now = now
        self.api = MemoryApi(defaults=_defaults, admit=self._note, now=now)
        self.written: list[Written] = []
        self.read_only: set[str] = set()  # kinds whose changes are forbidden
        self.bmcs: dict[str, LabBmc] = {}  # by the names of their Machines
        self._changed = asyncio.Event()

    def _note(self, kind: Kind[Any], old: Body | None, new: Body) -> None:
        name = new["metadata"].get("name", "")
        if old is not None and kind.kind in self.read_only:
            raise Forbidden(f"{kind.plural} {name!r} is forbidden", code=403)
        self.written.append(Written(asyncio.get_running_loop().time(), kind.kind, name, old, new))
        self._changed.set()

    async def add(self, bmc: LabBmc, *, site: str = lab_machines.SITE, **redfish: Any) -> list[str]:
        """Apply a BMC's Secret and a Machine for each system, with some fields of spec.pxe.redfish set."""
        await self.api.create(SECRETS, lab_machines.secret(bmc), namespace=NAMESPACE)
        names = []
        for manifest in lab_machines.machines(bmc, site=site):
            manifest["spec"]["pxe"]["redfish"].update(redfish)
            names.append((await self.api.create(MACHINES, manifest)).name)
        self.bmcs.update(dict.fromkeys(names, bmc))
        return names

    async def set_password(self, bmc: LabBmc, password: str) -> str:
        """Put a password into the Secret of a BMC; gives the Secret's version."""
        data = {lab_machines.PASSWORD_KEY: b64encode(password.encode()).decode()}
        name = lab_machines.secret_name(bmc)
        secret = await self.api.patch(SECRETS, name, {"data": data}, namespace=NAMESPACE)
        return secret.metadata.resource_version

    async def ask(self, kind: str, machine: str, *, name: str = "", **spec: Any) -> str:
        """Create an operation; gives its name. A HostErase erases all disks for alice."""
        name = name or f"{machine}-{kind.lower()}"
        body = {"metadata": {"name": name}, "spec": {"operationKind": kind, "machineRef": machine, **spec}}
        if kind == "HostErase":
            body["metadata"]["annotations"] = {ANNOTATION_REQUESTED_BY: "alice"}
            body["spec"].setdefault("parameters", {})["disks"] = "All"
        return (await self.api.create(MACHINE_OPERATIONS, body)).name

    async def done(self, kind: str, machine: str, **spec: Any) -> MachineOperation:
        """Request an operation and wait for its end."""
        return await self.ended(await self.ask(kind, machine, **spec))

    async def ended(self, name: str, *, within_s: float = 3600.0) -> MachineOperation:
        """The operation, when it is terminal and its Machine's slot is free again."""

        async def ended() -> MachineOperation | None:
            operation = await self.operation(name)
            return operation if operation.terminal and not await self._holds_slot(operation) else None

        return await self._until(ended, f"{name} has ended", within_s)

    async def _holds_slot(self, operation: MachineOperation) -> bool:
        if operation.spec.machine_ref is None:
            return False
        active = (await self.machine(operation.spec.machine_ref)).status.active_operation
        return active is not None and active.uid == operation.metadata.uid

    async def created(self, name: str, *, within_s: float = 60.0) -> str:
        """Return the name of an operation that another client creates, once it exists."""

        async def there() -> str | None:
            names = {each.name for each in (await self.api.list(MACHINE_OPERATIONS)).items}
            return name if name in names else None

        return await self._until(there, f"{name} is there", within_s)

    async def in_stage(self, name: str, stage: str, *, within_s: float = 3600.0) -> MachineOperation:
        """Return the operation, once its status has this stage."""

        async def there() -> MachineOperation | None:
            operation = await self.operation(name)
            return operation if any(target.stage == stage for target in operation.status.targets) else None

        return await self._until(there, f"{name} is in stage {stage}", within_s)

    async def waiting_for(self, name: str, reason: str, *, within_s: float = 3600.0) -> MachineOperation:
        """The operation, when `status.waiting` has a reason."""

        async def there() -> MachineOperation | None:
            operation = await self.operation(name)
            waiting = operation.status.waiting
            return operation if waiting is not None and waiting.reason == reason else None

        return await self._until(there, f"{name} waits for {reason}", within_s)

    async def counted(self, machine: str, reboots: int, *, within_s: float = 600.0) -> Machine:
        """The Machine, when its status counts so many reboots."""

        async def there() -> Machine | None:
            found = await self.machine(machine)
            counters = found.status.operations
            return found if counters is not None and counters.reboot_counter == reboots else None

        return await self._until(there, f"{machine} counts {reboots} reboots", within_s)

    async def _until(self, look: Callable[[], Awaitable[T | None]], what: str, within_s: float) -> T:
        """Observe after every write, until there is a result."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    self._changed.clear()
                    found = await look()
                    if found is not None:
                        return found
                    await self._changed.wait()
        operations = [
            (each.name, each.status.phase, each.status.message)
            for each in (await self.api.list(MACHINE_OPERATIONS)).items
        ]
        raise AssertionError(f"not within {within_s:g} s: {what}; there are {operations}")

    async def operation(self, name: str) -> MachineOperation:
        return await self.api.get(MACHINE_OPERATIONS, name)

    async def machine(self, name: str) -> Machine:
        return await self.api.get(MACHINES, name)

    async def condition(self, machine: str, kind: str) -> tuple[str, str | None] | None:
        """Status and reason of a Machine's condition; None for one that it does not have."""
        for condition in (await self.machine(machine)).status.conditions:
            if condition.type == kind:
                return condition.status, condition.reason
        return None

    def conditions_over_time(self, machine: str, kind: str) -> list[tuple[str, str] | None]:
        """Status and reason of a Machine's condition as they followed each other."""
        seen: list[tuple[str, str] | None] = [None]
        for write in self.written:
            if (write.kind, write.name) == ("Machine", machine):
                conditions = write.new.get("status", {}).get("conditions", ())
                here = next(((each["status"], each["reason"]) for each in conditions if each["type"] == kind), None)
                if here != seen[-1]:
                    seen.append(here)
        return seen

    def ended_at(self, name: str) -> float:
        """When the operation's terminal phase was written, on the loop's clock."""
        return next(
            write.at
            for write in self.written
            if (write.kind, write.name) == ("MachineOperation", name)
            and write.new.get("status", {}).get("phase") in TERMINAL
        )


@asynccontextmanager
async def metalman(
    cluster: Cluster,
    *,
    concurrent: int = 10,
    reads_per_s: float = 0.0,
    events: bool = False,
    media_urls: MediaUrls | None = None,
) -> AsyncIterator[None]:
    """Run a term of the site's metalman, and the steward, until the block is left; all sessions are given back then.

    Args:
        reads_per_s: limit on the readings of idle hosts' power; the tests of operations count requests, and have none.
        events: follow the events of BMCs that offer them.
        media_urls: URLs of boot images; None where none are served.
    """
    api, now = cluster.api, cluster.now
    indexes = {INDEX_MACHINE: by_machine, INDEX_PARENT: by_parent, INDEX_EXECUTOR: by_executor}
    operations = Cache(api, MACHINE_OPERATIONS, indexes=indexes)
    machines = Cache(api, MACHINES, indexes={INDEX_BMC: by_bmc})
    pause = Cache(api, CONFIG_MAPS, namespace=NAMESPACE)
    nodes = Cache(api, NODES, indexes={INDEX_MACHINE: node_by_machine})
    settings = MetalmanSettings(
        site=lab_machines.SITE, concurrent=concurrent, power_reads_per_s=reads_per_s, events=events
    )
    recorder = EventRecorder(api, "metalman", now=now)
    term = LeaderTerm(
        Runtime(api, now=now, events=recorder),
        settings,
        Caches(operations, machines, pause),
        nodes,
        OperationMetrics(),
        media_urls=media_urls,
    )
    steward = Supervisor(api, SupervisorCaches(operations, machines, nodes, pause), now=now)
    async with running_caches(term.runtime, operations, machines, pause, nodes), asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(work) for work in (term.run(ProcessEpoch()), steward.run(), recorder.run())]
        try:
            yield
        finally:
            for task in running:
                task.cancel()


def _defaults(kind: Kind[Any], new: Body) -> None:
    """The schema's defaults that the controllers read."""
    if kind.kind == "MachineOperation":
        for name, value in (("startDeadlineSeconds", 3600), ("maxConcurrent", 10), ("maxFailures", 1)):
            new.setdefault("spec", {}).setdefault(name, value)
