"""Observations and calls that run beside the loop: no pass waits longer than the engine's `brief_s` for a slow outside.

A task that ends after its pass stopped waiting triggers another pass; after REPORT_AFTER_S the wait is reported.
Only this module turns an executor's errors into observations, answers and failures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any, Final, TypeVar

from unbounded.api.failures import Failure, Stale, Transient, Uncertain
from unbounded.api.operation import MachineOperation
from unbounded.kube.clock import loop_time
from unbounded.kube.logs import Log
from unbounded.kube.tracing import NO_TRACER, Tracer, span
from unbounded.operations import reasons
from unbounded.operations.executor_protocol import Executor, NotDone, Refusal, Target
from unbounded.workflow.decisions import Finish
from unbounded.workflow.procedure import NotObservable, Observation, Procedure
from unbounded.workflow.run_record import CallEvent
from unbounded.workflow.run_state import FRESH_S, OwnCall, RunState, TimedObservation

REPORT_AFTER_S: Final = 3.0

T = TypeVar("T")

log = Log("operations")


class _NoFact(StrEnum):
    """The facts of an unsupported kind, which is never observed."""


_NO_PROCEDURE: Final = Procedure(start="", facts=_NoFact, stages={}, table={}, actions={}, proof=frozenset())


class ExecutorCalls:
    """The executor's port as the engine calls it; valid as long as its task group.

    Args:
        slow: called with the UID of an operation that has waited for one answer for `brief_s`.
        brief_s: seconds for which a pass waits; REPORT_AFTER_S at most.
    """

    def __init__(
        self,
        executor: Executor,
        tasks: asyncio.TaskGroup,
        wake: Callable[[str], None],
        *,
        slow: Callable[[str], None],
        brief_s: float,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._tracer = tracer
        self._executor = executor
        self._tasks = tasks
        self._wake = wake
        self._slow = slow
        self._brief_s = brief_s

    async def observe(self, target: Target, state: RunState) -> Observation | NotObservable | None:
        """Observe the target; None when the observation outlasts the pass's wait, and continues."""
        digest = self._executor.target_digest(target.machine)
        # the target is another host, whose state the old observation does not show
        if state.observing is not None and state.observing_digest != digest:
            state.cancel_observation()
        task = state.observing
        if task is not None and task.done() and loop_time() - task.result().ended_at > FRESH_S:
            state.observing = None
        if state.observing is None:
            state.observing_digest = digest
            state.observing = self._start(self._observe(target), state, target)
            state.observations += 1
        if not await self._ends_in_time(state.observing, state):
            return None
        state.observed, state.observing = state.observing.result(), None
        return state.observed.result

    async def _observe(self, target: Target) -> TimedObservation:
        """Observe without a time limit."""
        began_at = loop_time()
        observation: Observation | NotObservable
        try:
            with span("observe"):
                observation = await self._executor.observe(target)
        except Refusal as refusal:
            observation = NotObservable(refusal.reason, str(refusal), final=True, cause=refusal.cause)
        except Failure as failure:
            observation = NotObservable(reasons.NO_ANSWER, str(failure))
        except Exception as error:
            log.exception("cannot observe", operation=target.operation.name, machine=target.machine.name)
            text = f"{type(error).__name__} during the observation; see the log"
            observation = NotObservable(reasons.INTERNAL_ERROR, text)
        return TimedObservation(
            began_at, loop_time(), observation, observation_identity(target), target.machine.metadata.resource_version
        )

    def perform(self, target: Target, action: str, state: RunState, *, before: float) -> None:
        """Start the call of an action; `wait_answer` waits for it."""
        call = state.record_call(target.run.intent, loop_time())
        state.call = self._start(self._call(target, action, state, call, before), state, target)

    async def wait_answer(self, state: RunState) -> bool:
        """Return whether the last call has been answered."""
        return state.call is None or await self._ends_in_time(state.call, state)

    async def _call(self, target: Target, action: str, state: RunState, call: OwnCall, before: float) -> None:
        facts = {"operation": target.operation.name, "machine": target.machine.name, "action": action}
        event, reason, text, cause = CallEvent.ACCEPT, "", "", None
        try:
            with span(f"perform {action}"):
                state.handle = await self._executor.perform(target, action, before=before)
        except Refusal as refusal:
            event, reason, text, cause = CallEvent.REFUSE, refusal.reason, str(refusal), refusal.cause
        except NotDone as failure:
            event, reason, text, cause = CallEvent.FAIL, failure.reason, str(failure), failure.cause
        except (Transient, Stale) as failure:
            event, reason, text = CallEvent.FAIL, reasons.NO_ANSWER, str(failure)
        except Uncertain as failure:
            event, reason, text = CallEvent.LOSE, reasons.NO_ANSWER, str(failure)
        except Exception as error:
            log.exception("action failed", **facts)
            event, reason = CallEvent.LOSE, reasons.INTERNAL_ERROR
            text = f"{type(error).__name__} during the action; see the log"
        state.record_answer(call, event, reason, text, loop_time(), cause)
        log.info("action answered", reply=event.value, text=text, **facts)

    def remaining_s(self, state: RunState, waits_s: float) -> float:
        """Return the seconds that are left of `waits_s` since the observation or call began."""
        return max(state.task_since + waits_s - loop_time(), 0.0)

    async def _ends_in_time(self, task: asyncio.Task[Any], state: RunState) -> bool:
        """Return whether the task ends within `brief_s`.

        A pass waits for a task only once: the end of a task that outlasted the wait triggers a pass.
        """
        done, _pending = await asyncio.wait({task}, timeout=0 if state.outlasted else self._brief_s)
        state.outlasted = not done
        if not done:
            self._slow(state.uid)
        return bool(done)

    def _start(self, work: Coroutine[Any, Any, T], state: RunState, target: Target) -> asyncio.Task[T]:
        name = target.operation.name
        with self._tracer.within(target.operation.metadata.uid, target.run.stage):  # the task has a copy of the context
            task = self._tasks.create_task(work)
        state.outlasted, state.task_since = False, loop_time()
        task.add_done_callback(lambda _task: self._wake(name) if state.outlasted else None)
        return task


def observation_identity(target: Target) -> tuple[object, ...]:
    """Return the identity of Machine and request that an observation is valid for."""
    of, machine = target.operation.metadata, target.machine.metadata
    return (of.uid, of.generation, of.deletion_timestamp, machine.uid)


def procedure_of(executor: Executor, operation: MachineOperation) -> tuple[Procedure, Finish | None]:
    """Return the operation's procedure, and the failure with which an unsupported kind ends."""
    try:
        return executor.procedure(operation), None
    except Refusal as refusal:
        return _NO_PROCEDURE, Finish(refusal.reason, str(refusal), cause=refusal.cause)
