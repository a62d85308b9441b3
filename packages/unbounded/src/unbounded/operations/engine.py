"""The executor's loop: observe, let `plan` decide, write the intent, act, and report the wait.

No action is called before its intent is in the operation's status, nor more than ACT_WITHIN_S after that.
`executor_calls` observes and acts, `executor_status` writes; this module orders the calls.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from contextlib import nullcontext, suppress
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from unbounded.api.failures import Failure, Stale
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation, OperationKind, OperationPhase
from unbounded.kube.backoff import Backoff
from unbounded.kube.clock import WallClock, seconds_since, utc_now
from unbounded.kube.controller import Controller
from unbounded.kube.epoch import ProcessEpoch
from unbounded.kube.errors import Conflict
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.port import Api
from unbounded.kube.workqueue import WorkQueue
from unbounded.operations import lock, reasons
from unbounded.operations.announcing import EventSink, no_events
from unbounded.operations.caches import INDEX_MACHINE, Caches
from unbounded.operations.calls import NO_ANSWER, CallOutcome
from unbounded.operations.claim import ClaimCheck
from unbounded.operations.concurrency import FairLimiter
from unbounded.operations.counters import counters_of
from unbounded.operations.deadlines import deadline_s
from unbounded.operations.decisions import (
    CallAction,
    Decision,
    EnterStage,
    Finish,
    OwnerRequest,
    TargetState,
    Timing,
    Wait,
)
from unbounded.operations.executor_calls import REPORT_AFTER_S, ExecutorCalls, observation_identity
from unbounded.operations.executor_status import CRDOutdated, ExecutorStatus, ReconcileContext, target_state
from unbounded.operations.gates import is_meant_for, order, starts_on
from unbounded.operations.metrics import OperationMetrics
from unbounded.operations.ownership import executor_of
from unbounded.operations.parameters import invalid
from unbounded.operations.plan import decide, shows_arrival, waiting_text
from unbounded.operations.ports import Executor, Refusal, Target
from unbounded.operations.procedure import Capacity, NotObservable, Observation, Procedure
from unbounded.operations.record import Run, run_of
from unbounded.operations.run_state import ACT_WITHIN_S, RecordReader, RunState

RESOLUTION_S: Final = 0.01  # a wait that ends within this is due now
# A host may be off while its operation waits: it must not stay off for minutes once the API is back.
RETRY_BACKOFF: Final = Backoff(base_s=0.5, max_s=15.0)
ANSWERS_S: Final = 3.0  # for which a stopping process waits for the answers to its calls
STORES_S: Final = 2.0  # and for their writes
TURN_S: Final = 60.0  # an operation is woken when its turn comes; this refreshes its message


class _NoFact(StrEnum):
    """The facts of an unsupported kind, which is never observed."""


log = Log("operations")

_NO_PROCEDURE: Final = Procedure(start="", facts=_NoFact, stages={}, table={}, actions={}, proof=frozenset())
_NOT_LOOKED_AT: Final = NotObservable(reasons.NO_ANSWER, "not observed")


class Engine:
    """The controller of the operations that one executor owns.

    Args:
        epoch: of this process; fences its calls, and knows the ended epochs of other processes.
        concurrent: the number of operations that are worked on at once.
        alone: an earlier process, and all its calls, have ended before this process runs. A host guarantees that for
            its
            agent.
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
        announce: EventSink = no_events,
        metrics: OperationMetrics | None = None,
        loop_metrics: ControllerMetrics | None = None,
    ) -> None:
        self._executor = executor
        self._caches = caches
        self._epoch = epoch
        self._identity = epoch.identity
        self._alone = alone
        self._brief_s = brief_s
        self._wall = now
        self._ledger = ExecutorStatus(api, executor, caches, identity=epoch.identity, now=now)
        self._announce = announce
        self._metrics = metrics or OperationMetrics()
        self._memories: dict[str, RunState] = {}
        self._controller: Controller[str] = Controller(
            f"operations {executor.name}",
            self._reconcile,
            workers=max(concurrent, 4) * 2,
            queue=WorkQueue(failed=RETRY_BACKOFF),
            metrics=loop_metrics,
        )
        self._places = FairLimiter(concurrent, self._wake)
        self._admission = ClaimCheck(api, executor, caches, self._look, epoch=epoch, count=self._ledger.count_lost)
        self._running: ExecutorCalls | None = None

    async def run(self) -> None:
        """Run until cancelled; then wait briefly for the answers to open calls, and store them."""
        caches = self._caches
        pause = (
            nullcontext() if caches.pause is None else caches.pause.subscribed(lambda _old, _new: self._look_at_all())
        )
        with (
            caches.operations.subscribed(self._operation_changed),
            caches.machines.subscribed(self._machine_changed),
            pause,
        ):
            async with asyncio.TaskGroup() as tasks:
                self._running = ExecutorCalls(
                    self._executor, tasks, self._wake, slow=self._places.wait, brief_s=self._brief_s
                )
                try:
                    await self._controller.run()
                except asyncio.CancelledError:
                    await self._leave_answers()
                    raise

    async def _leave_answers(self) -> None:
        """Store the answers that the status lacks, so that the next process has them."""
        calls = [memory.call for memory in self._memories.values() if memory.call is not None]
        if calls:
            await asyncio.wait(calls, timeout=ANSWERS_S)
        writes = [self._leave_answer(name, memory) for name, memory in self._memories.items() if memory.keeps_answer]
        with suppress(TimeoutError):
            async with asyncio.timeout(STORES_S):
                await asyncio.gather(*writes)

    async def _leave_answer(self, name: str, memory: RunState) -> None:
        try:
            await self._store_answer(name, memory)
        except Conflict:  # also from a write of this process whose response the stop has cut off
            await self._ledger.see_anew(name)
            await self._leave_answer(name, memory)
        except Failure as failure:
            log.warning("cannot store an answer", operation=name, error=failure)

    async def _store_answer(self, name: str, memory: RunState) -> None:
        operation = self._caches.operations.get(name)
        run = None if operation is None or operation.terminal else run_of(operation)
        if operation is None or run is None or run.intent != memory.intent:
            return
        machine = self._caches.machines.get(run.machine)
        procedure, _refused = self._procedure(operation)
        await self._ledger.store_answer(ReconcileContext(operation, machine, procedure, run, memory, claimed=True))

    def _wake(self, name: str) -> None:
        memory = self._memories.get(name)
        if memory is not None:
            memory.decided_on, memory.nudged = None, True
        self._controller.enqueue(name)

    def _operation_changed(self, old: MachineOperation | None, new: MachineOperation | None) -> None:
        changed = new or old
        if changed is None:
            return
        self._controller.enqueue(changed.name)
        ended = old is not None and not old.terminal and (new is None or new.terminal)
        if ended and changed.spec.machine_ref:
            self._enqueue_for(changed.spec.machine_ref)

    def _machine_changed(self, old: Machine | None, new: Machine | None) -> None:
        changed = new or old
        if changed is not None:
            self._enqueue_for(changed.name)

    def _enqueue_for(self, machine: str) -> None:
        for operation in self._caches.operations.by(INDEX_MACHINE, machine):
            self._controller.enqueue(operation.name)

    def _look_at_all(self) -> None:
        for operation in self._caches.operations.all():
            self._controller.enqueue(operation.name)

    # One pass

    async def _reconcile(self, name: str) -> float | None:
        operation = self._caches.operations.get(name)
        if operation is None or operation.spec.machine_ref is None:
            self._forget(name)
            return None
        memory = self._memories.get(name)
        if memory is None or memory.uid != operation.metadata.uid:
            self._forget(name)
            memory = self._memories[name] = RunState(operation.metadata.uid)
        run = run_of(operation)
        if operation.terminal:
            return await self._settle(operation, run)
        if run is None:
            return await self._claim(operation, memory)
        if run.executor != self._executor.name:
            self._places.leave(memory.uid)
            return None
        self._places.enter(memory.uid, self._lane(self._caches.machines.get(run.machine)))
        return await self._advance_when_due(operation, run, memory)

    def _forget(self, name: str) -> None:
        memory = self._memories.pop(name, None)
        if memory is not None:
            memory.drop_calls()
            self._places.leave(memory.uid)

    async def _advance_when_due(self, operation: MachineOperation, run: Run, memory: RunState) -> float | None:
        """Skip a pass that an echo of this process's own writes causes: nothing that the decision depends on has
        changed.
        """
        left_s = memory.due - self._loop_time()
        if memory.decided_on == self._decides(operation, run.intent, run.machine) and left_s > RESOLUTION_S:
            return None if left_s == math.inf else left_s
        return await self._pass(operation, memory, run.machine, self._advance(operation, run, memory))

    async def _pass(
        self, operation: MachineOperation, memory: RunState, machine: str, work: Coroutine[Any, Any, float | None]
    ) -> float | None:
        """Run a pass; record its inputs and the time at which the next one is due."""
        memory.decided_on, memory.nudged = None, False
        again_s = await work
        if memory.nudged:
            return 0.0
        if again_s and not memory.left_alone and self._rests_in(operation, memory.stage):
            self._places.lend(memory.uid)
        memory.decided_on = self._decides(operation, memory.intent, machine)
        memory.due = math.inf if again_s is None else self._loop_time() + again_s
        return again_s

    def _rests_in(self, operation: MachineOperation, stage: str) -> bool:
        """Return whether the operation yields its capacity while it waits in a stage."""
        procedure, _refused = self._procedure(operation)
        return stage in procedure.stages and procedure.stages[stage].capacity is not Capacity.HOLD

    def _lane(self, machine: Machine | None) -> str:
        return "" if machine is None else self._executor.lane(machine)

    def _decides(self, operation: MachineOperation, intent: object, machine: str) -> tuple[object, ...]:
        there = self._caches.machines.get(machine)
        if there is not None:
            bound = (there.metadata.uid, self._executor.binding(there), self._executor.rests_on(operation, there))
        else:
            bound = None
        return (operation.metadata.generation, operation.metadata.deletion_timestamp, intent, bound)

    # Claim

    async def _claim(self, operation: MachineOperation, memory: RunState) -> float | None:
        machine = self._caches.machines.get(operation.spec.machine_ref or "")
        if machine is None or not self._takes(operation, machine):
            self._places.leave(memory.uid)
            return None
        fresh = self._fresh_run(operation, machine)
        procedure, refused = self._procedure(operation)
        seen = ReconcileContext(operation, machine, procedure, fresh, memory, claimed=False)
        if refused is not None:
            return await self._finish(seen, refused)
        target = Target(operation, machine, fresh)
        gate = await self._admission.closed_gate(target, memory)
        if gate is not None:
            self._places.leave(memory.uid)
            return self._admission.opens_s(gate, target, memory)
        if not self._places.take(memory.uid, operation.name, order(operation), self._lane(machine)):
            return None
        memory.begin_anew()
        try:
            return await self._pass(operation, memory, machine.name, self._decide(seen, TargetState.SAME))
        except Stale:  # the supervisor, or another client, has written at the same time
            memory.unused = memory.looked
            await self._ledger.see_anew(operation.name)
            raise

    def _takes(self, operation: MachineOperation, machine: Machine) -> bool:
        """Return whether to claim an operation; the supervisor handles cancelled, deleted and invalid ones."""
        kind = OperationKind(operation.spec.operation_kind)
        given_up = operation.spec.cancel or operation.spec.abandon or operation.metadata.deletion_timestamp
        # An operation that holds the lock has begun: the lock keeps a Machine that is being deleted.
        starts = starts_on(operation, machine) or lock.holds_lock(operation, machine)
        if given_up or not starts or not is_meant_for(operation, machine):
            return False
        if not self._executor.claims(kind, machine):
            return False
        return invalid(operation, executor_of(kind, machine)) is None

    def _procedure(self, operation: MachineOperation) -> tuple[Procedure, Finish | None]:
        """Return the operation's procedure, and the failure with which an unsupported kind ends."""
        try:
            return self._executor.procedure(operation), None
        except Refusal as refusal:
            return _NO_PROCEDURE, Finish(OperationPhase.FAILED, refusal.reason, str(refusal), cause=refusal.cause)

    def _fresh_run(self, operation: MachineOperation, machine: Machine) -> Run:
        return Run(
            machine=machine.name,
            machine_uid=machine.metadata.uid,
            executor=self._executor.name,
            incarnation=self._identity,
            binding=self._executor.binding(machine),
            stage="",
            started_at=self._ledger.now(),
            generation=machine.metadata.generation,
            counters=counters_of(operation, machine),
        )

    def _follow(self, run: Run, memory: RunState) -> None:
        reader = RecordReader(
            self._identity,
            self._loop_time(),
            self._epoch.has_ended,
            landing_s=0.0 if self._alone else self._admission.landing_s,
            settle_s=0.0 if self._alone else self._admission.settle_s,
            down_s=seconds_since(run.recorded_at, self._wall()) if memory.spent_s < 0 else 0.0,
        )
        memory.follow(run, reader)

    def _timing(self, memory: RunState) -> Timing:
        return memory.timing(self._loop_time())

    # Advance

    async def _advance(self, operation: MachineOperation, run: Run, memory: RunState) -> float | None:
        machine = self._caches.machines.get(run.machine) or await self._ledger.find(run.machine)
        procedure, refused = self._procedure(operation)
        run = replace(run, stage=procedure.former_stages.get(run.stage, run.stage))
        seen = ReconcileContext(operation, machine, procedure, run, memory, claimed=True)
        if refused is None and run.stage not in procedure.stages:
            text = f"this version of {self._executor.name} does not know stage {run.stage!r}"
            refused = Finish(OperationPhase.FAILED, reasons.OUTCOME_UNKNOWN, text)
        self._follow(run, memory)
        if refused is not None:
            return await self._finish(seen, refused)
        if memory.handle is not None:
            await self._ledger.store_answer(seen)
            return procedure.poll_s(0)
        if memory.calling:
            return await self._wait_for_call(seen)
        return await self._decide(seen, target_state(self._executor, run, machine))

    async def _decide(self, seen: ReconcileContext, target: TargetState) -> float | None:
        """Observe the machine, decide, and execute the decision."""
        memory = seen.memory
        run = seen.run if seen.run.stage else replace(seen.run, stage=seen.procedure.start)
        seen = replace(seen, run=run)
        self._follow(run, memory)
        memory.looked = None
        if target is TargetState.SAME:
            memory.machine = seen.machine
        elif run.action is None:
            memory.machine = None  # without an action, nothing can have changed since the last observation
        waits_s = REPORT_AFTER_S if target is TargetState.SAME else self._executor.call_limit_s
        sight = await self._sight(seen, waits_s)
        if sight is None:
            return self._outside.patience_s(memory, waits_s)
        memory.saw(sight, self._loop_time())
        run = memory.with_sight(run, sight, self._ledger.now)
        seen = replace(seen, run=run)
        orders = OwnerRequest(
            deadline_s=deadline_s(seen.operation),
            cancel=_is_cancelled(seen.operation),
            target=target,
            was="" if memory.machine is None else self._executor.place(memory.machine),
        )
        decision = decide(seen.procedure, run, sight, self._timing(memory), memory.answer, orders)
        decision = self._with_place(seen, decision)
        try:
            return await self._carry_out(seen, decision, sight)
        except CRDOutdated as outdated:
            seen = replace(seen, operation=outdated.operation)
            return await self._finish(seen, Finish(OperationPhase.FAILED, reasons.CRD_OUTDATED, str(outdated)))

    async def _sight(self, seen: ReconcileContext, waits_s: float) -> Observation | NotObservable | None:
        """Observe the Machine as it was claimed; None while the answer is out and `waits_s` has not passed."""
        machine = seen.memory.machine
        if machine is None:
            return _NOT_LOOKED_AT
        target = Target(seen.operation, machine, seen.run, self._ends_at(seen))
        version = machine.metadata.resource_version
        unused = (
            None if seen.claimed else seen.memory.take_unused(observation_identity(target), version, self._loop_time())
        )
        if unused is not None:
            seen.memory.looked = unused
            return unused.sight
        sight = await self._outside.look(target, seen.memory)
        if sight is None:
            no_answer = NotObservable(reasons.NO_ANSWER, f"no answer yet from {self._executor.place(machine)}")
            return None if self._outside.patience_s(seen.memory, waits_s) > 0 else no_answer
        if isinstance(sight, NotObservable):  # also where it failed at once: the outside may stay unreadable for long
            self._places.lend(seen.memory.uid)
        elif seen.stage.capacity is Capacity.HOLD and not seen.memory.settles:
            self._places.resume(seen.memory.uid)
        return sight

    def _ends_at(self, seen: ReconcileContext) -> float:
        """Return the loop time at which the stage, or the operation, reaches its limit."""
        stage, timing = seen.procedure.stages[seen.run.stage], self._timing(seen.memory)
        deadline_in_s = math.inf if stage.is_cleanup else deadline_s(seen.operation) - timing.spent_s
        return self._loop_time() + min(stage.limit_s - timing.in_stage_s, deadline_in_s)

    def _with_place(self, seen: ReconcileContext, decision: Decision) -> Decision:
        """Return the decision, or the wait for capacity where the operation has yielded its own."""
        memory = seen.memory
        if isinstance(decision, Finish | Wait) or not (seen.stage.capacity is not Capacity.HOLD or memory.settles):
            return decision
        if seen.stage.capacity is Capacity.BACKGROUND and not memory.settles:
            self._places.resume(memory.uid)
            return decision
        if self._places.retake(memory.uid, seen.operation.name, order(seen.operation)):
            memory.settles = False
            return decision
        text = f"ready to continue; waiting for capacity: {self._places.count} other operations are in progress"
        return Wait(reasons.WAITING_FOR_TURN, text, TURN_S)

    async def _carry_out(
        self, seen: ReconcileContext, decision: Decision, sight: Observation | NotObservable
    ) -> float | None:
        where = sight.where if isinstance(sight, Observation) else ""
        match decision:
            case Wait():
                self._lend_while_settling(seen.memory, decision)
                again_s = await self._ledger.say(seen, decision)
                await self._ledger.show(seen)
                return again_s
            case EnterStage():
                run = self._moved(seen, decision, where)
                entered = await self._ledger.enter(seen, run, decision.text, decision.until_s)
                stage = seen.procedure.stages[run.stage]
                dwell_s = 0.0 if stage.is_cleanup else stage.dwell_s  # in a cleanup stage, an action may be due at once
                wanted_s = dwell_s or seen.procedure.poll_s(0)
                return max(min(wanted_s, self._ends_at(entered.seen) - self._loop_time()), 0.0)
            case CallAction():
                return await self._ask(seen, decision, sight)
            case Finish():
                return await self._finish(seen, decision, where)

    def _lend_while_settling(self, memory: RunState, wait: Wait) -> None:
        """Yield capacity while the operation only waits for calls of other processes to arrive."""
        if wait.reason != reasons.WAITING_FOR_TURN:
            memory.settles = wait.reason == reasons.SETTLING
        if memory.settles:
            self._places.lend(memory.uid)

    def _moved(self, seen: ReconcileContext, step: EnterStage | CallAction, where: str) -> Run:
        """Return the record of the stage that a step leads to."""
        memory = seen.memory
        if shows_arrival(seen.procedure, seen.run, memory.answer, step):
            memory.has_arrived(seen.run.incarnation)
        return replace(
            seen.run,
            stage=step.stage,
            action=step.action if isinstance(step, CallAction) else None,
            attempt=step.attempt if isinstance(step, CallAction) else 0,
            incarnation=self._identity,
            handle=None,
            answer=NO_ANSWER,
            evidence=seen.run.with_evidence(step.evidence, at=self._ledger.now(), where=where),
            failing=step.failing or seen.run.failing,
        )

    async def _ask(self, seen: ReconcileContext, step: CallAction, sight: Observation | NotObservable) -> float | None:
        """Write the intent, and act on it if the write did not take too long."""
        looked, is_again = sight if isinstance(sight, Observation) else None, step.stage == seen.run.stage
        is_again &= step.action == seen.run.action
        run = replace(
            self._moved(seen, step, looked.where if looked else ""),
            asked_at=self._ledger.now(),
            boot_id=looked.boot_id if looked else None,
            next_binding=(looked.target_digest if looked else None) or seen.run.next_binding,
            answer=replace(NO_ANSWER, lost=is_again and seen.memory.answer.leaves_open),
        )
        blind = step.failing is not None
        entered = await self._ledger.enter(seen, run, step.text, step.until_s, blind=blind)
        machine = self._caches.machines.get(run.machine)
        before = min(entered.sent_at + ACT_WITHIN_S, self._epoch.acts_until())
        # it may have changed since the lock was checked
        same = target_state(self._executor, run, machine) is TargetState.SAME
        if machine is None or not same or self._loop_time() > before:
            return 0.0
        self._outside.call(Target(entered.seen.operation, machine, run), step.action, seen.memory, before=before)
        return await self._wait_for_call(entered.seen)

    async def _wait_for_call(self, seen: ReconcileContext) -> float | None:
        memory = seen.memory
        if not await self._outside.answer_in_time(memory):
            if (left_s := self._outside.patience_s(memory, REPORT_AFTER_S)) > 0:
                return left_s
            limit_s = self._executor.call_limit_s
            left_s = max(memory.asked_at + limit_s - self._loop_time(), 0.0)
            text = f"no answer yet: {waiting_text(seen.procedure, seen.run, cancel=_is_cancelled(seen.operation))}"
            return await self._ledger.say(seen, Wait(reasons.NO_ANSWER, text, limit_s, left_s))
        self._places.resume(memory.uid)
        if memory.handle is not None:
            return 0.0
        return seen.procedure.poll_s(0) if memory.answer.reply in (CallOutcome.ACCEPTED, CallOutcome.UNKNOWN) else 0.0

    # Ending

    async def _finish(self, seen: ReconcileContext, decision: Finish, where: str = "") -> float | None:
        if seen.memory.late_calls(self._loop_time()):
            await self._ledger.keep_slot(seen)
        written = await self._ledger.finish(seen, decision, where)
        complete = decision.phase is OperationPhase.COMPLETE
        self._announce(written, "Normal" if complete else "Warning", decision.reason, decision.text)
        self._metrics.ended(written, seen.memory.spent(self._loop_time()))
        return await self._settle(written, seen.run)

    async def _settle(self, operation: MachineOperation, run: Run | None) -> float | None:
        """Release capacity and lock after the terminal write, and add the result to the history."""
        machine = self._caches.machines.get(operation.spec.machine_ref or "")
        mine = run is not None and run.executor == self._executor.name
        if run is None or machine is None or not mine or not lock.holds_lock(operation, machine):
            self._forget(operation.name)
            return None
        memory = self._memories[operation.name]
        self._places.leave(memory.uid)
        active, read = machine.status.active_operation, None
        if active is not None and active.lost:
            read = await self._admission.looked_afresh(active, operation, Target(operation, machine, run), memory)
            if read is None:
                return self._admission.afresh_s(memory)
        self._forget(operation.name)
        procedure, refused = self._procedure(operation)
        forgotten = await self._ledger.release(operation, None if refused else procedure, read, memory.live)
        if forgotten is not None:
            text = f"{operation.name} replaced the host, so its first-use SSH host key {forgotten} is no longer trusted"
            self._announce(machine, "Normal", reasons.HOST_KEY_FORGOTTEN, text)
        return None

    # Helpers

    @property
    def _outside(self) -> ExecutorCalls:
        if self._running is None:
            raise RuntimeError("the engine is not running")
        return self._running

    async def _look(self, target: Target, memory: RunState) -> Observation | NotObservable | None:
        return await self._outside.look(target, memory)

    def _loop_time(self) -> float:
        return asyncio.get_running_loop().time()


def _is_cancelled(operation: MachineOperation) -> bool:
    """Return whether the operation is cancelled; the deletion of a running operation, which its finalizer delays, is a
    cancel.
    """
    return operation.spec.cancel or operation.metadata.deletion_timestamp is not None
