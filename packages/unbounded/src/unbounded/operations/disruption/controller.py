"""The controller of disruptions: it observes Machines, Nodes and pods, and executes what `plan` decides."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from unbounded.api.core import Node
from unbounded.api.disruption import (
    MAINTENANCE,
    DisruptionHolder,
    DisruptionStage,
    DisruptionStatus,
    DrainBlocker,
    MachineDisruptionBudget,
)
from unbounded.api.failures import Rejected, Stale
from unbounded.api.machine import MACHINES, NODE_RECREATION, Machine
from unbounded.api.names import LABEL_MACHINE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationKind
from unbounded.kube.api import Api, NotFound, ServerError
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, loop_time, seconds_since, utc_now
from unbounded.kube.controller import Controller
from unbounded.kube.events import EventSink, no_events
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process_epoch import ProcessEpoch
from unbounded.kube.status_writer import StatusWriter
from unbounded.operations import claim_gates, reasons
from unbounded.operations.caches import INDEX_EXECUTOR, INDEX_MACHINE, SupervisorCaches, pause_of, sharing_bmc
from unbounded.operations.disruption import model
from unbounded.operations.disruption.budget_grants import BudgetController, Grants, availability, node_availability
from unbounded.operations.disruption.budgets import GRACE_S, drain_rules
from unbounded.operations.disruption.drain import RETRY_S, DrainRules
from unbounded.operations.disruption.drained_nodes import NodeMarker, NodeReturn, PodCaches, PodEvictions, is_marked
from unbounded.operations.disruption.plan import DisruptionPlan, DisruptionRequest, DisruptionView, plan_disruption
from unbounded.operations.disruption.stages import CORDON, EVICT
from unbounded.operations.execution_record import with_nulls
from unbounded.operations.executor_selection import executor_name, executor_of
from unbounded.operations.parameters import invalid
from unbounded.operations.telemetry import OperationMetrics

AT_ONCE: Final = 64  # Machines: a pass waits for calls, such as those of all evictions from a Node
EVICTIONS_AT_ONCE: Final = 32  # half of the calls that the client sends at once
RELEASE_S: Final = 5.0  # of a lock, after the end of its operation
LEAST_S: Final = 0.01  # a rounding error must not make a pass early, and again
PROGRESS_S: Final = 5.0  # between writes of a record within a stage
COUNT_S: Final = (15.0, 60.0)  # least and most between those that change nothing but the number of pods that are left
PODS_OF: Final = frozenset({DisruptionStage.CORDONED, DisruptionStage.DRAINING})
DRAINED_OF: Final = PODS_OF | {DisruptionStage.GRANTED, DisruptionStage.DRAINED}

T = TypeVar("T")

log = Log("disruption")


@dataclass
class _Memory:
    """The state of one Machine in this process: times on its own clock, and answers."""

    evictions: PodEvictions = field(default_factory=PodEvictions)
    refused: str | None = None  # the last answer of the server, if it did not cordon the Node
    wrote_at: float = -math.inf
    node_return: NodeReturn = field(default_factory=NodeReturn)


@dataclass(frozen=True)
class _Request:
    """A request, and the delay by a budget."""

    request: DisruptionRequest
    delay: model.Delay | None
    operation: MachineOperation | None


class DrainController:
    """The controller of disruptions; it runs while its process leads (Lease `unbounded-disruption`).

    A Machine without a request, and without a record of one, costs no call.

    Args:
        budgets: the cache of all MachineDisruptionBudgets.
        epoch: of this process, which acts only as long as it surely leads.
    """

    def __init__(
        self,
        api: Api,
        caches: SupervisorCaches,
        budgets: Cache[MachineDisruptionBudget],
        *,
        epoch: ProcessEpoch,
        emit_event: EventSink = no_events,
        now: WallClock = utc_now,
        metrics: OperationMetrics | None = None,
        loop_metrics: ControllerMetrics | None = None,
    ) -> None:
        self._api = api
        self._caches = caches
        self._metrics = metrics or OperationMetrics()
        self._grants = Grants(api, budgets, caches.machines, self._node, now, epoch.check_leads)
        self._epoch = epoch
        self._emit_event = emit_event
        self._now = now
        self._status = StatusWriter(api, MACHINES, fields=("disruption", "disruptionBudgets"), cache=caches.machines)
        self._marker = NodeMarker(api, caches.nodes, now, epoch.check_leads)
        self._memory: dict[str, _Memory] = {}
        self._evictions = asyncio.Semaphore(EVICTIONS_AT_ONCE)
        self._pods: PodCaches | None = None
        self._controller: Controller[str] = Controller(
            "disruptions", self._reconcile, workers=AT_ONCE, metrics=loop_metrics
        )
        self._budgets = BudgetController(
            self._grants, budgets, caches.machines, self._controller.enqueue, metrics=loop_metrics
        )

    async def run(self) -> None:
        """Run until cancelled."""
        caches = self._caches
        with (
            caches.operations.subscribed(self._operation_changed),
            caches.machines.subscribed(self._machine_changed),
            caches.nodes.subscribed(self._node_changed),
            caches.pause.subscribed(lambda _old, _new: self._enqueue_all()),
            self._budgets.subscribed(),
        ):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._budgets.run())
                self._pods = PodCaches(self._api, tasks, self._controller.enqueue)
                tasks.create_task(self._controller.run())

    def _enqueue_all(self) -> None:
        for machine in self._caches.machines.all():
            self._controller.enqueue(machine.name)

    def _operation_changed(self, old: MachineOperation | None, new: MachineOperation | None) -> None:
        operation = new or old
        if operation is not None and operation.spec.machine_ref:
            self._controller.enqueue(operation.spec.machine_ref)

    def _machine_changed(self, old: Machine | None, new: Machine | None) -> None:
        machine = new or old
        if machine is None:
            return
        self._controller.enqueue(machine.name)
        node = self._node(machine.name)
        if availability(old, node) != availability(new, node):
            self._grants.changed(machine.name)
            self._budgets.count(old, new)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        if node is None:
            return
        machine = node.metadata.labels.get(LABEL_MACHINE, node.metadata.name)
        machines = {node.metadata.name, machine}
        if old is not None:
            machines.add(old.metadata.labels.get(LABEL_MACHINE, node.metadata.name))
        for name in machines:
            self._controller.enqueue(name)
        moved = old is None or new is None or old.metadata.labels != new.metadata.labels
        if moved or node_availability(old) != node_availability(new):
            self._grants.changed(*machines)
        if node_availability(old) != node_availability(new):
            self._budgets.count(self._caches.machines.get(machine))

    # One pass

    async def _reconcile(self, name: str) -> float | None:
        machine, node = self._caches.machines.get(name), self._node(name)
        if (stray := self._stray(name)) is not None:
            await self._marker.clear(stray)
        if machine is None:
            await self._release(name, node)
            return None
        names = self._grants.names(machine)
        if names != machine.status.disruption_budgets:
            self._epoch.check_leads()
            await self._status.write(machine, {"disruptionBudgets": list(names)})
            return 0.0
        operations = self._caches.operations.by(INDEX_MACHINE, name)
        if (release_s := self._release_s(machine, operations)) > 0:
            return release_s
        record = machine.status.disruption
        request, rules = self._request(machine, operations)
        if record is None and request is None and not is_marked(node):
            self._forget(name)
            return None
        if record is None and request is None:
            await self._release(name, node)
            return None
        memory = self._memory.setdefault(name, _Memory())
        view = await self._view(machine, node, request, rules, memory)
        return await self._perform(view, plan_disruption(view), request, memory)

    def _release_s(self, machine: Machine, operations: tuple[MachineOperation, ...]) -> float:
        """Return the seconds for which the executor of an ended operation may still be about to release its lock.

        A write of the Machine before that would be a Conflict for one of the two.
        """
        active = machine.status.active_operation
        ended = [one for one in operations if one.terminal and active is not None and one.metadata.uid == active.uid]
        ages = [seconds_since(one.status.completed_at, self._now()) for one in ended if one.status.completed_at]
        return max((RELEASE_S - age_s for age_s in ages), default=0.0)

    def _node(self, name: str) -> Node | None:
        """Return the Node of a Machine: the one of its name, unless a label says that it is another one's.

        If it has none, the first one whose label names the Machine.
        """
        node = self._caches.nodes.get(name)
        if node is not None and node.metadata.labels.get(LABEL_MACHINE, name) == name:
            return node
        labelled = self._caches.nodes.by(INDEX_MACHINE, name)
        return min(labelled, key=lambda one: one.metadata.name, default=None)

    def _stray(self, name: str) -> Node | None:
        """Return the Node of this name if a disruption has marked it and a label has since made it no Machine's."""
        node = self._caches.nodes.get(name)
        if node is None or not is_marked(node):
            return None
        owner = self._node(node.metadata.labels.get(LABEL_MACHINE, name))
        return node if owner is None or owner.metadata.uid != node.metadata.uid else None

    def _request(
        self, machine: Machine, operations: tuple[MachineOperation, ...]
    ) -> tuple[_Request | None, DrainRules]:
        """Return what may be granted now, and the rules of the drain in progress."""
        record = machine.status.disruption
        counting = self._grants.counting(machine)
        if record is not None and record.stage not in (DisruptionStage.WAITING, DisruptionStage.RETURNING):
            held = next((one for one in operations if one.metadata.uid == record.holder.uid), None)
            return None, _rules(machine, counting, held)
        if claim_gates.in_maintenance(machine) and machine.metadata.deletion_timestamp is None:
            request = self._limited(machine, model.maintenance_holder(machine), counting, None)
            return request, _rules(machine, counting, None)
        first = next(
            (one for one in sorted(operations, key=claim_gates.order) if self._may_start(one, machine, operations)),
            None,
        )
        if first is not None:
            return self._limited(machine, model.holder_of(first), counting, first), _rules(machine, counting, first)
        rules, update = _rules(machine, counting, None), model.update_holder(machine)
        if update is None or claim_gates.paused(machine, pause_of(self._caches.pause)) is not None:
            return None, rules
        if machine.status.active_operation is not None:
            return None, rules  # the update would wait for the lock with a drained Node
        return self._limited(machine, update, counting, None), rules

    def _limited(
        self,
        machine: Machine,
        holder: DisruptionHolder,
        counting: Sequence[MachineDisruptionBudget],
        operation: MachineOperation | None,
    ) -> _Request:
        """Return the request with the delay of the first budget that has no room, unless the operation overrides it."""
        delay = self._grants.delay(machine, counting)
        overrides = delay is not None and operation is not None and operation.spec.override is not None
        request = DisruptionRequest(holder, tuple(one.name for one in counting), overrides)
        return _Request(request, None if overrides else delay, operation)

    def _may_start(self, operation: MachineOperation, machine: Machine, others: tuple[MachineOperation, ...]) -> bool:
        """Return whether nothing but the drain is missing for the operation to start."""
        spec = operation.spec
        if operation.terminal or operation.claimed or not claim_gates.needs_grant(operation, machine):
            return False
        if claim_gates.ignores_grants(operation, machine) is not None:
            return False
        if spec.cancel or spec.abandon or operation.metadata.deletion_timestamp:
            return False
        executor = executor_of(OperationKind(spec.operation_kind), machine)
        if executor is None or invalid(operation, executor) is not None:
            return False
        if not claim_gates.is_meant_for(operation, machine) or not claim_gates.starts_on(operation, machine):
            return False
        sharing = sharing_bmc(self._caches.machines, machine)
        gate = claim_gates.grant_gate(operation, machine, others, pause_of(self._caches.pause), sharing)
        return gate is None or claim_gates.gives_way(gate, operation, machine)

    async def _view(
        self, machine: Machine, node: Node | None, request: _Request | None, rules: DrainRules, memory: _Memory
    ) -> DisruptionView:
        record, returned, now = machine.status.disruption, memory.node_return, loop_time()
        drains = record is not None and record.stage in PODS_OF
        if not drains:
            self._follow_no_pods(machine.name)
        ready_s = returned.ready_s(node, now)
        returns = record is not None and record.stage == DisruptionStage.RETURNING and record.worked
        if not returns:  # an earlier holder's proof is none of the next one
            returned.reset_renewal()
        return DisruptionView(
            machine=machine,
            node=node,
            request=None if request is None else request.request,
            now=self._now(),
            loop_time=now,
            holder=None if record is None else await self._holder(record, machine),
            rules=rules,
            delay=_foreign_delay(node, request, rules) or (None if request is None else request.delay),
            paused=claim_gates.paused(machine, pause_of(self._caches.pause)),
            pods=self._pods.of(machine.name, node) if drains and node is not None and self._pods is not None else None,
            refusals=memory.evictions.refusals,
            refused=memory.refused,
            ready_s=ready_s,
            renewed=returns and node is not None and node.ready and await returned.is_renewed(self._api, node),
            busy=record is not None and self._is_busy(record, machine),
        )

    async def _holder(self, record: DisruptionStatus, machine: Machine) -> model.HolderView:
        """Return the state of the holder; a live read confirms that an operation is gone."""
        if record.holder.kind in (MAINTENANCE, NODE_RECREATION):
            return model.view_holder(record.holder, machine, None)
        operation = self._caches.operations.get(record.holder.name)
        if operation is None or operation.metadata.uid != record.holder.uid:
            try:
                operation = await self._api.get(MACHINE_OPERATIONS, record.holder.name)
            except NotFound:
                operation = None
        is_it = operation is not None and operation.metadata.uid == record.holder.uid
        return model.view_holder(record.holder, machine, operation if is_it else None)

    def _is_busy(self, record: DisruptionStatus, machine: Machine) -> bool:
        if record.holder.kind in (MAINTENANCE, NODE_RECREATION):
            return False
        executor = executor_name(OperationKind(record.holder.kind), machine)
        return executor is not None and bool(self._caches.operations.by(INDEX_EXECUTOR, executor))

    # Execution

    async def _perform(
        self, view: DisruptionView, plan: DisruptionPlan, request: _Request | None, memory: _Memory
    ) -> float | None:
        self._epoch.check_leads()
        machine, node, record = view.machine, view.node, view.machine.status.disruption
        began, after = loop_time(), plan.status
        if after is not None and _begins(record, after) and request is not None:
            await self._acquire(machine, request, after)
        if plan.action == EVICT:
            refused = dict(memory.evictions.refusals)
            await memory.evictions.evict(self._api, plan.evict, self._epoch.check_leads, self._evictions)
            if memory.evictions.refusals != refused:
                return 0.0  # the answers change the blockers
        if node is not None and plan.action != CORDON:
            await self._marker.mark(node, plan, None)
        if loop_time() - began > GRACE_S / 2:
            raise Stale("the grants may have ended, as nothing used them")
        left_s = await self._write(machine, plan, memory)
        if node is not None and plan.action == CORDON and after is not None:
            # after the record, which a cordon must not be without; in Draining a Node without it is cordoned again
            left_s = await self._cordon(node, plan, after.holder.uid, memory)
        if record is not None and (after is None or after.stage == DisruptionStage.WAITING != record.stage):
            # after the record, which must not be without its grants; a crash in between ends them as unused
            await self._grants.release(machine.name, record.holder)
        changes_s = None
        if after is not None and after.reason == reasons.WAITING_FOR_BUDGET:
            changes_s = self._grants.changes_s(machine)
        waits = [one for one in (plan.requeue_s, left_s, changes_s) if one is not None]
        return max(min(waits), LEAST_S) if waits else None

    async def _cordon(self, node: Node, plan: DisruptionPlan, holder: str, memory: _Memory) -> float | None:
        """Cordon a Node; return the seconds until the next attempt where the server, or a webhook of it, refuses."""
        before, memory.refused = memory.refused, None
        try:
            await self._marker.mark(node, plan, holder)
        except (Rejected, ServerError) as error:
            memory.refused = str(error)
            return 0.0 if before is None else RETRY_S
        return None

    async def _acquire(self, machine: Machine, request: _Request, record: DisruptionStatus) -> None:
        """Acquire the grants of a disruption that begins, before the record is written and the Node is cordoned."""
        overrides, read_at, names = request.request.overrides, loop_time(), request.request.budgets
        await self._confirm(machine, request.operation)
        if request.operation is not None and self._grants.replaces(machine, record.holder, names):
            await self._confirm(machine, None)  # an earlier holder may have begun what the cache does not show
        await self._grants.acquire(machine, record.holder, names, overrides=overrides, read_at=read_at)
        self._epoch.check_leads()
        if overrides and request.operation is not None:
            text = model.override_text(request.operation, record)
            self._emit_event(request.operation, "Warning", reasons.BUDGET_OVERRIDDEN, text)
            self._metrics.overrode(request.operation.spec.operation_kind)

    async def _confirm(self, machine: Machine, operation: MachineOperation | None) -> None:
        """Confirm by a live read that the holder to be is as the decision knew it: it may have ended since.

        Args:
            operation: the holder; None to read the Machine, which is the holder by its maintenance or update.

        Raises:
            Stale: it has changed, or is gone.
        """
        try:
            if operation is not None:
                live = await self._api.get(MACHINE_OPERATIONS, operation.name)
                self._caches.operations.observe(live)
                is_same = live.metadata.resource_version == operation.metadata.resource_version
            else:
                owner = await self._api.get(MACHINES, machine.name)
                self._caches.machines.observe(owner)
                is_same = owner.metadata.resource_version == machine.metadata.resource_version
        except NotFound:
            is_same = False
        if not is_same:
            raise Stale("the holder has changed since the decision to grant")

    async def _write(self, machine: Machine, plan: DisruptionPlan, memory: _Memory) -> float | None:
        """Write the record if it differs; return the seconds until a write that was put off."""
        before, status = machine.status.disruption, plan.status
        if status == before:
            return None
        self._epoch.check_leads()
        enters = status is None or before is None or status.since != before.since or status.stage != before.stage
        left_s = PROGRESS_S - (loop_time() - memory.wrote_at)
        if before is not None and status is not None and _is_count(before, status):
            least_s, most_s = COUNT_S
            left_s += min(max(seconds_since(before.since, self._now()), least_s), most_s) - PROGRESS_S
        if left_s > 0 and not enters:
            return left_s
        memory.wrote_at = loop_time()
        await self._status.write(machine, {"disruption": None if status is None else with_nulls(status)})
        if enters:
            self._announce(machine, before, plan)
        return None

    def _announce(self, machine: Machine, before: DisruptionStatus | None, plan: DisruptionPlan) -> None:
        status = plan.status
        stage = "Returned" if status is None else str(status.stage)
        holder = status.holder if status is not None else before.holder if before is not None else None
        log.info("stage of a disruption", machine=machine.name, stage=stage, holder=str(holder))
        if status is None:
            if before is not None and before.stage != DisruptionStage.WAITING:
                self._emit_event(machine, "Normal", "DisruptionEnded", f"{before.holder}: the Node is usable again")
        elif status.reason in (reasons.DRAIN_TIMED_OUT, reasons.EXECUTOR_SILENT):
            self._emit_event(machine, "Warning", status.reason, status.message or "")
        elif before is not None and before.stage in DRAINED_OF and plan.begins:
            self._emit_event(machine, "Warning", "DrainRestarted", status.message or "")
        elif status.stage in DRAINED_OF or before is None:
            severity = "Warning" if status.stage == DisruptionStage.GRANTED else "Normal"  # its cordon was refused
            self._emit_event(machine, severity, f"Disruption{stage}", status.message or "")

    # The end

    async def _release(self, name: str, node: Node | None) -> None:
        """Undo what a disruption has left on a Node without a record: its Machine was deleted, or lost the record."""
        self._forget(name)
        if node is None or not is_marked(node):
            return
        try:  # the cache of Machines may be behind that of Nodes
            machine = await self._api.get(MACHINES, name)
        except NotFound:
            machine = None
        if machine is not None and machine.status.disruption is not None:
            self._caches.machines.observe(machine)
            return
        await self._marker.clear(node)

    def _forget(self, name: str) -> None:
        self._memory.pop(name, None)
        self._follow_no_pods(name)

    def _follow_no_pods(self, name: str) -> None:
        if self._pods is not None:
            self._pods.stop(name)


