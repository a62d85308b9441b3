"""HostReplace: where the replacement of a virtual machine stands, by what Azure shows and what was kept.

The model is kept, then what has to outlive the virtual machine is detached, it is deleted, and made anew under its
name. The new one is known by the name of its OS disk, which has the operation's UID in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from unbounded.api.names import NAMESPACE
from unbounded.machineops import reasons
from unbounded.machineops.provider import Cancel, Instance, Job, Next, Power, Refusal, ReplaceStep, Transient
from unbounded.machineops.providers.azure import model, states
from unbounded.machineops.providers.azure.model import Document, Kept

SAVING: Final = "Saving"
DETACHING: Final = "Detaching"
DELETING: Final = "DeletingOld"
CREATING: Final = "Creating"
RESTORING: Final = "RestoringOptions"
EXTENDING: Final = "AddingExtensions"
CLEARING: Final = "RemovingOldDisk"

STEPS: Final = (
    ReplaceStep(SAVING, "Save", "the VM's model to be kept", "the VM's model is kept", 300, Cancel.AT_ONCE),
    ReplaceStep(
        DETACHING,
        "Detach",
        "network interfaces and data disks to outlive the VM",
        "network interfaces and data disks outlive the VM",
        900,
        Cancel.AT_ONCE,
    ),
    ReplaceStep(DELETING, "DeleteOld", "the old VM to be gone", "the old VM is gone", 1800),
    ReplaceStep(CREATING, "Create", "the new VM to be there", "the new VM is there", 1800, needs_user_data=True),
    ReplaceStep(
        RESTORING,
        "RestoreOptions",
        "what is deleted with the VM to be as it was",
        "what is deleted with the VM is as it was",
        900,
    ),
    ReplaceStep(EXTENDING, "AddExtensions", "its extensions to be there", "its extensions are there", 1800),
    ReplaceStep(CLEARING, "RemoveOldDisk", "the old OS disk to be gone", "the old OS disk is gone", 1800),
)
_UNDER_WAY: Final = frozenset({"creating", "updating", "deleting", "migrating"})


class Do(Enum):
    """What a step asks for, as things stand."""

    SAVE = "keep the model"
    DETACH = "detach"
    DELETE_VM = "delete the VM"
    DELETE_NEW_DISK = "delete a disk that an attempt to create has left"
    CREATE = "create the VM"
    RESTORE = "restore what is deleted with the VM"
    EXTEND = "add extensions"
    DELETE_OLD_DISK = "delete the old OS disk"
    NOTHING = "wait"


@dataclass(frozen=True)
class Seen:
    """What Azure shows.

    Args:
        vm: with its instance view; None where there is none of that name.
        disks: those of `disks_to_see` that there are, by id.
    """

    vm: Document | None
    disks: Mapping[str, Document] = field(default_factory=dict)


@dataclass(frozen=True)
class Position:
    next: Next
    do: Do = Do.NOTHING


def disks_to_see(vm: Document | None, kept: Kept | None, uid: str, scope: str) -> list[str]:
    """The ids of the disks that a position rests on."""
    if kept is None:
        return [] if vm is None or any(model.obstacles(vm)) else [_os_disk(vm)["managedDisk"]["id"]]
    if vm is None:
        return [new_disk(kept, uid, scope)]
    return [kept.os_disk] if _is_new(vm, kept, uid) else []


def new_disk(kept: Kept, uid: str, scope: str) -> str:
    """The id of the new OS disk."""
    name = model.new_disk_name(kept.name, uid)
    return f"/subscriptions/{scope}/resourceGroups/{kept.group}/providers/Microsoft.Compute/disks/{name}"


def position(seen: Seen, kept: Kept | None, job: Job) -> Position:
    """Where a replacement stands.

    Raises:
        Refusal: before the first step: it cannot be done, or would lose what is to be kept.
        Transient: there is something under the name that has nothing to do with it.
    """
    if kept is None:
        return _first(seen, job)
    where, standing = _where(job.instance), _standing(kept, job.uid)
    vm = seen.vm
    if vm is None:
        do = Do.DELETE_NEW_DISK if seen.disks else Do.CREATE
        return Position(Next(CREATING, f"there is no VM {kept.name}; {standing}", where), do)
    words = f"VM {kept.name}: {states.described(model.statuses(vm))}; {standing}"
    if _is_new(vm, kept, job.uid):
        return _new(vm, seen, kept, words, where)
    if str(vm["properties"].get("vmId")).lower() != kept.vm_id.lower():
        raise Transient(f"there is a VM {kept.name} that is neither the old one nor made by this operation; {words}")
    return _old(vm, words, where)


def _first(seen: Seen, job: Job) -> Position:
    vm, instance = seen.vm, job.instance
    if vm is None:
        raise Refusal(reasons.INSTANCE_NOT_FOUND, f"there is no VM {instance.id}")
    if wrong := list(model.obstacles(vm)):
        raise Refusal(reasons.PROVIDER_REFUSED, f"VM {instance.name} cannot be made anew: {'; '.join(wrong)}")
    lost = list(model.lost(vm, next(iter(seen.disks.values()), {})))
    if lost and job.parameters.get("keep") == "strict":
        told = f"VM {instance.name} would lose: {'; '.join(lost)}; without keep: strict it is replaced all the same"
        raise Refusal(reasons.WOULD_BE_LOST, told)
    words = f"VM {instance.name}: {states.described(model.statuses(vm))}"
    losing = f"what cannot be kept: {'; '.join(lost)}" if lost else "all can be kept"
    under_way = model.provisioning(vm) in _UNDER_WAY
    step = Next(SAVING, f"{words}; {losing}", _where(instance), under_way=under_way, progress=losing)
    return Position(step, Do.NOTHING if under_way else Do.SAVE)


def _old(vm: Document, words: str, where: str) -> Position:
    state = model.provisioning(vm)
    if state == "deleting":
        return Position(Next(DELETING, words, where, under_way=True))
    if model.is_detached(vm):
        if state in _UNDER_WAY:
            return Position(Next(DETACHING, words, where, under_way=True))
        return Position(Next(DELETING, words, where), Do.DELETE_VM)
    under_way = state in _UNDER_WAY
    return Position(Next(DETACHING, words, where, under_way=under_way), Do.NOTHING if under_way else Do.DETACH)


def _new(vm: Document, seen: Seen, kept: Kept, words: str, where: str) -> Position:
    state, power = model.provisioning(vm), states.power(model.statuses(vm))
    if state in ("creating", "deleting"):
        return Position(Next(CREATING, words, where, under_way=True))
    if state == "failed" and power is Power.RELEASED:  # it never got a host, and cannot be given other custom data
        return Position(Next(CREATING, words, where), Do.DELETE_VM if model.is_detached(vm) else Do.DETACH)
    if not model.is_restored(vm, kept):
        under_way = state in _UNDER_WAY
        return Position(Next(RESTORING, words, where, under_way=under_way), Do.NOTHING if under_way else Do.RESTORE)
    if state in _UNDER_WAY:
        return Position(Next(EXTENDING, words, where, under_way=True))
    if absent := extensions_to_add(vm, kept):
        return Position(Next(EXTENDING, f"{words}; without extensions {', '.join(absent)}", where), Do.EXTEND)
    old = seen.disks.get(kept.os_disk)
    if old is None:
        return Position(Next(None, words, where))
    owner = str(old.get("managedBy") or "")
    if owner and owner.lower() != str(vm["id"]).lower():
        return Position(Next(None, f"{words}; the old OS disk belongs to {model.last(owner)}", where))
    words = f"{words}; old OS disk {model.last(kept.os_disk)} is there"
    under_way = str((old.get("properties") or {}).get("provisioningState")).lower() == "deleting"
    return Position(Next(CLEARING, words, where, under_way=under_way), Do.NOTHING if under_way else Do.DELETE_OLD_DISK)


def extensions_to_add(vm: Document, kept: Kept) -> list[str]:
    """The names of the extensions that a virtual machine lacks, or on which they failed."""
    there = {
        str(one["name"]).lower(): str((one.get("properties") or {}).get("provisioningState")).lower()
        for one in vm.get("resources") or []
    }
    return [name for name in kept.extensions if there.get(name.lower()) in (None, "failed", "canceled")]


def _is_new(vm: Document, kept: Kept, uid: str) -> bool:
    return str(_os_disk(vm).get("name")).lower() == model.new_disk_name(kept.name, uid).lower()


def _os_disk(vm: Document) -> Document:
    disk: Document = vm["properties"]["storageProfile"]["osDisk"]
    return disk


def _standing(kept: Kept, uid: str) -> str:
    """All that exists for a replacement, by name."""
    parts = [f"its model is kept in Secret {NAMESPACE}/machineoperation-{uid}"]
    parts += [f"its network interfaces are {', '.join(kept.nics)}"]
    parts += [f"its data disks are {', '.join(kept.disks)}"] if kept.disks else []
    parts += [f"its new OS disk is {model.new_disk_name(kept.name, uid)}"]
    parts += [f"its old one {model.last(kept.os_disk)}"]
    return "; ".join(parts)


def _where(instance: Instance) -> str:
    return f"Azure, {instance.id}"
