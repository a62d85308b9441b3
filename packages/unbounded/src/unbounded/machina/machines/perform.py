"""Writes of a plan: one to the Machine's status, and those to other objects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from unbounded.api.conditions import ConditionReason, ConditionType, fit_message
from unbounded.api.core import NODES, Node
from unbounded.api.failures import Rejected
from unbounded.api.machine import (
    MACHINES,
    PROVISIONING,
    ActiveOperation,
    Machine,
    PreviousNode,
    ProvisioningStatus,
    RejectedKey,
    SSHHop,
    SSHStatus,
    UntrustedKey,
)
from unbounded.api.names import FINALIZER_RESET
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.api import AlreadyExists, Api, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.events import EventSink
from unbounded.kube.logs import Log
from unbounded.kube.status_writer import StatusWriter
from unbounded.machina.machines import conditions as report
from unbounded.machina.machines import model
from unbounded.machina.machines.credentials import untrusted, without_untrusted
from unbounded.machina.machines.deletion import reset_manifest
from unbounded.machina.machines.eligibility import address_of, joins_counted, last_reset
from unbounded.machina.machines.observe import AttemptInputs
from unbounded.operations.reasons import CRD_OUTDATED_TEXT

Raw = dict[str, Any]
ObjectWrite = model.SetNodeRef | model.UpdateNode | model.SetFinalizer | model.CreateAgentReset | model.RemoveFinalizer

log = Log("machines")


def status_change(
    observed: model.MachineObservation, plan: model.MachinePlan, means: AttemptInputs, *, now: str
) -> Raw:
    """Return the changed fields of the Machine's status; empty if nothing changes."""
    machine = observed.machine
    change: Raw = {}
    conditions = report.merged_conditions(machine, plan.conditions, now=now)
    if conditions is not None:
        change["conditions"] = conditions
    change |= _hop_change(machine, plan)
    if (shown_no_more := _trusted_now(machine, plan)) is not None:
        change["ssh"] = change.get("ssh", {}) | {"untrusted": without_untrusted(machine, shown_no_more)}
    if plan.phase is not None:
        change |= plan.phase.change(machine.status)
    for action in plan.actions:
        match action:
            case model.Provision():
                change |= _intent(observed, action, means, now)
            case model.RecordEnd():
                change |= _with_ssh(change, _ended(machine, action, now))
            case model.RecordLateSuccess(attempt=attempt):
                change |= _counted_as_done(machine, attempt)
            case model.RecordRetry(at=at):
                change |= {"provisioning": {"retryAt": at}}
            case model.ReleaseLock(uid=uid):
                change |= _lock_released(machine, uid)
            case model.RecordRefusedKey() | model.RecordHostKey():
                change["ssh"] = change.get("ssh", {}) | _of_key(machine, action)
            case _:
                pass
    return change


def _hop_change(machine: Machine, plan: model.MachinePlan) -> Raw:
    """Return the changed servers that SSHReachable and HostReset are about."""
    ssh = machine.status.ssh or SSHStatus()
    change: Raw = {}
    for one in plan.conditions:
        if one.kind == ConditionType.SSH_REACHABLE and one.hop != ssh.failed_hop:
            change["failedHop"] = one.hop
        if one.kind == ConditionType.HOST_RESET and one.hop != ssh.reset_failed_hop:
            change["resetFailedHop"] = one.hop
    return {"ssh": change} if change else {}


def _trusted_now(machine: Machine, plan: model.MachinePlan) -> SSHHop | None:
    """Return the server that shows the trusted key again after another one. A probe sees only the bastion's key."""
    installed = any(isinstance(action, model.RecordEnd) and action.failure is None for action in plan.actions)
    if installed and untrusted(machine, SSHHop.HOST):
        return SSHHop.HOST
    reached = any(one.kind == ConditionType.SSH_REACHABLE and one.hop is None for one in plan.conditions)
    return SSHHop.BASTION if reached and untrusted(machine, SSHHop.BASTION) else None


