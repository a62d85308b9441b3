"""All resources of a simulated Azure, and the operations that change them. No socket and no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Final
from uuid import UUID, uuid5

from unbounded_lab.cloud.azure import model
from unbounded_lab.cloud.azure.catalog import IMAGES
from unbounded_lab.cloud.azure.errors import AzureProblem
from unbounded_lab.cloud.azure.misbehaviours import IDEAL, AzureFaults
from unbounded_lab.cloud.history import CloudEvent, CloudHistory, Schedule, VersionedValues

NAMESPACE: Final = UUID("6f1f9a86-8a0f-4f0c-9a63-3d3d1c3c7a10")
HANGING_CHECK_S: Final = 1.0  # interval of checks of a hanging operation
NIC_RESERVED_S: Final = 180.0
ALIVE: Final = frozenset({model.VmPower.STARTING, model.VmPower.RUNNING, model.VmPower.STOPPING})

Done = Callable[[float], None]
Undone = Callable[[float, AzureProblem], None]


@dataclass(slots=True)
class AzureResources:
    """The subscriptions of one tenant with their resources."""

    tenant: str
    faults: AzureFaults = IDEAL
    times: model.AzureTimes = model.USUAL_TIMES
    seed: str = ""
    groups: dict[tuple[str, str], str] = field(default_factory=dict)  # {(subscription, group) lower: location}
    subscriptions: set[str] = field(default_factory=set)
    identities: dict[str, model.ResourceId] = field(default_factory=dict)  # {key: id}
    availability_sets: dict[str, model.ResourceId] = field(default_factory=dict)
    images: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict(IMAGES))
    # lower-case ids of other resources that machines can name: groups, own images
    others: set[str] = field(default_factory=set)
    machines: VersionedValues[str, model.VirtualMachine] = field(default_factory=VersionedValues)
    disks: VersionedValues[str, model.Disk] = field(default_factory=VersionedValues)
    nics: VersionedValues[str, model.Nic] = field(default_factory=VersionedValues)
    extensions: VersionedValues[str, model.Extension] = field(default_factory=VersionedValues)
    operations: dict[str, model.LongRunningOperation] = field(default_factory=dict)
    agenda: Schedule = field(default_factory=Schedule)
    history: CloudHistory = field(default_factory=CloudHistory)
    _operation_errors: deque[str] = field(default_factory=deque)
    _made: int = 0

    def set_faults(self, faults: AzureFaults) -> None:
        self.faults = faults
        self._operation_errors = deque(faults.operation_errors)

    def new_uuid(self) -> str:
        self._made += 1
        return str(uuid5(NAMESPACE, f"{self.seed}/{self._made}"))

    # Resources

    def machine(self, resource: model.ResourceId) -> model.VirtualMachine:
        """Return a machine in its true state.

        Raises:
            AzureProblem: there is none.
        """
        machine = self.machines.get(resource.key)
        if machine is None:
            raise not_found(resource)
        return machine

    def disks_of(self, machine: model.ResourceId) -> Iterator[model.Disk]:
        return (disk for _, disk in self.disks if disk.owner == machine)

    def nics_of(self, machine: model.ResourceId) -> Iterator[model.Nic]:
        return (nic for _, nic in self.nics if nic.owner == machine)

    def extensions_of(self, machine: model.ResourceId) -> Iterator[model.Extension]:
        return (extension for _, extension in self.extensions if extension.machine == machine)

    # Changes, with their events

    def put_machine(self, machine: model.VirtualMachine, at: float) -> model.VirtualMachine:
        """Store a machine with a new etag, and record the events."""
        before = self.machines.get(machine.id.key)
        generation = 1 if before is None else before.generation + 1
        error = machine.error if machine.provisioning is model.Provisioning.FAILED else None
        machine = replace(machine, generation=generation, error=error, since=at)
        self.machines.put(machine.id.key, machine, at)
        if before is None:
            self._record(at, machine, "created")
        was_on = before is not None and before.power in ALIVE
        if (machine.power in ALIVE) != was_on:
            self._record(at, machine, "off" if was_on else "on")
        return machine

    def drop_machine(self, machine: model.VirtualMachine, at: float) -> None:
        if machine.power in ALIVE:
            self._record(at, machine, "off")
        for extension in list(self.extensions_of(machine.id)):
            self.extensions.drop(extension.key, at)
        self.machines.drop(machine.id.key, at)
        self._record(at, machine, "deleted")

    def blink(self, machine: model.VirtualMachine, at: float) -> None:
        """Record that a running machine was off for a moment."""
        self._record(at, machine, "off")
        self._record(at, machine, "on")

    def put_disk(self, disk: model.Disk, at: float) -> None:
        before = self.disks.get(disk.id.key)
        owner = None if before is None else before.owner
        if disk.owner != owner:
            disk = replace(disk, since=at)
        self.disks.put(disk.id.key, disk, at)
        self._record_of(at, "Disk", disk.id, before is None, owner, disk.owner)

    def drop_disk(self, disk: model.Disk, at: float) -> None:
        self.disks.drop(disk.id.key, at)
        self.history.add(CloudEvent(at, "Disk", disk.id.name, "deleted", identity=disk.id.key))

    def put_nic(self, nic: model.Nic, at: float) -> None:
        before = self.nics.get(nic.id.key)
        self.nics.put(nic.id.key, nic, at)
        owner = None if before is None else before.owner
        self._record_of(at, "NetworkInterface", nic.id, before is None, owner, nic.owner)

    def drop_nic(self, nic: model.Nic, at: float) -> None:
        self.nics.drop(nic.id.key, at)
        self.history.add(CloudEvent(at, "NetworkInterface", nic.id.name, "deleted", identity=nic.id.key))

    def _record(self, at: float, machine: model.VirtualMachine, what: str) -> None:
        self.history.add(CloudEvent(at, "VirtualMachine", machine.id.name, what, identity=machine.vm_id))

    def _record_of(
        self,
        at: float,
        kind: str,
        thing: model.ResourceId,
        is_new: bool,
        before: model.ResourceId | None,
        now: model.ResourceId | None,
    ) -> None:
        if is_new:
            self.history.add(CloudEvent(at, kind, thing.name, "created", identity=thing.key))
        if before is not None and before != now:
            self.history.add(CloudEvent(at, kind, thing.name, "detached", before.name, thing.key))
        if now is not None and before != now:
            self.history.add(CloudEvent(at, kind, thing.name, "attached", now.name, thing.key))

    # Operations

    def begin(
        self,
        call: str,
        subject: model.ResourceId,
        location: str,
        now: float,
        *,
        takes_s: float,
        done: Done,
        undone: Undone,
    ) -> model.LongRunningOperation:
        """Accept a long-running operation.

        Args:
            done: executes it, at its end; it fails with an AzureProblem that this raises.
            undone: sets the state after a failure.
        """
        operation = model.LongRunningOperation(self.new_uuid(), call, subject, location, now)
        self.operations[operation.id] = operation
        fault = self._next_operation_error(call, subject)
        self.agenda.put(now + takes_s, partial(self._end, operation.id, done, undone, fault))
        return operation

    def begin_update(
        self,
        call: str,
        machine: model.VirtualMachine,
        now: float,
        *,
        takes_s: float,
        done: Done,
        undone: Undone,
    ) -> model.LongRunningOperation:
        """Accept a long-running operation on a machine, which is Updating until its end; see `begin`."""
        operation = self.begin(call, machine.id, machine.location, now, takes_s=takes_s, done=done, undone=undone)
        self.put_machine(replace(machine, provisioning=model.Provisioning.UPDATING, operation=operation.id), now)
        return operation

    def cancel(self, operation_id: str, at: float) -> None:
        """End an operation that a later one has preempted."""
        operation = self.operations.get(operation_id)
        if operation is not None and operation.status is model.OperationStatus.IN_PROGRESS:
            self._finish(operation, at, model.OperationStatus.CANCELED, AzureProblem("OperationPreempted"))

    def _end(self, operation_id: str, done: Done, undone: Undone, fault: AzureProblem | None, at: float) -> None:
        operation = self.operations[operation_id]
        if operation.status is not model.OperationStatus.IN_PROGRESS:
            return
        if any(fnmatchcase(operation.call, pattern) for pattern in self.faults.hanging):
            self.agenda.put(at + HANGING_CHECK_S, partial(self._end, operation_id, done, undone, fault))
            return
        try:
            if fault is not None and not self.faults.operation_errors_after:
                raise fault
            done(at)
        except AzureProblem as problem:
            undone(at, problem)
            self._finish(operation, at, model.OperationStatus.FAILED, problem)
        else:
            if fault is not None and fault.code.startswith("OSProvisioning"):
                self.failed(self.machine(operation.subject), at, fault)
            self._finish(
                operation, at, model.OperationStatus.SUCCEEDED if fault is None else model.OperationStatus.FAILED, fault
            )

    def _finish(
        self,
        operation: model.LongRunningOperation,
        at: float,
        status: model.OperationStatus,
        error: AzureProblem | None,
    ) -> None:
        self.operations[operation.id] = replace(operation, status=status, ended=at, error=error)
        machine = self.machines.get(operation.subject.key)
        if machine is not None and machine.operation == operation.id:
            self.machines.put(machine.id.key, replace(machine, operation=""), at)

    def _next_operation_error(self, call: str, subject: model.ResourceId) -> AzureProblem | None:
        is_meant = any(fnmatchcase(call, pattern) for pattern in self.faults.operation_errors_for)
        if not is_meant or not self._operation_errors:
            return None
        return AzureProblem(self._operation_errors.popleft(), name=subject.name, subject=str(subject))

    # Deletion of a machine's resources

    def delete_machine(self, machine: model.VirtualMachine, at: float) -> None:
        """Delete a machine: detach its disks and NICs, and delete those with deleteOption Delete."""
        doomed_disks, doomed_nics = self._doomed(machine)
        self.drop_machine(machine, at)
        for disk in list(self.disks_of(machine.id)):
            self.put_disk(replace(disk, owner=None, leaving=False), at)
            if disk.id.key in doomed_disks and "disks" not in self.faults.delete_leaves:
                self.drop_disk(replace(disk, owner=None), at)
        for nic in list(self.nics_of(machine.id)):
            self.put_nic(replace(nic, owner=None), at)
            if nic.id.key in doomed_nics and "nics" not in self.faults.delete_leaves:
                self.drop_nic(nic, at)

    def _doomed(self, machine: model.VirtualMachine) -> tuple[set[str], set[str]]:
        disks = [disk for disk in (machine.os_disk, *machine.data_disks) if disk.get("deleteOption") == "Delete"]
        nics = [nic for nic in machine.nics if nic.get("properties", {}).get("deleteOption") == "Delete"]
        names = {machine.id.sibling(model.DISKS, disk["name"]).key for disk in disks if "managedDisk" not in disk}
        ids = {disk["managedDisk"]["id"].lower() for disk in disks if "managedDisk" in disk}
        return names | ids, {nic["id"].lower() for nic in nics}

    def reserve_nics(self, machine: model.VirtualMachine, at: float) -> None:
        """Reserve the NICs of a machine whose creation failed, for NIC_RESERVED_S."""
        for nic in list(self.nics_of(machine.id)):
            reserved = replace(nic, reserved_for=machine.id, reserved_until=at + NIC_RESERVED_S)
            self.nics.put(nic.id.key, reserved, at)

    def failed(self, machine: model.VirtualMachine, at: float, problem: AzureProblem) -> None:
        """Set a machine to Failed after its last operation."""
        now = self.machines.get(machine.id.key)
        if now is not None:
            self.put_machine(replace(now, provisioning=model.Provisioning.FAILED, error=problem), at)


def not_found(resource: model.ResourceId) -> AzureProblem:
    return AzureProblem("ResourceNotFound", type=resource.type, name=resource.name, group=resource.group)
