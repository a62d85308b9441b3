"""The supervisor's loop: one leader at a time executes the decisions of `supervisor_plan` and `batch_plan`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from unbounded.api.core import LEASES, NODE_LEASES, Node
from unbounded.api.failures import Failure
from unbounded.api.machine import Machine
from unbounded.api.names import LABEL_MACHINE
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.kube.api import Api, NotFound
from unbounded.kube.clock import Backoff, WallClock, loop_time, rfc3339, seconds_since, utc_now
from unbounded.kube.controller import Controller, WorkQueue
from unbounded.kube.events import EventSink, no_events
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.tracing import NO_TRACER, Tracer
from unbounded.operations import caches as operation_caches
from unbounded.operations import executor_selection, machine_lock, reasons, supervisor_plan
from unbounded.operations.batch_controller import BatchController, BatchTimes
from unbounded.operations.supervisor_status import MachineSupervisor, SupervisorStatus
from unbounded.operations.telemetry import AgentResults, OperationMetrics, is_executed_by_agent, trace_end

RETRY_BACKOFF: Final = Backoff(base_s=0.5, max_s=15.0)


@dataclass
class TrackedOperation:
    """In-memory state of one operation: the times at which this supervisor first observed its changes."""

    uid: str
    first_observed_at: float
    created_at: float = 0.0  # and `ended_at`: on this supervisor's clock, also for times before its start
    missing_since: float | None = None
    claimed_at: float | None = None
    ended_at: float | None = None
    changed_at: float = 0.0
    status: object = None
    fanned: BatchTimes = field(default_factory=BatchTimes)
    heard: str | None = None  # last lease renewal of a host that expects_silence selects
    heard_at: float | None = None
    warned: set[str] = field(default_factory=set)  # reasons of the Events created

    def silent_s(self, heard: str | None, now: float) -> float:
        """Return the seconds since the host's lease last changed."""
        if self.heard_at is None or heard != self.heard:
            self.heard, self.heard_at = heard, now
        return now - self.heard_at

    def update(self, operation: MachineOperation, machine: Machine | None, now: float, wall: datetime) -> None:
        if operation.terminal and self.ended_at is None:
            ended_at = now - max(seconds_since(operation.status.completed_at, wall), 0.0)
            self.ended_at = ended_at if self.status is None else max(ended_at, self.changed_at)
        if operation.status != self.status:
            self.status, self.changed_at = operation.status, now
        if operation.claimed and self.claimed_at is None:
            self.claimed_at = now
        self.missing_since = (
            None if machine is not None else self.missing_since if self.missing_since is not None else now
        )

    def ages(self, now: float) -> supervisor_plan.OperationAges:
        def age(since: float | None) -> float:
            return 0.0 if since is None else now - since

        return supervisor_plan.OperationAges(
            known_s=age(self.first_observed_at),
            created_s=age(self.created_at),
            machine_missing_s=age(self.missing_since),
            claimed_s=age(self.claimed_at),
            unchanged_s=age(self.changed_at),
            ended_s=age(self.ended_at),
        )


@dataclass(frozen=True)
class ExecutorActivity:
    """The last change of an executor's operations: on this process's clock, and as a timestamp for messages."""

    changed_at: float
    shown: str