def _intent(observed: model.MachineObservation, action: model.Provision, means: AttemptInputs, now: str) -> Raw:
    """Return the intent, written before anything is sent to the host: the owner of the lock, and the attempt."""
    machine = observed.machine
    slot = ActiveOperation(uid=action.attempt, name=machine.name, kind=PROVISIONING, executor=model.EXECUTOR, since=now)
    taken = {"activeOperation": _whole(slot, machine.status.active_operation)}
    if action.resume:
        return taken if machine.status.active_operation is None else {}
    before = machine.status.provisioning
    failures = before.failures if before is not None and not observed.changed_since_failure else 0
    intent = ProvisioningStatus(
        attempt=action.attempt,
        host=address_of(machine),
        node=_node_then(observed),
        generation=action.generation,
        join_counter=max(machine.spec.join_counter, joins_counted(machine)),
        token_id=means.token.id if means.token is not None else None,
        started_at=now,
        failures=failures,
        failing_since=before.failing_since if before is not None else None,
        earlier_failure=_last_failure(before),
        reset=last_reset(machine),
        untouched=before is None or (before.ended_at is not None and before.untouched),
    )
    return {**taken, "provisioning": _whole(intent, before)}


def _last_failure(before: ProvisioningStatus | None) -> str | None:
    """Return the failure of the last attempt; one that was on hold does not count."""
    if before is None:
        return None
    return before.earlier_failure if before.failure == report.ON_HOLD else before.failure


def _node_then(observed: model.MachineObservation) -> str | None:
    if observed.node is None:
        return None
    return str(PreviousNode.READY if observed.node.ready else PreviousNode.NOT_READY)


def _ended(machine: Machine, action: model.RecordEnd, now: str) -> Raw:
    before = machine.status.provisioning
    if before is None or before.attempt != action.attempt:
        return _lock_released(machine, action.attempt)
    failures = before.failures + (action.failure != report.ON_HOLD) if action.failure is not None else 0
    end: Raw = {"endedAt": now, "failures": failures, "failure": action.failure, "failedHop": action.hop}
    if action.failure not in (before.earlier_failure, report.ON_HOLD):
        end["failingSince"] = now if action.failure is not None else None
    if before.untouched and not action.untouched:
        end["untouched"] = None
    change: Raw = {"provisioning": end, **_lock_released(machine, action.attempt)}
    if action.failure == ConditionReason.HOST_KEY_CHANGED and action.fingerprint:
        change["ssh"] = _recorded(machine, action.hop or SSHHop.HOST, action.fingerprint)
    if action.refused is not None:
        change["ssh"] = _refused(machine, SSHHop.HOST, action.refused, fingerprint=action.fingerprint)
    return change


def _with_ssh(change: Raw, more: Raw) -> Raw:
    """Merge two changes that may both concern `status.ssh`."""
    return {**more, "ssh": {**change["ssh"], **more["ssh"]}} if "ssh" in change and "ssh" in more else more


def _counted_as_done(machine: Machine, attempt: str) -> Raw:
    before = machine.status.provisioning
    return (
        {"provisioning": {**dict.fromkeys(_OF_FAILURE), "failures": 0}} if before and before.attempt == attempt else {}
    )


_OF_FAILURE: Final = ("failure", "failingSince", "earlierFailure", "failedHop", "retryAt", "untouched")


def _lock_released(machine: Machine, uid: str) -> Raw:
    slot = machine.status.active_operation
    return {"activeOperation": None} if slot is not None and slot.uid == uid else {}


def _of_key(machine: Machine, action: model.RecordRefusedKey | model.RecordHostKey) -> Raw:
    if isinstance(action, model.RecordHostKey):
        return _recorded(machine, action.hop, action.fingerprint)
    return _refused(machine, action.hop, action.version, action.generation, action.fingerprint)


def _recorded(machine: Machine, hop: SSHHop, fingerprint: str) -> Raw:
    one = UntrustedKey(hop=hop, fingerprint=fingerprint)
    return {"untrusted": [*without_untrusted(machine, hop), msgspec.to_builtins(one)]}


def _refused(machine: Machine, hop: SSHHop, version: str, generation: int | None = None, fingerprint: str = "") -> Raw:
    known = machine.status.ssh.refused if machine.status.ssh is not None else ()
    of = machine.metadata.generation or 0 if generation is None else generation
    one = RejectedKey(hop=hop, secret_version=version, generation=of, fingerprint=fingerprint or None)
    return {"refused": [msgspec.to_builtins(each) for each in (*(other for other in known if other.hop != hop), one)]}


def _whole(struct: msgspec.Struct, before: msgspec.Struct | None) -> Raw:
    """Return a struct for a merge patch that removes all fields of the previous one."""
    new: Raw = msgspec.to_builtins(struct)
    old = msgspec.to_builtins(before) if before is not None else {}
    return {**dict.fromkeys(old), **new}


