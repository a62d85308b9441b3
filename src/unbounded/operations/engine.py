"""The executor's loop: look at the world, let `plan` decide, write the intent, act, and say what is waited for.

Nothing outside is asked for before the intent stands in the operation's status, and nothing later than ACT_WITHIN_S
after it. No pass waits for a slow outside for longer than PATIENCE_S: calls go on beside the loop and wake it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec

from unbounded.api.core import ConfigMap
from unbounded.api.failures import Failure, Stale, Transient, Uncertain
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import CONFIGMAP_OPERATIONS, FINALIZER_OPERATION, NAMESPACE
from unbounded.api.operation import (
    MACHINE_OPERATIONS,
    MachineOperation,
    OperationKind,
    OperationPhase,
    Waiting,
)
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.controller import Controller
from unbounded.kube.errors import NotFound
from unbounded.kube.logs import Log
from unbounded.kube.metrics import Metrics
from unbounded.kube.port import Api
from unbounded.operations import reasons, slot
from unbounded.operations.counters import counters_of
from unbounded.operations.deadlines import deadline_s
from unbounded.operations.gates import Gate, closed_gate, order
from unbounded.operations.memory import ACT_ON_S, ACT_WITHIN_S, FRESH_S, Looked, Memory
from unbounded.operations.metrics import OperationMetrics
from unbounded.operations.parameters import invalid
from unbounded.operations.places import Places
from unbounded.operations.plan import (
    Answer,
    Ask,
    Decision,
    Finish,
    Move,
    Orders,
    Reply,
    TargetState,
    Wait,
    decide,
)
from unbounded.operations.ports import Executor, Refusal, Target
from unbounded.operations.procedure import Procedure, Sight, Unseen
from unbounded.operations.record import Run, completed_condition, run_of, running_patch, terminal_patch


class _NoFact(StrEnum):
    """A kind that is not supported is never looked at."""


_NO_PROCEDURE: Final = Procedure(start="", facts=_NoFact, stages={}, table={}, actions={}, proof=frozenset())
PATIENCE_S: Final = 3.0
SAY_AGAIN_S: Final = 5.0  # a wait that only changes its words is written this often at most
RESOLUTION_S: Final = 0.01  # of waits: what is due within it is due now
MARGIN_S: Final = 5.0  # beyond a call's limit, for its answer to be noticed

T = TypeVar("T")

log = Log("operations")


@dataclass(frozen=True)
class Caches:
    """What the engine reads; the process that owns them runs them, and may share them."""

    operations: Cache[MachineOperation]  # indexed by INDEX_MACHINE
    machines: Cache[Machine]
    pause: Cache[ConfigMap]


INDEX_MACHINE: Final = "machine"


def by_machine(operation: MachineOperation) -> tuple[str, ...]:
    """The index that the operations' cache needs."""
    return (operation.spec.machine_ref,) if operation.spec.machine_ref else ()


def pause_of(cache: Cache[ConfigMap]) -> ConfigMap | None:
    return cache.get(CONFIGMAP_OPERATIONS, NAMESPACE)


@dataclass(frozen=True)
class Pass:
    """One look at one operation."""

    operation: MachineOperation
    machine: Machine | None
    procedure: Procedure
    run: Run
    memory: Memory
    claimed: bool


