"""The decision about the disruption of one Machine. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from unbounded.api.conditions import ConditionStatus, ConditionType
from unbounded.api.core import Node, NodeCondition, Pod
from unbounded.api.disruption import (
    MAINTENANCE,
    DisruptionHolder,
    DisruptionStage,
    DisruptionStatus,
    DrainBlocker,
    DrainProgress,
)
from unbounded.api.machine import Machine, MachinePower
from unbounded.kube.clock import rfc3339, seconds_since
from unbounded.operations import reasons
from unbounded.operations.claim_gates import Gate
from unbounded.operations.disruption import model
from unbounded.operations.disruption.drain import DrainRules, DrainStep, EvictionRefusal, plan_drain
from unbounded.operations.disruption.stages import CLAIM_WITHIN_S, CORDON, EVICT, PROCEDURE, UNCORDON, Fact
from unbounded.workflow.procedure import COMPLETE, Step

LEASE_POLL_S: Final = 1.0
BUSY_POLL_S: Final = 60.0
RETURN_S: Final = 60.0  # of a usual return; then the message names the proof that is missing
MAX_TEXT: Final = 4096
MAX_HELD_BY: Final = 1024
_S = DisruptionStage
_UNUSED: Final[Mapping[str | None, Fact]] = {
    reasons.EXECUTOR_SILENT: Fact.LATE,
    reasons.PAUSED: Fact.DELAYED,
}  # of drains that their holder has not used: it waits again once the Node is usable


@dataclass(frozen=True)
class DisruptionRequest:
    """A disruption that may be granted: of maintenance, or of the operation that all other gates let through.

    Args:
        budgets: names of those that count now, and grant it.
        overrides: one of them has no room, and the operation overrides it.
    """

    holder: DisruptionHolder
    budgets: tuple[str, ...] = ()
    overrides: bool = False


@dataclass(frozen=True)
class DisruptionView:
    """All that a decision about one Machine depends on.

    Args:
        request: None where nothing may be granted.
        holder: of `machine.status.disruption`; None where there is none.
        rules: of the drain in progress.
        paused: the pause of operations on the Machine.
        pods: on the Node; None where they are not known yet.
        refusals: by the UID of the pod.
        refused: the answer of the server that it does not cordon the Node.
        ready_s: seconds since the Node was first observed Ready, on the observer's clock; 0 where it is not.
        renewed: kubelet renewed its lease since the end of the holder, or the Node has no lease.
        busy: the executor of the holder works on other operations.
    """

    machine: Machine
    node: Node | None
    request: DisruptionRequest | None
    now: datetime
    loop_time: float = 0.0
    holder: model.HolderView | None = None
    rules: DrainRules = field(default_factory=DrainRules)
    delay: model.Delay | None = None
    paused: Gate | None = None
    pods: Sequence[Pod] | None = None
    refusals: Mapping[str, EvictionRefusal] = field(default_factory=dict)
    refused: str | None = None
    ready_s: float = 0.0
    renewed: bool = False
    busy: bool = False

    @property
    def disruption(self) -> DisruptionStatus:
        if self.machine.status.disruption is None:
            raise AssertionError("the stage has a record")
        return self.machine.status.disruption

    @property
    def node_name(self) -> str:
        return self.machine.name if self.node is None else self.node.metadata.name

    @property
    def in_stage_s(self) -> float:
        return seconds_since(self.disruption.since, self.now)


@dataclass(frozen=True)
class DisruptionPlan:
    """The next step of one Machine.

    Args:
        status: `status.disruption` after the step; None for none.
        action: EVICT or UNCORDON, before the status is written; or CORDON, after it.
        evict: the pods of EVICT.
        conditions: of the Node, to set before the cordon changes.
        begins: the drain begins, or begins again.
    """

    status: DisruptionStatus | None
    action: str | None = None
    evict: tuple[Pod, ...] = ()
    conditions: tuple[NodeCondition, ...] = ()
    requeue_s: float | None = None
    begins: bool = False


@dataclass(frozen=True)
class _Found:
    """A fact, and what the status says of it."""

    fact: Fact
    text: str = ""
    reason: str | None = None
    held_by: str | None = None
    requeue_s: float | None = None
    status: DisruptionStatus | None = None  # with further changes
    evict: tuple[Pod, ...] = ()


def plan_disruption(view: DisruptionView) -> DisruptionPlan:
    """Decide the next step of a Machine's disruption."""
    record = view.machine.status.disruption
    stage = DisruptionStage.WAITING if record is None else DisruptionStage(record.stage)
    found = _FIND[stage](view)
    step = PROCEDURE.table[stage, found.fact]
    if view.request is not None and found.fact is Fact.REQUESTED:  # without a call, nothing is between the two steps
        found = _begun(view, view.request.holder, found.text)
        step = PROCEDURE.table[_S.GRANTED, found.fact]
    status = _after(view, stage, step, found)
    action = step.action
    if action == CORDON and (view.node is None or status is None or model.is_cordoned_for(view.node, status.holder)):
        action = None
    if action == UNCORDON and (view.node is None or not model.is_cordoned_by_us(view.node)):
        action = None
    if action == EVICT and not found.evict:
        action = None
    conditions = () if view.node is None else model.node_conditions(view.node, status)
    return DisruptionPlan(status, action, found.evict, conditions, found.requeue_s, _begins(step, found))


