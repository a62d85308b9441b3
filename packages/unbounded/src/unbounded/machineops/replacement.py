"""Replacement of an instance: a procedure built from a provider's steps, which are taken in order.

Each observation finds the first incomplete step. So a request whose answer was lost is found again, and a step that a
crash interrupted is requested again: a repeated request acts once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

from unbounded.machineops.provider import PUT_BACK, Next, ReplaceStep
from unbounded.operations import reasons
from unbounded.operations.execution_record import Run
from unbounded.workflow.procedure import (
    COMPLETE,
    CallFailure,
    Cancel,
    Capacity,
    Observation,
    Procedure,
    Repeat,
    Stage,
    Step,
)

CHECKING: Final = "Checking"
CHECK_LIMIT_S: Final = 300.0
CLEARING: Final = "Clearing"
CLEAR: Final = "Clear"
PUTTING_BACK: Final = "PuttingBack"
PUT_BACK_LIMIT_S: Final = 900.0
REMOVING_STATE: Final = "RemovingKept"
REPLACED: Final = "Replaced"
UNDER_WAY: Final = "UnderWay"
AS_IT_WAS: Final = "AsItWas"
PAST: Final = "Past"
NEEDED: Final = "Needed"
NO_STATE: Final = "NothingKept"
OTHER_FACTS: Final = (REPLACED, UNDER_WAY, AS_IT_WAS, PAST, NEEDED, NO_STATE)
RESERVED: Final = frozenset({CHECKING, CLEARING, PUTTING_BACK, REMOVING_STATE, *OTHER_FACTS})
EVIDENCE_RESTORED: Final = "the instance is restored"
EVIDENCE_NOT_RESTORABLE: Final = "the instance cannot be restored"
EVIDENCE_NO_STATE: Final = "no state of it is stored"
EVIDENCE_RESTORED_NO_STATE: Final = f"{EVIDENCE_RESTORED}, and {EVIDENCE_NO_STATE}"
EVIDENCE_STATE_NEEDED: Final = "its stored state stays, as the next replacement needs it"
# for a failure without a recorded cause, which no run has shown so far
UNKNOWN_FAILURE: Final = "the failure was not recorded"
ATTEMPTS: Final = 10  # a throttled request counts as an attempt

# A delete and a create take minutes, and each observation sends requests to the cloud.
POLLS_S: Final = (1.0, 2.0, 3.0, 5.0, 10.0, 15.0)


def replace(steps: Sequence[ReplaceStep]) -> Procedure:
    """Return the procedure of a HostReplace. Its facts are the stages: a fact names the next one."""
    return _replace(tuple(steps))


@functools.cache  # cached: every pass needs the procedure, which has a hundred rows
def _replace(steps: tuple[ReplaceStep, ...]) -> Procedure:
    facts = _facts(steps)
    all_done = Step(CLEARING, evidence=steps[-1].seen)
    table = {(CHECKING, fact): Step(CHECKING) for fact in facts}
    table |= {(CHECKING, facts(step.stage)): Step(step.stage, action=step.action) for step in steps}
    table[CHECKING, facts(REPLACED)] = all_done
    for place, here in enumerate(steps):
        table |= {(here.stage, fact): Step(here.stage) for fact in facts}
        table[here.stage, facts(here.stage)] = Step(here.stage, action=here.action)
        table[here.stage, facts(REPLACED)] = all_done
        # one row for each later step, so that a skipped step leaves its evidence as well
        if later := steps[place + 1 :]:
            onward = Step(later[0].stage, evidence=here.seen)
            table |= {(here.stage, facts(fact)): onward for fact in (*(step.stage for step in later), REPLACED)}
            table[here.stage, facts(later[0].stage)] = Step(later[0].stage, action=later[0].action, evidence=here.seen)
    table |= {(CLEARING, fact): Step(CLEARING, action=CLEAR) for fact in facts}
    table[CLEARING, facts(REPLACED)] = Step(COMPLETE)
    if _undoable(steps):
        table |= _put_back_rows(steps)
    if _can_leave_state(steps):
        table |= _removing_rows(steps)
    return Procedure(
        start=CHECKING,
        facts=facts,
        stages=_stages(steps),
        table=table,
        actions=dict.fromkeys((CLEAR, PUT_BACK, *(step.action for step in steps)), Repeat.SETS_STATE),
        proof=frozenset({steps[-1].seen}),
        unobservable_limit_s=1800.0,
        polls_s=POLLS_S,
        settled=frozenset(step.action for step in steps if step.settles),
    )


def _put_back_rows(steps: Sequence[ReplaceStep]) -> dict[tuple[str, StrEnum], Step]:
    facts = _facts(steps)
    past = Step(PUTTING_BACK, fail=reasons.OUTCOME_UNKNOWN, evidence=EVIDENCE_NOT_RESTORABLE, message=UNKNOWN_FAILURE)
    rows = dict.fromkeys(((PUTTING_BACK, fact) for fact in facts), past)
    rows |= {(PUTTING_BACK, facts(step.stage)): Step(PUTTING_BACK, action=PUT_BACK) for step in _undoable(steps)}
    rows[PUTTING_BACK, facts(UNDER_WAY)] = Step(PUTTING_BACK)
    rows[PUTTING_BACK, facts(AS_IT_WAS)] = Step(REMOVING_STATE, evidence=EVIDENCE_RESTORED)
    return rows


def _removing_rows(steps: Sequence[ReplaceStep]) -> dict[tuple[str, StrEnum], Step]:
    facts = _facts(steps)
    rows = {(REMOVING_STATE, fact): Step(REMOVING_STATE, action=CLEAR) for fact in facts}
    ends = {AS_IT_WAS: EVIDENCE_RESTORED_NO_STATE, NO_STATE: EVIDENCE_NO_STATE, NEEDED: EVIDENCE_STATE_NEEDED}
    for fact, evidence in ends.items():
        rows[REMOVING_STATE, facts(fact)] = Step(
            REMOVING_STATE, fail=reasons.OUTCOME_UNKNOWN, evidence=evidence, message=UNKNOWN_FAILURE
        )
    return rows


def _can_leave_state(steps: Sequence[ReplaceStep]) -> bool:
    """Return whether a failed replacement can leave a state that is not needed any more."""
    return any(_cleanup_stage(step) for step in steps)


def _cleanup_stage(step: ReplaceStep) -> str | None:
    if step.undo:
        return PUTTING_BACK
    return REMOVING_STATE if step.cancel is Cancel.AT_ONCE else None


def _undoable(steps: Sequence[ReplaceStep]) -> list[ReplaceStep]:
    return [step for step in steps if step.undo]


def _stages(steps: Sequence[ReplaceStep]) -> dict[str, Stage]:
    checking = Stage(
        "the provider's record of the instance", CHECK_LIMIT_S, cancel=Cancel.AT_ONCE, capacity=Capacity.BACKGROUND
    )
    clearing = Stage(
        "the removal of the stored state",
        CHECK_LIMIT_S,
        attempts=ATTEMPTS,
        on_timeout=Step(COMPLETE),
        capacity=Capacity.BACKGROUND,
    )  # a remaining Secret is deleted with the operation, or with the Machine
    back = Stage(
        "the instance to be restored",
        PUT_BACK_LIMIT_S,
        attempts=None,
        capacity=Capacity.BACKGROUND,
        is_cleanup=True,
    )
    removing = Stage(
        "the removal of the stored state of the instance",
        CHECK_LIMIT_S,
        attempts=ATTEMPTS,
        capacity=Capacity.BACKGROUND,
        is_cleanup=True,
    )
    between = {step.stage: _stage(step) for step in steps}
    ending = {PUTTING_BACK: back} if _undoable(steps) else {}
    ending |= {REMOVING_STATE: removing} if _can_leave_state(steps) else {}
    return {CHECKING: checking, **between, CLEARING: clearing, **ending}


def _stage(step: ReplaceStep) -> Stage:
    return Stage(
        step.waits_for,
        step.limit_s,
        attempts=_attempts(step),
        retry_after_s=60.0,
        cancel=Cancel.UNDO if step.cancel is Cancel.AT_ONCE else step.cancel,
        capacity=Capacity.BACKGROUND,
        cleanup_stage=_cleanup_stage(step),
        late_s=step.late_s,
    )


def _attempts(step: ReplaceStep) -> int | None:
    """Return the limit of attempts. Past the point of no return there is none: giving up would leave no host."""
    return ATTEMPTS if step.cancel is Cancel.AT_ONCE else None


def faults(steps: Sequence[ReplaceStep]) -> list[str]:
    """Return the faults of a provider's steps; empty for valid ones."""
    stages = [step.stage for step in steps]
    found = [f"two steps have the stage {stage}" for stage in sorted({one for one in stages if stages.count(one) > 1})]
    found += [f"{stage} is a stage of the controller's own" for stage in stages if stage in RESERVED]
    late = _after_the_point_of_no_return(steps)
    found += [
        f"step {step.stage} can be left at once, and one before it cannot"
        for step in late
        if step.cancel is Cancel.AT_ONCE
    ]
    found += [f"step {step.stage} can be undone, and one before it cannot be left" for step in late if step.undo]
    handed = [step.hands_over for step in steps]
    found += [
        f"step {step.stage} can be left at once, and the Machine may be bound to another instance by then"
        for step in (steps[handed.index(True) :] if True in handed else ())
        if step.cancel is Cancel.AT_ONCE
    ]
    return found or replace(steps).faults()


