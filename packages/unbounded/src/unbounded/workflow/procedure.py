"""The state machine of a long-running procedure: stages, facts, and a table that maps them to the next step.

Rules of all procedures are not in the tables: deadline, attempts, backoff, cancel, and recovery after a crash.
`planner` adds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from itertools import product
from typing import Final

from unbounded.api.conditions import ConditionStatus
from unbounded.api.fields import Cause
from unbounded.api.machine_status import DiskErasureRecord

COMPLETE: Final = "Complete"
CANCELLED: Final = "Cancelled"
ATTEMPTS: Final = 3  # of a stage without its own number
ENDS: Final = frozenset({COMPLETE, CANCELLED})


class Repeat(Enum):
    """The repeatability of an action whose outcome is unknown."""

    SETS_STATE = "sets a state, or carries an idempotency key: a repetition has no further effect"
    ONCE = "must not be sent twice"
    KEYED = "carries an idempotency key, and sets no state: retried until an answer comes, and not after it"


@dataclass(frozen=True)
class Step:
    """The consequence of a fact: the next stage, the action on the way, and the evidence.

    Attributes:
        action: the action to call; None only observes.
        evidence: the evidence that this fact is, in words; recorded when the stage is left.
        fail: the reason with which the operation fails here instead.
        message: the message of that failure; empty for the text of the wait.
    """

    stage: str
    action: str | None = None
    evidence: str | None = None
    fail: str | None = None
    message: str = ""


class Cancel(Enum):
    """The effect of `spec.cancel` in a stage."""

    AT_ONCE = "ends the operation, which has no lasting effect yet"
    UNDO = "undoes the changes, then ends the operation"
    TOO_LATE = "has no effect: the operation is past the point of no return"


@dataclass(frozen=True)
class ConditionUpdate:
    """A condition that is set on the target while the run is in a stage, or (status None) removed.

    Attributes:
        where: update only a condition that has this status now; other writers' values stay.
        text: the condition's message.
    """

    type: str
    status: ConditionStatus | None
    reason: str = ""
    where: ConditionStatus | None = None
    text: str = ""


class Capacity(Enum):
    """The effect of a stage on the executor's limit of concurrent operations, while the operation waits in it."""

    HOLD = "keeps its capacity"
    YIELD = "yields it, and acquires it again before it continues: no work is due here"
    BACKGROUND = "yields it, and continues without a wait: another party works meanwhile"


@dataclass(frozen=True)
class Stage:
    """One stage of a procedure.

    Attributes:
        waits_for: ends the sentence "waiting for …".
        limit_s: the time limit of one observer; then `on_timeout`, else Failed.
        late_s: extends the limit while the observation shows that the effect is on its way, and no action is due.
        stalled_s: the limit without a change of `Observation.progress`; None for no such limit.
        attempts: the limit of calls of an action in this stage; None for any number within the time limit.
        retry_after_s: the wait between two calls without effect.
        dwell_s: the least duration of the stage before it may lead to an end.
        on_timeout: the step on limit, spent attempts or rejection; None fails with that reason. Where it completes, the
            deadline takes it, too, and the message has the reason why the stage failed.
        undo: with Cancel.UNDO, the step that starts the undoing; None where the cleanup stage undoes.
        condition: the condition of the target in this stage.
        capacity: what the operation does with its capacity while it waits.
        cleanup_stage: a failure here enters this stage, and the operation then ends with that failure. None fails at
            once.
        is_cleanup: it ends the operation or leads to another cleanup stage. Neither the deadline nor an unreadable
            outside ends it, but its limit does.
        blind: the action with which a cleanup stage begins where the outside cannot be read.
        lingers: added to the message of a failure here, as the action can still take effect.
        left: ends the message of a failure whose cleanup stage has failed, or could not be entered: "it is …".
    """

    waits_for: str
    limit_s: float
    attempts: int | None = ATTEMPTS
    retry_after_s: float = 20.0
    dwell_s: float = 0.0
    on_timeout: Step | None = None
    cancel: Cancel = Cancel.TOO_LATE
    undo: Step | None = None
    condition: ConditionUpdate | None = None
    stalled_s: float | None = None
    capacity: Capacity = Capacity.HOLD
    cleanup_stage: str | None = None
    is_cleanup: bool = False
    late_s: float = 0.0
    blind: str | None = None
    lingers: str = ""
    left: str = ""