# Facts


def _waiting(view: DisruptionView) -> _Found:
    record, request = view.machine.status.disruption, view.request
    is_open = view.holder is not None and view.holder.state is not model.HolderState.ENDED
    if request is None:
        return _Found(Fact.DELAYED, requeue_s=None) if record is not None and is_open else _Found(Fact.NOT_REQUESTED)
    own = record if record is not None and record.holder == request.holder else None
    left_s = 0.0 if own is None or own.until is None else -seconds_since(own.until, view.now)
    if left_s > 0 and own is not None:
        return _Found(Fact.DELAYED, own.message or "", own.reason, own.held_by, left_s)
    if view.delay is not None:
        return _Found(Fact.DELAYED, view.delay.text, view.delay.reason, view.delay.held_by)
    return _Found(Fact.REQUESTED)


def _begun(view: DisruptionView, holder: DisruptionHolder, why: str = "") -> _Found:
    """Return the fact with which the disruption of a Machine begins.

    Args:
        why: it begins again; ends with a colon and a space.
    """
    if view.node is None:
        return _Found(Fact.NO_NODE, f"{why}{holder} starts without a drain, as Machine {view.machine.name} has no Node")
    if not view.rules.enabled:
        return _Found(Fact.NO_DRAIN, f"{why}{holder} starts without a drain of Node {view.node_name}")
    held = _held(view)
    return _free(view, Fact.NODE, holder, why) if held is None else replace(held, fact=Fact.NODE_HELD)


def _free(view: DisruptionView, fact: Fact, holder: DisruptionHolder, why: str = "") -> _Found:
    text = f"{why}draining Node {view.node_name} for {holder}"
    return _Found(fact, text, reasons.WAITING_FOR_DRAIN, f"Node {view.node_name}")


def _held(view: DisruptionView) -> _Found | None:
    """Return the fact that applications hold the drain of the Node; None where none does."""
    hold = model.hold_of(view.node)
    return None if hold is None else _Found(Fact.HELD, hold.text, hold.reason, hold.held_by)


def _granted(view: DisruptionView) -> _Found:
    """Return the fact of a grant whose Node is not known to be cordoned: the server refused it, or a process ended."""
    if (stopped := _ended(view) or _claimed_early(view) or _paused(view)) is not None:
        return stopped
    if not view.rules.enabled:
        return _begun(view, view.disruption.holder)
    changed = _node_changed(view)
    if changed is not None and changed.fact is Fact.NOT_CORDONED and _is_late(view):
        return _late(view, changed.text)
    return changed or _held(view) or _free(view, Fact.FREE, view.disruption.holder)


def _cordoned(view: DisruptionView) -> _Found:
    if (stopped := _ended(view) or _claimed_early(view) or _paused(view) or _node_changed(view)) is not None:
        return stopped
    held = _held(view)
    if held is None:
        return _free(view, Fact.FREE, view.disruption.holder)
    if _is_late(view):
        return _late(view, f"held by {held.held_by}", _pods_left(view))
    return replace(held, requeue_s=_left_s(view))


