"""Effects of InstanceAction and TerminateInstance on an instance, immediate and later.

A work request shows the progress of a launch or a termination, and the cause of a failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from unbounded_lab.cloud.history import HistoryMap
from unbounded_lab.cloud.oci import model
from unbounded_lab.cloud.oci.errors import ERRORS, OciProblem, invalid
from unbounded_lab.cloud.oci.lifecycle import EFFECTS, SETTLED, SOFT, ActionEffect, InstanceAction, InstanceState
from unbounded_lab.cloud.oci.tenancy import Tenancy

ACCEPTED_S: Final = 0.1
"""Time for which a work request is ACCEPTED before it is IN_PROGRESS."""
NO_HOST: Final = ERRORS["OutOfHostCapacity"]
RESTARTS: Final = frozenset({InstanceAction.RESET, InstanceAction.SOFTRESET})


def act(
    tenancy: Tenancy, instance: model.OciInstance, action: InstanceAction, now: float
) -> model.LabWorkRequest | None:
    """Begin a power action; returns its work request, if the faults give it one.

    Raises:
        OciProblem: the instance's state does not allow it, or another action is in progress.
    """
    _interfere(tenancy, instance, now)
    if not _is_needed(tenancy, instance, action, now):
        return None
    if tenancy.spend("deaf_actions"):
        tenancy.record(now, instance, "unheard", action.value)
        return None
    tenancy.begin(instance, now)
    tenancy.record(now, instance, "asked", action.value)
    work = None if tenancy.faults.action_work == "none" else begin_work(tenancy, "InstanceAction", instance, now)
    starts = EFFECTS[instance.state][action] is ActionEffect.START
    error = NO_HOST if (starts or action in RESTARTS) and tenancy.spend("failing_starts") else None
    if starts:
        _start(tenancy, instance, now, _StartedAction(work, error))
    else:
        _stop(tenancy, instance, action, now, _StartedAction(work, error))
    return work


def _interfere(tenancy: Tenancy, instance: model.OciInstance, now: float) -> None:
    """Simulate an image or a move of the instance by another client, if the faults require it."""
    for fault, state, takes_s in (
        ("images_first", InstanceState.CREATING_IMAGE, tenancy.times.image_s),
        ("moves_first", InstanceState.MOVING, tenancy.times.move_s),
    ):
        if instance.state in SETTLED and tenancy.spend(fault):
            _occupy(tenancy, instance, state, now, until=now + takes_s)


def _occupy(tenancy: Tenancy, instance: model.OciInstance, state: InstanceState, now: float, *, until: float) -> None:
    tenancy.begin(instance, now)
    before = instance.before = instance.state
    tenancy.enter(instance, state, now)
    tenancy.later_for(instance, until, lambda at: tenancy.enter(instance, before, at))


def _is_needed(tenancy: Tenancy, instance: model.OciInstance, action: InstanceAction, now: float) -> bool:
    """Return whether an action changes anything.

    Raises:
        OciProblem: it is not possible.
    """
    if instance.launch.preemptible_instance_config is not None and action is not InstanceAction.TERMINATE:
        # docs.oracle.com, Preemptible Instances; the error is not documented
        raise invalid(f"{action.value} cannot be done: instance {instance.id} is preemptible")
    effect = EFFECTS[instance.state][action]
    if effect is ActionEffect.ALREADY and tenancy.faults.already == "accepted":
        return False
    if effect in (ActionEffect.ALREADY, ActionEffect.WRONG):
        raise OciProblem(
            "IncorrectState", f"Instance {instance.id} is {instance.state.value}: {action.value} cannot be done"
        )
    if effect is ActionEffect.BUSY or now < instance.busy_until:
        raise OciProblem("Conflict", f"instance {instance.id} is currently being modified, try again later")
    return True


@dataclass(frozen=True, slots=True)
class _StartedAction:
    """A power action in progress: its work request, and the error of a start that will fail."""

    work: model.LabWorkRequest | None
    error: tuple[str, str] | None


def _start(
    tenancy: Tenancy, instance: model.OciInstance, at: float, action_state: _StartedAction, takes_s: float | None = None
) -> None:
    tenancy.enter(instance, InstanceState.STARTING, at)
    due = at + (tenancy.times.boot_s if takes_s is None else takes_s)
    spec = InstanceState.RUNNING if action_state.error is None else InstanceState.STOPPED
    tenancy.later_for(instance, due, lambda then: _arrive(tenancy, instance, spec, then, action_state))


def _stop(
    tenancy: Tenancy, instance: model.OciInstance, action: InstanceAction, now: float, begun: _StartedAction
) -> None:
    """Stop an instance, and start it again for the two kinds of RESET."""
    restarts = action in RESTARTS
    instance.shown = InstanceState.RUNNING if restarts and tenancy.faults.reset_shown == "running" else None
    tenancy.enter(instance, InstanceState.STOPPING, now)
    if tenancy.faults.stop_never_ends:
        return
    due = now + _stop_takes_s(tenancy, action)
    if restarts:
        half_s = None if tenancy.faults.reset_s is None else tenancy.faults.reset_s / 2
        tenancy.later_for(instance, due, lambda at: _start(tenancy, instance, at, begun, half_s))
    else:
        tenancy.later_for(instance, due, lambda at: _arrive(tenancy, instance, InstanceState.STOPPED, at, begun))


def _stop_takes_s(tenancy: Tenancy, action: InstanceAction) -> float:
    if action is InstanceAction.RESET and tenancy.faults.reset_s is not None:
        return tenancy.faults.reset_s / 2
    if action not in SOFT:
        return tenancy.times.stop_s
    return tenancy.times.soft_limit_s if tenancy.faults.os_ignores_shutdown else tenancy.times.soft_stop_s


def _arrive(
    tenancy: Tenancy, instance: model.OciInstance, state: InstanceState, at: float, begun: _StartedAction
) -> None:
    instance.shown = None
    tenancy.enter(instance, state, at)
    if begun.work is not None:
        end_work(tenancy, begun.work, at, error=begun.error)


def terminate(
    tenancy: Tenancy, instance: model.OciInstance, now: float, *, keep_boot_volume: bool, keep_data_volumes: bool | None
) -> model.LabWorkRequest | None:
    """Begin the termination of an instance; None if it has begun before.

    Args:
        keep_data_volumes: those created with the instance; required where there are any.

    Raises:
        OciProblem: it is TERMINATED, or another action is in progress.
    """
    if EFFECTS[instance.state][InstanceAction.TERMINATE] is ActionEffect.ALREADY:
        return None
    _is_needed(tenancy, instance, InstanceAction.TERMINATE, now)
    made_with_it = [
        each for each in tenancy.attachments_of(tenancy.volume_attachments, instance) if each.created_at_launch
    ]
    if made_with_it and keep_data_volumes is None:
        raise invalid(  # seen in therealcmj/ociextirpater#6
            f"Invalid instance: {instance.id} (You must specify a value for preserveDataVolumesCreatedAtLaunch to "
            "terminate the instance.)"
        )
    tenancy.begin(instance, now)
    tenancy.record(now, instance, "asked", InstanceAction.TERMINATE.value)
    instance.shown = None
    instance.keep_boot_volume, instance.keep_data_volumes = keep_boot_volume, keep_data_volumes is not False
    tenancy.enter(instance, InstanceState.TERMINATING, now)
    for earlier in [each for each in tenancy.work_requests if each.instance_id == instance.id and not each.finished]:
        end_work(tenancy, earlier, now, error=("Conflict", "The instance was terminated."))
    work = begin_work(tenancy, "TerminateInstance", instance, now)
    if tenancy.faults.terminate != "stuck":
        tenancy.later_for(instance, now + tenancy.times.terminate_s, lambda at: _finish(tenancy, instance, work, at))
    return work


def _finish(tenancy: Tenancy, instance: model.OciInstance, work: model.LabWorkRequest, at: float) -> None:
    end(tenancy, instance, at)
    end_work(tenancy, work, at)


def end(tenancy: Tenancy, instance: model.OciInstance, at: float) -> None:
    """Set an instance to TERMINATED, and delete its resources as the faults and its last request require."""
    instance.turn += 1
    instance.ended = at
    leaves = tenancy.faults.terminate
    for attachment in _detached(tenancy, tenancy.vnic_attachments, instance, at):
        vnic = tenancy.vnics.get(attachment.target_id)
        if vnic is not None and leaves != "leaves-vnic":
            vnic.state = model.ResourceState.TERMINATED
            tenancy.record(at, vnic, "deleted")
            tenancy.vnics.put(vnic, at)
            tenancy.vnics.drop(vnic.id, at)
    for attachment in _detached(tenancy, tenancy.boot_volume_attachments, instance, at):
        volume = tenancy.boot_volumes.get(attachment.target_id)
        if volume is not None and not instance.keep_boot_volume and leaves != "leaves-boot-volume":
            tenancy.end_volume(tenancy.boot_volumes, volume, at)
    for attachment in _detached(tenancy, tenancy.volume_attachments, instance, at):
        volume = tenancy.volumes.get(attachment.target_id)
        if volume is not None and attachment.created_at_launch and not instance.keep_data_volumes:
            tenancy.end_volume(tenancy.volumes, volume, at)
    tenancy.enter(instance, InstanceState.TERMINATED, at)
    tenancy.record(at, instance, "deleted")
    shown_s = tenancy.times.terminated_shown_s if tenancy.faults.terminated_shown else 0.0
    tenancy.agenda.put(at + shown_s, lambda due: _purge(tenancy, instance, due))


def _purge(tenancy: Tenancy, instance: model.OciInstance, at: float) -> None:
    """Remove an instance, its attachments and its work requests."""
    tenancy.instances.drop(instance.id, at)
    for shelf in (tenancy.vnic_attachments, tenancy.boot_volume_attachments, tenancy.volume_attachments):
        for attachment in [each for each in shelf if each.instance_id == instance.id]:
            shelf.drop(attachment.id, at)
    for work in [each for each in tenancy.work_requests if each.instance_id == instance.id and each.finished]:
        tenancy.work_requests.drop(work.id, at)


def _detached(
    tenancy: Tenancy, shelf: HistoryMap[model.Attachment], instance: model.OciInstance, at: float
) -> list[model.Attachment]:
    attachments = list(tenancy.attachments_of(shelf, instance))
    for attachment in attachments:
        tenancy.link(shelf, attachment, model.AttachmentState.DETACHED, at)
    return attachments


def begin_work(tenancy: Tenancy, operation: str, instance: model.OciInstance, now: float) -> model.LabWorkRequest:
    work = model.LabWorkRequest(
        tenancy.new_id("coreservicesworkrequest"), operation, instance.compartment_id, instance.id, now
    )
    tenancy.work_requests.put(work, now)
    tenancy.agenda.put(now + ACCEPTED_S, lambda at: _next_phase(tenancy, work, at))
    return work


def _next_phase(tenancy: Tenancy, work: model.LabWorkRequest, at: float) -> None:
    if work.finished is None:
        work.started, work.status = at, model.WorkStatus.IN_PROGRESS
        tenancy.work_requests.put(work, at)


def end_work(tenancy: Tenancy, work: model.LabWorkRequest, at: float, *, error: tuple[str, str] | None = None) -> None:
    """Finish a work request; with an error (code and message), it has FAILED."""
    work.started = work.started if work.started is not None else at
    work.finished, work.error = at, error
    work.status = model.WorkStatus.SUCCEEDED if error is None else model.WorkStatus.FAILED
    if tenancy.faults.work_requests == "vanish":
        tenancy.work_requests.drop(work.id, at)
    else:
        tenancy.work_requests.put(work, at)
