"""A reimage: the virtual machine gets a new OS disk from its image, and new custom data.

The behaviour follows the SDK's description of begin_reimage. For a deallocated machine, which it does not cover, the
machine gets its disk and stays off.
"""

from __future__ import annotations

from dataclasses import replace

from unbounded_lab.cloud.azure.attachments import attach_all, completed
from unbounded_lab.cloud.azure.errors import AzureProblem
from unbounded_lab.cloud.azure.lifecycle import claim
from unbounded_lab.cloud.azure.model import Document, LongRunningOperation, Provisioning, VirtualMachine
from unbounded_lab.cloud.azure.request_shapes import REIMAGE, checked
from unbounded_lab.cloud.azure.resources import ALIVE, AzureResources
from unbounded_lab.cloud.azure.rules import custom_data_of, id_of_disk

_OF_THE_OLD: frozenset[str] = frozenset({"name", "managedDisk", "vhd"})


def reimage(estate: AzureResources, machine: VirtualMachine, body: Document, now: float) -> LongRunningOperation:
    """Begin a reimage.

    Raises:
        Problem: the machine cannot be reimaged, or not with these parameters.
    """
    given = checked(body, REIMAGE)
    is_ephemeral = "diffDiskSettings" in machine.os_disk
    if given.get("tempDisk") and not is_ephemeral:
        detail = "tempDisk is only supported for a VM with an ephemeral OS disk."
        raise AzureProblem("InvalidParameter", detail=detail, target="tempDisk")
    if not machine.properties["storageProfile"].get("imageReference"):
        detail = f"VM '{machine.id.name}' has no image from which its OS disk could be made anew."
        raise AzureProblem("OperationNotAllowed", detail=detail)
    custom_data = custom_data_of(given.get("osProfile") or {})
    claim(estate, machine, "reimage", now)
    machine = estate.machine(machine.id)

    def done(at: float) -> None:
        _renew_os_disk(estate, estate.machine(machine.id), at)
        current = estate.machine(machine.id)
        told = current.custom_data if custom_data is None else custom_data
        if current.power in ALIVE:
            estate.blink(current, at)
        estate.put_machine(replace(current, custom_data=told, provisioning=Provisioning.SUCCEEDED), at)

    def undone(at: float, problem: AzureProblem) -> None:
        estate.failed(machine, at, problem)

    operation = estate.begin(
        "VirtualMachines.Reimage",
        machine.id,
        machine.location,
        now,
        takes_s=estate.times.create_s,
        done=done,
        undone=undone,
    )
    estate.put_machine(replace(machine, provisioning=Provisioning.UPDATING, operation=operation.id), now)
    return operation


def _renew_os_disk(estate: AzureResources, machine: VirtualMachine, at: float) -> None:
    """Replace the OS disk by a new one; deleteOption decides whether the old one is kept."""
    disk = estate.disks.get(id_of_disk(machine.id, machine.os_disk).key)
    storage = dict(machine.properties["storageProfile"])
    storage["osDisk"] = {name: value for name, value in machine.os_disk.items() if name not in _OF_THE_OLD}
    model = {**machine.model, "properties": {**machine.properties, "storageProfile": storage}}
    machine = replace(machine, model=model)
    machine = estate.put_machine(replace(machine, model=completed(estate, machine)), at)
    if disk is not None:
        estate.put_disk(replace(disk, owner=None, leaving=False), at)
        if machine.os_disk.get("deleteOption") == "Delete":
            estate.drop_disk(disk, at)
    attach_all(estate, machine, at)