def _draining(view: DisruptionView) -> _Found:
    if (
        stopped := _ended(view) or _claimed_early(view) or _paused(view) or _node_changed(view) or _held(view)
    ) is not None:
        return stopped
    if view.pods is None and _is_late(view):
        return _late(view, "its pods could not be listed", _pods_left(view))
    if view.pods is None:
        record = view.disruption
        return _Found(Fact.PODS_LEFT, record.message or "", record.reason, record.held_by, requeue_s=1.0)
    step = _drain_step(view, view.pods)
    left, holder = step.progress.left, view.disruption.holder
    if not left:
        return _Found(Fact.EMPTY, f"Node {view.node_name} is drained for {holder}: no pod that can be evicted is left")
    blocked = _blocked_text(step.progress.blockers)
    if _is_late(view):
        return _late(view, f"{model.pods_are_left(left)}{blocked}", _pods_left(view))
    limit_s = _left_s(view)
    waits = [one for one in (step.retry_s, limit_s) if one is not None]
    first = step.progress.blockers[0] if step.progress.blockers else None
    return _Found(
        Fact.PODS_LEFT,
        f"draining Node {view.node_name} for {holder}{blocked}",  # without the count, which changes often
        reasons.WAITING_FOR_DRAIN,
        f"Node {view.node_name}" if first is None else first.held_by or f"Pod {first.pod}",
        min(waits, default=None),
        msgspec.structs.replace(view.disruption, drain=step.progress),
        step.evict,
    )


def _drain_step(view: DisruptionView, pods: Sequence[Pod]) -> DrainStep:
    before = () if view.disruption.drain is None else view.disruption.drain.blockers
    return plan_drain(
        pods, view.rules, view.refusals, before, now=view.now, loop_time=view.loop_time, lost=_is_lost(view)
    )


def _pods_left(view: DisruptionView) -> DrainProgress | None:
    """Return the number of pods that have not left, 0 where it is not known; None where all have."""
    left = 0 if view.pods is None else _drain_step(view, view.pods).progress.left
    return DrainProgress(left=left) if left or view.pods is None else None


def _drained(view: DisruptionView) -> _Found:
    if (ended := _ended(view)) is not None:
        return ended
    if view.holder is not None and view.holder.state is model.HolderState.CLAIMED:
        fact = Fact.CLAIMED if view.holder.has_acted else Fact.NOT_CLAIMED  # it has the lock, and its start may fail
        return _Found(fact, view.disruption.message or "")
    if (stopped := _paused(view) or _node_changed(view)) is not None:
        return stopped
    if view.disruption.holder.kind == MAINTENANCE:
        return _Found(Fact.NOT_CLAIMED, _maintenance_text(view.machine))
    left_s = CLAIM_WITHIN_S - view.in_stage_s
    if left_s <= 0 and not view.busy:
        until = rfc3339(view.now + timedelta(seconds=model.pause_s(view.disruption.silences)))
        text = (
            f"no executor started {view.disruption.holder} within {CLAIM_WITHIN_S:.0f} s of the drain, so Node "
            f"{view.node_name} is usable again; next drain at {until}"
        )
        silences = view.disruption.silences + 1
        status = msgspec.structs.replace(view.disruption, silences=silences, until=until, boot_id=None)
        return _Found(Fact.LATE, text, reasons.EXECUTOR_SILENT, status=status)
    return _Found(Fact.NOT_CLAIMED, view.disruption.message or "", requeue_s=left_s if left_s > 0 else BUSY_POLL_S)


def _working(view: DisruptionView) -> _Found:
    is_open = view.holder is not None and view.holder.state is model.HolderState.OPEN
    return _ended(view) or _Found(Fact.NOT_CLAIMED if is_open else Fact.CLAIMED, view.disruption.message or "")