def has_intent(machine: Machine, attempt: str) -> bool:
    """Return whether the Machine has the intent of this attempt."""
    slot, before = machine.status.active_operation, machine.status.provisioning
    return slot is not None and before is not None and (slot.uid, before.attempt) == (attempt, attempt)


_FIELDS: Final = ("activeOperation", "conditions", "message", "phase", "provisioning", "reason", "ssh")


class MachineWriter:
    """Writer of objects. Stores every response in the cache."""

    def __init__(
        self, api: Api, machines: Cache[Machine], nodes: Cache[Node], announce: EventSink, *, now: WallClock = utc_now
    ) -> None:
        self._api = api
        self._machines = machines
        self._status = StatusWriter(api, MACHINES, fields=_FIELDS, cache=machines)
        self._nodes = nodes
        self._announce = announce
        self._now = now

    async def status(
        self, observed: model.MachineObservation, plan: model.MachinePlan, means: AttemptInputs
    ) -> Machine:
        """Write the plan's status if it differs, and return the Machine.

        Raises:
            Conflict: the Machine has changed meanwhile.
            Rejected: the intent of an attempt was not stored.
        """
        change = status_change(observed, plan, means, now=rfc3339(self._now()))
        written = await self._status.write(observed.machine, change)
        if written is None:
            return observed.machine
        for action in plan.actions:
            if isinstance(action, model.Provision) and not has_intent(written, action.attempt):
                log.error("CRDs are outdated", machine=written.name, words=CRD_OUTDATED_TEXT)
                raise Rejected(CRD_OUTDATED_TEXT)
        return written

    async def write(self, machine: Machine, actions: Iterable[ObjectWrite]) -> bool:
        """Write other objects than the status; return whether there were any writes.

        A permanent rejection is reported and does not block the other writes.
        """
        any_was = False
        for action in actions:
            try:
                machine = await self._write(machine, action)
                any_was = True
            except NotFound:
                log.debug("object does not exist any more", machine=machine.name, action=type(action).__name__)
            except Rejected as error:
                log.warning("write rejected", error=error, machine=machine.name, action=type(action).__name__)
                self._announce(machine, "Warning", REFUSED[type(action)], fit_message(str(error)))
        return any_was

    async def _write(self, machine: Machine, action: ObjectWrite) -> Machine:
        match action:
            case model.SetNodeRef(node=node):
                ref = None if node is None else {"name": node}
                return await self._patch(machine, {"spec": {"kubernetes": {"nodeRef": ref}}})
            case model.UpdateNode(node=node, change=change):
                self._nodes.observe(await self._api.patch(NODES, node, change))
                log.info("Node updated", machine=machine.name, node=node)
                return machine
            case model.SetFinalizer(present=hold):
                return await self._patch(machine, _finalizers(machine, on=hold))
            case model.CreateAgentReset(name=name):
                await self._create_reset(machine, name)
                return machine
            case model.RemoveFinalizer(unfinished=unfinished):
                written = await self._patch(machine, _finalizers(machine, on=False))
                if unfinished is not None:  # not earlier: a user who unsets resetOnDelete meanwhile expects no Event
                    self._announce(machine, "Warning", "ResetIncomplete", unfinished)
                    log.warning("finalizer of Machine removed", machine=machine.name, unfinished=unfinished)
                return written

    async def _create_reset(self, machine: Machine, name: str) -> None:
        """Create the AgentReset; an existing one of that name was created by an earlier pass."""
        with contextlib.suppress(AlreadyExists):
            await self._api.create(MACHINE_OPERATIONS, reset_manifest(machine, name))

    async def _patch(self, machine: Machine, patch: Mapping[str, Any]) -> Machine:
        meta = {"resourceVersion": machine.metadata.resource_version, **patch.get("metadata", {})}
        written = await self._api.patch(MACHINES, machine.name, {**patch, "metadata": meta})
        self._machines.observe(written)
        return written


REFUSED: Final[Mapping[type[ObjectWrite], str]] = {
    model.SetNodeRef: "NodeRefRefused",
    model.UpdateNode: "NodeUpdateRefused",
    model.SetFinalizer: "FinalizerRefused",
    model.CreateAgentReset: "ResetRefused",
    model.RemoveFinalizer: "FinalizerRefused",
}


def _finalizers(machine: Machine, *, on: bool) -> Raw:
    others = [one for one in machine.metadata.finalizers if one != FINALIZER_RESET]
    return {"metadata": {"finalizers": [FINALIZER_RESET, *others] if on else others}}
