"""Actions on existing resources: power and deletion of machines; changes of disks, NICs and extensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from unbounded_lab.cloud.azure import model
from unbounded_lab.cloud.azure.catalog import EXTENSION, checked
from unbounded_lab.cloud.azure.errors import AzureProblem
from unbounded_lab.cloud.azure.resources import ALIVE, AzureResources


@dataclass(frozen=True, slots=True)
class PowerStep:
    """A power action: the state during it, the state after it, and the name of its duration."""

    during: model.VmPower
    after: model.VmPower
    takes: str


STEPS: Final[Mapping[str, PowerStep]] = {
    "Start": PowerStep(model.VmPower.STARTING, model.VmPower.RUNNING, "start_s"),
    "PowerOff": PowerStep(model.VmPower.STOPPING, model.VmPower.STOPPED, "stop_s"),
    "Deallocate": PowerStep(model.VmPower.DEALLOCATING, model.VmPower.DEALLOCATED, "deallocate_s"),
    "Restart": PowerStep(model.VmPower.RUNNING, model.VmPower.RUNNING, "restart_s"),
}
SETTLED: Final = frozenset(
    {("Start", model.VmPower.RUNNING), ("PowerOff", model.VmPower.STOPPED), ("PowerOff", model.VmPower.DEALLOCATED)}
) | {("Deallocate", model.VmPower.DEALLOCATED)}
"""Actions into the present state: they succeed at once and change nothing."""


def claim(estate: AzureResources, machine: model.VirtualMachine, action: str, now: float) -> None:
    """Check that a machine can be changed now.

    Raises:
        AzureProblem: it is being deleted, or another operation is in progress.
    """
    if machine.doomed and action != "delete":
        raise AzureProblem("MarkedForDeletion", detail=action, name=machine.id.name)
    if not machine.operation:
        return
    if action != "delete" and estate.faults.concurrent == "refused":
        raise AzureProblem("Conflict")
    estate.cancel(machine.operation, now)


def check_lock(estate: AzureResources, resource: model.ResourceId) -> None:
    """Refuse to delete a locked resource."""
    if resource.name in estate.faults.locked:
        raise AzureProblem("ScopeLocked", subject=str(resource))


def act(
    estate: AzureResources, machine: model.VirtualMachine, action: str, now: float, *, skip_shutdown: bool = False
) -> model.LongRunningOperation:
    """Begin a power action, `Start`, `PowerOff`, `Restart` or `Deallocate`.

    Raises:
        AzureProblem: the machine's state does not allow it.
    """
    claim(estate, machine, action[0].lower() + action[1:], now)
    machine = estate.machine(machine.id)
    step = STEPS[action]
    if action == "Restart" and machine.power in (model.VmPower.DEALLOCATED, model.VmPower.DEALLOCATING, None):
        detail = f"Operation 'restart' is not allowed on VM '{machine.id.name}' since the VM is deallocated."
        raise AzureProblem("OperationNotAllowed", detail=detail)
    if action == "Deallocate" and "diffDiskSettings" in machine.os_disk:
        detail = f"Operation 'deallocate' is not supported for VM '{machine.id.name}' using an ephemeral OS disk."
        raise AzureProblem("OperationNotAllowed", detail=detail)
    settled = (action, machine.power) in SETTLED
    is_short = action == "PowerOff" and skip_shutdown
    takes_s = 0.0 if settled else getattr(estate.times, "skip_shutdown_s" if is_short else step.takes)
    full = machine.properties["hardwareProfile"]["vmSize"] in estate.faults.sizes_out_of_capacity

    def done(at: float) -> None:
        if settled:
            return
        if action == "Start" and machine.power is model.VmPower.DEALLOCATED and full:
            raise AzureProblem("ZonalAllocationFailed" if machine.model.get("zones") else "AllocationFailed")
        if action == "Restart" and machine.power in ALIVE:
            estate.blink(machine, at)
        current = estate.machine(machine.id)
        estate.put_machine(replace(current, power=step.after, provisioning=model.Provisioning.SUCCEEDED), at)

    def undone(at: float, problem: AzureProblem) -> None:
        current = estate.machine(machine.id)
        estate.put_machine(replace(current, power=machine.power), at)
        estate.failed(machine, at, problem)

    call = f"VirtualMachines.{action}"
    operation = estate.begin(call, machine.id, machine.location, now, takes_s=takes_s, done=done, undone=undone)
    if not settled:
        during = machine.power if action == "Restart" else step.during
        changing = replace(machine, power=during, provisioning=model.Provisioning.UPDATING, operation=operation.id)
        estate.put_machine(changing, now)
    return operation


def delete_machine(
    estate: AzureResources, machine: model.VirtualMachine, now: float, *, force: bool
) -> model.LongRunningOperation:
    """Begin a deletion, which preempts any other operation."""
    check_lock(estate, machine.id)
    claim(estate, machine, "delete", now)
    machine = estate.machine(machine.id)

    def done(at: float) -> None:
        estate.delete_machine(estate.machine(machine.id), at)

    def undone(at: float, problem: AzureProblem) -> None:
        current = estate.machine(machine.id)  # the host is gone, the resource is not
        estate.put_machine(replace(current, power=model.VmPower.DEALLOCATED), at)
        estate.failed(current, at, problem)

    takes_s = estate.times.force_delete_s if force else estate.times.delete_s
    operation = estate.begin(
        "VirtualMachines.Delete", machine.id, machine.location, now, takes_s=takes_s, done=done, undone=undone
    )
    machine = replace(machine, provisioning=model.Provisioning.DELETING, operation=operation.id, doomed=True)
    estate.put_machine(machine, now)
    return operation


def delete_disk(estate: AzureResources, disk: model.Disk, now: float) -> model.LongRunningOperation:
    """Begin the deletion of a disk.

    Raises:
        AzureProblem: it belongs to a machine, or is locked.
    """
    check_lock(estate, disk.id)
    if disk.owner is not None:
        raise AzureProblem("OperationNotAllowed", detail=f"Disk {disk.id.name} is attached to VM {disk.owner}.")

    def done(at: float) -> None:
        current = estate.disks.get(disk.id.key)
        if current is not None:
            estate.drop_disk(current, at)

    def undone(at: float, _: AzureProblem) -> None:
        current = estate.disks.get(disk.id.key)
        if current is not None:
            estate.put_disk(replace(current, deleting=False), at)

    operation = estate.begin(
        "Disks.Delete", disk.id, disk.location, now, takes_s=estate.times.disk_delete_s, done=done, undone=undone
    )
    estate.put_disk(replace(disk, deleting=True), now)
    return operation


def delete_nic(estate: AzureResources, nic: model.Nic, now: float) -> None:
    """Delete a network interface.

    Raises:
        AzureProblem: it belongs to a machine, is locked, or is reserved for one whose creation failed.
    """
    check_lock(estate, nic.id)
    if nic.owner is not None:
        raise AzureProblem("NicInUse", subject=str(nic.id), detail=str(nic.owner))
    if nic.reserved_for is not None and now < nic.reserved_until:
        raise AzureProblem("NicReservedForAnotherVm", detail=str(nic.reserved_for))
    estate.drop_nic(nic, now)


def put_extension(
    estate: AzureResources, machine: model.VirtualMachine, name: str, body: Mapping[str, Any], now: float
) -> model.LongRunningOperation:
    """Begin to install or change an extension.

    Raises:
        AzureProblem: the machine is not running, or a property is missing.
    """
    body = checked(body, EXTENSION)
    if not body.get("location"):
        raise AzureProblem("LocationRequired")
    properties = body.get("properties", {})
    for needed in ("publisher", "type", "typeHandlerVersion"):
        if not properties.get(needed):
            detail = f"Required parameter '{needed}' is missing (null)."
            raise AzureProblem("InvalidParameter", detail=detail, target=needed)
    claim(estate, machine, "enableVMExtension", now)
    machine = estate.machine(machine.id)
    if machine.power is not model.VmPower.RUNNING:
        raise AzureProblem(
            "OperationNotAllowed", detail="Cannot modify extensions in the VM when the VM is not running."
        )
    shown = {key: value for key, value in properties.items() if key != "protectedSettings"}
    extension = model.Extension(machine.id, name, {**body, "properties": shown}, model.Provisioning.CREATING)

    def done(at: float) -> None:
        estate.extensions.put(extension.key, replace(extension, provisioning=model.Provisioning.SUCCEEDED), at)
        estate.put_machine(replace(estate.machine(machine.id), provisioning=model.Provisioning.SUCCEEDED), at)

    def undone(at: float, problem: AzureProblem) -> None:
        estate.extensions.put(extension.key, replace(extension, provisioning=model.Provisioning.FAILED), at)
        estate.failed(machine, at, problem)

    estate.extensions.put(extension.key, extension, now)
    return estate.begin_update(
        "VirtualMachineExtensions.CreateOrUpdate",
        machine,
        now,
        takes_s=estate.times.extension_s,
        done=done,
        undone=undone,
    )


def delete_extension(estate: AzureResources, extension: model.Extension, now: float) -> model.LongRunningOperation:
    """Begin to remove an extension."""
    machine = estate.machine(extension.machine)
    claim(estate, machine, "disableVMExtension", now)
    machine = estate.machine(machine.id)

    def done(at: float) -> None:
        estate.extensions.drop(extension.key, at)
        estate.put_machine(replace(estate.machine(machine.id), provisioning=model.Provisioning.SUCCEEDED), at)

    def undone(at: float, problem: AzureProblem) -> None:
        estate.failed(machine, at, problem)

    return estate.begin_update(
        "VirtualMachineExtensions.Delete", machine, now, takes_s=estate.times.extension_s, done=done, undone=undone
    )


def extension_not_found(machine: model.VirtualMachine, name: str) -> AzureProblem:
    return AzureProblem(
        "ResourceNotFound", type=model.EXTENSIONS, name=f"{machine.id.name}/{name}", group=machine.id.group
    )