class Supervisor:
    """The supervisor; it runs while its process leads (Lease `unbounded-operations`).

    Args:
        absences: of executors that the same process starts.
    """

    def __init__(
        self,
        api: Api,
        caches: operation_caches.SupervisorCaches,
        *,
        emit_event: EventSink = no_events,
        absences: executor_selection.ExecutorHealth | None = None,
        now: WallClock = utc_now,
        metrics: OperationMetrics | None = None,
        loop_metrics: ControllerMetrics | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._tracer = tracer
        self._api = api
        self._caches = caches
        self._emit_event = emit_event
        self._absences = absences or executor_selection.ExecutorHealth()
        self._wall = now
        self._metrics = metrics or OperationMetrics()
        self._agent_results = AgentResults(self._metrics, tracer)
        self._status = SupervisorStatus(api, caches, emit_event, now, ended=self._count)
        self._batches = BatchController(api, caches, self._status)
        self._known: dict[str, TrackedOperation] = {}
        self._activity: dict[str, ExecutorActivity] = {}  # by executor
        self._operations: Controller[str] = Controller(
            "supervisor operations",
            self._reconcile,
            workers=4,
            queue=WorkQueue(failed=RETRY_BACKOFF),
            metrics=loop_metrics,
        )
        self._machines: Controller[str] = Controller(
            "supervisor machines",
            MachineSupervisor(api, caches, self._status.now).reconcile,
            workers=2,
            metrics=loop_metrics,
        )

    async def run(self) -> None:
        """Run until cancelled."""
        caches = self._caches
        with (
            caches.operations.subscribed(self._operation_changed),
            caches.machines.subscribed(self._machine_changed),
            caches.nodes.subscribed(self._node_changed),
            caches.pause.subscribed(lambda _old, _new: self._enqueue_all()),
            self._absences.subscribed(self._absence_changed),
        ):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._operations.run())
                tasks.create_task(self._machines.run())

    def _enqueue_all(self) -> None:
        for operation in self._caches.operations.all():
            self._operations.enqueue(operation.name)
        for machine in self._caches.machines.all():
            self._machines.enqueue(machine.name)

    def _operation_changed(self, old: MachineOperation | None, new: MachineOperation | None) -> None:
        operation = new or old
        if operation is None:
            return
        self._note_activity(new)
        self._agent_results.changed(old, new)
        if not self._note_progress(old, new) and not _only_finalizers_changed(old, new):
            self._operations.enqueue(operation.name)
        for owner in operation.metadata.owner_references:
            if owner.kind == "MachineOperation":
                self._operations.enqueue(owner.name)
        if old is None or new is None or old.status.phase != new.status.phase:
            self._enqueue_for(operation.spec.machine_ref)
            if new is None or (new.terminal and not new.claimed):  # its lock may be stale now
                self._machines.enqueue(operation.spec.machine_ref or "")
            for child in self._caches.operations.by(operation_caches.INDEX_PARENT, operation.metadata.uid):
                self._operations.enqueue(child.name)

    def _note_progress(self, old: MachineOperation | None, new: MachineOperation | None) -> bool:
        """Record a write of an operation's executor; return whether the change was no more than that.

        Such a write only postpones what the last pass has planned for the operation.
        """
        if old is None or new is None or not (_is_executed(old) and _is_executed(new)):
            return False
        known = self._known.get(new.name)
        if known is None or known.uid != new.metadata.uid or old.metadata.generation != new.metadata.generation:
            return False
        machine = self._caches.machines.get(new.spec.machine_ref or "")
        known.update(new, machine, loop_time(), self._wall())
        return True

    def _note_activity(self, operation: MachineOperation | None) -> None:
        """Record that an executor is at work; after a silence, wake the operations that wait for it."""
        execution = operation.status.execution if operation is not None and not operation.terminal else None
        if execution is None:
            return
        before, now = self._activity.get(execution.executor), loop_time()
        self._activity[execution.executor] = ExecutorActivity(now, rfc3339(self._wall()))
        if before is None or now - before.changed_at >= supervisor_plan.BUSY_FOR_S:
            for other in self._caches.operations.all():
                waiting = other.status.waiting
                if waiting is not None and waiting.held_by == execution.executor and not other.claimed:
                    self._operations.enqueue(other.name)

    def _absence_changed(self, provider: str, absence: executor_selection.Unavailability | None) -> None:
        """Enqueue the operations that wait for the provider.

        A claimed one gets an Event, as its executor owns the status.
        """
        for operation in self._caches.operations.all():
            execution, waiting = operation.status.execution, operation.status.waiting
            if operation.terminal:
                continue
            if execution is None:
                if waiting is None or executor_selection.provider_of(waiting.held_by or "") == provider:
                    self._operations.enqueue(operation.name)
            elif (
                absence is not None
                and absence.is_problem
                and executor_selection.provider_of(execution.executor) == provider
            ):
                self._emit_event(operation, "Warning", reasons.PROVIDER_NOT_SERVED, absence.text)

    def _machine_changed(self, old: Machine | None, new: Machine | None) -> None:
        machine = new or old
        if machine is not None:
            self._machines.enqueue(machine.name)
            for operation in self._caches.operations.by(operation_caches.INDEX_MACHINE, machine.name):
                if _depends_on_machine(operation, old, new):
                    self._operations.enqueue(operation.name)
        if machine is not None and new is None:  # a failed target that is gone does not count
            self._enqueue_rollouts(machine.name)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        if node is not None:
            machine = node.metadata.labels.get(LABEL_MACHINE, node.metadata.name)
            self._machines.enqueue(machine)
            self._enqueue_rollouts(machine)

    def _enqueue_for(self, name: str | None) -> None:
        for operation in self._caches.operations.by(operation_caches.INDEX_MACHINE, name or ""):
            self._operations.enqueue(operation.name)

    def _enqueue_rollouts(self, machine: str) -> None:
        """Enqueue the selector operations with stages that have a child on the Machine."""
        for child in self._caches.operations.by(operation_caches.INDEX_MACHINE, machine):
            for owner in child.metadata.owner_references:
                parent = self._caches.operations.get(owner.name)
                if parent is not None and not parent.terminal and parent.status.rollout is not None:
                    self._operations.enqueue(parent.name)

    # Operations

    async def _reconcile(self, name: str) -> float | None:
        operation = self._caches.operations.get(name)
        if operation is None:
            self._known.pop(name, None)
            return None
        now = loop_time()
        known = self._known.get(name)
        if known is None or known.uid != operation.metadata.uid:
            age_s = max(seconds_since(operation.metadata.creation_timestamp, self._wall()), 0.0)
            known = self._known[name] = TrackedOperation(operation.metadata.uid, now, now - age_s)
        machine = self._caches.machines.get(operation.spec.machine_ref or "")
        known.update(operation, machine, now, self._wall())
        if operation.spec.machine_ref is None:
            return await self._execute(operation, await self._batch_action(operation, known))
        view = await self._view(operation, machine, known)
        return await self._execute(operation, supervisor_plan.plan_action(view))

    async def _batch_action(
        self, operation: MachineOperation, known: TrackedOperation
    ) -> supervisor_plan.SupervisorAction:
        if operation.terminal:
            return supervisor_plan.plan_cleanup(operation, known.ages(loop_time()).ended_s)
        return await self._batches.advance(operation, known.fanned)

    async def _view(
        self, operation: MachineOperation, machine: Machine | None, known: TrackedOperation
    ) -> supervisor_plan.SupervisorView:
        ages = known.ages(loop_time())
        if machine is not None and machine.status.disruption is not None:
            ages = replace(ages, stage_s=max(seconds_since(machine.status.disruption.since, self._wall()), 0.0))
        kind = OperationKind(operation.spec.operation_kind)
        is_waiting = not operation.terminal and not operation.claimed
        executor = executor_selection.executor_name(kind, machine) if machine is not None and is_waiting else None
        busy = executor is not None and self._is_busy(executor)
        return supervisor_plan.SupervisorView(
            operation=operation,
            machine=machine,
            others=self._caches.operations.by(operation_caches.INDEX_MACHINE, operation.spec.machine_ref or ""),
            pause=operation_caches.pause_of(self._caches.pause),
            ages=ages,
            busy=busy,
            last_heard="" if busy else await self._last_heard(machine, kind, executor),
            recorded=self._recorded(operation),
            silent_s=await self._silent_s(operation, machine, known, ages),
            under_way=0
            if executor is None
            else len(self._caches.operations.by(operation_caches.INDEX_EXECUTOR, executor)),
            absent=None if executor is None else self._absences.of(executor),
            sharing=()
            if machine is None or executor is None
            else operation_caches.sharing_bmc(self._caches.machines, machine),
        )

    async def _silent_s(
        self,
        operation: MachineOperation,
        machine: Machine | None,
        known: TrackedOperation,
        ages: supervisor_plan.OperationAges,
    ) -> float | None:
        if machine is None or not supervisor_plan.expects_silence(operation, machine, ages.ended_s):
            return None
        now = loop_time()
        try:
            return known.silent_s(await self._renewed(machine), now)
        except Failure:
            return 0.0  # without a read, no silence is known

    async def _renewed(self, machine: Machine) -> str | None:
        """Return the time of the last renewal of the lease of a Machine's Node; None where it has none."""
        try:
            return (await self._api.get(LEASES, machine.name, namespace=NODE_LEASES)).spec.renew_time or ""
        except NotFound:
            return None

    def _is_busy(self, executor: str) -> bool:
        now = loop_time()
        at_work = self._caches.operations.by(operation_caches.INDEX_EXECUTOR, executor)
        known = (self._known.get(operation.name) for operation in at_work)
        return any(one is not None and now - one.changed_at < supervisor_plan.BUSY_FOR_S for one in known)

    async def _last_heard(self, machine: Machine | None, kind: OperationKind, executor: str | None) -> str:
        """Return the last activity of an executor that does not claim: its last write, and an agent's Node lease."""
        if machine is None or executor is None:
            return ""
        heard = "it has not written since this supervisor started"
        if (activity := self._activity.get(executor)) is not None:
            heard = f"its last write was at {activity.shown}"
        if executor_selection.executor_of(kind, machine) is not executor_selection.ExecutorKind.AGENT:
            return heard
        try:
            renewed = await self._renewed(machine)
        except Failure:
            return heard
        if renewed is None:
            return f"{heard}; Node {machine.name} has no lease"
        return f"{heard}; the last renewal of its Node's lease was at {renewed}"

    def _recorded(self, operation: MachineOperation) -> bool:
        """Return whether the parent, if there is one, has recorded the end of this child."""
        for owner in operation.metadata.owner_references:
            parent = self._caches.operations.get(owner.name)
            if parent is None or parent.metadata.uid != owner.uid or parent.terminal:
                continue
            targets = (t for t in parent.status.targets if t.machine_ref == operation.spec.machine_ref)
            # a target that was started again has another operation
            name = operation.name
            return all(target.completed_at or target.operation not in (None, name) for target in targets)
        return True

    async def _execute(self, operation: MachineOperation, decided: supervisor_plan.SupervisorAction) -> float | None:
        match decided:
            case supervisor_plan.NoAction(requeue_s=requeue_s):
                return _at_least(requeue_s)
            case supervisor_plan.ReportWait():
                await self._status.write_wait(operation, decided)
                return _at_least(decided.requeue_s)
            case supervisor_plan.EndOperation():
                await self._status.end(operation, decided)
            case supervisor_plan.WarnOnce():
                self._warn_once(operation, decided)
                return _at_least(decided.until_s)
            case supervisor_plan.AddEvidence():
                where = f"Lease {NODE_LEASES}/{operation.spec.machine_ref}"
                await self._status.add_evidence(operation, decided.what, where)
            case supervisor_plan.RecordResult():
                await self._status.record_result(operation)
            case supervisor_plan.RemoveOperationFinalizer():
                await self._status.remove_finalizer(operation)
            case supervisor_plan.DeleteOperation():
                await self._status.delete(operation)
        return None

    def _warn_once(self, operation: MachineOperation, warning: supervisor_plan.WarnOnce) -> None:
        known = self._known.get(operation.name)
        if known is not None and warning.reason not in known.warned:
            known.warned.add(warning.reason)
            until = rfc3339(self._wall() + timedelta(seconds=warning.until_s))
            self._emit_event(operation, "Warning", warning.reason, f"{warning.text}; not before {until}")

    def _count(self, operation: MachineOperation) -> None:
        if is_executed_by_agent(operation):
            return
        known = self._known.get(operation.name)
        claimed_at = None if known is None else known.claimed_at
        self._metrics.ended(operation, None if claimed_at is None else loop_time() - claimed_at)
        trace_end(self._tracer, operation)