class Engine:
    """Carries out the operations that one executor owns.

    Args:
        incarnation: names this process and nobody else's, ever.
        concurrent: how many operations are worked on at once.
    """

    def __init__(
        self,
        api: Api,
        executor: Executor,
        caches: Caches,
        *,
        incarnation: str,
        concurrent: int = 10,
        now: WallClock = utc_now,
        metrics: OperationMetrics | None = None,
        loop_metrics: Metrics | None = None,
    ) -> None:
        self._api = api
        self._metrics = metrics or OperationMetrics()
        self._executor = executor
        self._caches = caches
        self._incarnation = incarnation
        self._wall = now
        self._memories: dict[str, Memory] = {}
        self._controller: Controller[str] = Controller(
            f"operations {executor.name}", self._reconcile, workers=max(concurrent, 4) * 2, metrics=loop_metrics
        )
        self._places = Places(concurrent, self._controller.enqueue)
        self._calls: asyncio.TaskGroup | None = None
        self._unsubscribe: list[Callable[[], None]] = []

    async def run(self) -> None:
        """Work until cancelled."""
        caches = self._caches
        self._unsubscribe = [
            caches.operations.subscribe(self._operation_changed),
            caches.machines.subscribe(self._machine_changed),
            caches.pause.subscribe(lambda _old, _new: self._look_at_all()),
        ]
        try:
            async with asyncio.TaskGroup() as self._calls:
                await self._controller.run()
        finally:
            for unsubscribe in self._unsubscribe:
                unsubscribe()

    def look_at(self, machine: str) -> None:
        """Something outside has changed for a Machine: look at its operations now."""
        for operation in self._caches.operations.by(INDEX_MACHINE, machine):
            self._wake(operation.name)

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
            memory = self._memories[name] = Memory(operation.metadata.uid)
        if operation.terminal:
            return await self._settle(operation)
        run = run_of(operation)
        if run is None:
            return await self._claim(operation, memory)
        if run.executor != self._executor.name:
            return None
        self._places.enter(memory.uid)
        return await self._advance_when_due(operation, run, memory)

    def _forget(self, name: str) -> None:
        memory = self._memories.pop(name, None)
        if memory is not None:
            memory.drop_calls()
            self._places.leave(memory.uid)

    # Claim

    async def _claim(self, operation: MachineOperation, memory: Memory) -> float | None:
        machine = self._caches.machines.get(operation.spec.machine_ref or "")
        if machine is None or not self._takes(operation, machine):
            self._places.leave(memory.uid)
            return None
        fresh = self._fresh_run(operation, machine)
        try:
            procedure = self._executor.procedure(operation)
        except Refusal as refusal:
            decision = Finish(OperationPhase.FAILED, refusal.reason, str(refusal))
            return await self._finish(Pass(operation, machine, _NO_PROCEDURE, fresh, memory, False), decision, None)
        if not await self._gates_open(operation, machine, fresh, memory):
            self._places.leave(memory.uid)
            return self._recheck_s(memory)
        if not self._places.take(memory.uid, operation.name, order(operation)):
            return None
        memory.follow(fresh, self._incarnation, self._loop_time())
        seen = Pass(operation, machine, procedure, fresh, memory, claimed=False)
        return await self._pass(operation, memory, machine.name, self._decide(seen, TargetState.SAME))

    def _takes(self, operation: MachineOperation, machine: Machine) -> bool:
        """Whether to claim it at all; what is cancelled, deleted or invalid is the steward's."""
        kind = OperationKind(operation.spec.operation_kind)
        wanted = not (operation.spec.cancel or operation.metadata.deletion_timestamp or invalid(operation))
        return wanted and machine.metadata.deletion_timestamp is None and self._executor.claims(kind, machine)

    def _fresh_run(self, operation: MachineOperation, machine: Machine) -> Run:
        return Run(
            machine=machine.name,
            machine_uid=machine.metadata.uid,
            executor=self._executor.name,
            incarnation=self._incarnation,
            binding=self._executor.binding(machine),
            stage="",
            started_at=self._now(),
            generation=machine.metadata.generation,
            counters=counters_of(operation, machine),
        )

    async def _gates_open(self, operation: MachineOperation, machine: Machine, fresh: Run, memory: Memory) -> bool:
        others = self._caches.operations.by(INDEX_MACHINE, machine.name)
        gate = closed_gate(operation, machine, others, pause_of(self._caches.pause))
        if gate is None:
            return True
        return gate.reason == reasons.SLOT_HELD and await self._slot_freed(gate, operation, machine, fresh, memory)

    async def _slot_freed(
        self, gate: Gate, operation: MachineOperation, machine: Machine, fresh: Run, memory: Memory
    ) -> bool:
        """Whether a live read shows that the slot's holder is gone; a lost one only after a fresh look."""
        holder = machine.status.active_operation
        if holder is None:
            return True
        try:
            live = await self._api.get(MACHINE_OPERATIONS, gate.held_by)
            gone = live.metadata.uid != holder.uid or live.terminal
        except NotFound:
            gone = True
        if not gone or not holder.lost:
            return gone
        return await self._looked_afresh(holder.uid, Target(operation, machine, fresh), memory)

    def _recheck_s(self, memory: Memory) -> float | None:
        return self._settle_s if memory.lost_since else None

    @property
    def _settle_s(self) -> float:
        """How long an earlier incarnation could still act on its intent, from the first sight of it."""
        return ACT_WITHIN_S + self._executor.call_limit_s + MARGIN_S

    # Carry on

    async def _advance_when_due(self, operation: MachineOperation, run: Run, memory: Memory) -> float | None:
        """Most events are echoes of our own writes: look again early only if what decides has changed."""
        decides = self._decides(operation, run.intent, run.machine)
        left_s = memory.due - self._loop_time()
        if memory.decided_on == decides and left_s > RESOLUTION_S:
            return None if left_s == math.inf else left_s
        return await self._pass(operation, memory, run.machine, self._advance(operation, run, memory))

    async def _pass(
        self, operation: MachineOperation, memory: Memory, machine: str, work: Coroutine[Any, Any, float | None]
    ) -> float | None:
        """Do the work of a pass, and remember what it rested on and when the next one is due."""
        memory.decided_on, memory.nudged = None, False
        again_s = await work
        if memory.nudged:
            return 0.0
        memory.decided_on = self._decides(operation, memory.intent, machine)
        memory.due = math.inf if again_s is None else self._loop_time() + again_s
        return again_s

    def _decides(self, operation: MachineOperation, intent: object, machine: str) -> tuple[object, ...]:
        there = self._caches.machines.get(machine)
        binding = None if there is None else (there.metadata.uid, self._executor.binding(there))
        return (operation.metadata.generation, operation.metadata.deletion_timestamp, intent, binding)

    async def _advance(self, operation: MachineOperation, run: Run, memory: Memory) -> float | None:
        try:
            procedure = self._executor.procedure(operation)
        except Refusal as refusal:
            procedure = _NO_PROCEDURE
            decision = Finish(OperationPhase.FAILED, refusal.reason, str(refusal))
            machine = self._caches.machines.get(run.machine)
            return await self._finish(Pass(operation, machine, procedure, run, memory, True), decision, None)
        if run.stage not in procedure.stages and run.stage:
            text = f"stage {run.stage!r} is not known to this version of {self._executor.name}"
            machine = self._caches.machines.get(run.machine)
            seen = Pass(operation, machine, procedure, run, memory, True)
            return await self._finish(seen, Finish(OperationPhase.FAILED, reasons.OUTCOME_UNKNOWN, text), None)
        memory.follow(run, self._incarnation, self._loop_time())
        seen = Pass(operation, self._caches.machines.get(run.machine), procedure, run, memory, claimed=True)
        if memory.handle is not None:
            return await self._store_handle(seen)
        if memory.calling:
            return await self._wait_for_call(seen)
        return await self._decide(seen, self._target_state(run, seen.machine))

    def _target_state(self, run: Run, machine: Machine | None) -> TargetState:
        if machine is None:
            return TargetState.GONE
        same = machine.metadata.uid == run.machine_uid
        bound = self._executor.binding(machine) in (run.binding, run.next_binding)
        return TargetState.SAME if same and bound else TargetState.CHANGED

    async def _decide(self, seen: Pass, target: TargetState) -> float | None:
        """Look, decide, and carry the decision out."""
        run = seen.run if seen.run.stage else replace(seen.run, stage=seen.procedure.start)
        seen = replace(seen, run=run)
        seen.memory.follow(run, self._incarnation, self._loop_time())
        seen.memory.looked = None
        sight = await self._sight(seen) if target is TargetState.SAME else Unseen(reasons.NO_ANSWER, "not looked at")
        orders = Orders(
            deadline_s=deadline_s(seen.operation),
            cancel=seen.operation.spec.cancel or seen.operation.metadata.deletion_timestamp is not None,
            target=target,
        )
        timing = seen.memory.timing(self._loop_time(), settle_s=self._settle_s)
        decision = decide(seen.procedure, run, sight, timing, seen.memory.answer, orders)
        return await self._carry_out(seen, decision, sight)

    async def _carry_out(self, seen: Pass, decision: Decision, sight: Sight | Unseen) -> float | None:
        where = _where(sight)
        match decision:
            case Wait():
                return await self._say(seen, decision)
            case Move():
                run = self._moved(seen, decision.stage, None, 0, decision.seen, where)
                await self._enter(seen, run, decision.text, decision.until_s)
                return seen.procedure.stages[run.stage].dwell_s or seen.procedure.poll_s(0)
            case Ask():
                return await self._ask(seen, decision, sight)
            case Finish():
                return await self._finish(seen, decision, where)

    # Looking

    async def _sight(self, seen: Pass) -> Sight | Unseen:
        memory = seen.memory
        if seen.machine is None:
            return Unseen(reasons.NO_ANSWER, "not looked at")
        if memory.look is not None and memory.look.done() and self._age(memory.look.result()) > FRESH_S:
            memory.look = None
        if memory.look is None:
            target = Target(seen.operation, seen.machine, seen.run)
            memory.look = self._beside(self._look_out(target), memory, seen.operation.name)
        done, _pending = await asyncio.wait({memory.look}, timeout=PATIENCE_S)
        if not done:
            memory.left_alone = True
            self._places.lend(memory.uid)
            return Unseen(
                reasons.NO_ANSWER, f"no answer yet from what {self._executor.name} asks about {seen.run.machine}"
            )
        memory.looked, memory.look = memory.look.result(), None
        memory.looks += 1
        self._places.resume(memory.uid)
        return memory.looked.sight

    def _age(self, looked: Looked) -> float:
        return self._loop_time() - looked.ended_at

    async def _look_out(self, target: Target) -> Looked:
        """Observe, with trouble turned into words."""
        began_at = self._loop_time()
        sight: Sight | Unseen
        try:
            sight = await self._executor.observe(target)
        except Refusal as refusal:
            sight = Unseen(refusal.reason, str(refusal), final=True)
        except Failure as failure:
            sight = Unseen(reasons.NO_ANSWER, str(failure))
        except Exception as error:
            log.exception("observing failed", operation=target.operation.name, machine=target.machine.name)
            sight = Unseen("InternalError", f"{type(error).__name__} while looking; see the log")
        return Looked(began_at, self._loop_time(), sight)

    # Acting

    async def _ask(self, seen: Pass, decision: Ask, sight: Sight | Unseen) -> float | None:
        run = replace(
            self._moved(seen, decision.stage, decision.action, decision.attempt, decision.seen, _where(sight)),
            asked_at=self._now(),
            boot_id=sight.boot_id if isinstance(sight, Sight) else None,
            next_binding=(sight.binding if isinstance(sight, Sight) else None) or seen.run.next_binding,
            handle=None,
        )
        sent_at = await self._enter(seen, run, decision.text, decision.until_s)
        if sent_at is None or self._loop_time() - sent_at > ACT_WITHIN_S:
            return 0.0
        machine = self._caches.machines.get(run.machine) or seen.machine
        if machine is None:
            return 0.0
        seen.memory.answer = Answer(Reply.UNKNOWN, text="no answer yet")
        call = self._executor.perform(
            Target(seen.operation, machine, run), decision.action, before=sent_at + ACT_WITHIN_S
        )
        seen.memory.call = self._beside(self._perform(seen, decision.action, call), seen.memory, seen.operation.name)
        return await self._wait_for_call(replace(seen, run=run, claimed=True))

    async def _perform(self, seen: Pass, action: str, call: Coroutine[Any, Any, str | None]) -> None:
        """Run one call to its end, and keep its answer and its handle."""
        facts = {"operation": seen.operation.name, "machine": seen.run.machine, "action": action}
        answer = Answer(Reply.ACCEPTED)
        try:
            seen.memory.handle = await call
        except Refusal as refusal:
            answer = Answer(Reply.REFUSED, refusal.reason, str(refusal))
        except (Transient, Stale) as failure:
            answer = Answer(Reply.NOT_DONE, reasons.NO_ANSWER, str(failure))
        except Uncertain as failure:
            answer = Answer(Reply.UNKNOWN, reasons.NO_ANSWER, str(failure))
        except Exception as error:
            log.exception("acting failed", **facts)
            answer = Answer(Reply.UNKNOWN, "InternalError", f"{type(error).__name__}; see the log")
        seen.memory.answered(answer, self._loop_time())
        log.info("action answered", reply=answer.reply.value, text=answer.text, **facts)

    async def _wait_for_call(self, seen: Pass) -> float | None:
        call = seen.memory.call
        if call is None:
            return 0.0
        done, _pending = await asyncio.wait({call}, timeout=PATIENCE_S)
        if not done:
            seen.memory.left_alone = True
            self._places.lend(seen.memory.uid)
            left_s = self._executor.call_limit_s
            text = f"{seen.run.action} was sent; no answer yet"
            await self._say(seen, Wait(reasons.NO_ANSWER, text, left_s, left_s))
            return None
        self._places.resume(seen.memory.uid)
        seen.memory.call = None
        if seen.memory.handle is not None:
            return 0.0
        settled = seen.memory.answer.reply in (Reply.ACCEPTED, Reply.UNKNOWN)
        return seen.procedure.poll_s(0) if settled else 0.0

    async def _store_handle(self, seen: Pass) -> float:
        """Write down the handle of a long call before its first poll."""
        run = replace(seen.run, handle=seen.memory.handle)
        await self._write_run(seen, run, seen.operation.status.message or "", seen.operation.status.waiting)
        seen.memory.handle = None
        return seen.procedure.poll_s(0)

    # Writing

    def _moved(self, seen: Pass, stage: str, action: str | None, attempt: int, what: str | None, where: str) -> Run:
        return replace(
            seen.run,
            stage=stage,
            action=action,
            attempt=attempt,
            incarnation=self._incarnation,
            spent_s=seen.memory.spent(self._loop_time()),
            evidence=seen.run.with_evidence(what, at=self._now(), where=where),
        )

    async def _enter(
        self, seen: Pass, run: Run, text: str, until_s: float | None, reason: str = reasons.IN_PROGRESS
    ) -> float | None:
        """Write the record of a stage; gives back when the write was sent, None when it did not take hold."""
        operation = await self._hold(seen, run)
        sent_at = self._loop_time()
        looked = seen.memory.looked
        if run.action is not None and (looked is None or self._age(looked) > ACT_ON_S):
            raise Stale(f"what was seen of Machine {run.machine} is too old to act on")
        waiting = self._waiting(operation, reason, until_s, renew=run.stage != seen.run.stage)
        written = await self._write_run(replace(seen, operation=operation), run, text, waiting)
        kept = run_of(written)
        if kept is None or (kept.intent, kept.binding) != (run.intent, run.binding):
            outdated = (
                "the CRD on the server is older than this controller and drops fields that it needs: apply deploy/crd/"
            )
            decision = Finish(OperationPhase.FAILED, reasons.CRD_OUTDATED, outdated)
            await self._finish(replace(seen, operation=written, run=run), decision, "")
            return None
        seen.memory.follow(run, self._incarnation, self._loop_time())
        log.info("stage", operation=operation.name, machine=run.machine, stage=run.stage, action=run.action)
        return sent_at

    async def _hold(self, seen: Pass, run: Run) -> MachineOperation:
        """Make sure of the Machine before the record is written: our slot, the same binding, the mark set."""
        mark = seen.procedure.stages[run.stage].mark
        if not seen.claimed:
            return await self._take(seen, run)
        raw = await self._live(run)
        machine = msgspec.convert(raw, Machine)
        if self._target_state(run, machine) is not TargetState.SAME:
            self._caches.machines.saw(machine)
            raise Stale(f"Machine {run.machine} has changed")
        active = machine.status.active_operation
        if active is not None and active.uid != seen.operation.metadata.uid:
            raise Stale(f"the slot of Machine {run.machine} belongs to {active.name}")
        patch = slot.mark_patch(raw, mark, now=self._now())
        if active is None:
            patch = slot.take_patch(raw, seen.operation, self._executor.name, mark, now=self._now())
        if patch is not None:
            self._caches.machines.saw(await self._api.patch(MACHINES, run.machine, patch, subresource="status"))
        return seen.operation

    async def _take(self, seen: Pass, run: Run) -> MachineOperation:
        """Finalizer and slot: what stands before the claim. The slot is taken on the Machine as it was looked at."""
        operation = await self._hold_deletion(seen.operation)
        machine = seen.machine
        if machine is None:
            raise Stale(f"Machine {run.machine} is gone")
        raw = await self._live(run)
        if raw["metadata"]["resourceVersion"] != machine.metadata.resource_version:
            self._caches.machines.saw(msgspec.convert(raw, Machine))
            raise Stale(f"Machine {run.machine} has changed since it was looked at")
        mark = seen.procedure.stages[run.stage].mark
        patch = slot.take_patch(raw, operation, self._executor.name, mark, now=self._now())
        taken = await self._api.patch(MACHINES, run.machine, patch, subresource="status")
        self._caches.machines.saw(taken)
        return operation

    async def _live(self, run: Run) -> dict[str, Any]:
        return await self._api.get(MACHINES.raw(), run.machine)

    async def _hold_deletion(self, operation: MachineOperation) -> MachineOperation:
        if FINALIZER_OPERATION in operation.metadata.finalizers:
            return operation
        finalizers = [*operation.metadata.finalizers, FINALIZER_OPERATION]
        metadata = {"resourceVersion": operation.metadata.resource_version, "finalizers": finalizers}
        held = await self._api.patch(MACHINE_OPERATIONS, operation.name, {"metadata": metadata})
        self._caches.operations.saw(held)
        return held

    async def _say(self, seen: Pass, decision: Wait) -> float:
        """Write what is waited for, if that is not what the status says already."""
        status = seen.operation.status
        now = self._loop_time()
        same_reason = status.waiting is not None and status.waiting.reason == decision.reason
        unchanged = same_reason and status.message == decision.text
        if not seen.claimed:
            await self._enter(seen, seen.run, decision.text, decision.until_s, decision.reason)
        elif not unchanged:
            too_soon = same_reason and now - seen.memory.said_at < SAY_AGAIN_S
            if too_soon:
                return min(decision.look_again_s, SAY_AGAIN_S)
            seen.memory.said_at = now
            run = replace(seen.run, spent_s=seen.memory.spent(now))
            waiting = self._waiting(seen.operation, decision.reason, decision.until_s, renew=not same_reason)
            await self._write_run(seen, run, decision.text, waiting)
            seen.memory.follow(run, self._incarnation, now)
        return decision.look_again_s

    def _waiting(self, operation: MachineOperation, reason: str, until_s: float | None, *, renew: bool) -> Waiting:
        before = operation.status.waiting
        if before is not None and before.reason == reason and not renew:
            return before
        until = None if until_s is None else rfc3339(self._wall() + timedelta(seconds=until_s))
        return Waiting(reason=reason, held_by=self._executor.name, since=self._now(), until=until)

    async def _write_run(self, seen: Pass, run: Run, text: str, waiting: Waiting | None) -> MachineOperation:
        operation = seen.operation
        conditions = completed_condition(
            operation.status.conditions, status="False", reason=reasons.IN_PROGRESS, message=text, now=self._now()
        )
        return await self._write(operation, running_patch(run, message=text, waiting=waiting, conditions=conditions))

    async def _write(self, operation: MachineOperation, status: dict[str, Any]) -> MachineOperation:
        patch = {"metadata": {"resourceVersion": operation.metadata.resource_version}, "status": status}
        written = await self._api.patch(MACHINE_OPERATIONS, operation.name, patch, subresource="status")
        self._caches.operations.saw(written)
        return written

    # Ending

    async def _finish(self, seen: Pass, decision: Finish, where: str | None) -> float | None:
        run = replace(seen.run, evidence=seen.run.with_evidence(decision.seen, at=self._now(), where=where or ""))
        done = "True" if decision.phase is OperationPhase.COMPLETE else "False"
        conditions = completed_condition(
            seen.operation.status.conditions,
            status=done,
            reason=decision.reason,
            message=decision.text,
            now=self._now(),
        )
        status = terminal_patch(
            run, decision.phase, decision.reason, decision.text, now=self._now(), conditions=conditions
        )
        written = await self._write(seen.operation, status)
        log.info(
            "operation ended", operation=written.name, machine=run.machine, phase=decision.phase, reason=decision.reason
        )
        self._metrics.ended(written, seen.memory.spent(self._loop_time()))
        return await self._settle(written)

    async def _settle(self, operation: MachineOperation) -> float | None:
        """After the terminal write: give the place and the slot back, and leave the result in the history."""
        run = run_of(operation)
        machine = self._caches.machines.get(operation.spec.machine_ref or "")
        mine = run is not None and run.executor == self._executor.name
        if run is None or machine is None or not mine or not slot.holds_slot(operation, machine):
            self._forget(operation.name)
            return None
        if operation.status.reason == reasons.EXECUTOR_LOST:
            memory = self._memories[operation.name]
            if not await self._looked_afresh(operation.metadata.uid, Target(operation, machine, run), memory):
                return self._settle_s
        self._forget(operation.name)
        await self._release(operation, run)
        return None

    async def _release(self, operation: MachineOperation, run: Run) -> None:
        try:
            raw = await self._live(run)
        except NotFound:
            return
        if not slot.holds_slot(operation, msgspec.convert(raw, Machine)):
            return
        try:
            procedure: Procedure | None = self._executor.procedure(operation)
        except Refusal:
            procedure = None
        patch = slot.release_patch(raw, operation, procedure, now=self._now())
        self._caches.machines.saw(await self._api.patch(MACHINES, run.machine, patch, subresource="status"))

    async def _looked_afresh(self, lost: str, target: Target, memory: Memory) -> bool:
        """Whether the machine was seen after a lost executor could no longer act on it."""
        since = memory.lost_since.setdefault(lost, self._loop_time())
        if self._loop_time() - since < self._settle_s:
            return False
        return not isinstance((await self._look_out(target)).sight, Unseen)

    # Small parts

    def _beside(self, work: Coroutine[Any, Any, T], memory: Memory, name: str) -> asyncio.Task[T]:
        """Run something beside the loop; when no pass waits for it any more, its end brings on a pass."""
        if self._calls is None:
            raise RuntimeError("the engine is not running")
        task = self._calls.create_task(work)
        memory.left_alone = False
        task.add_done_callback(lambda _task: self._wake(name) if memory.left_alone else None)
        return task

    def _now(self) -> str:
        return rfc3339(self._wall())

    def _loop_time(self) -> float:
        return asyncio.get_running_loop().time()


def _where(sight: Sight | Unseen) -> str:
    return sight.where if isinstance(sight, Sight) else ""
