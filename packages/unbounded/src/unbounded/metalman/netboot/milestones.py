"""Boot progress in the Machine's status: pure, from the observations since the last write to a merge patch.

Progress only advances: of one boot, an earlier milestone or percentage never replaces a later one, whichever replica
writes. The final state of cloud-init is permanent, too. The first write of a boot clears the record of the boot before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from unbounded.api.conditions import (
    ConditionReason,
    ConditionStatus,
    ConditionType,
    find_condition,
    fit_message,
    remove_condition,
    set_condition,
)
from unbounded.api.machine import Machine, NetbootMilestone, NetbootStatus
from unbounded.api.operation import OperationsStatus
from unbounded.metalman.netboot.model import BootObservation, ConditionState, milestone_rank
from unbounded.operations.record import with_nulls

LONGEST_MESSAGE: Final = 1024  # of a message that a host sends
# reasons of CloudInitDone that do not change within one boot
_FINAL: Final = (ConditionReason.SUCCEEDED, ConditionReason.FAILED)


def merge_observations(before: BootObservation, new: BootObservation) -> BootObservation:
    """Merge two observations. An earlier boot is replaced; conditions that belong to no boot are kept."""
    conditions = {**before.conditions, **new.conditions}
    if not new.boot:
        return replace(before, conditions=conditions)
    disk = new.disk or before.disk
    if new.boot != before.boot:
        return replace(new, conditions=new.conditions if before.boot else conditions, disk=disk)
    ahead = milestone_rank(new.milestone) - milestone_rank(before.milestone)
    counts = new.milestone is None or ahead >= 0
    message = before.message
    if ahead > 0 or (counts and new.message is not None):
        message = new.message  # None, too: the old message belongs to the milestone before
    return BootObservation(
        boot=new.boot,
        milestone=new.milestone if ahead > 0 else before.milestone,
        percent=_most(before.percent, new.percent) if counts else before.percent,
        loads=before.loads + new.loads,
        message=message,
        image_digest=new.image_digest or before.image_digest,
        conditions=_conditions_of_one_boot(before.conditions, new.conditions),
        repave=_most(before.repave, new.repave),
        disk=disk,
    )


def status_change(machine: Machine, observation: BootObservation, now: str) -> dict[str, Any]:
    """Return the status fields that an observation changes on a Machine as it was read; empty if nothing is new.

    Args:
        now: RFC 3339.
    """
    status: dict[str, Any] = {}
    old = machine.status.netboot
    begins = bool(observation.boot) and (old is None or old.boot != observation.boot)
    netboot = _netboot(None if begins else old, observation, now) if observation.boot else old
    if netboot != old and netboot is not None:
        status["netboot"] = with_nulls(netboot)
    conditions = _conditions(machine, observation, now, begins=begins)
    if conditions is not None:
        status["conditions"] = conditions
    reached = (machine.status.operations or OperationsStatus()).repave_counter
    if observation.repave is not None and observation.repave > reached:
        status["operations"] = {"repaveCounter": observation.repave}
    if observation.disk and observation.disk != machine.status.target_disk:
        status["targetDisk"] = observation.disk
    return status


def _netboot(old: NetbootStatus | None, observation: BootObservation, now: str) -> NetbootStatus:
    """Return the record of a boot with the observation; an older milestone changes only the count of loads."""
    old = old or NetbootStatus(boot=observation.boot)
    moves = milestone_rank(observation.milestone) > milestone_rank(old.milestone)
    counts = observation.milestone is None or milestone_rank(observation.milestone) >= milestone_rank(old.milestone)
    percent = _most(old.percent, observation.percent) if counts else old.percent
    message = (
        fit_message(observation.message, LONGEST_MESSAGE) if counts and observation.message is not None else old.message
    )
    if moves and observation.message is None:  # the old message belongs to the milestone before
        message = None
    return NetbootStatus(
        boot=observation.boot,
        milestone=observation.milestone if moves else old.milestone,
        percent=percent,
        loads=(old.loads or 0) + observation.loads or old.loads,
        message=message,
        image_digest=observation.image_digest or old.image_digest,
        at=now if moves else old.at,
    )


def _conditions(
    machine: Machine, observation: BootObservation, now: str, *, begins: bool
) -> list[dict[str, Any]] | None:
    """Return all conditions with the updates applied; None if no condition changes."""
    raw = [msgspec.to_builtins(condition) for condition in machine.status.conditions]
    changed: list[dict[str, Any]] | None = None
    if begins:
        changed = remove_condition(raw, ConditionType.CLOUD_INIT_DONE)
        raw = changed if changed is not None else raw
    for kind, said in observation.conditions.items():
        after = _with_condition(raw, kind, said, now)
        if after is not None:
            changed = raw = after
    return changed


def _with_condition(
    conditions: list[dict[str, Any]], kind: ConditionType, condition: ConditionState | None, now: str
) -> list[dict[str, Any]] | None:
    if condition is None:
        return remove_condition(conditions, kind)
    old = find_condition(conditions, kind)
    if kind is ConditionType.CLOUD_INIT_DONE and old is not None and old.get("reason") in _FINAL:
        return None
    return set_condition(conditions, kind, condition.status, condition.reason, condition.message, now)


def _conditions_of_one_boot(
    before: Mapping[ConditionType, ConditionState | None], new: Mapping[ConditionType, ConditionState | None]
) -> dict[ConditionType, ConditionState | None]:
    both = {**before, **new}
    earlier = before.get(ConditionType.CLOUD_INIT_DONE)
    if earlier is not None and earlier.reason in _FINAL:
        both[ConditionType.CLOUD_INIT_DONE] = earlier
    return both


def cloud_init_condition(event_type: str, name: str, result: str, description: str) -> ConditionState | None:
    """Map an event of cloud-init's webhook reporter to CloudInitDone; None for an event without meaning for it."""
    if event_type == "start":
        return ConditionState(
            ConditionStatus.FALSE, ConditionReason.RUNNING, fit_message(f"{name} has started", LONGEST_MESSAGE)
        )
    if event_type != "finish":
        return None
    if result.upper() != "SUCCESS":
        text = f"{name}: {result}: {description}"
        return ConditionState(ConditionStatus.FALSE, ConditionReason.FAILED, fit_message(text, LONGEST_MESSAGE))
    if name == "modules-final":
        return ConditionState(ConditionStatus.TRUE, ConditionReason.SUCCEEDED, f"{name} has ended")
    return ConditionState(
        ConditionStatus.FALSE, ConditionReason.RUNNING, fit_message(f"{name} has ended", LONGEST_MESSAGE)
    )


def repaved_condition(image: str, *, done: bool) -> ConditionState:
    """Return the condition Repaved during a repave, and after the image is written."""
    if done:
        return ConditionState(ConditionStatus.TRUE, ConditionReason.SUCCEEDED, f"image={image}")
    return ConditionState(ConditionStatus.FALSE, ConditionReason.PENDING, f"image={image}")


def image_written(image: str, repave: int | None) -> BootObservation:
    """Return the observation that the image is written; the caller sets the boot."""
    return BootObservation(
        milestone=NetbootMilestone.IMAGE_WRITTEN,
        percent=100,
        conditions={ConditionType.REPAVED: repaved_condition(image, done=True)},
        repave=repave,
    )


def _most(one: int | None, other: int | None) -> int | None:
    return max(value for value in (one, other) if value is not None) if (one, other) != (None, None) else None
