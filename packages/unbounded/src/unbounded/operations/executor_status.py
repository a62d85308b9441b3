"""The engine's writes: lock and finalizer, the record of each stage, the message of a wait, and the end.

Each write fails with Conflict if the object changed since it was read; the engine then repeats the pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from unbounded.api.failures import Failure, Stale
from unbounded.api.fields import Cause
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.machine_status import merge_erasures
from unbounded.api.names import FINALIZER_OPERATION
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationPhase, Waiting
from unbounded.api.run_history import MAX_ATTEMPT_TEXT, EarlierAttempt, RunHistory
from unbounded.kube.api import Api, Conflict, NotFound
from unbounded.kube.clock import WallClock, loop_time, rfc3339
from unbounded.kube.logs import Log
from unbounded.kube.status_writer import StatusWriter
from unbounded.operations import machine_lock, reasons
from unbounded.operations.caches import Caches
from unbounded.operations.disruption.model import override_evidence, started_change
from unbounded.operations.execution_record import (
    Run,
    completed_condition,
    run_of,
    running_patch,
    terminal_patch,
    wait_message,
)
from unbounded.operations.executor_calls import procedure_of
from unbounded.operations.executor_protocol import Executor
from unbounded.operations.executor_selection import is_agent
from unbounded.operations.in_memory_state import COUNT_S, OperationState
from unbounded.operations.machine_counters import counters_of
from unbounded.workflow.decisions import CallAction, EnterStage, Finish, TargetLoss, Wait
from unbounded.workflow.planner import proven_answer, shows_arrival
from unbounded.workflow.procedure import Observation, Procedure, Stage
from unbounded.workflow.run_record import NO_ANSWER
from unbounded.workflow.run_state import ACT_ON_S

SHOW_AFTER_S: Final = 6.0  # longer than the confirmation of a power state
REPORT_EVERY_S: Final = 5.0  # between two writes that change only the message of a wait
UNTIL_S: Final = 10.0  # a wait is written again only if it ends later than reported by this
ANSWERS_S: Final = 3.0  # for which a stopping process waits for the answers to its calls
STORES_S: Final = 2.0  # and for their writes
PROGRESS_S: Final = 10.0  # progress is not written before the stage has taken this long

log = Log("operations")


class ReconcileContext(Struct, frozen=True):
    """The input of one pass over one operation: the objects that the decision and the writes are based on."""

    operation: MachineOperation
    machine: Machine | None
    procedure: Procedure
    run: Run
    state: OperationState
    claimed: bool

    @property
    def stage(self) -> Stage:
        return self.procedure.stages[self.run.stage]


class EnteredStage(Struct, frozen=True):
    """A stage whose record is stored in the status."""

    context: ReconcileContext
    sent_at: float  # loop time of the write's request: other clients can know of the intent no earlier


class CRDOutdated(Exception):
    """The server stored less than was written; `operation` is the stored object."""

    def __init__(self, operation: MachineOperation) -> None:
        super().__init__(reasons.CRD_OUTDATED_TEXT)
        self.operation = operation


def _recorded(run: Run) -> object:
    """Return the part of a record that the server must store for another process to resume the operation."""
    return run.intent, run.target_digest, run.failing is None


class TargetState(Enum):
    SAME = "the Machine that was claimed"
    CHANGED = "another UID or target digest"
    GONE = "no such Machine"


def target_loss(target: TargetState, run: Run, endpoint: str) -> TargetLoss | None:
    """Return the failure of an operation that has lost its Machine.

    Args:
        endpoint: of the host that was claimed, where it is known.
    """
    match target:
        case TargetState.SAME:
            return None
        case TargetState.GONE:
            return TargetLoss(reasons.MACHINE_NOT_FOUND, f"Machine {run.machine} was deleted during the operation")
    text = (
        f"Machine {run.machine} is not the claimed one any more: it was recreated, or its spec names "
        f"another address or identity of the host{f' (was {endpoint})' if endpoint else ''}"
    )
    return TargetLoss(reasons.TARGET_CHANGED, text)


def target_state(executor: Executor, run: Run, machine: Machine | None) -> TargetState:
    """Return whether a Machine still is the one that was claimed."""
    if machine is None:
        return TargetState.GONE
    same = machine.metadata.uid == run.machine_uid
    bound = executor.target_digest(machine) in (run.target_digest, run.next_target_digest)
    return TargetState.SAME if same and bound else TargetState.CHANGED


class ExecutorStatus:
    """The status writes of one engine."""

    def __init__(self, api: Api, executor: Executor, caches: Caches, *, identity: str, now: WallClock) -> None:
        self._api = api
        # an agent has no permission to write the phase, so the supervisor writes it
        self._writes_phase = not is_agent(executor.name)
        fields = (*machine_lock.FIELDS, *(machine_lock.PHASE_FIELDS if self._writes_phase else ()))
        self._machine_status = StatusWriter(api, MACHINES, fields=fields, cache=caches.machines)
        self._operation_status = StatusWriter(api, MACHINE_OPERATIONS, fields=None, cache=caches.operations)
        self._executor = executor
        self._caches = caches
        self._identity = identity
        self._wall = now

    def now(self) -> str:
        return rfc3339(self._wall())

    # Records

    def first_record(self, operation: MachineOperation, machine: Machine) -> Run:
        """Return the record of a claim, before its first stage."""
        return Run(
            machine=machine.name,
            machine_uid=machine.metadata.uid,
            executor=self._executor.name,
            epoch=self._identity,
            target_digest=self._executor.target_digest(machine),
            stage="",
            started_at=self.now(),
            generation=machine.metadata.generation,
            counters=counters_of(operation, machine),
            evidence=override_evidence(operation, machine, self.now()),
        )

    def observed_record(self, run: Run, observation: Observation) -> Run:
        """Return the record with the evidence and the erasures that an observation has."""
        if observation.evidence:
            run = run.with_findings(observation.evidence, at=self.now(), where=observation.where)
        if observation.erasures:
            erasures = merge_erasures(run.erasures, observation.erasures)  # the servers record permissions
            run = replace(run, erasures=erasures)
        return run

    def stage_record(
        self, context: ReconcileContext, step: EnterStage | CallAction, observed: Observation | None
    ) -> Run:
        """Return the record of the stage that a step leads to.

        Args:
            observed: the observation that the step was decided on; None where the outside cannot be read.
        """
        state, where = context.state, observed.where if observed else ""
        if shows_arrival(context.procedure, context.run, state.answer, step):
            state.drop_late(context.run.epoch)
        return replace(
            context.run,
            stage=step.stage,
            action=step.action if isinstance(step, CallAction) else None,
            attempt=step.attempt if isinstance(step, CallAction) else 0,
            epoch=self._identity,
            handle=None,
            answer=NO_ANSWER,
            evidence=context.run.with_evidence(step.evidence, at=self.now(), where=where),
            failing=step.failing or context.run.failing,
            fact="",  # the call of this record may change it
            read_at=None,
            history=self._with_earlier_attempt(context, observed),
        )

    def _with_earlier_attempt(self, context: ReconcileContext, observed: Observation | None) -> RunHistory:
        """Return the history with the last call, before another call or stage."""
        run = context.run
        if run.action is None:
            return run.history
        answer = proven_answer(context.procedure, run, observed, context.state.answer)
        return run.history.with_attempt(
            EarlierAttempt(
                stage=run.stage,
                action=run.action,
                number=run.attempt,
                started_at=run.called_at,
                completed_at=self.now(),
                reply=answer.reply,
                reason=answer.reason[:256] or None,
                message=answer.text[:MAX_ATTEMPT_TEXT] or None,
            )
        )

    def _with_stage_times(self, context: ReconcileContext, run: Run, in_stage_s: float) -> Run:
        """Return a record whose history has the end of the stage before, and the begin of its own."""
        if context.claimed and run.stage == context.run.stage:
            return run
        history, calls = run.history, run.action is not None
        at = run.called_at if calls and run.called_at else self.now()  # no call before the begin of its stage
        if context.claimed:
            history = history.with_stage_left(context.run.stage, at=at, spent_s=in_stage_s)
        limit_s = context.procedure.stages[run.stage].limit_s
        return replace(run, history=history.with_stage_begun(run.stage, at=at, limit_s=limit_s))

    def call_record(self, context: ReconcileContext, step: CallAction, observed: Observation | None) -> Run:
        """Return the record with the intent of a call; `observed` as for `stage_record`."""
        is_again = (step.stage, step.action) == (context.run.stage, context.run.action)
        return replace(
            self.stage_record(context, step, observed),
            called_at=self.now(),
            boot_id=observed.boot_id if observed else None,
            next_target_digest=(observed.target_digest if observed else None) or context.run.next_target_digest,
            answer=replace(NO_ANSWER, lost=is_again and context.state.answer.leaves_open),
        )

    # Writes

    async def enter_stage(
        self,
        context: ReconcileContext,
        run: Run,
        text: str,
        until_s: float | None,
        reason: str = reasons.IN_PROGRESS,
        *,
        in_stage_s: float,
        cause: Cause | None = None,
        blind: bool = False,
    ) -> EnteredStage:
        """Write the record of a stage, once this engine holds the lock and the Machine is unchanged.

        Args:
            in_stage_s: time in the stage before.
            blind: the action needs no observation, as the outside cannot be read.

        Raises:
            Stale: the Machine has changed since the observation, or the observation is too old to act on.
            CRDOutdated: the server's CRD does not store the record.
        """
        operation = await self._verify_lock(context, run)
        sent_at, observed = loop_time(), context.state.observed
        is_stale = observed is None or sent_at - observed.ended_at > ACT_ON_S
        if run.action is not None and is_stale and not blind:
            raise Stale(f"the observation of Machine {run.machine} is too old to act on")
        waiting = self._waiting(operation, reason, until_s, renew=run.stage != context.run.stage)
        run = context.state.recorded(self._with_stage_times(context, run, in_stage_s), sent_at, self.now())
        written = await self._write(
            operation, self._running(operation, run, wait_message(text, waiting), waiting, cause)
        )
        stored = run_of(written)
        if stored is None or _recorded(stored) != _recorded(run):
            raise CRDOutdated(written)
        context.state.record_written(run, self._identity, loop_time())
        log.info("stage", operation=operation.name, machine=run.machine, stage=run.stage, action=run.action)
        return EnteredStage(replace(context, operation=written, run=run, claimed=True), sent_at)

    async def write_wait(self, context: ReconcileContext, wait: Wait) -> float:
        """Write the wait if the status differs; return the seconds until the next pass."""
        status, now = context.operation.status, loop_time()
        if not context.claimed:
            in_stage_s = context.state.in_stage_s(now)
            await self.enter_stage(
                context, context.run, wait.text, wait.until_s, wait.reason, in_stage_s=in_stage_s, cause=wait.cause
            )
            return wait.requeue_s
        same_reason = status.waiting is not None and status.waiting.reason == wait.reason
        waiting = self._waiting(context.operation, wait.reason, wait.until_s, renew=not same_reason)
        if same_reason and status.message == wait_message(wait.text, waiting) and not self._counts(context.state, now):
            return wait.requeue_s
        progress_only = bool(wait.bare) and status.message == wait_message(wait.bare, waiting)
        is_soon = progress_only and now - context.state.stage_since < PROGRESS_S
        if same_reason and (is_soon or now - context.state.reported_at < REPORT_EVERY_S):
            return min(wait.requeue_s, REPORT_EVERY_S)
        context.state.reported_at = now
        await self._write_run(context, wait_message(wait.text, waiting), waiting, wait.cause)
        return wait.requeue_s

    def _counts(self, state: OperationState, now: float) -> bool:
        """Return whether to write alone what the next process needs: the remaining time of late calls, or the answer to
        the last call, which that process would have to wait for in vain.
        """
        is_answer_due = state.has_unstored_answer and now - state.stage_since >= PROGRESS_S
        return is_answer_due or (bool(state.late_calls(now)) and now - state.stored_at >= COUNT_S)

    async def store_answer(self, context: ReconcileContext) -> None:
        """Store the answer to the last call; the handle of a long call is stored before its first poll."""
        status = context.operation.status
        await self._write_run(context, status.message or "", status.waiting, status.cause)

    async def store_answers(self, states: Mapping[str, OperationState]) -> None:
        """Wait briefly for the answers to open calls; store those that the status lacks, for the next process.

        Args:
            states: of the operations, by their names.
        """
        calls = [state.call for state in states.values() if state.call is not None]
        if calls:
            await asyncio.wait(calls, timeout=ANSWERS_S)
        writes = [self._store_last_answer(name, state) for name, state in states.items() if state.has_unstored_answer]
        with suppress(TimeoutError):
            async with asyncio.timeout(STORES_S):
                await asyncio.gather(*writes)

    async def _store_last_answer(self, name: str, state: OperationState) -> None:
        operation = self._caches.operations.get(name)
        run = None if operation is None or operation.terminal else run_of(operation)
        if operation is None or run is None or run.intent != state.intent:
            return
        machine = self._caches.machines.get(run.machine)
        procedure, _refused = procedure_of(self._executor, operation)
        try:
            await self.store_answer(ReconcileContext(operation, machine, procedure, run, state, claimed=True))
        except Conflict:  # also from a write of this process whose response the stop has cut off
            await self.refresh(name)
            await self._store_last_answer(name, state)
        except Failure as failure:
            log.warning("cannot store an answer", operation=name, error=failure)

    async def finish(
        self, context: ReconcileContext, decision: Finish, where: str = "", *, in_stage_s: float
    ) -> MachineOperation:
        """Write the terminal status.

        Args:
            where: source of the decision's evidence.
            in_stage_s: time in the last stage.
        """
        now, phase = self.now(), OperationPhase.COMPLETE if decision.is_complete else OperationPhase.FAILED
        run = context.state.recorded(context.run, loop_time(), now)
        run = replace(run, evidence=run.with_evidence(decision.evidence, at=now, where=where))
        if context.claimed:
            run = replace(run, history=run.history.with_stage_left(run.stage, at=now, spent_s=in_stage_s))
        conditions = completed_condition(
            context.operation.status.conditions,
            status="True" if decision.is_complete else "False",
            reason=decision.reason,
            message=decision.text,
            now=now,
        )
        status = terminal_patch(
            run,
            phase,
            decision.reason,
            decision.text,
            now=now,
            conditions=conditions,
            cause=decision.cause,
            before=context.operation.status,
        )
        written = await self._write(context.operation, status)
        how = {"phase": str(phase), "reason": decision.reason}
        log.info("operation ended", operation=written.name, machine=run.machine, **how)
        return written

    async def keep_lock(self, context: ReconcileContext) -> None:
        """Keep the lock beyond the end of the operation, until its calls can no longer arrive."""
        try:
            machine = msgspec.convert(await self._live(context.run.machine), Machine)
        except NotFound:
            return
        if machine_lock.holds_lock(context.operation, machine):
            await self._machine_status.write(machine, machine_lock.lost_change())

    async def count_lost(self, machine: Machine, seconds: int) -> None:
        """Store a lost executor's time since; a write that fails costs time alone, and the next pass makes it again."""
        with suppress(Failure):
            await self._machine_status.write(machine, machine_lock.count_change(seconds))

    async def release(
        self,
        operation: MachineOperation,
        procedure: Procedure | None,
        read: Observation | None,
        live: dict[str, Any] | None = None,
    ) -> str | None:
        """Release the lock, if the operation still holds it, and add the result to the Machine's history.

        Args:
            read: the observation after all late calls could have arrived. None where the engine did not wait for them:
                a lock that another process keeps then stays.
            live: the Machine as last read. It is read again where the cache shows another change than of other fields.

        Returns:
            The SSH host key that is no longer trusted.
        """
        known = self._caches.machines.get(operation.spec.machine_ref or "")
        raw = None if live is None or known is None else machine_lock.at_version_of(known, live)
        if raw is None or known is None:
            try:
                raw = await self._live(operation.spec.machine_ref or "")
            except NotFound:
                return None
            known = msgspec.convert(raw, Machine)
        machine = known
        active = machine.status.active_operation
        if active is None or active.uid != operation.metadata.uid:
            return None
        if active.lost and read is None:
            self._caches.machines.observe(machine)
            return None
        change = machine_lock.release_change(raw, operation, procedure, read, now=self.now())
        if self._writes_phase:
            node = None if self._caches.nodes is None else self._caches.nodes.get(machine.name)
            change |= machine_lock.released_phase(machine, change, node)
        await self._machine_status.write(raw, change)
        return machine_lock.forgotten_key(raw, operation)

    # The Machine

    async def read_machine(self, name: str) -> Machine | None:
        """Read a Machine that the cache lacks: the watch may lag, and an end is final."""
        try:
            machine = await self._api.get(MACHINES, name)
        except NotFound:
            return None
        self._caches.machines.observe(machine)
        return machine

    async def show_condition(self, context: ReconcileContext) -> None:
        """Set the stage's condition on the Machine once the stage lasts; a short stage sets none."""
        condition = context.procedure.stages[context.run.stage].condition
        lasts = loop_time() - context.state.stage_since >= SHOW_AFTER_S
        if condition is None or not lasts or context.machine is None or not context.claimed:
            return
        if machine_lock.holds_lock(context.operation, context.machine):
            shown = machine_lock.update_conditions(machine_lock.as_read(context.machine), (condition,), now=self.now())
            await self._machine_status.write(context.machine, shown)

    async def _verify_lock(self, context: ReconcileContext, run: Run) -> MachineOperation:
        """Verify lock and target digest on the live Machine before the record is written; take a free lock."""
        has_lock = context.machine is not None and machine_lock.holds_lock(context.operation, context.machine)
        if not context.claimed and not has_lock:
            return await self._take_lock(context, run)
        raw = context.state.live = await self._live(run.machine)
        machine = msgspec.convert(raw, Machine)
        self._caches.machines.observe(machine)
        active = machine.status.active_operation
        if active is None and context.claimed:
            return await self._take_lock(replace(context, machine=machine), run)
        if active is None:  # its turn has passed, and the gates of a claim have to let it through again
            raise Stale(f"the lock of Machine {run.machine} was released meanwhile")
        if active.uid != context.operation.metadata.uid:
            raise Stale(f"{active.name} holds the lock of Machine {run.machine}")
        if target_state(self._executor, run, machine) is not TargetState.SAME:
            raise Stale(f"Machine {run.machine} has changed since the observation")
        return context.operation if context.claimed else await self._add_finalizer(context.operation)

    async def _take_lock(self, context: ReconcileContext, run: Run) -> MachineOperation:
        """Set the finalizer and take the lock, on the Machine as observed: no other holder had the lock in between."""
        machine = context.machine
        if machine is None or target_state(self._executor, run, machine) is not TargetState.SAME:
            raise Stale(f"Machine {run.machine} has changed since the observation")
        operation = await self._add_finalizer(context.operation)
        first = () if context.claimed else context.procedure.start_conditions
        conditions = (*first, context.procedure.stages[run.stage].condition)
        change = machine_lock.take_change(
            machine_lock.as_read(machine), operation, self._executor.name, conditions, now=self.now()
        )
        change |= started_change(machine, operation.metadata.uid, self.now())
        if self._writes_phase:
            change |= machine_lock.taken_phase(machine, operation, self._executor.name)
        taken = await self._machine_status.write(machine, change)
        if taken is None or not machine_lock.holds_lock(operation, taken):
            raise CRDOutdated(operation)
        context.state.target_written(machine.metadata.resource_version, taken.metadata.resource_version)
        return operation

    async def _live(self, machine: str) -> dict[str, Any]:
        return await self._api.get(MACHINES.raw(), machine)

    # The operation

    async def refresh(self, name: str) -> None:
        """Read an operation that another client has written: the watch may lag, and the next write would fail."""
        with suppress(Failure):
            self._caches.operations.observe(await self._api.get(MACHINE_OPERATIONS, name))

    async def _add_finalizer(self, operation: MachineOperation) -> MachineOperation:
        if FINALIZER_OPERATION in operation.metadata.finalizers:
            return operation
        finalizers = [*operation.metadata.finalizers, FINALIZER_OPERATION]
        metadata = {"resourceVersion": operation.metadata.resource_version, "finalizers": finalizers}
        updated = await self._api.patch(MACHINE_OPERATIONS, operation.name, {"metadata": metadata})
        self._caches.operations.observe(updated)
        return updated

    def _waiting(self, operation: MachineOperation, reason: str, until_s: float | None, *, renew: bool) -> Waiting:
        """Return the wait for the status; the stored one while it holds, as `until` may only move later."""
        before = operation.status.waiting
        until = None if until_s is None else self._wall() + timedelta(seconds=until_s)
        if before is None or before.reason != reason or renew:
            until_text = None if until is None else rfc3339(until)
            return Waiting(reason=reason, held_by=self._executor.name, since=self.now(), until=until_text)
        if until is None or not _is_before(before.until, until):
            return before
        return msgspec.structs.replace(before, until=rfc3339(until))

    async def _write_run(
        self, context: ReconcileContext, text: str, waiting: Waiting | None, cause: Cause | None
    ) -> None:
        """Write the record with the current times and the known state of the last call."""
        state, now, handle = context.state, loop_time(), context.state.handle
        run = state.recorded(context.run, now, self.now())
        run = replace(run, handle=run.handle if handle is None else handle)
        await self._write(context.operation, self._running(context.operation, run, text, waiting, cause))
        if handle is not None:  # a handle may have come during the write
            state.handle = None
        state.stored, state.stored_at = run.answer, now

    def _running(
        self, operation: MachineOperation, run: Run, text: str, waiting: Waiting | None, cause: Cause | None
    ) -> dict[str, Any]:
        conditions = completed_condition(
            operation.status.conditions, status="False", reason=reasons.IN_PROGRESS, message=text, now=self.now()
        )
        return running_patch(
            run, message=text, waiting=waiting, conditions=conditions, cause=cause, before=operation.status
        )

    async def _write(self, operation: MachineOperation, status: dict[str, Any]) -> MachineOperation:
        return await self._operation_status.write(operation, status) or operation


def _is_before(text: str | None, at: datetime) -> bool:
    return text is None or datetime.fromisoformat(text) < at - timedelta(seconds=UNTIL_S)
