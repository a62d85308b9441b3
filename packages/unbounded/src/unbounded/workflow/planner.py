"""The next step of a run: a pure function of its record, the latest observation, and the time.

RULES has the rules in their order; the last one is the procedure's table. A failure first passes through the cleanup
stage of its stage, if any, and is reported at its end. A decision is delayed while a call of another process, sent or
about to be sent, could undo or destroy its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from unbounded.workflow import decisions
from unbounded.workflow.call_retries import Retries
from unbounded.workflow.decisions import (
    CallAction,
    Decision,
    EnterStage,
    Finish,
    OwnerRequest,
    TargetLoss,
    Timing,
    Wait,
)
from unbounded.workflow.procedure import (
    CANCELLED,
    COMPLETE,
    ENDS,
    Cancel,
    NotObservable,
    Observation,
    Procedure,
    Repeat,
    Stage,
    Step,
)
from unbounded.workflow.run_record import NO_ANSWER, Answer, CallOutcome, LateCall, PendingFailure, RunRecord

_LAST_FAILED: Final = "the last attempt failed"

_CANCEL_TEXT: Final = {
    Cancel.AT_ONCE: "cancel requested",
    Cancel.UNDO: "cancel requested: its changes are undone first",
    Cancel.TOO_LATE: "cancel requested after the point of no return: it continues",
}


def decide(
    procedure: Procedure,
    run: RunRecord,
    observation: Observation | NotObservable,
    timing: Timing,
    answer: Answer,
    request: OwnerRequest,
) -> Decision:
    """Return the next step of a run."""
    planner = _Planner(procedure, run, observation, timing, proven_answer(procedure, run, observation, answer), request)
    decision = planner.decide()
    return _with_cause(planner.delay(decision) or decision, planner)


def _with_cause(decision: Decision, planner: _Planner) -> Decision:
    """Add the cause of the decision's reason, from the failure, answer or observation that has the reason."""
    observation = planner.observation if isinstance(planner.observation, NotObservable) else None
    known = {one.reason: one.cause for one in (planner.run.failing, planner.answer, observation) if one and one.cause}
    if not known:
        return decision
    if isinstance(decision, Wait | Finish):
        return replace(decision, cause=known.get(decision.reason))
    failing = decision.failing
    return decision if failing is None else replace(decision, failing=replace(failing, cause=known.get(failing.reason)))


def shows_arrival(procedure: Procedure, run: RunRecord, answer: Answer, decision: Decision) -> bool:
    """Return whether a decision depends on the effect of the last call, which was sent once and has no other cause."""
    evidence = None if isinstance(decision, Wait) else decision.evidence
    return evidence is not None and run.action in procedure.settled and not answer.lost


def proven_answer(
    procedure: Procedure, run: RunRecord, observation: Observation | NotObservable | None, answer: Answer
) -> Answer:
    """Return the answer to the last call; NOT_DONE where the observation proves that the call had no effect."""
    if (
        not isinstance(observation, Observation)
        or observation.failed is None
        or not (answer.outcome is CallOutcome.ACCEPTED or answer.is_open)
    ):
        return answer
    if procedure.table[run.stage, observation.fact].action != run.action:
        return answer
    failed = observation.failed
    return replace(answer, outcome=CallOutcome.NOT_DONE, reason=failed.reason, text=failed.text, cause=failed.cause)


def waiting_text(procedure: Procedure, run: RunRecord, *, cancel: bool, answer: Answer = NO_ANSWER) -> str:
    """Return the message of a wait; it is constant until the state changes."""
    stage = procedure.stages[run.stage]
    text = f"waiting for {stage.waits_for}"
    text = f"{_call_text(stage, run, answer)}; {text}" if run.action else text
    text += f", before it fails as {run.failing.reason}" if run.failing else ""
    return _with_cancel(text, stage, cancel=cancel)


def _call_text(stage: Stage, run: RunRecord, answer: Answer) -> str:
    most = "" if stage.attempts is None else f" of {stage.attempts}"
    times = f" (attempt {run.attempt}{most})" if run.attempt > 1 else ""
    if answer.is_open:
        return f"the outcome of {run.action} is unknown{times}: {answer.text}"
    return f"{run.action} requested{times}"


