"""The update of one Machine by a rolling update: from its start to its result. Pure.

An update creates the Node again from another version: the agent downloads it, the Node is drained and deleted, and the
agent creates it. Where the image of the host is outdated, the update is a HostReplace instead, which goes through the
same gate by itself, writes the image, and so creates the Node, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from msgspec.structs import replace as changed

from unbounded.api.conditions import ConditionStatus, ConditionType
from unbounded.api.configuration import MachineConfigurationVersion
from unbounded.api.core import Node
from unbounded.api.disruption import DisruptionStage, DrainMode
from unbounded.api.machine import (
    NODE_RECREATION,
    Machine,
    NodeUpdate,
    NodeUpdatePhase,
    PreparedVersion,
    RecentOperation,
)
from unbounded.api.names import API_VERSION
from unbounded.api.operation import MachineOperation, OperationKind, OperationPhase
from unbounded.kube.clock import rfc3339, seconds_since
from unbounded.operations import reasons
from unbounded.operations.claim_gates import in_maintenance, is_paused
from unbounded.operations.disruption.model import foreign_maintenance, is_cordoned_by_us
from unbounded.operations.executor_selection import bmc_of
from unbounded.operations.rollout_plan import ready_at

RECREATE_S: Final = 3600.0  # from the deletion of the Node, while its agent does not recreate it
REPORT_S: Final = 300.0  # from the end of a HostReplace, until its agent has reported the version of the Node
DOWNLOAD_S: Final = 600.0  # from the request of a download; then others take the turn of its Machine
REPLACE_RETENTION_S: Final = 86400  # retention of an ended HostReplace, for users; the Machine records its result
MAX_TEXT: Final = 512
NO_AGENT: Final = "no agent has reported from its host, which would create the Node again: install one"
WITHDRAWN: Final = "the update was stopped before the HostReplace began, so it is cancelled"
_P = NodeUpdatePhase
OPEN: Final = frozenset({_P.PREPARING, _P.DRAINING, _P.RECREATING, _P.REPLACING})
_STARTED: Final = OPEN - {_P.PREPARING}
_BEFORE_DELETION: Final = frozenset({_P.PREPARING, _P.DRAINING})


@dataclass(frozen=True)
class UpdateMember:
    """A Machine of the configuration that has, or had, a Node.

    Args:
        image: of the host, where it is outdated; None for an update of the Node alone.
        is_released: its turn is recorded, for the present version.
        is_late: its download has not completed for long; meanwhile others take its turn.
        operation: the HostReplace of its update.
    """

    machine: Machine
    node: Node | None
    target: MachineConfigurationVersion
    image: str | None = None
    is_released: bool = False
    is_late: bool = False
    operation: MachineOperation | None = None

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def update(self) -> NodeUpdate | None:
        return self.machine.status.node_update

    @property
    def has_version(self) -> bool:
        made = self.machine.status.configuration
        return made is not None and made.version_name == self.target.metadata.name

    @property
    def is_updated(self) -> bool:
        return self.has_version and self.image is None

    @property
    def is_running(self) -> bool:
        """True from the start of the update until its Node is usable again; a download ahead of its turn is none."""
        update, record = self.update, self.machine.status.disruption
        if update is not None and update.phase in OPEN:
            return update.phase in _STARTED or (self.is_released and not self.is_late)
        if record is None:
            return False
        is_its = update is not None and update.operation == record.holder.name
        return record.holder.kind == NODE_RECREATION or (is_its and record.holder.kind == OperationKind.HOST_REPLACE)

    @property
    def has_failed(self) -> bool:
        """True where the update to the target, as it is now, failed; by its name, which `unbounded migrate` keeps.

        A version that no Node has come from is edited in place, so a failure counts for the generation that it was of.
        """
        update, meta = self.update, self.target.metadata
        if update is None or update.version != meta.name or update.phase != _P.FAILED:
            return False
        if update.uid == meta.uid and update.generation not in (0, meta.generation):  # 0: migrated, so of the version
            return False
        return not self.is_updated and update.image in (None, self.image)

    @property
    def is_prepared(self) -> bool:
        """True where the agent has everything that a Node of the version needs, or metalman the image of the host."""
        if self.image is not None:
            return _has_image(self.machine)
        agent, meta = self.machine.status.agent, self.target.metadata
        done = None if agent is None else agent.prepared
        return done is not None and done.complete and (done.version, done.generation) == (meta.name, meta.generation)


def outdated_image(machine: Machine, node: Node | None) -> str | None:
    """Return the image that the host is to be replaced with; None where that is not needed, or not known to be.

    A HostReplace that wrote the image, and whose Node is not Ready since, is still to be repeated.
    """
    pxe, written, update = machine.spec.pxe, machine.status.image, machine.status.node_update
    if pxe is None or pxe.image is None or bmc_of(machine) is None:
        return None
    if update is not None and update.image == pxe.image and update.phase in (_P.FAILED, _P.PENDING):
        is_recovered = written is not None and written.is_of(pxe.image) and node is not None and node.ready
        return None if is_recovered else pxe.image
    return None if written is None or written.is_of(pxe.image) else pxe.image


def has_unknown_image(machine: Machine, node: Node | None) -> bool:
    """Return whether a host is left alone because nothing has recorded the image on its disk."""
    if bmc_of(machine) is None or machine.status.image is not None or machine.status.active_operation is not None:
        return False  # during an installation it is absent, too
    return outdated_image(machine, node) is None


def replace_command(machine: str) -> str:
    """Return the command that writes the image of a host, and so makes it known."""
    return f"kubectl unbounded machine replace {machine}"


def blocked_by(member: UpdateMember) -> tuple[str, str] | None:
    """Return why the update of a Machine cannot start, and the object that it waits for; None where it can."""
    if (blocker := update_blocker(member.machine, member.node, image=member.image)) is not None:
        return blocker
    if member.target.about_to_change:
        name = member.target.metadata.name
        return f"MachineConfigurationVersion {name} is about to change", f"MachineConfigurationVersion {name}"
    return None


def passed_over_by(member: UpdateMember, now: datetime) -> tuple[str, str] | None:
    """Return why others take the turn of a Machine, and the object that it waits for; None where it takes it."""
    blocker = blocked_by(member)
    if blocker is not None or not member.is_late:
        return blocker
    _reason, held_by, text = running_wait(member.machine, now)
    return text, held_by


def update_blocker(machine: Machine, node: Node | None, *, image: str | None) -> tuple[str, str] | None:
    """Return what of a Machine and its Node prevents the start of an update, and its object; None for nothing.

    Args:
        image: that the host is to be replaced with, which brings an agent.
    """
    if node is None:
        return "it has no Node: its agent creates one from the newest version", f"Machine {machine.name}"
    if is_paused(machine.metadata.annotations):
        return "it is paused", f"Machine {machine.name}"
    if in_maintenance(machine):
        return "it is in maintenance", f"Machine {machine.name}"
    if (foreign := foreign_maintenance(node)) is not None:
        return foreign.text, foreign.held_by
    if node.spec.unschedulable and not is_cordoned_by_us(node):
        return f"Node {node.metadata.name} is cordoned, which a new Node would not be", f"Node {node.metadata.name}"
    if image is None and machine.status.agent is None:
        return NO_AGENT, f"Machine {machine.name}"
    return None


# The next step


@dataclass(frozen=True)
class MemberStep:
    """The next step of one Machine: its record, or what is to be done where the record is as it should be."""

    update: NodeUpdate | None
    delete: bool = False
    create: bool = False
    cancel: bool = False
    requeue_s: float | None = None


def advance(member: UpdateMember, now: datetime, *, may_start: bool, may_prepare: bool = False) -> MemberStep:
    """Return the next step of a Machine.

    Args:
        may_start: the update is recorded as started, and nothing stops it.
        may_prepare: its agent, or metalman for an image, may download before its turn.
    """
    update, target = member.update, member.target
    is_wanted = may_start or may_prepare
    if update is None or update.phase not in OPEN:
        is_its = update is not None and update.uid == target.metadata.uid
        if update is not None and is_its and update.phase != _P.COMPLETE and member.is_updated:
            return MemberStep(_completed(member, update, now))  # its agent, or a user, has tried again
        is_due = is_wanted and not member.is_updated and not member.has_failed and blocked_by(member) is None
        return MemberStep(_prepare(member, now) if is_due else update)
    if update.phase == _P.RECREATING:
        return _recreating(member, update, now)
    if update.phase == _P.REPLACING:
        return _replacing(member, update, now, may_start=may_start)
    if member.is_updated:  # in place
        return MemberStep(_completed(member, update, now))
    if blocked_by(member) is not None or not (is_wanted if update.phase == _P.PREPARING else may_start):
        return MemberStep(None)
    wanted = (target.metadata.uid, target.metadata.generation, member.image)
    if (update.uid, update.generation, update.image) != wanted:
        return MemberStep(_prepare(member, now))
    if update.phase == _P.PREPARING:
        left_s = _late_in_s(member.machine, update, now)
        return MemberStep(_prepared(member, update, now) if may_start else update, requeue_s=left_s)
    return MemberStep(_draining(member, update, now))


def ends_now(member: UpdateMember, *, going: bool) -> bool:
    """Return whether an update ends at once, as its Node exists, and it is stopped or not wanted any more."""
    update = member.update
    if update is None or update.phase not in _BEFORE_DELETION:
        return False
    return not going or member.is_updated or blocked_by(member) is not None


def _prepare(member: UpdateMember, now: datetime) -> NodeUpdate:
    meta = member.target.metadata
    return NodeUpdate(
        version=meta.name,
        uid=meta.uid,
        generation=meta.generation or 0,
        phase=_P.PREPARING,
        since=rfc3339(now),
        image=member.image,
    )


def _prepared(member: UpdateMember, update: NodeUpdate, now: datetime) -> NodeUpdate:
    """Return the update in its next phase, once everything is downloaded."""
    if not _has_downloaded(member.machine, update):
        return update
    if update.image is None:
        return _entered(update, _P.DRAINING, now)
    return changed(_entered(update, _P.REPLACING, now), operation=_operation_name(member.machine, update))


def _draining(member: UpdateMember, update: NodeUpdate, now: datetime) -> NodeUpdate:
    machine, node = member.machine, member.node
    record, active = machine.status.disruption, machine.status.active_operation
    if record is None or record.holder.uid != update.uid or record.holder.kind != NODE_RECREATION:
        return update
    if record.reason == reasons.DRAIN_TIMED_OUT:
        return _entered(update, _P.FAILED, now, record.message or "the drain of the Node timed out")
    is_ours = node is not None and record.cordoned and record.node_uid == node.metadata.uid
    if node is None or record.stage != DisruptionStage.DRAINED or not is_ours or active is not None:
        return update
    entered = _entered(update, _P.RECREATING, now)
    last = _last_recreation(machine)
    return changed(entered, node_uid=node.metadata.uid, recreation=None if last is None else last.uid)


def _recreating(member: UpdateMember, update: NodeUpdate, now: datetime) -> MemberStep:
    machine, node, active = member.machine, member.node, member.machine.status.active_operation
    if node is not None and node.metadata.uid == update.node_uid:
        return MemberStep(update, delete=active is None)
    if active is not None and not active.lost:
        return MemberStep(update)
    result = _last_recreation(machine)
    if result is not None and result.uid != update.recreation:
        if result.phase == OperationPhase.FAILED:
            return MemberStep(_entered(update, _P.FAILED, now, result.message or "the recreation failed"))
        if node is not None and node.ready:
            return MemberStep(_completed(member, update, now))
    left_s = RECREATE_S - seconds_since(update.since, now)
    if left_s > 0 or is_paused(machine.metadata.annotations):
        return MemberStep(update, requeue_s=left_s if left_s > 0 else None)
    what = "its Node is not Ready" if node is not None else "its agent has not created the Node again"
    text = f"{what}, {RECREATE_S:.0f} s after Node {machine.name} was deleted"
    return MemberStep(_entered(update, _P.FAILED, now, text))


def _last_recreation(machine: Machine) -> RecentOperation | None:
    """Return the result of the last recreation of the Node."""
    return next((one for one in reversed(machine.status.recent_operations) if one.kind == NODE_RECREATION), None)


def _completed(member: UpdateMember, update: NodeUpdate, now: datetime) -> NodeUpdate:
    since = rfc3339(now) if member.node is None else ready_at(member.node, now)
    return changed(update, phase=_P.COMPLETE, since=since, message=None)


def _entered(update: NodeUpdate, phase: NodeUpdatePhase, now: datetime, message: str | None = None) -> NodeUpdate:
    text = None if message is None else message[:MAX_TEXT]
    return changed(update, phase=phase, since=rfc3339(now), message=text)


# The replacement of a host


def _operation_name(machine: Machine, update: NodeUpdate) -> str:
    """Return the name of the HostReplace of an update. It is recorded before the operation is created."""
    parts = (machine.metadata.uid, update.uid, str(update.generation), update.image or "", update.since)
    return f"{machine.name}-image-{hashlib.sha256('/'.join(parts).encode()).hexdigest()[:10]}"


def replace_manifest(machine: Machine, update: NodeUpdate) -> Mapping[str, Any]:
    """Return the HostReplace of an update: drained as every rolling update, with or without budgets."""
    owner = {"apiVersion": API_VERSION, "kind": "Machine", "name": machine.name, "uid": machine.metadata.uid}
    return {
        "metadata": {"name": update.operation, "ownerReferences": [owner]},
        "spec": {
            "machineRef": machine.name,
            "operationKind": OperationKind.HOST_REPLACE.value,
            "drain": {"mode": DrainMode.ALWAYS.value},
            "ttlSecondsAfterFinished": REPLACE_RETENTION_S,
        },
    }


def _replacing(member: UpdateMember, update: NodeUpdate, now: datetime, *, may_start: bool) -> MemberStep:
    operation, machine = member.operation, member.machine
    is_its = (update.uid, update.image) == (member.target.metadata.uid, member.image)
    is_wanted = may_start and is_its and blocked_by(member) is None
    if operation is None:
        return _without_operation(member, update, now, is_wanted=is_wanted)
    if (operation.spec.machine_ref, operation.spec.operation_kind) != (machine.name, OperationKind.HOST_REPLACE):
        text = f"MachineOperation {operation.name} exists, and is no HostReplace of this Machine"
        return MemberStep(_entered(update, _P.FAILED, now, text))
    if operation.terminal:
        status = operation.status
        return _replaced(member, update, now, (status.phase, status.reason, status.message, status.completed_at))
    if update.operation_uid != operation.metadata.uid:
        return MemberStep(changed(update, operation_uid=operation.metadata.uid))
    if operation.claimed or operation.spec.cancel:
        return MemberStep(update)
    if update.message == WITHDRAWN:
        return MemberStep(update, cancel=True)
    return MemberStep(update if is_wanted else changed(update, message=WITHDRAWN))


def _without_operation(member: UpdateMember, update: NodeUpdate, now: datetime, *, is_wanted: bool) -> MemberStep:
    """Return the step where the operation does not exist yet, or any more: its result outlasts it in the Machine."""
    recent = reversed(member.machine.status.recent_operations)
    ended = next((one for one in recent if one.name == update.operation), None)
    if ended is not None:
        return _replaced(member, update, now, (ended.phase, ended.reason, ended.message, ended.completed_at))
    if update.operation_uid is not None:
        return MemberStep(_entered(update, _P.FAILED, now, f"HostReplace {update.operation} was deleted"))
    return MemberStep(update, create=True) if is_wanted else MemberStep(None)


def _replaced(
    member: UpdateMember,
    update: NodeUpdate,
    now: datetime,
    ended: tuple[str | None, str | None, str | None, str | None],
) -> MemberStep:
    """Return the step after the end of the HostReplace, from its phase, reason, message and time."""
    phase, reason, message, at = ended
    if phase != OperationPhase.COMPLETE:
        is_withdrawn = reason == reasons.CANCELLED and update.message == WITHDRAWN
        text = f"HostReplace {update.operation}: {reason}: {message}"
        return MemberStep(None if is_withdrawn else _entered(update, _P.FAILED, now, text))
    written = member.machine.status.image
    if written is None or not written.is_of(update.image or ""):
        has = "is empty: an earlier metalman does not write it" if written is None else f"has {written.image}"
        text = f"HostReplace {update.operation} is complete, and status.image {has}"
        return MemberStep(_entered(update, _P.FAILED, now, text))
    left_s = REPORT_S - seconds_since(at, now)
    if not member.has_version and left_s > 0:
        return MemberStep(update, requeue_s=left_s)
    return MemberStep(_completed(member, update, now))


# The wait of one Machine


def running_wait(machine: Machine, now: datetime) -> tuple[str, str, str]:
    """Return reason, holder and text of the wait of an update that has started, or that downloads ahead of its turn."""
    update, record, name = machine.status.node_update, machine.status.disruption, machine.name
    if update is not None and update.phase == _P.PREPARING:
        return _download_wait(machine, update, now)
    if update is not None and update.phase == _P.RECREATING:
        text = f"its Node is created again since {update.since}"
        return reasons.WAITING_FOR_EXECUTOR, f"agent of Machine {name}", text
    if record is None and update is not None and update.phase == _P.REPLACING:
        text = f"HostReplace {update.operation} is requested since {update.since}"
        return reasons.WAITING_FOR_EXECUTOR, f"MachineOperation {update.operation}", text
    if record is None:
        return reasons.WAITING_FOR_DRAIN, f"Node {name}", "its drain is requested"
    text = record.message or f"its disruption is in stage {record.stage} since {record.since}"
    return record.reason or reasons.WAITING_FOR_DRAIN, record.held_by or f"Node {name}", text


def _download_wait(machine: Machine, update: NodeUpdate, now: datetime) -> tuple[str, str, str]:
    late = is_late(machine, now)
    if update.image is not None:
        held_by = f"metalman of Machine {machine.name}"
        ready = machine.current_condition(ConditionType.NETBOOT_IMAGE_READY)
        cause = "" if ready is None else f": {ready.message or ready.reason}"
        text = f"metalman downloads {update.image} since {update.since}{cause}"
        if late and ready is None:
            text = (
                f"its metalman is silent: it has reported neither the image {update.image} nor a failure since "
                f"{update.since}; see the log of metalman at its site"
            )
        return reasons.WAITING_FOR_EXECUTOR, held_by, text
    done = _reported_download(machine, update)
    failure = f": {done.message}" if done is not None and done.message else ""
    text = f"its agent downloads {update.version} since {update.since}{failure}"
    if late and done is None:
        text = (
            f"its agent is silent: it has reported neither the download of {update.version} nor a failure since "
            f"{update.since}; see `unbounded-agent status` on its host"
        )
    return reasons.WAITING_FOR_EXECUTOR, f"agent of Machine {machine.name}", text


def _reported_download(machine: Machine, update: NodeUpdate) -> PreparedVersion | None:
    """Return the result that the agent has reported of the download, a failure included."""
    done = None if machine.status.agent is None else machine.status.agent.prepared
    return done if done is not None and done.version == update.version else None


def _has_downloaded(machine: Machine, update: NodeUpdate) -> bool:
    """Return whether the agent has everything for the Node, or metalman the image of the host."""
    if update.image is not None:
        return _has_image(machine)
    done = _reported_download(machine, update)
    return done is not None and done.complete and done.generation == update.generation


def _has_image(machine: Machine) -> bool:
    """Return whether metalman has the image of spec.pxe."""
    ready = machine.current_condition(ConditionType.NETBOOT_IMAGE_READY)
    return ready is not None and ready.status == ConditionStatus.TRUE


def is_late(machine: Machine, now: datetime) -> bool:
    """Return whether the requested download of a Machine has not completed for long, so that others take its turn."""
    update = machine.status.node_update
    if update is None or update.phase != _P.PREPARING or _has_downloaded(machine, update):
        return False
    return seconds_since(update.since, now) >= DOWNLOAD_S


def _late_in_s(machine: Machine, update: NodeUpdate, now: datetime) -> float | None:
    """Return the time until a download is late; None where it has completed, or is late already."""
    if _has_downloaded(machine, update):
        return None
    left_s = DOWNLOAD_S - seconds_since(update.since, now)
    return left_s if left_s > 0 else None
