"""Model of a plan, and its output as a few lines of text or as data."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any, Final

from unbounded.api.conditions import counted
from unbounded.api.configuration import UpdateFailurePolicy
from unbounded.api.operation import FailurePolicy
from unbounded.cli.explain.links import PLUGIN, ExplainLink, Fix, link_data, with_program
from unbounded.cli.plugin.command import Intent
from unbounded.cli.terminal_text import BOLD, CYAN, DIM, PLAIN, RED, YELLOW, Style, one_line

SHOWN: Final = 20  # targets that are listed one by one
HASH_DIGITS: Final = 16
_PASSING: Final = frozenset({"name", "resourceVersion"})  # of metadata: a verb puts the time into a name
_SECRET: Final = frozenset({"data", "stringData"})


@dataclass(frozen=True)
class StageLine:
    """A stage of an operation.

    Attributes:
        limit_s: time limit of the stage.
        cancel: effect of a cancel in the stage.
    """

    name: str
    waits_for: str
    limit_s: float
    cancel: str


@dataclass(frozen=True)
class Obstacle:
    """An obstacle that an operation meets after its start.

    Attributes:
        about, what: as in a Link.
        reason: the operation ends at once as Failed with this reason; empty where it waits.
    """

    about: str
    what: str
    reason: str = ""
    fixes: tuple[Fix, ...] = ()


@dataclass(frozen=True)
class PlannedLoss:
    """A property that a replaced host will lose.

    Attributes:
        field: its name in parameters.accept.
        lessens_security: the operation starts only after it is accepted.
    """

    field: str
    consequence: str
    lessens_security: bool = False


@dataclass(frozen=True)
class MachineForecast:
    """Forecast for one Machine.

    Attributes:
        wave: number of the group that runs at the same time; 1 for the first.
        stage: of spec.strategy that it belongs to; empty without one.
        refused: reason and message of an immediate rejection; empty where there is none.
        held: the chain of blockers, down to the first cause; empty where it starts at once.
        obstacles: the obstacles after the start, in the order in which it meets them.
        drains: the drain of its Node before the start, for a person; empty without one.
        losses: what the cloud reports that a replacement will lose; empty where that is unknown, too.
        disk: the disk that metalman would choose by the last inspection, or why none; empty without an inspection.
        boot: the source from which it boots the installer, if that is not the network.
        network: the source of the installed system's network, and what would refuse it; empty for that of the image.
        reference: the boot that the next one is compared with, and the consequence; empty without one.
        image: that a rolling update replaces its host with; empty for an update of its Node alone.
    """

    machine: str
    operation: str
    executor: str = ""
    wave: int = 1
    stage: str = ""
    refused: str = ""
    held: tuple[ExplainLink, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    drains: str = ""
    losses: tuple[PlannedLoss, ...] = ()
    disk: str = ""
    boot: str = ""
    network: str = ""
    reference: str = ""
    image: str = ""

    @property
    def fails_at_once(self) -> bool:
        """True if it ends as Failed without waiting for anything."""
        first = self.obstacles[0] if self.obstacles and not self.held else None
        return bool(self.refused or (first is not None and first.reason))


@dataclass(frozen=True)
class RolloutLine:
    """A stage of spec.strategy.

    Attributes:
        size: number of its Machines.
        at_once: how many of them run at the same time.
        starts: the stage that it waits for, for a person; empty for the first.
        ends: its soak and its pause, for a person; empty without them.
    """

    name: str
    size: int
    at_once: int
    starts: str = ""
    ends: str = ""


@dataclass(frozen=True)
class OperationForecast:
    """Forecast of an operation that would be created.

    Attributes:
        rollout: the stages of spec.strategy, in order.
        on_failure: the reaction to maxFailures failures.
        refused: reason and message of an immediate rejection of the whole operation.
        stages: of the procedure of its executor, if that is known here.
        deadline_s: from its start to its end.
        start_deadline_s: until it has to start.
        loses: what each Machine loses by it.
        unchecked: possible obstacles that were not checked.
        budgets: the disruption budgets of its Machines, and their room now, for a person.
    """

    name: str
    kind: str
    targets: tuple[MachineForecast, ...] = ()
    refused: str = ""
    stages: tuple[StageLine, ...] = ()
    deadline_s: int = 0
    start_deadline_s: int = 0
    max_concurrent: int = 1
    max_failures: int = 1
    rollout: tuple[RolloutLine, ...] = ()
    on_failure: str = FailurePolicy.FAIL.value
    loses: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()


@dataclass(frozen=True)
class UpdateForecast:
    """Forecast of the rolling update of a MachineConfiguration.

    Attributes:
        targets: the outdated Machines, in the order of their updates.
        rollout: the stages, in order; empty without stages.
        refused: why the stages do not fit the Machines.
        now: phase and message of the update after the change.
        starts: Machines whose update would run then.
    """

    version: int = 0
    targets: tuple[MachineForecast, ...] = ()
    rollout: tuple[RolloutLine, ...] = ()
    refused: str = ""
    max_concurrent: int = 1
    max_failures: int = 1
    on_failure: str = FailurePolicy.HALT.value
    now: str = ""
    starts: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlannedChange:
    """One write of a command.

    Attributes:
        what: `create machineoperation/op`, `patch machine/m1`.
        effects: its effects, as text.
        server: the server's rejection in a dry run; empty where it accepts the write.
    """

    what: str
    effects: tuple[str, ...] = ()
    operation: OperationForecast | None = None
    update: UpdateForecast | None = None
    server: str = ""


def plan_lines(
    changes: Sequence[PlannedChange],
    program: str = PLUGIN,
    *,
    wide: bool = False,
    style: Style = PLAIN,
    digest: str = "",
) -> Iterator[str]:
    """Yield a paragraph for each write: the Machines first, then what holds for all.

    Args:
        program: name of this program, for the commands in fixes.
        wide: show the stages of operations, too.
        digest: the hash of the plan.
    """
    for line in map(one_line, _change_lines(changes, program, wide=wide, digest=digest)):
        command = line.lstrip().startswith(_TRY)
        for one in [line] if command else style.wrapped(line):
            yield style.paint(one, _colour(line))


def _colour(line: str) -> str:
    return next((code for pattern, code in _COLOURS if pattern.search(line)), "")


_TRY: Final = "try:  "
_COLOURS: Final = (
    (re.compile(r"^would "), BOLD),
    (re.compile(r"would end(?: at once)? as Failed/|the server refuses it:"), RED),
    (re.compile(rf"^ +{_TRY}"), CYAN),
    (re.compile(r"^ +loses |: would wait$"), YELLOW),
    (re.compile(r"^nothing was changed$"), DIM),
)


def _change_lines(changes: Sequence[PlannedChange], program: str, *, wide: bool, digest: str) -> Iterator[str]:
    for change in changes:
        yield f"would {change.what}"
        for effect in change.effects:
            yield f"  {effect}"
        if change.operation is not None:
            yield from _operation(change.operation, program, wide=wide)
        if change.update is not None:
            yield from _update(change.update, program)
        if change.server:
            yield f"  the server refuses it: {change.server}"
    if digest:
        yield f"plan hash: {digest}"
    yield "nothing was changed"


def _operation(planned: OperationForecast, program: str, *, wide: bool) -> Iterator[str]:
    if planned.refused:
        yield f"  it would end at once as Failed/{planned.refused}"
        return
    yield from _targets(planned, program)
    if len(planned.targets) != 1 or planned.targets[0].operation != planned.name:
        yield f"  {counted(len(planned.targets), 'Machine')}, at most {planned.max_concurrent} at once, in this order;"
        where = " in one stage" if planned.rollout else ""
        then = ": it halts" if planned.on_failure == FailurePolicy.HALT else ""
        yield f"  after {counted(planned.max_failures, 'failure')}{where}, no further ones start{then}"
    yield from _few("  ", planned.budgets)
    yield (
        f"  it fails if it has not started within {planned.start_deadline_s} s, or not completed "
        f"{planned.deadline_s} s after that"
    )
    yield from _few("  loses ", planned.loses)
    yield from _few("  not checked: ", planned.unchecked)
    if planned.stages and wide:
        yield "  stages:"
        yield from (
            f"    {one.name}: waits for {one.waits_for}, at most {one.limit_s:.0f} s; a cancel {one.cancel}"
            for one in planned.stages
        )
    elif planned.stages:
        yield f"  -o wide shows its {len(planned.stages)} stages"


def _update(planned: UpdateForecast, program: str) -> Iterator[str]:
    if planned.refused:
        yield f"  no update would start: {planned.refused}"
        return
    yield from _targets(planned, program)
    outdated = counted(len(planned.targets), "outdated Machine")
    yield f"  {outdated}, at most {planned.max_concurrent} unavailable at once, in this order;"
    where = " in one stage" if planned.rollout else ""
    then = "all return to the last good version" if planned.on_failure == UpdateFailurePolicy.ROLLBACK else "it halts"
    yield f"  after {counted(planned.max_failures, 'failure')}{where}, {then}"
    yield f"  then {planned.now}"
    if planned.starts:
        yield f"  at work then: {', '.join(planned.starts[:SHOWN])}"


def _targets(planned: OperationForecast | UpdateForecast, program: str) -> Iterator[str]:
    """Yield the stages, each of the first SHOWN targets, and of the others those with different findings."""
    shown, alike, known = 0, 0, set[tuple[str, str]]()
    stages = {stage.name: stage for stage in planned.rollout}
    for (name, wave), members in groupby(planned.targets, key=lambda one: (one.stage, one.wave)):
        if (stage := stages.pop(name, None)) is not None:
            yield f"  stage {_rollout_text(stage)}"
        for one in members:
            shown += 1
            obstacles = {(each.reason, each.what) for each in one.obstacles}
            if shown <= SHOWN or one.refused or one.held or not obstacles <= known:
                yield from _target(one, wave, program)
            else:
                alike += bool(obstacles)
            known |= obstacles
    if shown > SHOWN:
        yield f"  … {shown} in all; after the first {SHOWN}, only blocked ones are shown"
    if alike:
        yield f"  … {alike} of those have the same obstacles as others before them"


def _rollout_text(stage: RolloutLine) -> str:
    count = f"{counted(stage.size, 'Machine')}, at most {stage.at_once} at once"
    return "; ".join(part for part in (f"{stage.name}: {count}", stage.starts, stage.ends) if part)


def _target(one: MachineForecast, wave: int, program: str) -> Iterator[str]:
    head = f"  {wave}. {one.machine}{f' by {one.executor}' if one.executor else ''}"
    if one.refused:
        yield f"{head}: would end at once as Failed/{one.refused}"
        return
    if one.held:
        yield f"{head}: would wait"
        yield from (f"     {_blocker_text(link)}" for link in one.held)
        yield from _tries(one.held[-1].fixes, program)
    else:
        yield f"{head}: starts in its turn"
    if one.image:
        yield f"     its host is replaced with image {one.image}"
    if one.drains:
        yield f"     {one.drains}"
    for obstacle in one.obstacles:
        comes = f"it would end as Failed/{obstacle.reason}" if obstacle.reason else "in its way"
        yield f"     then {comes}: {obstacle.about}: {obstacle.what}"
        yield from _tries(obstacle.fixes, program)
    for loss in one.losses:
        less = ", which decreases security" if loss.lessens_security else ""
        yield f"     loses {loss.field}: {loss.consequence}{less}"
    if one.disk:
        yield from (f"     {line}" for line in one.disk.splitlines())
    if one.boot:
        yield f"     {one.boot}"
    if one.network:
        yield f"     {one.network}"
    if one.reference:
        yield f"     {one.reference}"


def _tries(fixes: Sequence[Fix], program: str) -> Iterator[str]:
    yield from (f"     {_TRY}{with_program(fix, program).command}" for fix in fixes[:1])


def _blocker_text(link: ExplainLink) -> str:
    return f"{link.about} {link.what}"


def _few(head: str, words: Sequence[str]) -> Iterator[str]:
    yield from (f"{head}{one}" for one in words[:SHOWN])
    if len(words) > SHOWN:
        yield f"{head}the same on {len(words) - SHOWN} more"


def plan_data(changes: Sequence[PlannedChange], digest: str = "") -> dict[str, Any]:
    """Return the plan as JSON values."""
    return {"changes": [_camel(change) for change in changes], **({"hash": digest} if digest else {})}


def plan_hash(intent: Intent, changes: Sequence[PlannedChange]) -> str:
    """Return a hash of what the plan would do: writes, Machines, stages, order, executors, refusals and losses.

    It leaves out what changes by the minute, such as the present blockers, names that contain the time, and the data of
    Secrets.
    """
    creates = [_lasting(manifest) for manifest in intent.creates]
    patches = [[one.kind.plural, one.namespace, one.name, _lasting(one.body)] for one in intent.patches]
    text = json.dumps([creates, patches, [_outcome(one) for one in changes]], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]


def _lasting(body: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in (body.get("metadata") or {}).items() if key not in _PASSING}
    return {**{key: value for key, value in body.items() if key not in _SECRET}, "metadata": metadata}


def _outcome(change: PlannedChange) -> list[Any]:
    planned = change.operation
    if change.update is not None:
        update = change.update
        order = [[one.machine, one.stage, one.wave, one.image] for one in update.targets]
        limits = [update.version, update.max_concurrent, update.max_failures, update.on_failure, bool(update.refused)]
        return [bool(change.server), limits, order, _camel(update.rollout)]
    if planned is None:
        return [bool(change.server)]
    targets = [
        [one.machine, one.stage, one.wave, one.executor, _code(one.refused), [loss.field for loss in one.losses]]
        for one in planned.targets
    ]
    return [bool(change.server), planned.kind, _code(planned.refused), targets, _camel(planned.rollout)]


def _code(refused: str) -> str:
    return refused.partition(":")[0]


def _camel(value: Any) -> Any:
    if isinstance(value, ExplainLink):
        return link_data(value)
    if isinstance(
        value,
        PlannedChange
        | OperationForecast
        | UpdateForecast
        | MachineForecast
        | Obstacle
        | PlannedLoss
        | RolloutLine
        | StageLine
        | Fix,
    ):
        return {_name(one.name): _camel(getattr(value, one.name)) for one in fields(value)}
    return [_camel(one) for one in value] if isinstance(value, tuple) else value


def _name(key: str) -> str:
    head, *rest = key.removesuffix("_s").split("_")
    unit = "Seconds" if key.endswith("_s") else ""
    return head + "".join(word.capitalize() for word in rest) + unit