def _with_cancel(text: str, stage: Stage, *, cancel: bool) -> str:
    return f"{text} ({_CANCEL_TEXT[stage.cancel]})" if cancel and not stage.is_cleanup else text


class _Planner(Struct, frozen=True):
    procedure: Procedure
    run: RunRecord
    observation: Observation | NotObservable
    timing: Timing
    answer: Answer
    request: OwnerRequest

    @property
    def stage(self) -> Stage:
        return self.procedure.stages[self.run.stage]

    # The rules, in the order of RULES: each returns a decision, or None where it does not apply

    def another_target(self) -> Decision | None:
        """End the run where its target is gone, or another one than at the start."""
        return None if self.request.lost is None else self._target_lost(self.request.lost)

    def cancel(self) -> Decision | None:
        """End a cancelled operation where its stage permits that, after the cleanup stage if there is one."""
        ends = self.stage.cancel is Cancel.AT_ONCE or (self.stage.cancel is Cancel.UNDO and self.stage.undo is None)
        return self._give_up(decisions.CANCELLED, self._cancelled()) if self.request.cancel and ends else None

    def deadline(self) -> Decision | None:
        """Fail at the deadline; a cleanup stage outlasts it, up to its own limit."""
        if self.timing.spent_s < self.request.deadline_s or self.stage.is_cleanup:
            return None
        if self._completes_on_timeout():
            return self._complete_on_timeout()
        text = f"not complete within {self.request.deadline_s:.0f} s: {self._observed()}"
        return self._give_up(decisions.DEADLINE_EXCEEDED, text)

    def rejection(self) -> Decision | None:
        """Follow the stage's timeout step, or fail, where the call was rejected: to repeat it is useless."""
        if self.answer.outcome is not CallOutcome.REFUSED:
            return None
        text = f"{self.run.action} was rejected: {self.answer.text}"
        return self._on_timeout(self.answer.reason, f"{text}{self._last_observed()}")

    def no_observation(self) -> Decision | None:
        """Wait for an observation, up to the limit of the stage."""
        return self._wait_for_observation(self.observation) if isinstance(self.observation, NotObservable) else None

    def undo(self) -> Decision | None:
        """Begin to undo a cancelled operation, unless the observation shows that it is too late."""
        if not self.request.cancel or self.stage.undo is None or self._is_past_return(self._row()):
            return None
        return self._leave(self.stage.undo)

    def table_row(self) -> Decision | None:
        """Follow the procedure's row for the observed fact."""
        return self._take(self._row())

    def _row(self) -> Step:
        if isinstance(self.observation, NotObservable):
            raise TypeError("no fact was observed")
        return self.procedure.table[self.run.stage, self.observation.fact]

    def decide(self) -> Decision:
        """Return the decision of the first rule that applies."""
        return next(decision for rule in RULES if (decision := rule(self)) is not None)

    def delay(self, decision: Decision) -> Wait | None:
        """Return the wait that delays a decision because of calls that other processes have sent or may send.

        A sent call delays a failure only where its cleanup stage reports the target as restored, and nothing else
        delays the end at the deadline: the lock of the target outlasts the run while a call may arrive.
        """
        is_late = self.timing.spent_s >= self.request.deadline_s
        is_due = isinstance(decision, Finish) and is_late and not decision.is_restored
        if isinstance(decision, Wait) or is_due:
            return None
        if self.timing.settles_in_s > 0 and not self._only_repeats(decision):
            return self._until_process_ended(self.timing.settles_in_s)
        late = self._harmful(decision)
        return self._until_arrived(late, decision) if late else None

    def _harmful(self, decision: Decision) -> list[LateCall]:
        """Return the late calls that would undo or destroy the result of a decision if they arrived after it."""
        late = [one for one in self.timing.late if not self._has_arrived(one, decision)]
        match decision:
            case CallAction():
                return [one for one in late if one.action in self.procedure.settled and one.action != decision.action]
            case Finish() if _is_by_table(decision):
                return [one for one in late if one.action not in self._harmless(decision)]
        return []

    def _harmless(self, decision: Finish) -> frozenset[str]:
        """Return the actions without effect when they arrive after an end."""
        actions = self.procedure.actions
        again = {self.run.action or ""} if self._repeat is not Repeat.ONCE else set()
        keyed = {action for action, repeat in actions.items() if repeat is Repeat.KEYED}
        reached = decision.is_complete or decision.is_restored
        return frozenset(again | keyed) | (self.procedure.final if reached else set())

    def _has_arrived(self, late: LateCall, decision: Decision) -> bool:
        return late.epoch == self.run.epoch and shows_arrival(self.procedure, self.run, self.answer, decision)

    def _until_process_ended(self, left_s: float) -> Wait:
        text = (
            f"an earlier controller may have sent {self.run.action}; waiting until its call can no longer arrive,"
            " then it continues"
        )
        text = _with_cancel(text, self.stage, cancel=self.request.cancel)
        return Wait(decisions.SETTLING, text, self._poll_in_s(left_s), left_s)

    def _until_arrived(self, late: list[LateCall], decision: CallAction | Finish | EnterStage) -> Wait:
        last = max(late, key=lambda one: one.left_s)
        sent = f"a controller that has ended may have sent {last.action}"
        text = f"{sent}, which would disturb the next step; waiting until the call can no longer arrive"
        if isinstance(decision, Finish):
            text = f"{decision.text}; {sent}; observing until the call can no longer arrive"
        return Wait(decisions.SETTLING, text, self._poll_in_s(last.left_s), last.left_s)

    def _only_repeats(self, decision: Decision) -> bool:
        """Return whether the decision is a call that may be sent beside the same call of another process.

        Both together take effect once.
        """
        same = isinstance(decision, CallAction) and (decision.stage, decision.action) == (
            self.run.stage,
            self.run.action,
        )
        return same and self._repeat is Repeat.KEYED

    @property
    def _repeat(self) -> Repeat | None:
        """The repeatability of the last action; None where there is none."""
        return self.procedure.actions.get(self.run.action or "")

    @property
    def _retries(self) -> Retries:
        has_more = isinstance(self.observation, Observation) and self.observation.more
        return Retries(self.stage, self.run, self.answer, self._repeat, has_more)

    def _cancelled(self) -> str:
        """Return the message of a cancelled operation."""
        if self.run.action is None and self.run.stage != self.procedure.start:
            return f"cancelled while waiting for {self.stage.waits_for}{self._last_observed()}"
        if self.run.action is None:
            return "cancelled before the first action"
        return f"cancelled after {self.run.action} was requested{self._last_observed()}"

    def _is_past_return(self, step: Step) -> bool:
        """Return whether the observation shows a stage that cannot be undone, before the record has it."""
        following = self.procedure.stages.get(step.stage)
        return following is not None and step.stage != self.run.stage and following.cancel is Cancel.TOO_LATE

    def _target_lost(self, lost: TargetLoss) -> Finish:
        nothing = (
            f"it was about to fail as {self.run.failing.reason}" if self.run.failing else "no action had been requested"
        )
        done = f"{self.run.action} had been requested" if self.run.action else nothing
        if self.run.action and isinstance(self.observation, NotObservable):
            done = f"{done}, and its result was not observed"
        return _failed(lost.reason, f"{lost.text}; {done}{self._last_observed()}{self._left()}")

    def _left(self) -> str:
        """Return the state in which the target stays where its cleanup stage may not run or has not finished."""
        name = self.run.stage if self.stage.is_cleanup else self.stage.cleanup_stage or ""
        after = self.procedure.stages.get(name)
        if after is None or not after.left or (self.run.action is None and not self.stage.is_cleanup):
            return ""
        row = (
            self.procedure.table.get((name, self.observation.fact))
            if isinstance(self.observation, Observation)
            else None
        )
        is_right = row is not None and row.fail is not None
        if is_right and self.run.action == after.blind:
            return ""
        return f"; it {'may be' if is_right or row is None else 'is'} {after.left}"

    def _wait_for_observation(self, failed: NotObservable) -> Decision:
        untouched = self.run.action is None and self.run.stage == self.procedure.start
        if failed.final and untouched:
            return _failed(failed.reason, failed.text)
        limit_s = self.stage.limit_s
        if not self.stage.is_cleanup:
            limit_s = max(limit_s, self.procedure.unobservable_limit_s)
        if self.timing.in_stage_s >= limit_s:
            return self._give_up(failed.reason, f"{failed.text}; gave up after {limit_s:.0f} s{self._last_observed()}")
        left_s = limit_s - self.timing.in_stage_s
        # only a person can fix it, and needs the names of existing resources
        known = self._last_observed() if failed.final else ""
        return Wait(failed.reason, f"{failed.text}{known}; {self._waiting()}", self._poll_in_s(left_s), left_s)

    def _take(self, step: Step) -> Decision:
        """Follow a step, unless its dwell is not over, or its action was called already."""
        ends = step.stage in ENDS or (step.fail is not None and self.run.failing is not None)
        left_s = self.stage.dwell_s - min(self.timing.in_stage_s, self.timing.observed_from_s)
        if ends and left_s > 0:
            return Wait(decisions.IN_PROGRESS, self._waiting(), min(left_s, self._poll_in_s(left_s)), left_s)
        if step.fail is not None:
            return self._fail(step, step.fail)
        if step.stage == self.run.stage:
            return self._stay(step)
        return self._leave(step)

    def _fail(self, step: Step, reason: str) -> Decision:
        if (failing := self.run.failing) is not None:
            # The text of the failure describes the state at its time: it follows the current state.
            now = f"in the end, {step.evidence}{self._last_observed()}; before that: " if step.evidence else ""
            failed = _failed(failing.reason, f"{now}{failing.text}", step.evidence)
            return replace(failed, is_restored=bool(self.stage.left))
        message = step.message or f"while {self._waiting_for()}"
        return self._give_up(reason, f"{message}: {self._observed()}", step.evidence)

    def _leave(self, step: Step) -> Decision:
        if step.stage == COMPLETE:
            return self._complete(step)
        if step.stage == CANCELLED:
            undone = _failed(decisions.CANCELLED, "cancelled; its changes have been undone", step.evidence)
            return replace(undone, is_undone=True)
        entered = replace(self.run, stage=step.stage, action=step.action, attempt=1 if step.action else 0)
        text = waiting_text(self.procedure, entered, cancel=self.request.cancel)
        limit_s = self.procedure.stages[step.stage].limit_s
        if step.action is None:
            return EnterStage(step.stage, text, step.evidence, limit_s)
        return CallAction(step.stage, step.action, 1, text, step.evidence, limit_s)

    def _complete(self, step: Step, but: str = "") -> Finish:
        recorded = {evidence.what for evidence in self.run.evidence} | {step.evidence}
        missing = self.procedure.proof - recorded
        if missing:  # a gap in a table must never report an effect without evidence
            return _failed(decisions.OUTCOME_UNKNOWN, f"evidence is missing: {', '.join(sorted(missing))}")
        return Finish(decisions.SUCCEEDED, f"{self._observed()}{but}", step.evidence, is_complete=True)

    def _stay(self, step: Step) -> Decision:
        retries = self._retries
        action = step.action or retries.unanswered
        if action is None:
            return self._wait_or_limit()
        if self.run.action != action:
            return self._call(action, 1)
        if retries.are_forbidden:
            missed = retries.have_missed_the_effect(self.timing.since_call_s)
            return self._outcome_unknown() if missed else self._wait_or_limit()
        is_over = self.timing.in_stage_s >= self.stage.limit_s
        went_wrong = self.answer.is_not_done or self.answer.is_open
        if not went_wrong if is_over else self.timing.since_call_s < retries.after_s:
            retry_in_s = max(retries.after_s - self.timing.since_call_s, Procedure.polls_s[-1])
            return self._wait_or_limit(retry_in_s if went_wrong else math.inf)
        if is_over or (retries.are_used_up and self.answer.is_not_done):
            return self._on_timeout(*self._without_effect())
        if retries.are_used_up:  # a call that was sent may take effect until the limit
            return self._wait_or_limit()
        return self._call(action, self.run.attempt + 1)

    def _outcome_unknown(self) -> Decision:
        text = f"the result of {self.run.action} cannot be observed: {self._observed()}"
        return self._give_up(decisions.OUTCOME_UNKNOWN, text)

    def _call(self, action: str, attempt: int) -> CallAction:
        called = replace(self.run, action=action, attempt=attempt)
        text = waiting_text(self.procedure, called, cancel=self.request.cancel)
        if attempt > 1 and self.answer.is_not_done and self.answer.text:
            text += f"; {_LAST_FAILED}: {self.answer.text}"
        until_s = max(self.stage.limit_s - self.timing.in_stage_s, 0.0)
        return CallAction(self.run.stage, action, attempt, text, None, until_s)

    def _without_effect(self) -> tuple[str, str]:
        """Return reason and message for an action without effect, by the last answer."""
        action, times = self.run.action, "once" if self.run.attempt == 1 else f"{self.run.attempt} times"
        if self._retries.leaves_open:
            text = f"{action} was requested {times}, and its outcome is unknown: {self.answer.text}"
            return decisions.OUTCOME_UNKNOWN, f"{text}{self._last_observed()}"
        if self.answer.is_not_done:
            text = f"{action} was requested {times}, and the last attempt failed: {self.answer.text}"
            return self.answer.reason or decisions.NO_ANSWER, f"{text}{self._last_observed()}"
        if self.answer.is_open:
            text = f"{action} was requested {times}, and the outcome of the last attempt is unknown: {self.answer.text}"
            return self.answer.reason or decisions.NO_ANSWER, f"{text}{self._last_observed()}"
        return decisions.NO_EFFECT, f"{action} was requested {times} and accepted, without effect: {self._observed()}"

    def _wait_or_limit(self, retry_in_s: float = math.inf) -> Decision:
        """Wait, or handle the limit of the stage.

        Args:
            retry_in_s: until an observation has to decide on the repetition of a failed call.
        """
        left_s = self._limit_s - self.timing.in_stage_s
        if self.stage.stalled_s is not None and self.timing.stalled_s >= self.stage.stalled_s:
            text = f"no progress for {self.stage.stalled_s:.0f} s while {self._waiting_for()}: {self._observed()}"
            return self._on_timeout(decisions.TIMED_OUT, text)
        if left_s > 0:
            failed = self.answer.is_not_done
            # without a specific reason, no one can act on it
            named = failed and self.answer.reason not in ("", decisions.NO_ANSWER)
            reason = self.answer.reason if named else decisions.IN_PROGRESS
            return Wait(
                reason,
                self._waiting(),
                self._poll_in_s(min(left_s, retry_in_s)),
                left_s,
                "" if failed else self._waiting_for(),
            )
        if self.run.action is not None and self._retries.are_used_up:
            return self._on_timeout(*self._without_effect())
        unknown = self._repeat in (Repeat.ONCE, Repeat.KEYED) and (self.answer.lost or self.answer.leaves_open)
        if unknown and self.stage.on_timeout is None:
            return self._outcome_unknown()
        return self._on_timeout(
            decisions.TIMED_OUT, f"timed out waiting for {self.stage.waits_for}: {self._observed()}"
        )

    @property
    def _limit_s(self) -> float:
        step = (
            self.procedure.table[self.run.stage, self.observation.fact]
            if isinstance(self.observation, Observation)
            else None
        )
        is_on_its_way = step is not None and step == Step(self.run.stage)
        return self.stage.limit_s + (self.stage.late_s if is_on_its_way else 0.0)

    def _on_timeout(self, reason: str, text: str) -> Decision:
        on_timeout = self.stage.on_timeout
        if on_timeout is not None and on_timeout.fail is not None:
            return self._give_up(
                on_timeout.fail, f"{on_timeout.message}: {self._observed()}" if on_timeout.message else text
            )
        if on_timeout is None or isinstance(self.observation, NotObservable):
            return self._give_up(reason, text)
        return self._complete_on_timeout() if self._completes_on_timeout() else self._leave(on_timeout)

    def _completes_on_timeout(self) -> bool:
        """Return whether the operation completes although this stage fails: its purpose does not need the stage."""
        on_timeout = self.stage.on_timeout
        return on_timeout is not None and on_timeout.stage == COMPLETE and isinstance(self.observation, Observation)

    def _complete_on_timeout(self) -> Finish:
        why = f": {self.answer.text}" if self.answer.text else ""
        return self._complete(Step(COMPLETE), f"; timed out waiting for {self.stage.waits_for}{why}")

    def _give_up(self, reason: str, text: str, evidence: str | None = None) -> Decision:
        """Fail, or enter the cleanup stage; in a cleanup stage, fail with the earlier failure."""
        failing = self.run.failing
        if failing is not None:
            left = f"; the host is {self.stage.left}" if self.stage.left else ""
            return _failed(failing.reason, f"{failing.text}; after that, {text}{left}", evidence)
        if self.stage.lingers and self.run.action is not None:
            text = f"{text}; {self.stage.lingers}"
        if self.stage.cleanup_stage is None:
            return _failed(reason, text, evidence)
        after = self.procedure.stages[self.stage.cleanup_stage]
        blind = after.blind if isinstance(self.observation, NotObservable) else None
        entered = replace(self.run, stage=self.stage.cleanup_stage, action=blind, attempt=1 if blind else 0)
        message = f"{waiting_text(self.procedure, entered, cancel=False)}, before it fails as {reason}: {text}"
        if blind is not None:
            return CallAction(
                self.stage.cleanup_stage, blind, 1, message, evidence, after.limit_s, PendingFailure(reason, text)
            )
        return EnterStage(self.stage.cleanup_stage, message, evidence, after.limit_s, PendingFailure(reason, text))

    def _poll_in_s(self, left_s: float) -> float:
        next_poll_s = self.observation.next_poll_s if isinstance(self.observation, Observation) else None
        poll_s = max(self.procedure.poll_s(self.timing.observations), next_poll_s or 0.0)
        deadline_in_s = self.request.deadline_s - self.timing.spent_s
        return max(min(poll_s, left_s, deadline_in_s if deadline_in_s > 0 else math.inf), 0.05)

    def _waiting_for(self) -> str:
        return waiting_text(self.procedure, self.run, cancel=self.request.cancel, answer=self.answer)

    def _waiting(self) -> str:
        text = self._waiting_for()
        if self.answer.is_not_done and self.answer.text:
            return f"{text}; {_LAST_FAILED}: {self.answer.text}"
        progress = self.observation.progress if isinstance(self.observation, Observation) else ""
        return f"{text}: {progress}" if progress else text

    def _last_observed(self) -> str:
        """Return the last observed state for the message of a failure, as a person may have to continue by hand."""
        if isinstance(self.observation, Observation):
            return f"; {self.observation.detail}" if self.observation.detail else ""
        return f"; last observation: {self.run.standing}" if self.run.standing else ""

    def _observed(self) -> str:
        return (
            f"{self.observation.text}{self._last_observed()}"
            if isinstance(self.observation, NotObservable)
            else self.observation.detail
        )


RULES: Final[tuple[Callable[[_Planner], Decision | None], ...]] = (
    _Planner.another_target,
    _Planner.cancel,
    _Planner.deadline,
    _Planner.rejection,
    _Planner.no_observation,
    _Planner.undo,
    _Planner.table_row,
)
"""The rules of all procedures: the first that applies decides."""


def _is_by_table(finish: Finish) -> bool:
    """Return whether the end reports that the target has the requested state, or its former one."""
    return finish.is_complete or finish.is_undone or finish.is_restored


def _failed(reason: str, text: str, evidence: str | None = None) -> Finish:
    return Finish(reason, text, evidence)
