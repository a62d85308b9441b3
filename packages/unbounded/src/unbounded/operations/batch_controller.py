"""The controller of selector operations: a parent starts its children, mirrors them, and ends with them.

`batch_plan` plans, this module executes.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationPhase
from unbounded.kube.api import AlreadyExists, Api, InvalidObject
from unbounded.operations import reasons
from unbounded.operations.batch_plan import (
    BatchRejection,
    BatchStep,
    child_manifest,
    fail_uncreated,
    is_child_of,
    plan_batch,
    snapshot,
)
from unbounded.operations.caches import INDEX_PARENT, SupervisorCaches
from unbounded.operations.supervisor_plan import (
    EndOperation,
    NoAction,
    RemoveOperationFinalizer,
    SupervisorAction,
    has_finalizer,
)
from unbounded.operations.supervisor_status import SupervisorStatus

MIRROR_EVERY_S: Final = 1.0
FAN_EVERY_S: Final = 0.2  # a pass over a thousand children takes milliseconds, and each of them changes ten times
_NAME_TAKEN: Final = BatchRejection(
    reasons.NAME_TAKEN, "another MachineOperation has the name of the target's operation"
)


@dataclass
class BatchTimes:
    """Loop times of a parent's last pass and last mirror write."""

    mirrored_at: float = -math.inf
    fanned_at: float = -math.inf


class BatchController:
    """The supervisor's handling of operations with a machineSelector, until they have ended."""

    def __init__(self, api: Api, caches: SupervisorCaches, status: SupervisorStatus) -> None:
        self._api = api
        self._caches = caches
        self._status = status

    async def advance(self, operation: MachineOperation, fanned: BatchTimes) -> SupervisorAction:
        """Advance a parent; return the remaining verdict, or the seconds until the next pass."""
        if not operation.status.targets:
            return await self._start(operation)
        soon_s = FAN_EVERY_S - (_loop_time() - fanned.fanned_at)
        if soon_s > 0:
            return NoAction(soon_s)
        fanned.fanned_at = _loop_time()
        children = {
            child.spec.machine_ref or "": child
            for child in self._caches.operations.by(INDEX_PARENT, operation.metadata.uid)
        }
        step = plan_batch(operation, children, now=self._status.now())
        started = {machine: await self._start_child(operation, machine) for machine in step.start}
        refused = {machine: why for machine, why in started.items() if why is not None}
        if refused:
            step = replace(step, targets=fail_uncreated(step.targets, refused, now=self._status.now()))
        for child in step.cancel:
            await self._api.patch(MACHINE_OPERATIONS, child, {"spec": {"cancel": True}})
        for child in step.abandon:
            await self._api.patch(MACHINE_OPERATIONS, child, {"spec": {"abandon": True}})
        if step.end is not None:
            phase, reason = step.end
            await self._status.write_end(operation, phase, reason, step.message, step.targets)
            return NoAction()
        return await self._mirror(operation, step, fanned)

    async def _start(self, operation: MachineOperation) -> SupervisorAction:
        if operation.metadata.deletion_timestamp:
            return RemoveOperationFinalizer() if has_finalizer(operation) else NoAction()
        if operation.spec.cancel:
            return EndOperation(reasons.CANCELLED, "cancelled before it started")
        if operation.spec.abandon:
            return EndOperation(reasons.CANCELLED, "abandoned before it started")
        # Not from the cache, which can lag: the snapshot is final.
        targets = snapshot(operation, (await self._api.list(MACHINES)).items)
        if isinstance(targets, BatchRejection):
            return EndOperation(targets.reason, targets.text)
        operation = await self._status.add_finalizer(operation)
        text = f"{len(targets)} targets"
        written = await self._status.write(
            operation,
            {
                "phase": str(OperationPhase.IN_PROGRESS),
                "reason": reasons.WAITING_FOR_TARGETS,
                "message": text,
                "startedAt": self._status.now(),
                "targets": [msgspec.to_builtins(target) for target in targets],
                "conditions": self._status.conditions(operation, "False", reasons.IN_PROGRESS, text),
            },
        )
        if written is not None and len(written.status.targets) != len(targets):
            return EndOperation(reasons.CRD_OUTDATED, reasons.CRD_OUTDATED_TEXT)
        return NoAction(0.0)

    async def _start_child(self, parent: MachineOperation, machine: str) -> BatchRejection | None:
        """Create the child of one target; return the reason where that fails."""
        manifest = child_manifest(parent, machine)
        try:
            child = await self._api.create(MACHINE_OPERATIONS, manifest)
        except AlreadyExists:
            child = await self._api.get(MACHINE_OPERATIONS, manifest["metadata"]["name"])
            if not is_child_of(child, parent.metadata.uid):
                return _NAME_TAKEN
        except InvalidObject as error:
            return BatchRejection(reasons.NOT_STARTED, f"the API server rejected its operation: {error}")
        self._caches.operations.observe(child)
        return None

    async def _mirror(self, operation: MachineOperation, step: BatchStep, fanned: BatchTimes) -> NoAction:
        """Write the mirror when it differs, at most once a second."""
        if step.targets == operation.status.targets and step.message == operation.status.message:
            return NoAction()
        left_s = MIRROR_EVERY_S - (_loop_time() - fanned.mirrored_at)
        if left_s > 0:
            return NoAction(left_s)
        fanned.mirrored_at = _loop_time()
        await self._status.write(
            operation,
            {
                "message": step.message,
                "targets": [msgspec.to_builtins(target) for target in step.targets],
                "conditions": self._status.conditions(operation, "False", reasons.IN_PROGRESS, step.message),
            },
        )
        return NoAction()


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