async def first_disruption(caches: SupervisorCaches, budgets: Cache[MachineDisruptionBudget]) -> None:
    """Return once an object limits or requests a disruption, or has one: until then nothing needs the Lease."""
    found = asyncio.Event()

    def once(needs: Callable[[T], bool]) -> Callable[[T | None, T | None], None]:
        return lambda _old, new: found.set() if new is not None and needs(new) else None

    with (
        caches.machines.subscribed(once(_has_disruption)),
        caches.operations.subscribed(once(lambda operation: operation.spec.drain is not None)),
        caches.nodes.subscribed(once(is_marked)),
        budgets.subscribed(lambda _old, _new: found.set()),
    ):
        await found.wait()


def _has_disruption(machine: Machine) -> bool:
    """Return whether a Machine requests a disruption, has one, or is covered by a budget."""
    status = machine.status
    has_record = status.disruption is not None or bool(status.disruption_budgets)
    return has_record or claim_gates.in_maintenance(machine) or model.update_holder(machine) is not None


def _rules(
    machine: Machine, counting: Sequence[MachineDisruptionBudget], operation: MachineOperation | None
) -> DrainRules:
    drain = None if operation is None else operation.spec.drain
    override = operation is not None and operation.spec.override is not None
    record, updates = machine.status.disruption, operation is None and model.update_holder(machine) is not None
    updates = updates or (record is not None and record.holder.kind == NODE_RECREATION)
    return drain_rules(counting, drain, override=override, maintenance=claim_gates.in_maintenance(machine) or updates)


def _foreign_delay(node: Node | None, request: _Request | None, rules: DrainRules) -> model.Delay | None:
    """Return the delay by another controller's maintenance of the Node; None for an override, which drains nothing."""
    operation = None if request is None else request.operation
    overrides = operation is not None and operation.spec.override is not None and not rules.enabled
    return None if overrides else model.foreign_maintenance(node)


def _begins(before: DisruptionStatus | None, after: DisruptionStatus) -> bool:
    """Return whether the holder of a disruption is granted with this change of its record."""
    waits = before is None or before.stage in (DisruptionStage.WAITING, DisruptionStage.RETURNING)
    return waits and after.stage not in (DisruptionStage.WAITING, DisruptionStage.RETURNING)


def _is_count(before: DisruptionStatus, after: DisruptionStatus) -> bool:
    """Return whether two records differ in nothing but the number of pods that are left."""

    def blockers(record: DisruptionStatus) -> tuple[DrainBlocker, ...]:
        return () if record.drain is None else record.drain.blockers

    return blockers(before) == blockers(after) and msgspec.structs.replace(after, drain=before.drain) == before
