"""Creation of virtual machines, and the remains of failed creations."""

from __future__ import annotations

from dataclasses import replace

from unbounded_lab.cloud.azure.attachments import attach_all, completed
from unbounded_lab.cloud.azure.errors import AzureProblem
from unbounded_lab.cloud.azure.model import Document, LongRunningOperation, Provisioning, VirtualMachine, VmPower
from unbounded_lab.cloud.azure.names import ResourceId
from unbounded_lab.cloud.azure.resources import AzureResources
from unbounded_lab.cloud.azure.rules import check_new, id_of_disk, later_problem, model_of


def create(estate: AzureResources, resource: ResourceId, body: Document, now: float) -> LongRunningOperation:
    """Accept the creation of a machine that does not exist.

    Raises:
        Problem: it is not possible; nothing was changed.
    """
    model = model_of(body)
    custom_data, user_data = check_new(estate, resource, model, now)
    problem = later_problem(estate, resource, model)
    machine = VirtualMachine(
        resource, model, estate.new_uuid(), now, Provisioning.CREATING, None, custom_data, user_data
    )
    machine = replace(machine, model=completed(estate, machine))

    def done(at: float) -> None:
        if problem is not None:
            raise problem
        made = replace(estate.machine(resource), provisioning=Provisioning.SUCCEEDED, power=VmPower.RUNNING)
        estate.put_machine(made, at)

    def undone(at: float, problem: AzureProblem) -> None:
        _leave_failed(estate, estate.machine(resource), at, problem)

    operation = estate.begin(
        "VirtualMachines.CreateOrUpdate",
        resource,
        machine.location,
        now,
        takes_s=estate.times.create_s,
        done=done,
        undone=undone,
    )
    machine = estate.put_machine(replace(machine, operation=operation.id), now)
    attach_all(estate, machine, now)
    return operation


def _leave_failed(estate: AzureResources, machine: VirtualMachine, at: float, problem: AzureProblem) -> None:
    """Leave the remains of a failed creation, as the dial `failed_create_leaves` requires."""
    estate.reserve_nics(machine, at)
    if estate.dials.failed_create_leaves == "machine-and-disk":
        estate.failed(machine, at, problem)
        return
    os_disk = estate.disks.get(id_of_disk(machine.id, machine.os_disk).key)
    if os_disk is not None and os_disk.owner == machine.id and machine.os_disk["createOption"] == "FromImage":
        estate.put_disk(replace(os_disk, owner=None), at)
        estate.drop_disk(os_disk, at)
    estate.failed(machine, at, problem)
    if estate.dials.failed_create_leaves == "nothing":
        estate.delete_machine(estate.machine(machine.id), at)
