"""The steward's loop: one leader at a time carries out what `steward_plan` and `fanout` decide."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import msgspec

from unbounded.api.core import LEASES, Node
from unbounded.api.failures import Failure, Stale
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import FINALIZER_OPERATION, LABEL_MACHINE
from unbounded.api.operation import (
    MACHINE_OPERATIONS,
    MachineOperation,
    OperationKind,
    OperationPhase,
    TargetStatus,
    Waiting,
)
from unbounded.api.phase import machine_phase
from unbounded.kube.backoff import Backoff
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.controller import Controller
from unbounded.kube.errors import AlreadyExists, Conflict, Invalid, NotFound
from unbounded.kube.logs import Log
from unbounded.kube.metrics import Metrics
from unbounded.kube.port import Api
from unbounded.kube.workqueue import WorkQueue
from unbounded.operations import reasons, slot
from unbounded.operations.caches import INDEX_EXECUTOR, INDEX_MACHINE, INDEX_PARENT, StewardCaches, pause_of
from unbounded.operations.fanout import (
    Fan,
    Refused,
    child_manifest,
    failed_target,
    fan,
    is_child_of,
    not_made,
    snapshot,
)
from unbounded.operations.ownership import Executor, executor_name, executor_of
from unbounded.operations.record import completed_condition, whole
from unbounded.operations.steward_plan import (
    BUSY_FOR_S,
    Ages,
    Delete,
    End,
    Nothing,
    Say,
    Unhold,
    Verdict,
    View,
    clean_up,
    held,
    verdict,
)

MIRROR_EVERY_S: Final = 1.0
AFTER_TROUBLE: Final = Backoff(base_s=0.5, max_s=15.0)
FAN_EVERY_S: Final = 0.2  # a pass over a thousand children takes milliseconds, and each of them changes ten times
NODE_LEASES: Final = "kube-node-lease"
_NAME_TAKEN: Final = Refused(reasons.NAME_TAKEN, "another MachineOperation has the name that its operation would get")
_KINDS: Final = frozenset(OperationKind)
_ENDED_FOR_AN_EXECUTOR: Final = frozenset({reasons.EXECUTOR_LOST, reasons.PREEMPTED})
_FOR_THE_MACHINES_SAKE: Final = frozenset(
    {reasons.UNSUPPORTED_TARGET, reasons.INVALID_PARAMETERS, reasons.MACHINE_NOT_FOUND}
)

log = Log("steward")

Announce = Callable[[MachineOperation | Machine, str, str, str], None]
"""(object, Normal or Warning, reason, message): an Event for people."""


@dataclass
class Known:
    """What this steward knows of one operation: when it first saw what."""

    uid: str
    seen_at: float
    missing_since: float | None = None
    claimed_at: float | None = None
    ended_at: float | None = None
    changed_at: float = 0.0
    status: object = None
    mirrored_at: float = -math.inf
    fanned_at: float = -math.inf

    def follow(self, operation: MachineOperation, machine: Machine | None, now: float) -> None:
        if operation.status != self.status:
            self.status, self.changed_at = operation.status, now
        if operation.claimed and self.claimed_at is None:
            self.claimed_at = now
        if operation.terminal and self.ended_at is None:
            self.ended_at = now
        self.missing_since = (
            None if machine is not None else self.missing_since if self.missing_since is not None else now
        )

    def ages(self, now: float) -> Ages:
        def age(since: float | None) -> float:
            return 0.0 if since is None else now - since

        return Ages(
            known_s=age(self.seen_at),
            machine_missing_s=age(self.missing_since),
            claimed_s=age(self.claimed_at),
            unchanged_s=age(self.changed_at),
            ended_s=age(self.ended_at),
        )


class Steward:
    """Runs while its process leads (Lease `unbounded-operations`)."""

    def __init__(
        self,
        api: Api,
        caches: StewardCaches,
        *,
        announce: Announce = lambda _object, _type, _reason, _message: None,
        now: WallClock = utc_now,
        metrics: Metrics | None = None,
    ) -> None:
        self._api = api
        self._caches = caches
        self._announce = announce
        self._wall = now
        self._known: dict[str, Known] = {}
        self._at_work: dict[str, float] = {}  # when an operation of an executor last moved
        self._operations: Controller[str] = Controller(
            "steward operations", self._reconcile, workers=4, queue=WorkQueue(failed=AFTER_TROUBLE), metrics=metrics
        )
        self._machines: Controller[str] = Controller(
            "steward machines", self._reconcile_machine, workers=2, metrics=metrics
        )

    async def run(self) -> None:
        """Work until cancelled."""
        caches = self._caches
        unsubscribe = [
            caches.operations.subscribe(self._operation_changed),
            caches.machines.subscribe(self._machine_changed),
            caches.nodes.subscribe(self._node_changed),
            caches.pause.subscribe(lambda _old, _new: self._look_at_all()),
        ]
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._operations.run())
                tasks.create_task(self._machines.run())
        finally:
            for stop in unsubscribe:
                stop()

    def _look_at_all(self) -> None:
        for operation in self._caches.operations.all():
            self._operations.enqueue(operation.name)
        for machine in self._caches.machines.all():
            self._machines.enqueue(machine.name)

    def _operation_changed(self, old: MachineOperation | None, new: MachineOperation | None) -> None:
        operation = new or old
        if operation is None:
            return
        self._operations.enqueue(operation.name)
        self._note_at_work(new)
        for owner in operation.metadata.owner_references:
            if owner.kind == "MachineOperation":
                self._operations.enqueue(owner.name)
        if old is None or new is None or old.status.phase != new.status.phase:
            self._look_at_machine(operation.spec.machine_ref)
            self._machines.enqueue(operation.spec.machine_ref or "")
            for child in self._caches.operations.by(INDEX_PARENT, operation.metadata.uid):
                self._operations.enqueue(child.name)

    def _note_at_work(self, operation: MachineOperation | None) -> None:
        """When an executor is seen at work after a silence, what waits for it has another reason to wait."""
        execution = operation.status.execution if operation is not None and not operation.terminal else None
        if execution is None:
            return
        last, now = self._at_work.get(execution.executor, -math.inf), self._loop_time()
        self._at_work[execution.executor] = now
        if now - last >= BUSY_FOR_S:
            for other in self._caches.operations.all():
                waiting = other.status.waiting
                if waiting is not None and waiting.held_by == execution.executor and not other.claimed:
                    self._operations.enqueue(other.name)

    def _machine_changed(self, old: Machine | None, new: Machine | None) -> None:
        machine = new or old
        if machine is not None:
            self._machines.enqueue(machine.name)
            self._look_at_machine(machine.name)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        if node is not None:
            self._machines.enqueue(node.metadata.labels.get(LABEL_MACHINE, node.metadata.name))

    def _look_at_machine(self, name: str | None) -> None:
        for operation in self._caches.operations.by(INDEX_MACHINE, name or ""):
            self._operations.enqueue(operation.name)

    # Operations

    async def _reconcile(self, name: str) -> float | None:
        operation = self._caches.operations.get(name)
        if operation is None:
            self._known.pop(name, None)
            return None
        now = self._loop_time()
        known = self._known.get(name)
        if known is None or known.uid != operation.metadata.uid:
            known = self._known[name] = Known(operation.metadata.uid, now)
        machine = self._caches.machines.get(operation.spec.machine_ref or "")
        known.follow(operation, machine, now)
        if operation.spec.machine_ref is None:
            return await self._parent(operation, known)
        view = await self._view(operation, machine, known)
        return await self._carry_out(operation, verdict(view))

    async def _view(self, operation: MachineOperation, machine: Machine | None, known: Known) -> View:
        ages = known.ages(self._loop_time())
        kind = OperationKind(operation.spec.operation_kind)
        executor = None if machine is None else executor_name(kind, machine)
        busy = executor is not None and self._is_busy(executor)
        return View(
            operation=operation,
            machine=machine,
            others=self._caches.operations.by(INDEX_MACHINE, operation.spec.machine_ref or ""),
            pause=pause_of(self._caches.pause),
            ages=ages,
            busy=busy,
            last_heard="" if operation.claimed or busy else await self._last_heard(operation, machine),
            recorded=self._recorded(operation),
        )

    def _is_busy(self, executor: str) -> bool:
        now = self._loop_time()
        at_work = self._caches.operations.by(INDEX_EXECUTOR, executor)
        known = (self._known.get(operation.name) for operation in at_work)
        return any(one is not None and now - one.changed_at < BUSY_FOR_S for one in known)

    async def _last_heard(self, operation: MachineOperation, machine: Machine | None) -> str:
        """For an agent, what its Node's lease says; shown as it stands, for a person to compare."""
        kind = OperationKind(operation.spec.operation_kind)
        if machine is None or executor_of(kind, machine) is not Executor.AGENT:
            return ""
        try:
            lease = await self._api.get(LEASES, machine.name, namespace=NODE_LEASES)
        except NotFound:
            return f"Node {machine.name} has no lease"
        except Failure:
            return ""
        return f"the lease of its Node was last renewed at {lease.spec.renew_time}"

    def _recorded(self, operation: MachineOperation) -> bool:
        """Whether the parent, if there is one, has noted how this child ended."""
        for owner in operation.metadata.owner_references:
            parent = self._caches.operations.get(owner.name)
            if parent is None or parent.metadata.uid != owner.uid or parent.terminal:
                continue
            targets = (t for t in parent.status.targets if t.machine_ref == operation.spec.machine_ref)
            return all(target.completed_at for target in targets)
        return True

    async def _carry_out(self, operation: MachineOperation, decided: Verdict) -> float | None:
        match decided:
            case Nothing(look_again_s=again_s):
                return _at_least(again_s)
            case Say():
                await self._say(operation, decided)
                return _at_least(decided.look_again_s)
            case End():
                await self._end(operation, decided)
            case Unhold():
                await self._unhold(operation)
            case Delete():
                await self._delete(operation)
        return None

    async def _say(self, operation: MachineOperation, said: Say) -> None:
        status = operation.status
        before = status.waiting
        same = before is not None and (before.reason, before.held_by) == (said.reason, said.held_by)
        if same and status.message == said.text and status.phase == OperationPhase.PENDING:
            return
        waiting = before if same and before is not None else self._waiting(said)
        await self._write(
            operation,
            {
                "phase": str(OperationPhase.PENDING),
                "reason": said.reason,
                "message": said.text,
                "waiting": whole(waiting),
                "conditions": self._conditions(operation, "False", said.reason, said.text),
            },
        )

    def _waiting(self, said: Say) -> Waiting:
        until = None if said.until_s is None else rfc3339(self._wall() + timedelta(seconds=said.until_s))
        return Waiting(reason=said.reason, held_by=said.held_by, since=self._now(), until=until)

    async def _end(self, operation: MachineOperation, end: End) -> None:
        if end.reason in _FOR_THE_MACHINES_SAKE and operation.spec.machine_ref is not None:
            await self._make_sure_of(operation.spec.machine_ref)
        if end.lost:
            await self._mark_lost(operation)
        targets = operation.status.targets if operation.spec.machine_ref else ()
        ended = tuple(failed_target(target, end.reason, end.text, self._now()) for target in targets)
        await self._write_end(operation, OperationPhase.FAILED, end.reason, end.text, ended)
        self._announce(operation, "Warning", end.reason, end.text)

    async def _make_sure_of(self, name: str) -> None:
        """A watch can lag behind, and an end cannot be taken back: raise Stale if the Machine is not as it was seen."""
        seen = self._caches.machines.get(name)
        try:
            live = await self._api.get(MACHINES, name)
        except NotFound:
            same = seen is None
        else:
            same = seen is not None and seen.metadata.resource_version == live.metadata.resource_version
            self._caches.machines.saw(live)
        if not same:
            raise Stale(f"Machine {name} has changed since it was looked at")

    async def _mark_lost(self, operation: MachineOperation) -> None:
        """Keep the slot of a lost executor, before anything says that its operation has ended."""
        try:
            machine = await self._api.get(MACHINES, operation.spec.machine_ref or "")
        except NotFound:
            return
        if not slot.holds_slot(operation, machine):
            return
        version = {"resourceVersion": machine.metadata.resource_version}
        patch = {"metadata": version, "status": {"activeOperation": {"lost": True}}}
        self._caches.machines.saw(await self._api.patch(MACHINES, machine.name, patch, subresource="status"))

    async def _write_end(
        self,
        operation: MachineOperation,
        phase: OperationPhase,
        reason: str,
        text: str,
        targets: tuple[TargetStatus, ...] = (),
    ) -> None:
        done = "True" if phase is OperationPhase.COMPLETE else "False"
        status: dict[str, Any] = {
            "phase": str(phase),
            "reason": reason,
            "message": text,
            "completedAt": self._now(),
            "waiting": None,
            "conditions": self._conditions(operation, done, reason, text),
        }
        if targets:
            status["targets"] = [msgspec.to_builtins(target) for target in targets]
        await self._write(operation, status)
        log.info("operation ended", operation=operation.name, phase=str(phase), reason=reason)

    async def _hold(self, operation: MachineOperation) -> MachineOperation:
        if held(operation):
            return operation
        finalizers = [*operation.metadata.finalizers, FINALIZER_OPERATION]
        return await self._set_finalizers(operation, finalizers)

    async def _unhold(self, operation: MachineOperation) -> None:
        await self._leave_result(operation)
        rest = [finalizer for finalizer in operation.metadata.finalizers if finalizer != FINALIZER_OPERATION]
        await self._set_finalizers(operation, rest)

    async def _leave_result(self, operation: MachineOperation) -> None:
        """Before an operation may go: its result, if its executor did not leave it in the Machine's history."""
        machine = self._caches.machines.get(operation.spec.machine_ref or "")
        if machine is None or not operation.terminal or operation.status.execution is None:
            return
        if operation.status.reason not in _ENDED_FOR_AN_EXECUTOR and not slot.holds_slot(operation, machine):
            return
        raw = await self._api.get(MACHINES.raw(), machine.name)
        patch = slot.result_patch(raw, operation)
        if patch is not None:
            self._caches.machines.saw(await self._api.patch(MACHINES, machine.name, patch, subresource="status"))

    async def _set_finalizers(self, operation: MachineOperation, finalizers: list[str]) -> MachineOperation:
        metadata = {"resourceVersion": operation.metadata.resource_version, "finalizers": finalizers}
        changed = await self._api.patch(MACHINE_OPERATIONS, operation.name, {"metadata": metadata})
        self._caches.operations.saw(changed)
        return changed

    async def _delete(self, operation: MachineOperation) -> None:
        try:
            await self._api.delete(MACHINE_OPERATIONS, operation.name, uid=operation.metadata.uid)
        except (NotFound, Conflict):
            return

    # Parents

    async def _parent(self, operation: MachineOperation, known: Known) -> float | None:
        if operation.terminal:
            return await self._carry_out(operation, clean_up(operation, known.ages(self._loop_time()).ended_s))
        if not operation.status.targets:
            return await self._start_parent(operation)
        soon_s = FAN_EVERY_S - (self._loop_time() - known.fanned_at)
        if soon_s > 0:
            return _at_least(soon_s)
        known.fanned_at = self._loop_time()
        children = {
            child.spec.machine_ref or "": child
            for child in self._caches.operations.by(INDEX_PARENT, operation.metadata.uid)
        }
        step = fan(operation, children, now=self._now())
        started = {machine: await self._start_child(operation, machine) for machine in step.start}
        refused = {machine: why for machine, why in started.items() if why is not None}
        if refused:
            step = replace(step, targets=not_made(step.targets, refused, now=self._now()))
        for child in step.cancel:
            await self._api.patch(MACHINE_OPERATIONS, child, {"spec": {"cancel": True}})
        if step.end is not None:
            phase, reason = step.end
            await self._write_end(operation, phase, reason, step.message, step.targets)
            return None
        return await self._mirror(operation, step, known)

    async def _start_parent(self, operation: MachineOperation) -> float | None:
        if operation.metadata.deletion_timestamp:
            return await self._carry_out(operation, Unhold() if held(operation) else Nothing())
        if operation.spec.cancel:
            return await self._carry_out(operation, End(reasons.CANCELLED, "cancelled before it was started"))
        # Not from the cache, which can lag behind: the snapshot counts for good.
        targets = snapshot(operation, (await self._api.list(MACHINES)).items)
        if isinstance(targets, Refused):
            return await self._carry_out(operation, End(targets.reason, targets.text))
        operation = await self._hold(operation)
        text = f"{len(targets)} targets"
        written = await self._write(
            operation,
            {
                "phase": str(OperationPhase.IN_PROGRESS),
                "reason": reasons.WAITING_FOR_TARGETS,
                "message": text,
                "startedAt": self._now(),
                "targets": [msgspec.to_builtins(target) for target in targets],
                "conditions": self._conditions(operation, "False", reasons.IN_PROGRESS, text),
            },
        )
        if written is not None and len(written.status.targets) != len(targets):
            return await self._carry_out(written, End(reasons.CRD_OUTDATED, reasons.CRD_OUTDATED_TEXT))
        return 0.0

    async def _start_child(self, parent: MachineOperation, machine: str) -> Refused | None:
        """Make the child of one target; or why that cannot be."""
        manifest = child_manifest(parent, machine)
        try:
            child = await self._api.create(MACHINE_OPERATIONS, manifest)
        except AlreadyExists:
            child = await self._api.get(MACHINE_OPERATIONS, manifest["metadata"]["name"])
            if not is_child_of(child, parent.metadata.uid):
                return _NAME_TAKEN
        except Invalid as error:
            return Refused(reasons.NOT_STARTED, f"its operation was refused: {error}")
        self._caches.operations.saw(child)
        return None

    async def _mirror(self, operation: MachineOperation, step: Fan, known: Known) -> float | None:
        """Write the mirror when it differs, at most once a second."""
        if step.targets == operation.status.targets and step.message == operation.status.message:
            return None
        left_s = MIRROR_EVERY_S - (self._loop_time() - known.mirrored_at)
        if left_s > 0:
            return _at_least(left_s)
        known.mirrored_at = self._loop_time()
        await self._write(
            operation,
            {
                "message": step.message,
                "targets": [msgspec.to_builtins(target) for target in step.targets],
                "conditions": self._conditions(operation, "False", reasons.IN_PROGRESS, step.message),
            },
        )
        return None

    # Machines

    async def _reconcile_machine(self, name: str) -> float | None:
        machine = self._caches.machines.get(name)
        if machine is None:
            return None
        if await self._slot_is_left_behind(machine):
            await self._write_machine(machine, {"activeOperation": None})
        elif machine.spec.ssh is None:
            await self._set_phase(machine)
        return None

    async def _slot_is_left_behind(self, machine: Machine) -> bool:
        """Whether no executor will give it back: its operation is gone, or ended before the claim was written."""
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
        """Keep Machine.status.phase of Machines without `ssh`."""
        status = machine.status
        wanted = machine_phase(
            machine.spec, conditions=status.conditions, node=self._node(machine.name), slot=status.active_operation
        )
        if (status.phase, status.message) != (wanted.phase, wanted.message):
            await self._write_machine(machine, {"phase": str(wanted.phase), "message": wanted.message})

    async def _write_machine(self, machine: Machine, status: Mapping[str, Any]) -> None:
        patch = {"metadata": {"resourceVersion": machine.metadata.resource_version}, "status": status}
        try:
            self._caches.machines.saw(await self._api.patch(MACHINES, machine.name, patch, subresource="status"))
        except NotFound:
            return

    def _node(self, machine: str) -> Node | None:
        node = self._caches.nodes.get(machine)
        return node if node is not None else next(iter(self._caches.nodes.by(INDEX_MACHINE, machine)), None)

    # Small parts

    async def _write(self, operation: MachineOperation, status: Mapping[str, Any]) -> MachineOperation | None:
        """The operation as the server keeps it; None when it is gone."""
        patch = {"metadata": {"resourceVersion": operation.metadata.resource_version}, "status": status}
        try:
            written = await self._api.patch(MACHINE_OPERATIONS, operation.name, patch, subresource="status")
        except NotFound:
            return None
        self._caches.operations.saw(written)
        return written

    def _conditions(self, operation: MachineOperation, status: str, reason: str, text: str) -> list[dict[str, Any]]:
        old = operation.status.conditions
        return completed_condition(old, status=status, reason=reason, message=text, now=self._now())

    def _now(self) -> str:
        return rfc3339(self._wall())

    def _loop_time(self) -> float:
        return asyncio.get_running_loop().time()


def _at_least(seconds: float | None) -> float | None:
    """A wait that a clock can tell from none: what is due by a rounding error is not due yet."""
    return None if seconds is None else max(seconds, 0.01)