def _after_the_point_of_no_return(steps: Sequence[ReplaceStep]) -> Sequence[ReplaceStep]:
    late = [place for place, step in enumerate(steps) if step.cancel is not Cancel.AT_ONCE]
    return steps[late[0] + 1 :] if late else ()


def step_of(steps: Sequence[ReplaceStep], stage: str) -> ReplaceStep:
    return {step.stage: step for step in steps}[stage]


def needs_user_data(steps: Sequence[ReplaceStep], found: Next, *, checking: bool) -> bool:
    """Return whether the next step, or while checking any later one, needs a new host to be able to join."""
    if found.step is None or found.under_way:
        return False
    here = steps.index(step_of(steps, found.step))
    return any(step.needs_user_data for step in (steps[here:] if checking else steps[here : here + 1]))


def depends_on_state(steps: Sequence[ReplaceStep], stage: str) -> bool:
    """Return whether a replacement in this stage cannot resume without its stored state."""
    later = [step.stage for step in steps[1:]]
    return stage in later and any(step.needs_what_is_kept for step in steps)


def step_fact(steps: Sequence[ReplaceStep], found: Next, binding: str | None) -> Observation:
    """Convert an observation to a fact of the procedure.

    Args:
        binding: target digest of the new instance.
    """
    facts = _facts(steps)
    fact = UNDER_WAY if found.under_way else found.step or REPLACED
    failed = None if found.failed is None else CallFailure(found.failed.reason, str(found.failed), found.failed.cause)
    return Observation(
        facts(fact),
        found.detail,
        found.where,
        target_digest=binding,
        progress=found.progress,
        more=found.more,
        failed=failed,
    )