@dataclass(frozen=True)
class Procedure:
    """The state machine of one kind of run.

    Attributes:
        start: the stage of a run that has just begun.
        facts: the possible results of an observation.
        table: the next step for every stage and fact.
        actions: the actions, and their repeatability.
        proof: the evidence that Complete requires.
        unobservable_limit_s: how long the outside may be unreadable in one stage.
        start_conditions: the conditions of the target from the claim on; written together with the lock.
        end_conditions: the conditions of the target when the operation is Complete.
        failure_conditions: and when it has failed; None removes all that the stages may have set.
        fact_conditions: the condition for the fact that was read last, however the operation has ended.
        polls_s: seconds between observations in a stage; the last one repeats.
        settled: the actions that would destroy the results of later ones by a late arrival, as a delete before a create
            under the same name does. If an ended process may have sent one, no other action is called until it can no
            longer arrive, or its effect is observed. The effect has no other cause.
        final: the actions without effect when they arrive after Complete.
        former_stages: names of stages in records of an earlier version, and the stages that continue from them.
    """

    start: str
    facts: type[StrEnum]
    stages: Mapping[str, Stage]
    table: Mapping[tuple[str, StrEnum], Step]
    actions: Mapping[str, Repeat]
    proof: frozenset[str]
    unobservable_limit_s: float = 300.0
    start_conditions: tuple[ConditionUpdate, ...] = ()
    end_conditions: tuple[ConditionUpdate, ...] = ()
    failure_conditions: tuple[ConditionUpdate, ...] | None = None
    fact_conditions: Mapping[StrEnum, ConditionUpdate] = field(default_factory=dict)
    polls_s: tuple[float, ...] = (1.0, 1.0, 1.5, 2.0, 3.0, 5.0)
    settled: frozenset[str] = frozenset()
    final: frozenset[str] = frozenset()
    former_stages: Mapping[str, str] = field(default_factory=dict)

    def poll_s(self, observations: int) -> float:
        return self.polls_s[min(observations, len(self.polls_s) - 1)]

    def tuned(self, *, attempts: int, longest_pause_s: float) -> Procedure:
        """Return the procedure with another default of attempts and a shortest poll interval; stages keep their own
        numbers.
        """
        stages = {
            name: replace(stage, attempts=attempts) if stage.attempts == ATTEMPTS else stage
            for name, stage in self.stages.items()
        }
        return replace(self, stages=stages, polls_s=tuple(min(one, longest_pause_s) for one in self.polls_s))

    def regular_stages(self) -> tuple[str, ...]:
        """Return the stages of a run that neither is cancelled nor fails, in the order of `stages`."""
        reached, left = {self.start}, [self.start]
        while left:
            here = left.pop()
            following = [step for (stage, _), step in self.table.items() if stage == here and step.fail is None]
            on_timeout = self.stages[here].on_timeout
            following += [on_timeout] if on_timeout is not None and on_timeout.fail is None else []
            new = {step.stage for step in following} - reached - ENDS
            reached |= new
            left += sorted(new)
        return tuple(name for name, stage in self.stages.items() if name in reached and not stage.is_cleanup)

    def faults(self) -> list[str]:
        """Return the defects by which this procedure could hang or report falsely; empty for a sound one."""
        return [*self._holes(), *self._dangling(), *self._traps(), *self._ways_out(), *self._unprovable()]

    def _steps(self) -> Iterable[tuple[str, Step]]:
        for (here, fact), step in self.table.items():
            yield f"({here}, {fact})", step
        for name, stage in self.stages.items():
            for what, extra in (("on_timeout", stage.on_timeout), ("undo", stage.undo)):
                if extra is not None:
                    yield f"{what} of {name}", extra

    def _holes(self) -> Iterable[str]:
        expected = set(product(self.stages, self.facts))
        yield from (f"no row for {row}" for row in sorted(expected - self.table.keys()))
        yield from (f"row {row} names no stage or fact" for row in sorted(self.table.keys() - expected))

    def _dangling(self) -> Iterable[str]:
        if self.start not in self.stages:
            yield f"it starts in the unknown stage {self.start}"
        unknown = sorted(set(self.former_stages.values()) - self.stages.keys())
        yield from (f"a former stage continues in the unknown stage {stage}" for stage in unknown)
        yield from (
            f"the unknown action {action} is to settle" for action in sorted(self.settled - self.actions.keys())
        )
        yield from (f"the unknown action {action} is final" for action in sorted(self.final - self.actions.keys()))
        for where, step in self._steps():
            if step.stage not in self.stages and step.stage not in ENDS:
                yield f"{where} leads to the unknown stage {step.stage}"
            if step.action is not None and step.action not in self.actions:
                yield f"{where} calls the unknown action {step.action}"
        for name, stage in self.stages.items():
            undoes = stage.undo is not None or (stage.cancel is Cancel.UNDO and stage.cleanup_stage is not None)
            if (stage.cancel is Cancel.UNDO) != undoes:
                yield f"{name}: undo and cancel do not agree"
            if stage.limit_s <= stage.dwell_s:
                yield f"{name}: its limit ends before its dwell"
            yield from self._cleanup_faults(name, stage)

    def _cleanup_faults(self, name: str, stage: Stage) -> Iterable[str]:
        if stage.cleanup_stage is None:
            return
        after = self.stages.get(stage.cleanup_stage)
        if after is None or not after.is_cleanup:
            yield f"{name}: its cleanup stage {stage.cleanup_stage} is not one"
        if stage.is_cleanup:
            yield f"{name}: a cleanup stage with a cleanup stage has no end"
        if after is not None and after.blind is not None and after.blind not in self.actions:
            yield f"{stage.cleanup_stage} begins with the unknown action {after.blind}"

    def _traps(self) -> Iterable[str]:
        """Yield the stages whose `on_timeout` steps form a cycle: a limit must lead to an end."""
        for name in self.stages:
            passed: list[str] = []
            here: str | None = name
            while here is not None and here in self.stages and here not in passed:
                passed.append(here)
                following = self.stages[here].on_timeout
                here = following.stage if following and following.fail is None else None
            if here in passed:
                yield f"{name}: its limits lead in a circle over {passed}"

    def _ways_out(self) -> Iterable[str]:
        """Yield the steps of cleanup stages that would not end with the failure that led there."""
        cleanups = {name for name, stage in self.stages.items() if stage.is_cleanup}
        leading_on = {here for (here, _fact), step in self.table.items() if step.stage != here and step.fail is None}
        rows = ((f"({here}, {fact})", here, step) for (here, fact), step in self.table.items())
        limits = ((f"on_timeout of {name}", name, stage.on_timeout) for name, stage in self.stages.items())
        for where, here, step in (*rows, *limits):
            if here not in cleanups or step is None or step.fail is not None or step.stage == here:
                continue
            if step.stage not in cleanups or step.stage in leading_on:
                yield f"{where} leads out of a cleanup stage to {step.stage}"

    def _unprovable(self) -> Iterable[str]:
        recorded = {step.evidence for _where, step in self._steps() if step.evidence}
        yield from (f"nothing records the proof {proof!r}" for proof in sorted(self.proof - recorded))


