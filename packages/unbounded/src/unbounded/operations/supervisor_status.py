"""Writes of the supervisor to operations, and to Machines: locks, phases and finalizers.

Its finalizer delays the deletion of a Machine during a host operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import msgspec

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.failures import Stale
from unbounded.api.fields import MAX_EVIDENCE, Evidence
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import FINALIZER_HOST_OPERATION, FINALIZER_OPERATION
from unbounded.api.operation import (
    MACHINE_OPERATIONS,
    MachineOperation,
    OperationKind,
    OperationPhase,
    RolloutStatus,
    TargetStatus,
    Waiting,
)
from unbounded.api.phase import machine_phase
from unbounded.kube.api import Api, Conflict, NotFound
from unbounded.kube.clock import WallClock, rfc3339
from unbounded.kube.events import EventSink
from unbounded.kube.logs import Log
from unbounded.kube.status_writer import StatusWriter
from unbounded.operations import machine_lock, reasons
from unbounded.operations.batch_plan import failed_target
from unbounded.operations.caches import SupervisorCaches, node_of
from unbounded.operations.execution_record import completed_condition, wait_message, with_nulls
from unbounded.operations.supervisor_plan import EndOperation, ReportWait, has_finalizer
from unbounded.workflow.procedure import ConditionUpdate

_ENDED_FOR_AN_EXECUTOR: Final = frozenset({reasons.EXECUTOR_LOST, reasons.PREEMPTED})
_FOR_THE_MACHINES_SAKE: Final = frozenset(
    {
        reasons.DRAIN_TIMED_OUT,
        reasons.INVALID_PARAMETERS,
        reasons.MACHINE_NOT_FOUND,
        reasons.TARGET_CHANGED,
        reasons.AGENT_OUTDATED,
        reasons.UNSUPPORTED_TARGET,
    }
)

log = Log("supervisor")


class SupervisorStatus:
    """The supervisor's status writes. Each fails with Conflict if the object changed since it was read.

    Args:
        ended: called with each operation that the supervisor ends.
    """

    def __init__(
        self,
        api: Api,
        caches: SupervisorCaches,
        emit_event: EventSink,
        now: WallClock,
        *,
        ended: Callable[[MachineOperation], None],
    ) -> None:
        self._api = api
        self._machine_status = StatusWriter(api, MACHINES, fields=machine_lock.FIELDS, cache=caches.machines)
        self._operation_status = StatusWriter(api, MACHINE_OPERATIONS, fields=None, cache=caches.operations)
        self._caches = caches
        self._emit_event = emit_event
        self.wall = now
        self._ended = ended

    def now(self) -> str:
        return rfc3339(self.wall())

    async def write_wait(self, operation: MachineOperation, wait: ReportWait) -> None:
        status = operation.status
        before = status.waiting
        same = before is not None and (before.reason, before.held_by) == (wait.reason, wait.held_by)
        waiting = before if same and before is not None else self._waiting(wait)
        text = wait_message(wait.text, waiting)
        if status.message == text and status.phase == OperationPhase.PENDING:
            return
        await self.write(
            operation,
            {
                "phase": str(OperationPhase.PENDING),
                "reason": wait.reason,
                "message": text,
                "waiting": with_nulls(waiting),
                "conditions": self.conditions(operation, "False", wait.reason, text),
            },
        )

    def _waiting(self, wait: ReportWait) -> Waiting:
        until = None if wait.until_s is None else rfc3339(self.wall() + timedelta(seconds=wait.until_s))
        return Waiting(reason=wait.reason, held_by=wait.held_by, since=self.now(), until=until)

    async def end(self, operation: MachineOperation, end: EndOperation) -> None:
        if end.reason in _FOR_THE_MACHINES_SAKE and operation.spec.machine_ref is not None:
            await self._check_machine(operation.spec.machine_ref)
        if end.lost:
            await self._mark_lost(operation)
        try:
            await self._end(operation, end)
        except Stale:  # its executor has written to the status meanwhile
            if end.lost:
                await self._mark_lost(operation, lost=False)
            raise

    async def _end(self, operation: MachineOperation, end: EndOperation) -> None:
        targets = operation.status.targets if operation.spec.machine_ref else ()
        failed = tuple(failed_target(target, end.reason, end.text, self.now()) for target in targets)
        await self.write_end(operation, OperationPhase.FAILED, end.reason, end.text, failed)
        self._emit_event(operation, "Warning", end.reason, end.text)

    async def write_end(
        self,
        operation: MachineOperation,
        phase: OperationPhase,
        reason: str,
        text: str,
        targets: tuple[TargetStatus, ...] = (),
        rollout: RolloutStatus | None = None,
    ) -> None:
        done = "True" if phase is OperationPhase.COMPLETE else "False"
        status: dict[str, Any] = {
            "phase": str(phase),
            "reason": reason,
            "message": text,
            "completedAt": self.now(),
            "waiting": None,
            "conditions": self.conditions(operation, done, reason, text),
        }
        if targets:
            status["targets"] = [msgspec.to_builtins(target) for target in targets]
        if rollout is not None:
            status["rollout"] = msgspec.to_builtins(rollout)
        written = await self.write(operation, status)
        if written is not None:
            self._ended(written)
        log.info("operation ended", operation=operation.name, phase=str(phase), reason=reason)

    async def add_evidence(self, operation: MachineOperation, what: str, where: str) -> None:
        """Add evidence to an operation that has ended."""
        added = Evidence(what=what, at=self.now(), where=where)
        evidence = [msgspec.to_builtins(one) for one in (*operation.status.evidence, added)][-MAX_EVIDENCE:]
        await self.write(operation, {"evidence": evidence})
        self._emit_event(operation, "Normal", reasons.HOST_SILENT, f"{what} ({where})")

    async def add_finalizer(self, operation: MachineOperation) -> MachineOperation:
        if has_finalizer(operation):
            return operation
        finalizers = [*operation.metadata.finalizers, FINALIZER_OPERATION]
        return await self._set_finalizers(operation, finalizers)

    async def remove_finalizer(self, operation: MachineOperation) -> None:
        await self.record_result(operation)
        rest = [finalizer for finalizer in operation.metadata.finalizers if finalizer != FINALIZER_OPERATION]
        await self._set_finalizers(operation, rest)

    async def delete(self, operation: MachineOperation) -> None:
        try:
            await self._api.delete(MACHINE_OPERATIONS, operation.name, uid=operation.metadata.uid)
        except (NotFound, Conflict):
            return

    async def write(self, operation: MachineOperation, status: Mapping[str, Any]) -> MachineOperation | None:
        """Write the status and return the operation as the server stored it; None when it is gone."""
        try:
            return await self._operation_status.write(operation, status)
        except NotFound:
            return None

    def conditions(self, operation: MachineOperation, status: str, reason: str, text: str) -> list[dict[str, Any]]:
        old = operation.status.conditions
        return completed_condition(old, status=status, reason=reason, message=text, now=self.now())

    async def _check_machine(self, name: str) -> None:
        """Raise Stale if the Machine differs from the cached one: a watch can lag, and an end is final."""
        cached = self._caches.machines.get(name)
        try:
            live = await self._api.get(MACHINES, name)
        except NotFound:
            same = cached is None
        else:
            same = cached is not None and cached.metadata.resource_version == live.metadata.resource_version
            self._caches.machines.observe(live)
        if not same:
            raise Stale(f"Machine {name} has changed since the observation")

    async def _mark_lost(self, operation: MachineOperation, *, lost: bool = True) -> None:
        """Keep the lock of a lost executor, before any write ends its operation."""
        try:
            machine = await self._api.get(MACHINES, operation.spec.machine_ref or "")
        except NotFound:
            return
        if machine_lock.holds_lock(operation, machine):
            await self._machine_status.write(machine, machine_lock.lost_change(lost=lost))

    async def record_result(self, operation: MachineOperation) -> None:
        """Write the result to the Machine's history before an operation is deleted, if its executor has not."""
        machine = self._caches.machines.get(operation.spec.machine_ref or "")
        if machine is None or not operation.terminal or operation.status.execution is None:
            return
        if operation.status.reason not in _ENDED_FOR_AN_EXECUTOR and not machine_lock.holds_lock(operation, machine):
            return
        raw = await self._api.get(MACHINES.raw(), machine.name)
        await self._machine_status.write(raw, machine_lock.result_change(raw, operation))

    async def _set_finalizers(self, operation: MachineOperation, finalizers: list[str]) -> MachineOperation:
        metadata = {"resourceVersion": operation.metadata.resource_version, "finalizers": finalizers}
        changed = await self._api.patch(MACHINE_OPERATIONS, operation.name, {"metadata": metadata})
        self._caches.operations.observe(changed)
        return changed