def _returning(view: DisruptionView) -> _Found:
    record = view.disruption
    is_open = view.holder is not None and view.holder.state is not model.HolderState.ENDED
    if is_open and record.reason in _UNUSED:
        return _Found(_UNUSED[record.reason], record.message or "", record.reason, record.held_by)
    if is_open and record.reason == reasons.DRAIN_TIMED_OUT:
        away = _away(view, record, since_s=view.in_stage_s)  # from the holder before, which this one took over from
        fact, requeue_s = (Fact.HOLDER_OPEN, None) if away is None else (Fact.AWAY, away.requeue_s)
        return _Found(fact, record.message or "", record.reason, record.held_by, requeue_s)
    if view.request is not None and view.delay is None:  # another operation, or maintenance that was enabled again
        return _Found(Fact.REQUESTED, f"Node {view.node_name} has not returned from {record.holder}: ")
    return _away(view, record, since_s=view.in_stage_s) or _Found(Fact.BACK)


def _away(view: DisruptionView, record: DisruptionStatus, *, since_s: float) -> _Found | None:
    """Return the proof of return that is missing; None where the Node is back, or nothing waits for it.

    Args:
        since_s: seconds since the Node began to return.
    """
    node, name = view.node, view.node_name
    held_by, after = f"Node {name}", f"after {record.holder}"

    def missing(text: str, requeue_s: float | None = None, by: str = held_by) -> _Found:
        return _Found(Fact.AWAY, text, reasons.WAITING_FOR_DRAIN, by, requeue_s)

    if not record.worked:
        return None
    active = view.machine.status.active_operation
    if active is not None and not active.lost and active.uid != record.holder.uid:  # it started within maintenance
        text = f"waiting for {active.kind} {active.name}, which is in progress on Machine {view.machine.name}"
        return missing(text, by=active.name)
    if view.holder is not None and view.holder.removes_node and (node is None or not node.ready):
        return None  # the Machine counts as unavailable without a grant
    if node is None:
        if record.node_uid is None or view.machine.spec.kubernetes is None:
            return None
        return missing(f"waiting for Node {name} to exist again {after}")
    least_s = view.rules.min_ready_s
    boots = f" and another boot ID than {record.boot_id}" if record.boot_id is not None else ""
    text = f"waiting for Node {name} to be Ready for {least_s:.0f} s {after}, with a renewed lease{boots}"
    if view.holder is not None and view.holder.removes_node:
        text = f"{text}; or to be deleted, as {record.holder} has removed it from its host"
    if not node.ready:
        return missing(text)
    if record.boot_id is not None and record.boot_id == _boot_id(node):
        if since_s < RETURN_S:
            return missing(text, RETURN_S - since_s)
        return missing(f"Node {name} is Ready, and shows the boot ID {record.boot_id} of before {record.holder}")
    if view.ready_s < least_s:
        return missing(text, least_s - view.ready_s)
    return None if view.renewed else missing(text, LEASE_POLL_S)


_FIND: Final[Mapping[DisruptionStage, Callable[[DisruptionView], _Found]]] = {
    _S.WAITING: _waiting,
    _S.GRANTED: _granted,
    _S.CORDONED: _cordoned,
    _S.DRAINING: _draining,
    _S.DRAINED: _drained,
    _S.WORKING: _working,
    _S.RETURNING: _returning,
}


def _claimed_early(view: DisruptionView) -> _Found | None:
    """Return the fact that the holder has started without a drained Node: it knew of no budget yet, or needs no grant
    any more.
    """
    if view.holder is None or view.holder.state is not model.HolderState.CLAIMED:
        return None
    text = f"{view.disruption.holder} started before Node {view.node_name} was drained"
    gone = [one for one in view.disruption.budgets if one not in view.machine.status.disruption_budgets]
    text += f", as MachineDisruptionBudget {', '.join(gone)} no longer covers the Machine" if gone else ""
    changes = {"boot_id": None, "worked": True, "drain": _pods_left(view)}  # it may have rebooted by now
    return _Found(Fact.CLAIMED, text, status=msgspec.structs.replace(view.disruption, **changes))


