"""Progress of MachineOperations in the watch of a user."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationPhase
from unbounded.kube.api import Api

T = TypeVar("T")
PHASES_WRITTEN_S: Final = 60.0


@dataclass
class Progress:
    """Times at which each operation was created, claimed and complete."""

    created: dict[str, float] = field(default_factory=dict)
    claimed: dict[str, float] = field(default_factory=dict)
    complete: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def note(self, operation: MachineOperation) -> None:
        name, now = operation.name, time.monotonic()
        if operation.claimed:
            self.claimed.setdefault(name, now)
        if operation.status.phase == OperationPhase.COMPLETE:
            self.complete.setdefault(name, now)
        elif operation.terminal:
            self.failed.setdefault(name, f"{operation.status.reason}: {operation.status.message}")

    async def all_complete(self, names: Iterable[str]) -> None:
        """Wait until all are complete. Raises RuntimeError if one has failed."""
        missing = set(names)
        while missing:
            await asyncio.sleep(0.05)
            missing -= self.complete.keys()
            if lost := missing & self.failed.keys():
                first = lost.pop()
                raise RuntimeError(f"{len(lost) + 1} operations failed, {first} with: {self.failed[first]}")


async def phases_written(api: Api) -> None:
    """Wait until new Machines have their first phase: no operation causes that write."""
    async with asyncio.timeout(PHASES_WRITTEN_S):
        while True:
            machines = (await api.list(MACHINES)).items
            if all(machine.status.phase for machine in machines):
                return
            await asyncio.sleep(0.1)


async def create_operation(api: Api, progress: Progress, name: str, kind: str, machine: str) -> None:
    """Create an operation, and note the time."""
    progress.created[name] = time.monotonic()
    spec = {"operationKind": kind, "machineRef": machine}
    await api.create(MACHINE_OPERATIONS, {"metadata": {"name": name}, "spec": spec})


@asynccontextmanager
async def watched(api: Api, progress: Progress) -> AsyncIterator[None]:
    """Note the changes of operations while the block runs."""
    async with followed(api, MACHINE_OPERATIONS, progress.note):
        yield


@asynccontextmanager
async def followed(api: Api, kind: Kind[T], changed: Callable[[T], None]) -> AsyncIterator[None]:
    """Report each object, and each change of one, while the block runs."""

    async def follow() -> None:
        while True:  # a watch ends by itself after some minutes; the next one starts with the present state
            async for event in api.watch(kind, resource_version=""):
                if event.object is not None:
                    changed(event.object)

    watching = asyncio.create_task(follow())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait({watching})
