"""Actions on existing resources: power and deletion of machines; changes of disks, NICs and extensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from unbounded.lab.cloud.azure.errors import Problem
from unbounded.lab.cloud.azure.estate import ALIVE, Estate
from unbounded.lab.cloud.azure.model import Disk, Extension, Machine, Nic, Operation, Power, Provisioning
from unbounded.lab.cloud.azure.names import EXTENSIONS, ResourceId
from unbounded.lab.cloud.azure.shapes import EXTENSION, checked


@dataclass(frozen=True, slots=True)
class Step:
    """A power action: the state during it, the state after it, and the name of its duration."""

    during: Power
    after: Power
    takes: str


STEPS: Final[Mapping[str, Step]] = {
    "Start": Step(Power.STARTING, Power.RUNNING, "start_s"),
    "PowerOff": Step(Power.STOPPING, Power.STOPPED, "stop_s"),
    "Deallocate": Step(Power.DEALLOCATING, Power.DEALLOCATED, "deallocate_s"),
    "Restart": Step(Power.RUNNING, Power.RUNNING, "restart_s"),
}
SETTLED: Final = frozenset({("Start", Power.RUNNING), ("PowerOff", Power.STOPPED), ("PowerOff", Power.DEALLOCATED)}) | {
    ("Deallocate", Power.DEALLOCATED)
}
"""Actions into the present state: they succeed at once and change nothing."""


def claim(estate: Estate, machine: Machine, action: str, now: float) -> None:
    """Check that a machine can be changed now.

    Raises:
        Problem: it is being deleted, or another operation is in progress.
    """
    if machine.doomed and action != "delete":
        raise Problem("MarkedForDeletion", detail=action, name=machine.id.name)
    if not machine.operation:
        return
    if action != "delete" and estate.dials.concurrent == "refused":
        raise Problem("Conflict")
    estate.cancel(machine.operation, now)


def check_lock(estate: Estate, resource: ResourceId) -> None:
    """Refuse to delete a locked resource."""
    if resource.name in estate.dials.locked:
        raise Problem("ScopeLocked", subject=str(resource))


def act(estate: Estate, machine: Machine, action: str, now: float, *, skip_shutdown: bool = False) -> Operation:
    """Begin a power action, `Start`, `PowerOff`, `Restart` or `Deallocate`.

    Raises:
        Problem: the machine's state does not allow it.
    """
    claim(estate, machine, action[0].lower() + action[1:], now)
    machine = estate.machine(machine.id)
    step = STEPS[action]
    if action == "Restart" and machine.power in (Power.DEALLOCATED, Power.DEALLOCATING, None):
        detail = f"Operation 'restart' is not allowed on VM '{machine.id.name}' since the VM is deallocated."
        raise Problem("OperationNotAllowed", detail=detail)
    if action == "Deallocate" and "diffDiskSettings" in machine.os_disk:
        detail = f"Operation 'deallocate' is not supported for VM '{machine.id.name}' using an ephemeral OS disk."
        raise Problem("OperationNotAllowed", detail=detail)
    settled = (action, machine.power) in SETTLED
    is_short = action == "PowerOff" and skip_shutdown
    takes_s = 0.0 if settled else getattr(estate.times, "skip_shutdown_s" if is_short else step.takes)
    full = machine.properties["hardwareProfile"]["vmSize"] in estate.dials.sizes_out_of_capacity

    def done(at: float) -> None:
        if settled:
            return
        if action == "Start" and machine.power is Power.DEALLOCATED and full:
            raise Problem("ZonalAllocationFailed" if machine.model.get("zones") else "AllocationFailed")
        if action == "Restart" and machine.power in ALIVE:
            estate.blink(machine, at)
        current = estate.machine(machine.id)
        estate.put_machine(replace(current, power=step.after, provisioning=Provisioning.SUCCEEDED), at)

    def undone(at: float, problem: Problem) -> None:
        current = estate.machine(machine.id)
        estate.put_machine(replace(current, power=machine.power), at)
        estate.failed(machine, at, problem)

    call = f"VirtualMachines.{action}"
    operation = estate.begin(call, machine.id, machine.location, now, takes_s=takes_s, done=done, undone=undone)
    if not settled:
        during = machine.power if action == "Restart" else step.during
        changing = replace(machine, power=during, provisioning=Provisioning.UPDATING, operation=operation.id)
        estate.put_machine(changing, now)
    return operation


def delete_machine(estate: Estate, machine: Machine, now: float, *, force: bool) -> Operation:
    """Begin a deletion, which preempts any other operation."""
    check_lock(estate, machine.id)
    claim(estate, machine, "delete", now)
    machine = estate.machine(machine.id)

    def done(at: float) -> None:
        estate.delete_machine(estate.machine(machine.id), at)

    def undone(at: float, problem: Problem) -> None:
        current = estate.machine(machine.id)  # the host is gone, the resource is not
        estate.put_machine(replace(current, power=Power.DEALLOCATED), at)
        estate.failed(current, at, problem)

    takes_s = estate.times.force_delete_s if force else estate.times.delete_s
    operation = estate.begin(
        "VirtualMachines.Delete", machine.id, machine.location, now, takes_s=takes_s, done=done, undone=undone
    )
    machine = replace(machine, provisioning=Provisioning.DELETING, operation=operation.id, doomed=True)
    estate.put_machine(machine, now)
    return operation


def delete_disk(estate: Estate, disk: Disk, now: float) -> Operation:
    """Begin the deletion of a disk.

    Raises:
        Problem: it belongs to a machine, or is locked.
    """
    check_lock(estate, disk.id)
    if disk.owner is not None:
        raise Problem("OperationNotAllowed", detail=f"Disk {disk.id.name} is attached to VM {disk.owner}.")

    def done(at: float) -> None:
        current = estate.disks.get(disk.id.key)
        if current is not None:
            estate.drop_disk(current, at)

    def undone(at: float, _: Problem) -> None:
        current = estate.disks.get(disk.id.key)
        if current is not None:
            estate.put_disk(replace(current, deleting=False), at)

    operation = estate.begin(
        "Disks.Delete", disk.id, disk.location, now, takes_s=estate.times.disk_delete_s, done=done, undone=undone
    )
    estate.put_disk(replace(disk, deleting=True), now)
    return operation


def delete_nic(estate: Estate, nic: Nic, now: float) -> None:
    """Delete a network interface.

    Raises:
        Problem: it belongs to a machine, is locked, or is reserved for one whose creation failed.
    """
    check_lock(estate, nic.id)
    if nic.owner is not None:
        raise Problem("NicInUse", subject=str(nic.id), detail=str(nic.owner))
    if nic.reserved_for is not None and now < nic.reserved_until:
        raise Problem("NicReservedForAnotherVm", detail=str(nic.reserved_for))
    estate.drop_nic(nic, now)


def put_extension(estate: Estate, machine: Machine, name: str, body: Mapping[str, Any], now: float) -> Operation:
    """Begin to install or change an extension.

    Raises:
        Problem: the machine is not running, or a property is missing.
    """
    body = checked(body, EXTENSION)
    if not body.get("location"):
        raise Problem("LocationRequired")
    properties = body.get("properties", {})
    for needed in ("publisher", "type", "typeHandlerVersion"):
        if not properties.get(needed):
            detail = f"Required parameter '{needed}' is missing (null)."
            raise Problem("InvalidParameter", detail=detail, target=needed)
    claim(estate, machine, "enableVMExtension", now)
    machine = estate.machine(machine.id)
    if machine.power is not Power.RUNNING:
        raise Problem("OperationNotAllowed", detail="Cannot modify extensions in the VM when the VM is not running.")
    shown = {key: value for key, value in properties.items() if key != "protectedSettings"}
    extension = Extension(machine.id, name, {**body, "properties": shown}, Provisioning.CREATING)

    def done(at: float) -> None:
        estate.extensions.put(extension.key, replace(extension, provisioning=Provisioning.SUCCEEDED), at)
        estate.put_machine(replace(estate.machine(machine.id), provisioning=Provisioning.SUCCEEDED), at)

    def undone(at: float, problem: Problem) -> None:
        estate.extensions.put(extension.key, replace(extension, provisioning=Provisioning.FAILED), at)
        estate.failed(machine, at, problem)

    operation = estate.begin(
        "VirtualMachineExtensions.CreateOrUpdate",
        machine.id,
        machine.location,
        now,
        takes_s=estate.times.extension_s,
        done=done,
        undone=undone,
    )
    estate.extensions.put(extension.key, extension, now)
    estate.put_machine(replace(machine, provisioning=Provisioning.UPDATING, operation=operation.id), now)
    return operation


def delete_extension(estate: Estate, extension: Extension, now: float) -> Operation:
    """Begin to remove an extension."""
    machine = estate.machine(extension.machine)
    claim(estate, machine, "disableVMExtension", now)
    machine = estate.machine(machine.id)

    def done(at: float) -> None:
        estate.extensions.drop(extension.key, at)
        estate.put_machine(replace(estate.machine(machine.id), provisioning=Provisioning.SUCCEEDED), at)

    def undone(at: float, problem: Problem) -> None:
        estate.failed(machine, at, problem)

    operation = estate.begin(
        "VirtualMachineExtensions.Delete",
        machine.id,
        machine.location,
        now,
        takes_s=estate.times.extension_s,
        done=done,
        undone=undone,
    )
    estate.put_machine(replace(machine, provisioning=Provisioning.UPDATING, operation=operation.id), now)
    return operation


def extension_not_found(machine: Machine, name: str) -> Problem:
    return Problem("ResourceNotFound", type=EXTENSIONS, name=f"{machine.id.name}/{name}", group=machine.id.group)