@dataclass(frozen=True)
class CallFailure:
    """The reason why an accepted call had no effect."""

    reason: str
    text: str
    cause: Cause | None = None


@dataclass(frozen=True)
class Observation:
    """One observation: the fact, in the procedure's terms, and its source.

    Attributes:
        detail: the value that was read, for messages: `PowerState is PoweringOff`.
        where: the source, for evidence: `Redfish https://bmc-1 Systems/1`.
        boot_id: of the host, where an action of the procedure concerns it.
        target_digest: the target digest after a hand-over of identity that the executor is about to make.
        facts: further findings for messages or conditions.
        progress: for the message of a wait: `42 % of the image is written`.
        next_poll_s: an earlier observation would find no change; None where that is not known.
        more: the last call has completed, and more of the same is to be called.
        failed: the last call provably had no effect: it counts as rejected for now.
        evidence: further evidence, in words, which the next step records once.
        erasures: the disks of a HostErase; the record keeps the last ones.
    """

    fact: StrEnum
    detail: str = ""
    where: str = ""
    boot_id: str | None = None
    target_digest: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    progress: str = ""
    next_poll_s: float | None = None
    more: bool = False
    failed: CallFailure | None = None
    evidence: tuple[str, ...] = ()
    erasures: tuple[DiskErasureRecord, ...] = ()


@dataclass(frozen=True)
class NotObservable:
    """A failed observation: its reason, and whether only a person can fix it."""

    reason: str
    text: str
    final: bool = False
    cause: Cause | None = None