def _ended(view: DisruptionView) -> _Found | None:
    """Return the fact that the holder has ended; None where it has not."""
    if view.holder is not None and view.holder.state is not model.HolderState.ENDED:
        return None
    holder, record = view.holder, view.disruption
    acted = None if holder is None else holder.has_acted
    if acted is None:
        acted = record.stage in (_S.DRAINED, _S.WORKING)
    boot_id = record.boot_id if holder is not None and holder.reboots else None
    record = msgspec.structs.replace(record, worked=record.worked or acted, boot_id=boot_id)
    away = _away(view, record, since_s=0.0)
    if away is None:
        return _Found(Fact.BACK)
    return replace(away, fact=Fact.HOLDER_ENDED, status=record)


def _paused(view: DisruptionView) -> _Found | None:
    """Return the fact that operations are paused; maintenance is none."""
    if view.paused is None or view.disruption.holder.kind == MAINTENANCE:
        return None
    return _Found(Fact.DELAYED, view.paused.text, view.paused.reason, view.paused.held_by)


def _node_changed(view: DisruptionView) -> _Found | None:
    """Return the fact that the Node is another one, or that a user uncordoned it; None where all is as it was."""
    node, record = view.node, view.disruption
    if not view.rules.enabled:
        return None
    if node is None:
        why = f"Node {view.node_name} was deleted, or belongs to another Machine, since its drain began: "
        return None if record.node_uid is None else _begun(view, record.holder, why)
    if node.metadata.uid != record.node_uid:
        why = f"Node {view.node_name} was created again since its drain began: "
    elif not node.spec.unschedulable and (view.refused is not None or record.stage == _S.GRANTED):
        text = f"Node {view.node_name} is not cordoned yet for {record.holder}"
        text = f"{text}: {view.refused}" if view.refused is not None else text
        return _Found(Fact.NOT_CORDONED, text, reasons.WAITING_FOR_DRAIN, f"Node {view.node_name}", _left_s(view))
    elif not node.spec.unschedulable:
        why = f"Node {view.node_name} was uncordoned during its drain: "
    else:
        return None
    return _Found(Fact.NODE_CHANGED, f"{why}it is drained again")


def _left_s(view: DisruptionView) -> float | None:
    """Return the seconds until the limit of the drain; None for maintenance, which fails nothing."""
    if view.disruption.until is None or (view.disruption.holder.kind == MAINTENANCE and not view.rules.proceeds):
        return None
    return max(-seconds_since(view.disruption.until, view.now), 0.0)


def _is_late(view: DisruptionView) -> bool:
    return _left_s(view) == 0.0


def _late(view: DisruptionView, text: str, left: DrainProgress | None = None) -> _Found:
    """Return the fact that the limit of the drain has passed.

    Args:
        left: the pods that are left, with which the holder proceeds; a Node without a cordon would get more.
    """
    limit = f"within {view.rules.timeout_s} s (drain.timeoutSeconds)"
    if view.rules.proceeds and view.disruption.stage != _S.GRANTED:
        text = f"Node {view.node_name} was not drained {limit}, and drain.onTimeout is Proceed: {text}"
        return _Found(Fact.LATE_PROCEED, text, status=msgspec.structs.replace(view.disruption, drain=left))
    status = msgspec.structs.replace(view.disruption, boot_id=None)  # the holder has rebooted nothing
    text = f"Node {view.node_name} was not drained {limit}: {text}"
    return _Found(Fact.LATE, text, reasons.DRAIN_TIMED_OUT, status=status)


def _is_lost(view: DisruptionView) -> bool:
    """Return whether the pods of the Node have ended: it is not Ready, and its host was observed Off."""
    if view.node is None or view.node.ready:
        return False
    power = view.machine.status.power
    is_off = any(
        one.type == ConditionType.POWERED_OFF and one.status == ConditionStatus.TRUE
        for one in view.machine.status.conditions
    )
    return is_off or (power is not None and power.state == MachinePower.OFF)


def _blocked_text(blockers: Sequence[DrainBlocker]) -> str:
    shown = [
        f"{one.pod} is blocked since {one.since}{f' by {one.held_by}' if one.held_by else ''}: {one.why}"
        for one in blockers[:3]
    ]
    more = f"; and {len(blockers) - 3} more" if len(blockers) > 3 else ""
    return f"; {'; '.join(shown)}{more}" if shown else ""


