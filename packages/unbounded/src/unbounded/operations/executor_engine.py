"""The executor's loop: observe, let the planner decide, write the intent, act, and report the wait.

No action is called before its intent is in the operation's status, nor more than ACT_WITHIN_S after that.
`executor_calls` observes and acts, `executor_status` writes; this module orders the calls.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Coroutine
from contextlib import nullcontext
from typing import Any, Final

from msgspec.structs import replace

from unbounded.api.conditions import commands_last
from unbounded.api.failures import Stale
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.kube.api import Api
from unbounded.kube.clock import Backoff, WallClock, loop_time, seconds_since, utc_now
from unbounded.kube.controller import Controller, WorkQueue
from unbounded.kube.events import EventSink, no_events
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process_epoch import ProcessEpoch
from unbounded.kube.tracing import NO_TRACER, Tracer
from unbounded.operations import machine_lock, reasons
from unbounded.operations.caches import INDEX_MACHINE, Caches
from unbounded.operations.claim_gates import is_meant_for, order, starts_on
from unbounded.operations.deadline import deadline_s
from unbounded.operations.execution_record import Run, run_of
from unbounded.operations.executor_calls import REPORT_AFTER_S, ExecutorCalls, observation_identity, procedure_of
from unbounded.operations.executor_claim import ClaimCheck
from unbounded.operations.executor_protocol import Executor, Target
from unbounded.operations.executor_selection import executor_of
from unbounded.operations.executor_status import (
    CRDOutdated,
    EnteredStage,
    ExecutorStatus,
    ReconcileContext,
    TargetState,
    target_loss,
    target_state,
)
from unbounded.operations.in_memory_state import OperationState
from unbounded.operations.parameters import invalid
from unbounded.operations.telemetry import OperationMetrics, trace_end, traced
from unbounded.workflow.concurrency import FairLimiter
from unbounded.workflow.decisions import CallAction, Decision, EnterStage, Finish, OwnerRequest, Wait
from unbounded.workflow.planner import decide, waiting_text
from unbounded.workflow.procedure import Capacity, NotObservable, Observation
from unbounded.workflow.run_record import CallOutcome
from unbounded.workflow.run_state import ACT_WITHIN_S, RecordReader

RESOLUTION_S: Final = 0.01  # a wait that ends within this is due now
# A host may be off while its operation waits: it must not stay off for minutes once the API is back.
RETRY_BACKOFF: Final = Backoff(base_s=0.5, max_s=15.0)
TURN_S: Final = 60.0  # an operation is woken when its turn comes; this refreshes its message

_NOT_OBSERVED: Final = NotObservable(reasons.NO_ANSWER, "not observed")


class Engine:
    """The controller of the operations that one executor owns.

    Args:
        epoch: of this process; fences its calls, and knows the ended epochs of other processes.
        concurrent: the number of operations that are worked on at once.
        alone: an earlier process, and all its calls, have ended before this process runs. A host
            guarantees that for its agent.
        brief_s: the seconds for which an operation keeps its capacity, and a worker, while it waits for one answer.
    """

    def __init__(
        self,
        api: Api,
        executor: Executor,
        caches: Caches,
        *,
        epoch: ProcessEpoch,
        concurrent: int = 10,
        alone: bool = False,
        brief_s: float = REPORT_AFTER_S,
        now: WallClock = utc_now,
        emit_event: EventSink = no_events,
        metrics: OperationMetrics | None = None,
        loop_metrics: ControllerMetrics | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._tracer = tracer
        self._executor = executor
        self._caches = caches
        self._epoch = epoch
        self._identity = epoch.identity
        self._alone = alone
        self._brief_s = brief_s
        self._wall = now
        self._status = ExecutorStatus(api, executor, caches, identity=epoch.identity, now=now)
        self._emit_event = emit_event
        self._metrics = metrics or OperationMetrics()
        self._states: dict[str, OperationState] = {}
        self._controller: Controller[str] = Controller(
            f"operations {executor.name}",
            self._reconcile,
            workers=max(concurrent, 4) * 2,
            queue=WorkQueue(failed=RETRY_BACKOFF),
            metrics=loop_metrics,
        )
        self._limiter = FairLimiter(concurrent, self._wake)
        self._claim_check = ClaimCheck(api, executor, caches, self._observe, epoch=epoch, count=self._status.count_lost)
        self._running: ExecutorCalls | None = None

    async def run(self) -> None:
        """Run until cancelled; then wait briefly for the answers to open calls, and store them."""
        caches = self._caches
        pause = (
            nullcontext() if caches.pause is None else caches.pause.subscribed(lambda _old, _new: self._enqueue_all())
        )
        with (
            caches.operations.subscribed(self._operation_changed),
            caches.machines.subscribed(self._machine_changed),
            pause,
        ):
            async with asyncio.TaskGroup() as tasks:
                self._running = ExecutorCalls(
                    self._executor,
                    tasks,
                    self._wake,
                    slow=self._limiter.yield_waiting,
                    brief_s=self._brief_s,
                    tracer=self._tracer,
                )
                try:
                    await self._controller.run()
                except asyncio.CancelledError:
                    await self._status.store_answers(self._states)
                    raise

    def wake_machine(self, machine: str) -> None:
        """Observe for the running operations of a Machine now, as its state may have changed."""
        for operation in self._caches.operations.by(INDEX_MACHINE, machine):
            if operation.claimed and not operation.terminal and operation.name in self._states:
                self._wake(operation.name)

    def _wake(self, name: str) -> None:
        state = self._states.get(name)
        if state is not None:
            state.decided_on, state.woken = None, True
        self._controller.enqueue(name)

    def _operation_changed(self, old: MachineOperation | None, new: MachineOperation | None) -> None:
        changed = new or old
        if changed is None:
            return
        if old is None or new is None or not old.terminal:
            self._enqueue(changed.name)
        has_ended = old is not None and not old.terminal and (new is None or new.terminal)
        if has_ended and changed.spec.machine_ref:
            self._enqueue_for(changed.spec.machine_ref)

    def _machine_changed(self, old: Machine | None, new: Machine | None) -> None:
        changed = new or old
        if changed is not None:
            self._enqueue_for(changed.name)

    def _enqueue_for(self, name: str) -> None:
        """Enqueue the operations on a Machine; of those that have ended, the one whose lock is to be released."""
        machine = self._caches.machines.get(name)
        for operation in self._caches.operations.by(INDEX_MACHINE, name):
            has_lock = machine is not None and machine_lock.holds_lock(operation, machine)
            if not operation.terminal or has_lock or operation.name in self._states:
                self._enqueue(operation.name)

    def _enqueue_all(self) -> None:
        for operation in self._caches.operations.all():
            self._enqueue(operation.name)

    def _enqueue(self, name: str) -> None:
        """Enqueue an operation whose inputs may have changed; a pass over it checks that at its end."""
        state = self._states.get(name)
        if state is not None and state.in_pass:
            state.changed = True
        else:
            self._controller.enqueue(name)

    # One pass

    async def _reconcile(self, name: str) -> float | None:
        operation = self._caches.operations.get(name)
        if operation is None or operation.spec.machine_ref is None:
            self._forget(name)
            return None
        state = self._states.get(name)
        if state is None or state.uid != operation.metadata.uid:
            self._forget(name)
            state = self._states[name] = OperationState(operation.metadata.uid)
        run = run_of(operation)
        if operation.terminal:
            return await self._settle(operation, run)
        if run is None:
            return await self._claim(operation, state)
        if run.executor != self._executor.name:
            self._limiter.release(state.uid)
            return None
        self._limiter.adopt(state.uid, self._concurrency_group(self._caches.machines.get(run.machine)))
        return await self._advance_when_due(operation, run, state)

    def _forget(self, name: str) -> None:
        state = self._states.pop(name, None)
        if state is not None:
            state.cancel_observation()
            self._limiter.release(state.uid)

    async def _advance_when_due(self, operation: MachineOperation, run: Run, state: OperationState) -> float | None:
        """Skip a pass that this process's own writes have triggered: the inputs of the decision are unchanged."""
        left_s = state.due - loop_time()
        if left_s > RESOLUTION_S and state.decided_on == self._inputs(operation, run.intent, run.machine):
            return None if left_s == math.inf else left_s
        return await self._pass(operation, state, run.machine, self._advance(operation, run, state))

    async def _pass(
        self, operation: MachineOperation, state: OperationState, machine: str, work: Coroutine[Any, Any, float | None]
    ) -> float | None:
        """Run a pass; record its inputs and the time at which the next one is due.

        The pass's own writes change the objects as well. Only another change of its inputs needs a pass at once.
        """
        state.decided_on, state.woken = None, False
        state.in_pass, state.changed = True, False
        try:
            with self._tracer.within(state.uid, state.stage):
                requeue_s = await work
        except Exception:
            if state.changed:  # perhaps by the write that this pass has met
                self._controller.enqueue(operation.name)
            raise
        finally:
            state.in_pass = False
        if state.woken:
            return 0.0
        if requeue_s and not state.outlasted and self._yields(state):
            self._limiter.yield_(state.uid)
        state.decided_on = self._inputs(operation, state.intent, machine)
        state.due = math.inf if requeue_s is None else loop_time() + requeue_s
        return 0.0 if state.changed and not self._is_decided(operation.name, state) else requeue_s

    def _is_decided(self, name: str, state: OperationState) -> bool:
        """Return whether the last pass has decided on the present inputs, or ended the operation."""
        if self._states.get(name) is not state:
            return True
        operation = self._caches.operations.get(name)
        run = None if operation is None or operation.terminal else run_of(operation)
        if operation is None or run is None:
            return False
        return state.decided_on == self._inputs(operation, run.intent, run.machine)

    def _yields(self, state: OperationState) -> bool:
        """Return whether the operation yields its capacity while it waits in its stage."""
        stage = None if state.procedure is None else state.procedure.stages.get(state.stage)
        return stage is not None and stage.capacity is not Capacity.HOLD

    def _concurrency_group(self, machine: Machine | None) -> str:
        return "" if machine is None else self._executor.concurrency_group(machine)

    def _inputs(self, operation: MachineOperation, intent: object, machine: str) -> tuple[object, ...]:
        """Return all that a decision depends on beside observations and times."""
        request = (operation.metadata.generation, operation.metadata.deletion_timestamp, intent)
        target = self._caches.machines.get(machine)
        if target is None:
            return (*request, None)
        executor = self._executor
        key = executor.observation_key(operation, target)
        return (*request, (target.metadata.uid, executor.target_digest(target), key))

    # Claim

    async def _claim(self, operation: MachineOperation, state: OperationState) -> float | None:
        machine = self._caches.machines.get(operation.spec.machine_ref or "")
        if machine is None or not self._may_claim(operation, machine):
            self._limiter.release(state.uid)
            return None
        fresh = self._status.first_record(operation, machine)
        procedure, refused = procedure_of(self._executor, operation)
        context = ReconcileContext(operation, machine, procedure, fresh, state, claimed=False)
        if refused is not None:
            return await self._finish(context, refused)
        target = Target(operation, machine, fresh)
        gate = await self._claim_check.closed_gate(target, state)
        if gate is not None:
            self._limiter.release(state.uid)
            return self._claim_check.recheck_s(gate, target, state)
        if not self._limiter.acquire(state.uid, operation.name, order(operation), self._concurrency_group(machine)):
            return None
        if state.stored_at == -math.inf:  # else the cache is older than this process's own claim, which counts
            state.reset_claim()
        state.procedure = procedure
        begun = replace(context, run=replace(fresh, stage=procedure.start))
        self._follow(begun.run, state)
        try:
            return await self._pass(operation, state, machine.name, self._decide(begun, TargetState.SAME))
        except Stale:  # the supervisor, or another client, has written at the same time
            state.unused = state.observed
            await self._status.refresh(operation.name)
            raise

    def _may_claim(self, operation: MachineOperation, machine: Machine) -> bool:
        """Return whether to claim an operation; the supervisor handles cancelled, deleted and invalid ones."""
        kind = OperationKind(operation.spec.operation_kind)
        given_up = operation.spec.cancel or operation.spec.abandon or operation.metadata.deletion_timestamp
        # An operation that holds the lock has begun: the lock keeps a Machine that is being deleted.
        starts = starts_on(operation, machine) or machine_lock.holds_lock(operation, machine)
        if given_up or not starts or not is_meant_for(operation, machine):
            return False
        if not self._executor.claims(kind, machine):
            return False
        return invalid(operation, executor_of(kind, machine)) is None

    def _follow(self, run: Run, state: OperationState) -> None:
        reader = RecordReader(
            self._identity,
            loop_time(),
            self._epoch.has_ended,
            landing_s=0.0 if self._alone else self._claim_check.landing_s,
            settle_s=0.0 if self._alone else self._claim_check.settle_s,
            down_s=seconds_since(run.recorded_at, self._wall()),
        )
        state.update(run, reader)

    # Advance

    async def _advance(self, operation: MachineOperation, run: Run, state: OperationState) -> float | None:
        machine = self._caches.machines.get(run.machine) or await self._status.read_machine(run.machine)
        procedure, refused = procedure_of(self._executor, operation)
        run = replace(run, stage=procedure.former_stages.get(run.stage, run.stage))
        context = ReconcileContext(operation, machine, procedure, run, state, claimed=True)
        if refused is None and run.stage not in procedure.stages:
            text = f"this version of {self._executor.name} does not know stage {run.stage!r}"
            refused = Finish(reasons.OUTCOME_UNKNOWN, text)
        self._follow(run, state)
        state.procedure = procedure
        if refused is not None:
            return await self._finish(context, refused)
        if state.handle is not None:
            await self._status.store_answer(context)
            return procedure.poll_s(0)
        if state.calling:
            return await self._wait_for_call(context)
        return await self._decide(context, target_state(self._executor, run, machine))

    async def _decide(self, context: ReconcileContext, target: TargetState) -> float | None:
        """Observe the machine, decide, and execute the decision."""
        state, run = context.state, context.run
        state.observed = None
        if target is TargetState.SAME:
            state.machine = context.machine
        elif run.action is None:
            state.machine = None  # without an action, nothing can have changed since the last observation
        waits_s = REPORT_AFTER_S if target is TargetState.SAME else self._executor.call_limit_s
        observation = await self._observation(context, waits_s)
        if observation is None:
            return self._calls.remaining_s(state, waits_s)
        procedure, refused = procedure_of(self._executor, context.operation)  # the reading may show when to read again
        if refused is None and procedure.polls_s != context.procedure.polls_s:  # limits hold as the stage began
            context = replace(context, procedure=dataclasses.replace(context.procedure, polls_s=procedure.polls_s))
        state.update_progress(observation, loop_time())
        run = state.with_observation(run, observation, self._status.now)
        context = replace(context, run=run)
        request = OwnerRequest(
            deadline_s=deadline_s(context.operation),
            cancel=_is_cancelled(context.operation),
            lost=target_loss(target, run, "" if state.machine is None else self._executor.endpoint(state.machine)),
        )
        decision = decide(context.procedure, run, observation, state.timing(loop_time()), state.answer, request)
        decision = self._with_capacity(context, decision)
        try:
            return await self._execute(context, decision, observation)
        except CRDOutdated as outdated:
            context = replace(context, operation=outdated.operation)
            return await self._finish(context, Finish(reasons.CRD_OUTDATED, str(outdated)))

    async def _observation(self, context: ReconcileContext, waits_s: float) -> Observation | NotObservable | None:
        """Observe the Machine as it was claimed; None while the answer is out and `waits_s` has not passed."""
        machine = context.state.machine
        if machine is None:
            return _NOT_OBSERVED
        target = Target(context.operation, machine, context.run, self._ends_at(context))
        version = machine.metadata.resource_version
        if not context.claimed:
            unused = context.state.reuse_observation(observation_identity(target), version, loop_time())
            if unused is not None:
                context.state.observed = unused
                return unused.result
        observation = await self._calls.observe(target, context.state)
        if observation is None:
            no_answer = NotObservable(reasons.NO_ANSWER, f"no answer yet from {self._executor.endpoint(machine)}")
            return None if self._calls.remaining_s(context.state, waits_s) > 0 else no_answer
        if isinstance(observation, NotObservable):  # also after a quick failure: it may stay unreadable for long
            self._limiter.yield_(context.state.uid)
        elif context.stage.capacity is Capacity.HOLD and not context.state.awaits_late:
            self._limiter.resume(context.state.uid)
        return observation

    def _ends_at(self, context: ReconcileContext) -> float:
        """Return the loop time at which the stage, or the operation, reaches its limit."""
        stage, state, now = context.procedure.stages[context.run.stage], context.state, loop_time()
        deadline_in_s = math.inf if stage.is_cleanup else deadline_s(context.operation) - state.spent(now)
        return now + min(stage.limit_s - state.in_stage_s(now), deadline_in_s)

    def _with_capacity(self, context: ReconcileContext, decision: Decision) -> Decision:
        """Return the decision, or the wait for capacity where the operation has yielded its own."""
        state = context.state
        capacity = context.stage.capacity
        if isinstance(decision, Finish | Wait) or (capacity is not Capacity.YIELD and not state.awaits_late):
            return decision
        if self._limiter.reacquire(state.uid, context.operation.name, order(context.operation)):
            state.awaits_late = False
            return decision
        text = f"ready to continue; waiting for capacity: {self._limiter.count} other operations are in progress"
        return Wait(reasons.WAITING_FOR_TURN, text, TURN_S)

    async def _execute(
        self, context: ReconcileContext, decision: Decision, observation: Observation | NotObservable
    ) -> float | None:
        observed = observation if isinstance(observation, Observation) else None
        where = "" if observed is None else observed.where
        if observed is not None:
            context = replace(context, run=self._status.observed_record(context.run, observed))
        match decision:
            case Wait():
                self._yield_while_settling(context.state, decision)
                requeue_s = await self._status.write_wait(context, decision)
                await self._status.show_condition(context)
                return requeue_s
            case EnterStage():
                run = self._status.stage_record(context, decision, observed)
                entered = await self._enter_stage(context, run, decision.text, decision.until_s)
                stage = context.procedure.stages[run.stage]
                dwell_s = 0.0 if stage.is_cleanup else stage.dwell_s  # in a cleanup stage, an action may be due at once
                poll_s = dwell_s or context.procedure.poll_s(0)
                return max(min(poll_s, self._ends_at(entered.context) - loop_time()), 0.0)
            case CallAction():
                return await self._call(context, decision, observed)
            case Finish():
                return await self._finish(context, decision, where)

    def _yield_while_settling(self, state: OperationState, wait: Wait) -> None:
        """Yield capacity while the operation only waits for calls of other processes to arrive."""
        if wait.reason != reasons.WAITING_FOR_TURN:
            state.awaits_late = wait.reason == reasons.SETTLING
        if state.awaits_late:
            self._limiter.yield_(state.uid)

    async def _enter_stage(
        self, context: ReconcileContext, run: Run, text: str, until_s: float | None, *, blind: bool = False
    ) -> EnteredStage:
        """Write the record of the next stage, or of the next call in the present one."""
        in_stage_s = context.state.in_stage_s(loop_time())
        entered = await self._status.enter_stage(context, run, text, until_s, in_stage_s=in_stage_s, blind=blind)
        if run.stage != context.run.stage:
            self._count_stage(context, in_stage_s)
        return entered

    def _count_stage(self, context: ReconcileContext, seconds: float) -> None:
        if context.claimed:
            operation, stage = context.operation, context.run.stage
            self._metrics.left_stage(operation.spec.operation_kind, stage, seconds)
            self._tracer.left_stage(operation.metadata.uid, stage, seconds, traced(operation, self._executor.name))

    async def _call(self, context: ReconcileContext, step: CallAction, observed: Observation | None) -> float | None:
        """Write the intent, and act on it if the write did not take too long."""
        run = self._status.call_record(context, step, observed)
        blind = step.failing is not None
        entered = await self._enter_stage(context, run, step.text, step.until_s, blind=blind)
        machine = self._caches.machines.get(run.machine)
        before = min(entered.sent_at + ACT_WITHIN_S, self._epoch.acts_until())
        # it may have changed since the lock was checked
        same = target_state(self._executor, run, machine) is TargetState.SAME
        if machine is None or not same or loop_time() > before:
            return 0.0
        self._calls.perform(Target(entered.context.operation, machine, run), step.action, context.state, before=before)
        return await self._wait_for_call(entered.context)

    async def _wait_for_call(self, context: ReconcileContext) -> float | None:
        state = context.state
        if not await self._calls.wait_answer(state):
            if (left_s := self._calls.remaining_s(state, REPORT_AFTER_S)) > 0:
                return left_s
            limit_s = self._executor.call_limit_s
            left_s = max(state.answered_at + limit_s - loop_time(), 0.0)
            waiting = waiting_text(context.procedure, context.run, cancel=_is_cancelled(context.operation))
            wait = Wait(reasons.NO_ANSWER, f"no answer yet: {waiting}", limit_s, left_s)
            return await self._status.write_wait(context, wait)
        if state.handle is not None:
            return 0.0
        was_sent = state.answer.outcome in (CallOutcome.ACCEPTED, CallOutcome.UNKNOWN)
        left_s = max(self._ends_at(context) - loop_time(), 0.0)
        procedure, _refused = procedure_of(self._executor, context.operation)  # the answer may show when to observe
        return min(procedure.poll_s(0), left_s) if was_sent else 0.0

    # Ending

    async def _finish(self, context: ReconcileContext, decision: Finish, where: str = "") -> float | None:
        decision = replace(decision, text=commands_last(decision.text))
        if context.state.late_calls(loop_time()):
            await self._status.keep_lock(context)
        in_stage_s = context.state.in_stage_s(loop_time())
        written = await self._status.finish(context, decision, where, in_stage_s=in_stage_s)
        self._emit_event(written, "Normal" if decision.is_complete else "Warning", decision.reason, decision.text)
        self._count_stage(context, in_stage_s)
        self._metrics.ended(written, context.state.spent(loop_time()))
        trace_end(self._tracer, written, self._executor.name)
        return await self._settle(written, context.run)

    async def _settle(self, operation: MachineOperation, run: Run | None) -> float | None:
        """Release capacity and lock after the terminal write, and add the result to the history."""
        machine = self._caches.machines.get(operation.spec.machine_ref or "")
        mine = run is not None and run.executor == self._executor.name
        if run is None or machine is None or not mine or not machine_lock.holds_lock(operation, machine):
            self._forget(operation.name)
            return None
        state = self._states[operation.name]
        self._limiter.release(state.uid)
        active, read = machine.status.active_operation, None
        if active is not None and active.lost:
            read = await self._claim_check.observe_lost(active, operation, Target(operation, machine, run), state)
            if read is None:
                return self._claim_check.lost_recheck_s(state)
        self._forget(operation.name)
        procedure, refused = procedure_of(self._executor, operation)
        forgotten = await self._status.release(operation, None if refused else procedure, read, state.live)
        if forgotten is not None:
            text = f"{operation.name} replaced the host, so its first-use SSH host key {forgotten} is no longer trusted"
            self._emit_event(machine, "Normal", reasons.HOST_KEY_FORGOTTEN, text)
        return None

    # Helpers

    @property
    def _calls(self) -> ExecutorCalls:
        if self._running is None:
            raise RuntimeError("the engine is not running")
        return self._running

    async def _observe(self, target: Target, state: OperationState) -> Observation | NotObservable | None:
        return await self._calls.observe(target, state)


def _is_cancelled(operation: MachineOperation) -> bool:
    """Return whether the operation is cancelled; the deletion of a running one, held by a finalizer, cancels it."""
    return operation.spec.cancel or operation.metadata.deletion_timestamp is not None
