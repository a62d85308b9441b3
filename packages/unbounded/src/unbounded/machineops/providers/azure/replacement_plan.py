"""HostReplace of a virtual machine: the current step, from the state in Azure and the replacement state in the Secret.

The steps save the model, detach what must outlive the virtual machine, delete it, and create it again under its name.
The new one is identified by the name of its OS disk, which contains the operation's UID.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from unbounded.machineops import provider, reasons
from unbounded.machineops.providers.azure import model, vm_properties
from unbounded.machineops.providers.azure.errors import CAPACITY
from unbounded.machineops.providers.azure.model import Document, VmReplacementState

SAVING: Final = "Saving"
DETACHING: Final = "Detaching"
DELETING: Final = "DeletingOld"
CREATING: Final = "Creating"
RESTORING: Final = "RestoringOptions"
EXTENDING: Final = "AddingExtensions"
CLEARING: Final = "RemovingOldDisk"

STEPS: Final = (
    provider.ReplaceStep(
        SAVING,
        "Save",
        "the VM's model to be stored",
        "the VM's model is stored",
        300,
        provider.Cancel.AT_ONCE,
        settles=False,
    ),
    provider.ReplaceStep(
        DETACHING,
        "Detach",
        "network interfaces and data disks to outlive the VM",
        "network interfaces and data disks outlive the VM",
        900,
        provider.Cancel.AT_ONCE,
        undo=True,
        needs_what_is_kept=True,  # Azure does not show what was deleted with the VM
        settles=False,
    ),
    provider.ReplaceStep(
        DELETING,
        "DeleteOld",
        "the old VM to be deleted",
        "the old VM is deleted",
        1800,
        undo=True,
        needs_what_is_kept=True,
    ),
    provider.ReplaceStep(
        CREATING,
        "Create",
        "the new VM to exist",
        "the new VM exists",
        1800,
        needs_user_data=True,
        needs_what_is_kept=True,
        settles=False,
    ),
    provider.ReplaceStep(
        RESTORING,
        "RestoreOptions",
        "the delete options of its resources to be restored",
        "the delete options of its resources are restored",
        900,
        settles=False,
    ),
    provider.ReplaceStep(
        EXTENDING,
        "AddExtensions",
        "its extensions to be created",
        "the creation of its extensions has ended",
        3600,
        settles=False,
    ),
    provider.ReplaceStep(
        CLEARING, "RemoveOldDisk", "the old OS disk to be deleted", "the old OS disk is deleted", 1800, settles=False
    ),
)
NOT_MADE: Final = ""  # as the old VM exists
NOT_OBSERVED: Final = "its new OS disk, if one was made, is"
IS_THERE: Final = "its new OS disk is"
MAX_WHERE: Final = 2048  # of evidence, by its schema
_UNDER_WAY: Final = frozenset({"creating", "updating", "deleting", "migrating"})


class AzureAction(Enum):
    """Action of a step in the current situation."""

    SAVE = "keep the model"
    TAKE_UP = "keep the model that an earlier replacement has left"
    DETACH = "detach"
    DELETE_OLD = "delete the VM, as long as it is as it was kept"
    DELETE_VM = "delete the VM"
    CREATE = "create the VM"
    RESTORE = "restore what is deleted with the VM"
    EXTEND = "add extensions"
    DELETE_DISK = "delete an OS disk that is left"
    NOTHING = "wait"


@dataclass(frozen=True)
class AzureObservation:
    """Observation of a replacement: resources in Azure, and the state in the cluster.

    Args:
        vm: with its instance view; None if the name does not exist.
        disks: existing ones of `disks_to_read`, by id.
        kept: state of this operation.
        former: state of an earlier replacement that did not complete.
        place: reference to that state, for messages.
        missing: why the image of the VM is not available any more; empty if it is.
        unsure: possible loss that could not be checked.
        creation: progress of the long call of the creation, if that is known and there is no VM.
    """

    vm: Document | None
    disks: Mapping[str, Document] = field(default_factory=dict)
    kept: VmReplacementState | None = None
    former: VmReplacementState | None = None
    place: str = ""
    missing: str = ""
    unsure: str = ""
    creation: provider.Progress | None = None


@dataclass(frozen=True)
class StepDecision:
    """Current step of a replacement, and the action to take.

    Args:
        disk: id of the disk to delete.
    """

    next: provider.Next
    do: AzureAction = AzureAction.NOTHING
    disk: str = ""


def disks_to_read(vm: Document | None, state: VmReplacementState | None) -> list[str]:
    """Return the ids of the disks that `decide` needs."""
    if state is None:
        unfit = vm is None or any(model.obstacles(vm)) or model.pending_disks(vm)
        return [] if vm is None or unfit else [_os_disk(vm)["managedDisk"]["id"]]
    if vm is None:
        return [state.new_disk]
    if not model.is_made_by(vm, state) or model.pending_disks(vm):
        return []
    is_whole = _decide_new(vm, AzureObservation(vm, kept=state), state, "", "").next.step is None
    return _to_clear(state) if is_whole else []


def _to_clear(state: VmReplacementState) -> list[str]:
    return [state.os_disk, *state.former_disks]


def decide(observation: AzureObservation, job: provider.Job) -> StepDecision:
    """Decide the current step of a replacement.

    Raises:
        Refusal: before the first step: the replacement is impossible, or would lose something that must be kept.
        Transient: an unrelated virtual machine has the name.
    """
    if observation.kept is None:
        return _decide_first(observation, job)
    found = _decide_begun(observation, observation.kept, _where(job.instance))
    return replace(found, next=replace(found.next, still_needed=_is_needed(observation.vm, observation.kept)))


def _is_needed(vm: Document | None, state: VmReplacementState) -> bool:
    """Return whether the next replacement needs the state, as the virtual machine does not show all of it or soon will
    not.
    """
    if vm is None or not model.is_old(vm, state) or model.provisioning(vm) == "deleting":
        return True
    return model.has_former_parts(state) or not model.is_put_back(vm, state)


def _decide_begun(observation: AzureObservation, state: VmReplacementState, where: str) -> StepDecision:
    vm = observation.vm
    again = "a new HostReplace of the Machine with its spec.providerID"
    if vm is None:
        stays = "as long as there is this operation, or that Machine"
        source = f"its model in {observation.place}, which stays {stays}"
        words = f"VM {state.name} does not exist: {again} continues from {source}"
        words = f"{words}; {_describe_resources(state, NOT_OBSERVED)}"
        return _decide_without_vm(observation, state, words, where)
    is_new = model.is_made_by(vm, state)
    standing = _describe_resources(state, IS_THERE if is_new else NOT_MADE)
    words = f"VM {state.name}: {_power_text(vm)}; its model is in {observation.place}; {standing}"
    if not is_new and not model.is_old(vm, state):
        raise provider.Transient(
            f"a VM {state.name} exists that is neither the old one nor created by this operation; {words}"
        )
    if arriving := model.pending_disks(vm):
        words = f"{words}; not attached yet: {', '.join(arriving)}"
        return StepDecision(provider.Next(CREATING if is_new else DETACHING, words, where, under_way=True))
    if is_new:
        return _decide_new(vm, observation, state, words, where)
    return _decide_old(vm, state, f"{words}; {again} starts again", where)


def _decide_without_vm(
    observation: AzureObservation, state: VmReplacementState, words: str, where: str
) -> StepDecision:
    """Decide the step while neither the old VM nor the new one exists."""
    creation = observation.creation
    if creation is not None and creation.state is provider.State.RUNNING:
        return StepDecision(provider.Next(CREATING, words, where, under_way=True, again_s=creation.again_s))
    failed = None
    if creation is not None and creation.state is provider.State.FAILED:
        failed = provider.NotDone(_failure(creation.detail), f"Azure created no VM: {creation.detail}")
    following = provider.Next(CREATING, words, where, failed=failed)
    return (
        StepDecision(following, AzureAction.DELETE_DISK, state.new_disk)
        if observation.disks
        else StepDecision(following, AzureAction.CREATE)
    )


def _failure(message: str) -> str:
    """Return the reason of a failed long call from its message."""
    if any(code in message for code in CAPACITY):
        return reasons.NO_CAPACITY
    return reasons.QUOTA_EXCEEDED if "quota" in message.lower() else reasons.PROVIDER_OPERATION_FAILED


def _decide_first(observation: AzureObservation, job: provider.Job) -> StepDecision:
    vm, instance, former = observation.vm, job.instance, observation.former
    if former is not None and _is_only_record(vm, former):
        resources = _describe_resources(former, NOT_OBSERVED)
        words = f"its model is in {observation.place}, where an earlier HostReplace has left it; {resources}"
        there = f"VM {instance.name}: {_power_text(vm)}" if vm else f"VM {instance.id} does not exist"
        return StepDecision(provider.Next(SAVING, f"{there}; {words}", _where(instance)), AzureAction.TAKE_UP)
    if vm is None:
        words = f"VM {instance.id} does not exist, and {observation.place} has no model of it"
        cause = reasons.secret_cause(reasons.MODEL_MISSING, observation.place.removeprefix("Secret "))
        raise provider.Refusal(reasons.INSTANCE_NOT_FOUND, words, cause)
    if former is not None and not (model.is_old(vm, former) or model.is_made_by(vm, former)):
        other = f"VM {instance.name} is not the one whose model an earlier HostReplace has left in {observation.place}"
        words = (
            "a replacement would lose that model: remove the resources that it names and then that Secret, "
            "then create the HostReplace again"
        )
        raise provider.Refusal(
            reasons.WOULD_BE_LOST, f"{other}, and {words}; of that, {_describe_resources(former, NOT_OBSERVED)}"
        )
    if wrong := [*model.obstacles(vm), *filter(None, [observation.missing])]:
        raise provider.Refusal(reasons.PROVIDER_REFUSED, f"VM {instance.name} cannot be recreated: {'; '.join(wrong)}")
    words = f"VM {instance.name}: {_power_text(vm)}"
    if arriving := model.pending_disks(vm):
        words = f"{words}; not attached yet: {', '.join(arriving)}"
        return StepDecision(provider.Next(SAVING, words, _where(instance), under_way=True))
    lost = losses(vm, next(iter(observation.disks.values()), {}), observation.unsure)
    losing = _describe_losses([each.consequence for each in lost])
    under_way = model.provisioning(vm) in _UNDER_WAY
    step = provider.Next(
        SAVING, f"{words}; {losing}", _where(instance), under_way=under_way, progress=losing, losses=tuple(lost)
    )
    return StepDecision(step, AzureAction.NOTHING if under_way else AzureAction.SAVE)


def losses(vm: Document, os_disk: Document, unsure: str = "") -> list[provider.Loss]:
    """Return the losses of a replacement.

    Args:
        unsure: possible loss that could not be checked; empty for none.
    """
    return [*model.losses(vm, os_disk), *([provider.Loss("storageProfile.imageReference", unsure)] if unsure else [])]


def _is_only_record(vm: Document | None, former: VmReplacementState) -> bool:
    """Return whether only the state of an earlier replacement exists, or also a VM that never got a host."""
    return vm is None or (model.is_made_by(vm, former) and _never_ran(vm))


def _never_ran(vm: Document) -> bool:
    """Return whether a new VM never got a host. Such a VM cannot be given other custom data."""
    return model.provisioning(vm) == "failed" and vm_properties.power(model.statuses(vm)) is provider.Power.RELEASED


def _decide_old(vm: Document, stored: VmReplacementState, words: str, where: str) -> StepDecision:
    """Decide the step while the old VM exists. The message and the evidence of these steps name all losses."""
    state, losing = model.provisioning(vm), _describe_losses([*stored.lost, *filter(None, [stored.unsure])])
    message = f"{where}; {losing}"[:MAX_WHERE]
    if state == "deleting":
        return StepDecision(provider.Next(DELETING, words, message, under_way=True, progress=losing))
    if state in _UNDER_WAY or not model.is_put_back(vm, stored):
        words = f"{words}; deleteOption is changed, and was {model.describe_options(stored)}"
    if state in _UNDER_WAY:
        return StepDecision(provider.Next(DETACHING, words, message, under_way=True, progress=losing))
    is_as_it_was = state == "succeeded" and model.is_put_back(
        vm, stored
    )  # after a failure, its deletion may have begun
    step = DELETING if model.is_detached_as_kept(vm, stored) else DETACHING
    following = provider.Next(step, words, message, progress=losing, is_as_it_was=is_as_it_was)
    return StepDecision(following, AzureAction.DELETE_OLD if step == DELETING else AzureAction.DETACH)


def _describe_losses(lost: Sequence[str]) -> str:
    return f"losses: {'; '.join(lost)}" if lost else "the new VM keeps everything in its model"


def _decide_new(
    vm: Document, observation: AzureObservation, stored: VmReplacementState, words: str, where: str
) -> StepDecision:
    state = model.provisioning(vm)
    if state in ("creating", "deleting"):
        return StepDecision(provider.Next(CREATING, words, where, under_way=True))
    if _never_ran(vm):
        failed = provider.NotDone(_reason(vm), f"Azure has left it as {_power_text(vm)}")
        following = provider.Next(CREATING, words, where, failed=failed)
        return StepDecision(following, AzureAction.DELETE_VM if model.is_detached(vm) else AzureAction.DETACH)
    if vm_properties.os_failed(model.statuses(vm)):  # it may still report, and a further change would hide that
        message = f"{_power_text(vm)}: it may still report; see its serial console"
        return StepDecision(provider.Next(CREATING, words, where, under_way=True, progress=message))
    if not model.is_restored(vm, stored):
        under_way = state in _UNDER_WAY
        return StepDecision(
            provider.Next(RESTORING, words, where, under_way=under_way),
            AzureAction.NOTHING if under_way else AzureAction.RESTORE,
        )
    if state in _UNDER_WAY:
        return StepDecision(provider.Next(EXTENDING, words, where, under_way=True))
    trouble = extension_faults(vm, stored)
    if state == "failed" and "failed" not in model.extensions(vm).values():
        return _failed_otherwise(stored, words, where)
    if trouble:
        words, where = f"{words}; {'; '.join(trouble)}", f"{where}; {'; '.join(trouble)}"[:MAX_WHERE]
    if absent := extensions_to_add(vm, stored):
        progress, more = f"{', '.join(absent)} to be created", len(absent) < len(stored.extensions)
        words = f"{words}; without extensions {', '.join(absent)}"
        return StepDecision(provider.Next(EXTENDING, words, where, progress=progress, more=more), AzureAction.EXTEND)
    return _clearing(vm, observation, stored, words, where)


def _reason(vm: Document) -> str:
    """Return why a new VM never got a host."""
    codes = {str(one.get("code")).rpartition("/")[2] for one in model.statuses(vm)}
    return reasons.NO_CAPACITY if codes & CAPACITY else reasons.PROVIDER_OPERATION_FAILED


def _failed_otherwise(state: VmReplacementState, words: str, where: str) -> StepDecision:
    """Decide the step for a new VM whose creation, or a later change, has failed. A repeated change shows its state."""
    if model.is_detached(state.body):
        return StepDecision(provider.Next(CREATING, words, where, under_way=True))
    return StepDecision(provider.Next(RESTORING, words, where), AzureAction.RESTORE)


def _clearing(
    vm: Document, observation: AzureObservation, state: VmReplacementState, words: str, where: str
) -> StepDecision:
    """Decide about the OS disks that remain."""
    theirs = []
    for disk_id in _to_clear(state):
        disk, name = observation.disks.get(disk_id), model.last(disk_id)
        if disk is None:
            continue
        owner = str(disk.get("managedBy") or "")
        if owner and owner.lower() != str(vm["id"]).lower():
            theirs.append(f"OS disk {name} belongs to {model.last(owner)}")
            continue
        words = "; ".join((words, *theirs, f"OS disk {name} exists"))
        under_way = str((disk.get("properties") or {}).get("provisioningState")).lower() == "deleting"
        step = provider.Next(CLEARING, words, where, under_way=under_way)
        return StepDecision(step, AzureAction.NOTHING if under_way else AzureAction.DELETE_DISK, disk_id)
    return StepDecision(
        provider.Next(None, "; ".join((_final_message(vm, state), *theirs, *extension_faults(vm, state))), where)
    )


def _power_text(vm: Document) -> str:
    return vm_properties.describe(model.statuses(vm))


def _final_message(vm: Document, state: VmReplacementState) -> str:
    """Return the final message of a replacement."""
    new = f"VM {state.name} is recreated, with OS disk {state.new_disk_name}: {_power_text(vm)}"
    old = f"the old one is gone, and the content of its OS disk {model.last(state.os_disk)}"
    lost = f"losses: {'; '.join(state.lost)}" if state.lost else "the new VM has everything in the old one's model"
    return f"{new}; {old}; {lost}"


def extension_faults(vm: Document, stored: VmReplacementState) -> list[str]:
    """Return messages about extensions that the new virtual machine lacks or that have failed."""
    failed = [name for name, state in model.extensions(vm).items() if state == "failed"]
    return [*(f"extension {name} has failed" for name in failed), *stored.refused.values()]


def extensions_to_add(vm: Document, stored: VmReplacementState) -> list[str]:
    """Return the names of the extensions that a virtual machine lacks; a failed one counts as present."""
    there = {name.lower() for name, state in model.extensions(vm).items() if state != "canceled"}
    return [name for name in stored.extensions if name.lower() not in there and name not in stored.refused]


def _os_disk(vm: Document) -> Document:
    disk: Document = vm["properties"]["storageProfile"]["osDisk"]
    return disk


def _describe_resources(state: VmReplacementState, new_disk: str) -> str:
    """List all resources of a replacement by name.

    Args:
        new_disk: phrase about the new OS disk.
    """
    old_disk = "its OS disk is" if new_disk == NOT_MADE else "its old one, unless it is gone by now, is"
    parts = [f"its network interfaces are {', '.join(state.nics)}"]
    parts += [f"its data disks are {', '.join(state.disks)}"] if state.disks else []
    parts += [f"{new_disk} {state.new_disk_name}"] if new_disk != NOT_MADE else []
    parts += [f"{old_disk} {model.last(state.os_disk)}"]
    parts += [f"OS disk {model.last(disk)} belongs to an earlier HostReplace" for disk in state.former_disks]
    parts += [_describe_losses(state.lost)] if state.lost else []
    return "; ".join(parts)


def _where(instance: provider.Instance) -> str:
    return f"Azure, {instance.id}"
