"""Counters of a Machine (`spec.operations`), turned into operations with deterministic names."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationsStatus
from unbounded.kube.api import AlreadyExists
from unbounded.kube.cache import Cache
from unbounded.kube.controller import Controller
from unbounded.kube.events import object_reference
from unbounded.kube.logs import Log
from unbounded.kube.process import Runtime
from unbounded.kube.status_writer import StatusWriter
from unbounded.operations.executor_selection import ExecutorKind, executor_of
from unbounded.operations.machine_counters import Due, counters_of, due
from unbounded.operations.machine_lock import holds_lock

NAME_TAKEN = "OperationNameTaken"

log = Log("metalman")


@dataclass(frozen=True)
class CreateOperation:
    """Create the operation of the counter."""

    due: Due


@dataclass(frozen=True)
class AdvanceCounter:
    """Advance the counter: its operation ended without a claim, so that no executor did."""

    counters: OperationsStatus


@dataclass(frozen=True)
class NameTaken:
    """Report that another operation has the name of ours."""

    text: str


CounterStep = CreateOperation | AdvanceCounter | NameTaken | None


def next_step(machine: Machine, desired: Due, operation: MachineOperation | None) -> CounterStep:
    """Return the next step of a counter that is ahead; None while its operation runs."""
    if operation is None:
        return CreateOperation(desired)
    counters = counters_of(operation, machine)
    if counters is None:
        return NameTaken(
            f"a counter requests {desired.kind}, but MachineOperation {desired.name} exists for another "
            "purpose: delete it"
        )
    if operation.terminal and not holds_lock(operation, machine):
        return AdvanceCounter(counters)
    return None


class CounterController:
    """Creates operations for counters that are ahead, one at a time for each Machine."""

    def __init__(
        self,
        runtime: Runtime,
        machines: Cache[Machine],
        operations: Cache[MachineOperation],
        *,
        site: str | None,
    ) -> None:
        self._runtime = runtime
        self._machines = machines
        self._status = StatusWriter(runtime.api, MACHINES, fields=("operations",), cache=machines)
        self._operations = operations
        self._site = site
        self._controller: Controller[str] = Controller("counters", self._count, workers=4, metrics=runtime.metrics)

    async def run(self) -> None:
        """Work until cancelled."""
        with (
            self._machines.subscribed(lambda _old, new: self._enqueue(new)),
            self._operations.subscribed(self._operation_changed),
        ):
            await self._controller.run()

    def _enqueue(self, machine: Machine | None) -> None:
        if machine is not None and due(machine) is not None:
            self._controller.enqueue(machine.name)

    def _operation_changed(self, old: MachineOperation | None, new: MachineOperation | None) -> None:
        operation = new or old
        if operation is not None and operation.spec.machine_ref and (new is None or new.terminal):
            self._enqueue(self._machines.get(operation.spec.machine_ref))

    async def _count(self, name: str) -> None:
        machine = self._machines.get(name)
        desired = due(machine) if machine is not None and machine.metadata.deletion_timestamp is None else None
        if machine is None or desired is None or not self._owns(machine, desired):
            return
        match next_step(machine, desired, self._operations.get(desired.name)):
            case CreateOperation():
                await self._create(machine, desired)
            case AdvanceCounter(counters=counters):
                await self._reach(machine, counters)
            case NameTaken(text=text):
                self._warn(machine, text)

    def _owns(self, machine: Machine, desired: Due) -> bool:
        return self._site in (None, machine.site) and executor_of(desired.kind, machine) is ExecutorKind.METALMAN

    async def _create(self, machine: Machine, desired: Due) -> None:
        try:
            created = await self._runtime.api.create(MACHINE_OPERATIONS, desired.manifest(machine))
        except AlreadyExists:  # the cache is behind; its next event enqueues the Machine again
            return
        self._operations.observe(created)
        log.info("operation created for a counter", machine=machine.name, operation=desired.name)

    async def _reach(self, machine: Machine, counters: OperationsStatus) -> None:
        await self._status.write(machine, {"operations": msgspec.to_builtins(counters)})

    def _warn(self, machine: Machine, text: str) -> None:
        if self._runtime.events is not None:
            self._runtime.events.event(object_reference(MACHINES, machine), "Warning", NAME_TAKEN, text)