_KINDS: Final = frozenset(OperationKind)
_HOST_KINDS: Final = frozenset(kind for kind in OperationKind if kind.is_host)


def _finalizers(machine: Machine) -> list[str] | None:
    """Return the finalizers that a Machine should have; None where it has them.

    A Machine gets the finalizer with its first host operation. A deleted Machine loses it once no host operation
    holds the lock. A lost executor does not count, as it could delay the deletion without limit.
    """
    present, active = machine.metadata.finalizers, machine.status.active_operation
    is_used = active is not None and active.kind in _HOST_KINDS and not active.lost
    has_finalizer, is_going = FINALIZER_HOST_OPERATION in present, machine.metadata.deletion_timestamp is not None
    if is_used and not has_finalizer and not is_going:
        return [*present, FINALIZER_HOST_OPERATION]
    if is_going and has_finalizer and not is_used:
        return [one for one in present if one != FINALIZER_HOST_OPERATION]
    return None


def _stale_updates(machine: Machine) -> tuple[ConditionUpdate, ...]:
    """Return the condition updates of a Machine whose stale lock is cleared.

    The claim writes the first conditions with the lock: one that names a transition of the power is not true any more,
    and the next reading shows the power. An operation in the history has acted, after all that was read before it.
    """
    active = machine.status.active_operation
    off = next((one for one in machine.status.conditions if one.type == ConditionType.POWERED_OFF), None)
    updates = [_NOT_REPAVING] if active is not None and active.kind == OperationKind.HOST_REPLACE else []
    acted = active is not None and any(one.uid == active.uid for one in machine.status.recent_operations)
    if off is None or (off.reason == ConditionReason.POWERED_OFF and not acted):
        return tuple(updates)
    return (*updates, ConditionUpdate(ConditionType.POWERED_OFF, None))