def _maintenance_text(machine: Machine) -> str:
    reason = None if machine.spec.maintenance is None else machine.spec.maintenance.reason
    return f"Machine {machine.name} is in maintenance{f': {reason}' if reason else ''}"


def _boot_id(node: Node | None) -> str | None:
    """Return the boot ID of a Node; None where none is reported."""
    return None if node is None or node.status.node_info is None else node.status.node_info.boot_id or None


# The record after a step


def _after(view: DisruptionView, stage: DisruptionStage, step: Step, found: _Found) -> DisruptionStatus | None:
    if step.stage == COMPLETE:
        return None
    record, begins = found.status or view.machine.status.disruption, _begins(step, found)
    if view.request is not None and (record is None or begins or stage is _S.WAITING):
        record = _requested(view.request, record, view.now)
    if record is None:
        return None
    message, held_by = (found.text or record.message or "")[:MAX_TEXT], (found.held_by or "")[:MAX_HELD_BY]
    changed = {"reason": found.reason, "message": message or None, "held_by": held_by or None}
    if step.stage == stage and not begins:
        if stage == _S.WAITING and found.fact is Fact.DELAYED and not found.text:
            return record  # another gate of the operation is closed
        return msgspec.structs.replace(record, **changed)
    entered = {"stage": DisruptionStage(step.stage), "since": rfc3339(view.now), **changed}
    return msgspec.structs.replace(record, **entered, **_entry(view, step, found, record))


def _begins(step: Step, found: _Found) -> bool:
    """Return whether a drain begins with the step, or the holder's work without one."""
    cordons = step.action == CORDON and found.fact is not Fact.NOT_CORDONED
    return cordons or found.fact in (Fact.NO_NODE, Fact.NO_DRAIN)


def _requested(request: DisruptionRequest, record: DisruptionStatus | None, now: datetime) -> DisruptionStatus:
    """Return the record of a request. From another holder it takes over the proof of return that is still missing."""
    granted: dict[str, Any] = {"budgets": request.budgets, "overridden": request.overrides}
    if record is not None and record.holder == request.holder:
        return msgspec.structs.replace(record, **granted)
    worked = record is not None and record.worked
    return DisruptionStatus(holder=request.holder, stage=_S.WAITING, since=rfc3339(now), worked=worked, **granted)


def _entry(view: DisruptionView, step: Step, found: _Found, record: DisruptionStatus) -> dict[str, object]:
    """Return the fields that change with the entry of a stage."""
    node, entry = view.node, dict[str, object]()
    uid = None if node is None else node.metadata.uid
    if _begins(step, found):
        entry = {"node_uid": uid, "boot_id": _boot_id(node), "cordoned": False, "drain": None, "until": None}
    if record.stage == _S.GRANTED and found.fact in (Fact.FREE, Fact.HELD):
        entry["cordoned"] = node is not None and model.is_cordoned_by_us(node)
    if step.action == CORDON:
        entry["cordoned"] = node is not None and (not node.spec.unschedulable or model.is_cordoned_by_us(node))
        entry["until"] = rfc3339(view.now + timedelta(seconds=view.rules.timeout_s))
    match step.stage:
        case _S.GRANTED:
            return entry | {"cordoned": False}
        case _S.DRAINED:
            worked = record.worked or record.holder.kind == MAINTENANCE
            left = record.drain if found.fact in (Fact.CLAIMED, Fact.LATE_PROCEED, Fact.NOT_CLAIMED) else None
            return entry | {"until": None, "drain": left, "worked": worked}
        case _S.RETURNING:
            until = record.until if found.reason == reasons.EXECUTOR_SILENT else None  # of the pause that follows
            return {"until": until, "drain": record.drain if record.stage in (_S.DRAINED, _S.WORKING) else None}
        case _S.WAITING:
            until = record.until if found.fact is Fact.LATE else None
            return {"node_uid": None, "boot_id": None, "cordoned": False, "drain": None, "until": until}
    return entry
