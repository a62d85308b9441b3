"""The controller of selector operations: a parent starts its children, mirrors them, and ends with them.

`batch_plan` plans, this module executes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from unbounded.api.conditions import counted
from unbounded.api.machine import MACHINES
from unbounded.api.operation import (
    MACHINE_OPERATIONS,
    MachineOperation,
    MachineOperationStatus,
    OperationPhase,
    TargetStatus,
    Waiting,
)
from unbounded.kube.api import AlreadyExists, Api, InvalidObject
from unbounded.kube.clock import loop_time
from unbounded.operations import batch_plan, reasons, supervisor_plan
from unbounded.operations.caches import INDEX_PARENT, SupervisorCaches, node_of
from unbounded.operations.execution_record import with_nulls
from unbounded.operations.rollout_plan import RolloutFacts, RolloutWait, initial_status
from unbounded.operations.supervisor_status import SupervisorStatus

MIRROR_EVERY_S: Final = 1.0
FAN_EVERY_S: Final = 0.2  # a pass over a thousand children takes milliseconds, and each of them changes ten times
_NAME_TAKEN: Final = batch_plan.BatchRejection(
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

    async def advance(self, operation: MachineOperation, fanned: BatchTimes) -> supervisor_plan.SupervisorAction:
        """Advance a parent; return the remaining verdict, or the seconds until the next pass."""
        if not operation.status.targets:
            return await self._start(operation)
        soon_s = FAN_EVERY_S - (loop_time() - fanned.fanned_at)
        if soon_s > 0:
            return supervisor_plan.NoAction(soon_s)
        fanned.fanned_at = loop_time()
        children = self._caches.operations.by(INDEX_PARENT, operation.metadata.uid)
        facts = self._facts(operation)
        step = batch_plan.plan_batch(operation, children, facts)
        if step.rollout is not None and step.rollout.pause:
            operation = await self._pause(operation)
            step = batch_plan.plan_batch(operation, children, facts)
        if step.rollout is not None and step.start:
            written = await self._write(operation, step, fanned)
            if written is None:
                return supervisor_plan.NoAction()
            operation = written
        started = {machine: await self._start_child(operation, machine) for machine in step.start}
        refused = {machine: why for machine, why in started.items() if why is not None}
        if refused:
            step = replace(step, targets=batch_plan.fail_uncreated(step.targets, refused, now=self._status.now()))
        for child in step.cancel:
            await self._api.patch(MACHINE_OPERATIONS, child, {"spec": {"cancel": True}})
        for child in step.abandon:
            await self._api.patch(MACHINE_OPERATIONS, child, {"spec": {"abandon": True}})
        if step.end is not None:
            phase, reason = step.end
            rollout = None if step.rollout is None else step.rollout.status
            await self._status.write_end(operation, phase, reason, step.message, step.targets, rollout)
            return supervisor_plan.NoAction()
        return await self._mirror(operation, step, fanned)

    def _facts(self, operation: MachineOperation) -> RolloutFacts:
        """Return the facts that the plan depends on; without spec.strategy, the time is enough."""
        now = self._status.wall()
        if operation.spec.strategy is None:
            return RolloutFacts(now)
        names = [target.machine_ref for target in operation.status.targets]
        machines = ((name, self._caches.machines.get(name)) for name in names)
        nodes = ((name, node_of(self._caches.nodes, name)) for name in names)
        return RolloutFacts(
            now,
            {name: machine for name, machine in machines if machine is not None},
            {name: node for name, node in nodes if node is not None},
        )

    async def _pause(self, operation: MachineOperation) -> MachineOperation:
        """Set spec.paused. The next write records the pause of the stage: after a crash in between it pauses again."""
        version = {"resourceVersion": operation.metadata.resource_version}
        paused = await self._api.patch(
            MACHINE_OPERATIONS, operation.name, {"metadata": version, "spec": {"paused": True}}
        )
        self._caches.operations.observe(paused)
        return paused

    async def _start(self, operation: MachineOperation) -> supervisor_plan.SupervisorAction:
        if operation.metadata.deletion_timestamp:
            return (
                supervisor_plan.RemoveOperationFinalizer()
                if supervisor_plan.has_finalizer(operation)
                else supervisor_plan.NoAction()
            )
        if operation.spec.cancel:
            return supervisor_plan.EndOperation(reasons.CANCELLED, "cancelled before it started")
        if operation.spec.abandon:
            return supervisor_plan.EndOperation(reasons.CANCELLED, "abandoned before it started")
        # Not from the cache, which can lag: the snapshot is final.
        targets = batch_plan.snapshot(operation, (await self._api.list(MACHINES)).items)
        if isinstance(targets, batch_plan.BatchRejection):
            return supervisor_plan.EndOperation(targets.reason, targets.text)
        operation = await self._status.add_finalizer(operation)
        strategy = operation.spec.strategy
        rollout = {} if strategy is None else {"rollout": msgspec.to_builtins(initial_status(strategy, targets))}
        text = counted(len(targets), "target")
        written = await self._status.write(
            operation,
            {
                "phase": str(OperationPhase.IN_PROGRESS),
                "reason": reasons.WAITING_FOR_TARGETS,
                "message": text,
                "startedAt": self._status.now(),
                "targets": [msgspec.to_builtins(target) for target in targets],
                "conditions": self._status.conditions(operation, "False", reasons.IN_PROGRESS, text),
                **rollout,
            },
        )
        if written is not None and not _is_stored(written, targets):
            return supervisor_plan.EndOperation(reasons.CRD_OUTDATED, reasons.CRD_OUTDATED_TEXT)
        return supervisor_plan.NoAction(0.0)

    async def _start_child(self, parent: MachineOperation, machine: str) -> batch_plan.BatchRejection | None:
        """Create the child of one target; return the reason where that fails."""
        manifest = batch_plan.child_manifest(parent, machine)
        try:
            child = await self._api.create(MACHINE_OPERATIONS, manifest)
        except AlreadyExists:
            child = await self._api.get(MACHINE_OPERATIONS, manifest["metadata"]["name"])
            if not batch_plan.is_child_of(child, parent.metadata.uid):
                return _NAME_TAKEN
        except InvalidObject as error:
            return batch_plan.BatchRejection(reasons.NOT_STARTED, f"the API server rejected its operation: {error}")
        self._caches.operations.observe(child)
        return None

    async def _mirror(
        self, operation: MachineOperation, step: batch_plan.BatchStep, fanned: BatchTimes
    ) -> supervisor_plan.NoAction:
        """Write the mirror when it differs, at most once a second."""
        later_s = None if step.rollout is None else step.rollout.requeue_s
        if _is_mirrored(operation.status, step):
            return supervisor_plan.NoAction(later_s)
        left_s = MIRROR_EVERY_S - (loop_time() - fanned.mirrored_at)
        if left_s > 0:
            return supervisor_plan.NoAction(left_s if later_s is None else min(left_s, later_s))
        await self._write(operation, step, fanned)
        return supervisor_plan.NoAction(later_s)

    async def _write(
        self, operation: MachineOperation, step: batch_plan.BatchStep, fanned: BatchTimes
    ) -> MachineOperation | None:
        """Write the mirror, and with spec.strategy the progress of the stages.

        Targets start only after this write, which conflicts if the operation has changed since it was read: what is
        recorded as halted or paused starts nothing, whichever process reads an older state.
        """
        fanned.mirrored_at = loop_time()
        reason = reasons.IN_PROGRESS if step.wait is None else step.wait.reason
        status: dict[str, Any] = {
            "message": step.message,
            "targets": [msgspec.to_builtins(target) for target in step.targets],
            "conditions": self._status.conditions(operation, "False", reason, step.message),
        }
        if step.rollout is not None:
            status["rollout"] = msgspec.to_builtins(step.rollout.status)
        if step.wait is not None or operation.status.waiting is not None:
            status["reason"] = reasons.WAITING_FOR_TARGETS if step.wait is None else step.wait.reason
            status["waiting"] = self._waiting(operation, step.wait)
        return await self._status.write(operation, status)

    def _waiting(self, operation: MachineOperation, wait: RolloutWait | None) -> dict[str, Any] | None:
        if wait is None:
            return None
        before = operation.status.waiting
        since = before.since if before is not None and before.reason == wait.reason else self._status.now()
        return with_nulls(Waiting(reason=wait.reason, held_by=wait.held_by, since=since, until=wait.until))


def _is_mirrored(status: MachineOperationStatus, step: batch_plan.BatchStep) -> bool:
    if (step.targets, step.message) != (status.targets, status.message):
        return False
    if step.rollout is not None and step.rollout.status != status.rollout:
        return False
    waiting = status.waiting
    recorded = None if waiting is None else (waiting.reason, waiting.held_by, waiting.until)
    return recorded == (None if step.wait is None else (step.wait.reason, step.wait.held_by, step.wait.until))


def _is_stored(written: MachineOperation, targets: Sequence[TargetStatus]) -> bool:
    """Return whether the server has stored all fields, and its CRD is not older than this controller."""
    return written.status.targets == tuple(targets) and (written.spec.strategy is None or bool(written.status.rollout))