_NOT_REPAVING: Final = ConditionUpdate(ConditionType.REPAVED, None, where=ConditionStatus.FALSE)


_FIELDS: Final = ("activeOperation", "conditions", "message", "phase", "reason")


class MachineSupervisor:
    """The reconciler of one Machine at a time.

    Args:
        now: for timestamps, RFC 3339.
    """

    def __init__(self, api: Api, caches: SupervisorCaches, now: Callable[[], str]) -> None:
        self._api = api
        self._status = StatusWriter(api, MACHINES, fields=_FIELDS, cache=caches.machines)
        self._caches = caches
        self._now = now

    async def reconcile(self, name: str) -> float | None:
        """Reconcile one Machine; it needs no later pass by the clock."""
        machine = self._caches.machines.get(name)
        if machine is None:
            return None
        if (finalizers := _finalizers(machine)) is not None:
            await self._set_finalizers(machine, finalizers)
        elif await self._has_stale_lock(machine):
            updates = machine_lock.update_conditions(
                machine_lock.as_read(machine), _stale_updates(machine), now=self._now()
            )
            await self._write_machine(machine, {"activeOperation": None, **updates})
        elif machine.spec.ssh is None:
            await self._set_phase(machine)
        return None

    async def _has_stale_lock(self, machine: Machine) -> bool:
        """Return whether no executor will release the lock: its operation is gone, or ended before its claim."""
        active = machine.status.active_operation
        if active is None or active.lost or active.kind not in _KINDS:
            return False
        holder = self._caches.operations.get(active.name)
        if holder is not None and holder.metadata.uid == active.uid:
            return holder.terminal and not holder.claimed
        try:
            live = await self._api.get(MACHINE_OPERATIONS, active.name)
        except NotFound:
            return True
        return live.metadata.uid != active.uid

    async def _set_phase(self, machine: Machine) -> None:
        """Write `status.phase` of a Machine without `ssh`."""
        status = machine.status
        phase = machine_phase(
            machine.spec,
            conditions=status.conditions,
            node=node_of(self._caches.nodes, machine.name),
            slot=status.active_operation,
        )
        if change := phase.change(status):
            await self._write_machine(machine, change)

    async def _set_finalizers(self, machine: Machine, finalizers: list[str]) -> None:
        metadata = {"resourceVersion": machine.metadata.resource_version, "finalizers": finalizers}
        try:
            self._caches.machines.observe(await self._api.patch(MACHINES, machine.name, {"metadata": metadata}))
        except NotFound:
            return

    async def _write_machine(self, machine: Machine, status: Mapping[str, Any]) -> None:
        with suppress(NotFound):
            await self._status.write(machine, status)