def step_accepted(steps: Sequence[ReplaceStep], standing: str) -> Observation:
    """Return the observation of a step that the cloud has just accepted.

    Args:
        standing: message of the previous observation.
    """
    return Observation(_facts(steps)(UNDER_WAY), standing)


def restore_fact(steps: Sequence[ReplaceStep], found: Next) -> Observation:
    """Convert an observation of an instance that is being restored."""
    facts = _facts(steps)
    here = next((step for step in _undoable(steps) if step.stage == found.step), None)
    if found.is_as_it_was:
        fact = AS_IT_WAS
    elif here is None or (found.under_way and here.cancel is not Cancel.AT_ONCE):
        fact = PAST
    else:
        fact = UNDER_WAY if found.under_way else here.stage
    return Observation(facts(fact), found.detail, found.where)


def clearing_fact(steps: Sequence[ReplaceStep], is_clear: bool, detail: str, where: str) -> Observation:
    """Convert an observation of the stored state's removal."""
    facts = _facts(steps)
    return Observation(facts(REPLACED if is_clear else UNDER_WAY), detail, where)


def removal_fact(steps: Sequence[ReplaceStep], run: Run, found: Next | None, place: str) -> Observation:
    """Convert an observation of the state of a failed replacement.

    Args:
        found: observation of the replacement; None if the state is gone.
        place: reference to the state.
    """
    facts, was_put_back = _facts(steps), any(evidence.what == EVIDENCE_RESTORED for evidence in run.evidence)
    if found is None:
        return Observation(facts(AS_IT_WAS if was_put_back else NO_STATE), where=place)
    left = f"{EVIDENCE_RESTORED}; {place} is left" if was_put_back else f"{place} is left"
    return Observation(facts(NEEDED if found.still_needed else PAST), left, place)


def _facts(steps: Sequence[ReplaceStep]) -> type[StrEnum]:
    return _named(tuple(step.stage for step in steps))


@functools.cache
def _named(stages: tuple[str, ...]) -> type[StrEnum]:
    make: Callable[..., type[StrEnum]] = StrEnum  # type: ignore[assignment]  # what a call with names gives is a class
    return make("Seen", [(name, name) for name in (*stages, *OTHER_FACTS)])
