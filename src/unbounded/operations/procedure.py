"""The shape of an operation kind's state machine: stages, facts, and a table that maps them to the next step.

What holds for every operation (deadline, attempts, spacing of repeated asks, cancel, settling after a crash) is not
in the tables; `plan` adds it around them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from itertools import product
from typing import Final

from unbounded.api.operation import Cause

COMPLETE: Final = "Complete"
CANCELLED: Final = "Cancelled"
ATTEMPTS: Final = 3  # where a stage has no number of its own
ENDS: Final = frozenset({COMPLETE, CANCELLED})


class Repeat(Enum):
    """Whether an action whose outcome is open may be asked for again."""

    SETS_STATE = "sets a state, or carries an idempotency key: asking twice does it once"
    ONCE = "must not be sent twice"
    KEYED = "carries an idempotency key, and sets no state: asked for until an answer comes, and then not again"


@dataclass(frozen=True)
class Step:
    """What follows from a fact: the stage to be in, what to ask for on the way, and what the fact proves.

    Attributes:
        ask: the action to ask for; None only looks on.
        seen: evidence that this fact is, in words; recorded when the stage is left.
        fail: the reason with which the operation fails here instead.
        words: what went wrong then; left out, what was waited for.
    """

    stage: str
    ask: str | None = None
    seen: str | None = None
    fail: str | None = None
    words: str = ""


class Cancel(Enum):
    """What `spec.cancel` does in a stage."""

    AT_ONCE = "ends the operation: nothing was done yet, or nothing that lasts"
    UNDO = "undoes what was done, then ends the operation"
    TOO_LATE = "is answered: past the point of no return, it goes on"


class MarkStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"


@dataclass(frozen=True)
class Mark:
    """A condition that the Machine carries while the operation is in a stage, or (status None) no longer carries.

    Attributes:
        where: set it only where the condition has this status now; others write it too, and what they say stays.
        text: the condition's message.
    """

    type: str
    status: MarkStatus | None
    reason: str = ""
    where: MarkStatus | None = None
    text: str = ""


@dataclass(frozen=True)
class Stage:
    """One stage of a procedure.

    Attributes:
        waits_for: ends the sentence "waiting for …".
        limit_s: how long one observer stays; then `otherwise`, else Failed.
        late_s: and how much longer where what is seen is on its way then, and nothing is to be asked for.
        still_s: and how long without a change in `Sight.progress`; None for as long as it stays.
        attempts: how often an action may be asked for in this stage; None for as often as its limit allows.
        ask_again_s: the wait between two asks that had no effect.
        dwell_s: how long the stage has to last before it may lead to an end.
        otherwise: where the limit, spent attempts or a refusal lead; None fails for that reason. Where it completes,
            the deadline leads there, too, and the end says why the stage came to nothing.
        undo: with Cancel.UNDO, the step that starts the undoing; None where the aftermath does that.
        mark: what the Machine shows while the operation is here.
        lends: nothing is worked on here: others have its place, and it takes one again before it goes on.
        idles: while it waits here, the work is somebody else's: others have its place, and it goes on beside them.
        aftermath: the stage that a failure here goes through, so that nothing of it stays behind; the operation then
            ends as that failure. None fails at once.
        last: it is there for an aftermath, which it ends or leads on to another last stage: neither the deadline nor an
            outside that cannot be read ends it, but its limit.
        blind: what a last stage asks for at its beginning where the outside cannot be read.
        lingers: what a failure here says of the action, as that can still take effect.
        left: ends the message of a failure whose last stage has come to nothing, or could not be entered: "it is …".
    """

    waits_for: str
    limit_s: float
    attempts: int | None = ATTEMPTS
    ask_again_s: float = 20.0
    dwell_s: float = 0.0
    otherwise: Step | None = None
    cancel: Cancel = Cancel.TOO_LATE
    undo: Step | None = None
    mark: Mark | None = None
    still_s: float | None = None
    lends: bool = False
    idles: bool = False
    aftermath: str | None = None
    last: bool = False
    late_s: float = 0.0
    blind: str | None = None
    lingers: str = ""
    left: str = ""


@dataclass(frozen=True)
class Procedure:
    """How one kind of operation is carried out by one executor.

    Attributes:
        start: the stage of an operation that has just been claimed.
        facts: what an observation can be.
        table: for every stage and fact, the step that follows.
        actions: what may be asked for, and whether again.
        proof: the evidence without which it is never Complete.
        unseen_limit_s: how long the outside may be unreadable in one stage.
        start_marks: what the Machine shows from the claim on; written together with the slot.
        end_marks: what the Machine shows when it is Complete.
        failed_marks: and when it has failed; None takes away whatever the stages may have set.
        read_marks: what it shows of the fact that was read last, however the operation has ended.
        polls_s: seconds between looks in a stage; the last one repeats.
        settled: the actions that would destroy what later ones make, if they arrived after those, as a delete before a
            create under the same name does. Where a process has ended that may have sent one, nothing else is asked
            for until it can no longer arrive, or its effect is seen. The effect has no other cause.
    """

    start: str
    facts: type[StrEnum]
    stages: Mapping[str, Stage]
    table: Mapping[tuple[str, StrEnum], Step]
    actions: Mapping[str, Repeat]
    proof: frozenset[str]
    unseen_limit_s: float = 300.0
    start_marks: tuple[Mark, ...] = ()
    end_marks: tuple[Mark, ...] = ()
    failed_marks: tuple[Mark, ...] | None = None
    read_marks: Mapping[StrEnum, Mark] = field(default_factory=dict)
    polls_s: tuple[float, ...] = (1.0, 1.0, 1.5, 2.0, 3.0, 5.0)
    settled: frozenset[str] = frozenset()
    final: frozenset[str] = frozenset()

    def poll_s(self, looks: int) -> float:
        return self.polls_s[min(looks, len(self.polls_s) - 1)]

    def tuned(self, *, attempts: int, longest_pause_s: float) -> Procedure:
        """The same with another usual number of attempts, and looks at least so often; own numbers of stages stay."""
        stages = {
            name: replace(stage, attempts=attempts) if stage.attempts == ATTEMPTS else stage
            for name, stage in self.stages.items()
        }
        return replace(self, stages=stages, polls_s=tuple(min(one, longest_pause_s) for one in self.polls_s))

    def faults(self) -> list[str]:
        """Why this procedure could get stuck or lie; empty for a sound one."""
        return [*self._holes(), *self._dangling(), *self._traps(), *self._ways_out(), *self._unprovable()]

    def _steps(self) -> Iterable[tuple[str, Step]]:
        for (here, fact), step in self.table.items():
            yield f"({here}, {fact})", step
        for name, stage in self.stages.items():
            for what, extra in (("otherwise", stage.otherwise), ("undo", stage.undo)):
                if extra is not None:
                    yield f"{what} of {name}", extra

    def _holes(self) -> Iterable[str]:
        wanted = set(product(self.stages, self.facts))
        yield from (f"no row for {row}" for row in sorted(wanted - self.table.keys()))
        yield from (f"row {row} names no stage or fact" for row in sorted(self.table.keys() - wanted))

    def _dangling(self) -> Iterable[str]:
        if self.start not in self.stages:
            yield f"it starts in the unknown stage {self.start}"
        yield from (
            f"the unknown action {action} is to settle" for action in sorted(self.settled - self.actions.keys())
        )
        yield from (f"the unknown action {action} is final" for action in sorted(self.final - self.actions.keys()))
        for where, step in self._steps():
            if step.stage not in self.stages and step.stage not in ENDS:
                yield f"{where} leads to the unknown stage {step.stage}"
            if step.ask is not None and step.ask not in self.actions:
                yield f"{where} asks for the unknown action {step.ask}"
        for name, stage in self.stages.items():
            undoes = stage.undo is not None or (stage.cancel is Cancel.UNDO and stage.aftermath is not None)
            if (stage.cancel is Cancel.UNDO) != undoes:
                yield f"{name}: undo and cancel do not agree"
            if stage.limit_s <= stage.dwell_s:
                yield f"{name}: its limit ends before its dwell"
            yield from self._aftermath_faults(name, stage)

    def _aftermath_faults(self, name: str, stage: Stage) -> Iterable[str]:
        if stage.aftermath is None:
            return
        after = self.stages.get(stage.aftermath)
        if after is None or not after.last:
            yield f"{name}: its aftermath {stage.aftermath} is no last stage"
        if stage.last:
            yield f"{name}: a last stage with an aftermath has no end"
        if after is not None and after.blind is not None and after.blind not in self.actions:
            yield f"{stage.aftermath} begins with the unknown action {after.blind}"

    def _traps(self) -> Iterable[str]:
        """Stages that `otherwise` leads round in a circle: a limit must lead to an end."""
        for name in self.stages:
            passed: list[str] = []
            here: str | None = name
            while here is not None and here in self.stages and here not in passed:
                passed.append(here)
                following = self.stages[here].otherwise
                here = following.stage if following and following.fail is None else None
            if here in passed:
                yield f"{name}: its limits lead in a circle over {passed}"

    def _ways_out(self) -> Iterable[str]:
        """Steps of last stages by which it would not end as the failure it came with."""
        last = {name for name, stage in self.stages.items() if stage.last}
        leading_on = {here for (here, _fact), step in self.table.items() if step.stage != here and step.fail is None}
        rows = ((f"({here}, {fact})", here, step) for (here, fact), step in self.table.items())
        limits = ((f"otherwise of {name}", name, stage.otherwise) for name, stage in self.stages.items())
        for where, here, step in (*rows, *limits):
            if here not in last or step is None or step.fail is not None or step.stage == here:
                continue
            if step.stage not in last or step.stage in leading_on:
                yield f"{where} leads out of a last stage to {step.stage}"

    def _unprovable(self) -> Iterable[str]:
        recorded = {step.seen for _where, step in self._steps() if step.seen}
        yield from (f"nothing records the proof {proof!r}" for proof in sorted(self.proof - recorded))


@dataclass(frozen=True)
class Failed:
    """Why something that was accepted has come to nothing."""

    reason: str
    text: str
    cause: Cause | None = None


@dataclass(frozen=True)
class Sight:
    """What one observation found: the fact, in the procedure's words, and where it was read.

    Attributes:
        detail: what was read, for messages: `PowerState is PoweringOff`.
        where: the place, for evidence: `Redfish https://bmc-1 Systems/1`.
        boot_id: of the host, where an action of the procedure concerns it.
        binding: the binding after a hand-over of identity that the executor is about to make.
        facts: further findings for messages or conditions.
        progress: how far it is, for the message of a wait: `42 % of the image is written`.
        again_s: before that, a look would find nothing else; None where that is not known.
        more: what was asked for has come to its end, and there is more of the same to ask for.
        failed: what was asked for last has provably come to nothing: it is as if that had been refused for now.
    """

    fact: StrEnum
    detail: str = ""
    where: str = ""
    boot_id: str | None = None
    binding: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    progress: str = ""
    again_s: float | None = None
    more: bool = False
    failed: Failed | None = None


@dataclass(frozen=True)
class Unseen:
    """An observation that did not come about: why, and whether only a person can change that."""

    reason: str
    text: str
    final: bool = False
    cause: Cause | None = None
