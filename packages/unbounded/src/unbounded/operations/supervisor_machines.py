"""The supervisor's reconciler of Machines.

It writes `status.phase` of Machines without `ssh`, and clears locks that no executor will release. Its finalizer
delays the deletion of a Machine during a host operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import FINALIZER_HOST_OPERATION
from unbounded.api.operation import MACHINE_OPERATIONS, OperationKind
from unbounded.api.phase import machine_phase
from unbounded.kube.api import Api, NotFound
from unbounded.kube.status_writer import StatusWriter
from unbounded.operations import machine_lock
from unbounded.operations.caches import SupervisorCaches, node_of
from unbounded.workflow.procedure import ConditionUpdate

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

    The claim writes the first conditions with the lock. An operation without a claim has called nothing, so a host
    that was about to be switched on is off. An operation in the history has acted, and the resulting power state was
    not read.
    """
    active = machine.status.active_operation
    off = next((one for one in machine.status.conditions if one.type == ConditionType.POWERED_OFF), None)
    updates = [_NOT_REPAVING] if active is not None and active.kind == OperationKind.HOST_REPLACE else []
    if off is None or off.reason not in (ConditionReason.POWERING_OFF, ConditionReason.POWERING_ON):
        return tuple(updates)
    acted = active is not None and any(one.uid == active.uid for one in machine.status.recent_operations)
    is_off = off.status == ConditionStatus.TRUE and not acted
    return (*updates, _IS_OFF if is_off else ConditionUpdate(ConditionType.POWERED_OFF, None))


_IS_OFF: Final = ConditionUpdate(ConditionType.POWERED_OFF, ConditionStatus.TRUE, ConditionReason.POWERED_OFF)
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