def _is_executed(operation: MachineOperation) -> bool:
    """Return whether an executor has claimed the operation and not ended it."""
    return operation.status.execution is not None and not operation.terminal


def _only_finalizers_changed(old: MachineOperation | None, new: MachineOperation | None) -> bool:
    """Return whether only finalizers of a waiting operation have changed: its executor sets one before it claims.

    A decision depends on them only where the operation has ended, or is being deleted.
    """
    if old is None or new is None or new.terminal or new.metadata.deletion_timestamp is not None:
        return False
    before, after = old.metadata, new.metadata
    others = replace(after, finalizers=before.finalizers, resource_version=before.resource_version)
    return before == others and old.status == new.status


def _depends_on_machine(operation: MachineOperation, old: Machine | None, new: Machine | None) -> bool:
    """Return whether a change of its Machine may lead to an action on the operation.

    A claimed one has an executor, which follows the Machine itself. One that has ended waits for the release of its
    lock, and a reset of the agent for the silence of its host.
    """
    if not operation.terminal:
        return operation.status.execution is None
    if old is None or new is None or operation.spec.operation_kind == OperationKind.AGENT_RESET:
        return True
    return machine_lock.holds_lock(operation, old) or machine_lock.holds_lock(operation, new)


def _at_least(seconds: float | None) -> float | None:
    """Return at least the shortest wait that a clock can measure: a rounding error must not make a pass early."""
    return None if seconds is None else max(seconds, 0.01)
