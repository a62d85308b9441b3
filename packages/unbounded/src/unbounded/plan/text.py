"""Plans as text: one paragraph for each write, for the command line and the console. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from unbounded.api.conditions import counted
from unbounded.api.configuration import UpdateFailurePolicy
from unbounded.api.operation import FailurePolicy
from unbounded.explain.links import ExplainLink, Fix, with_program
from unbounded.plan.model import MachineForecast, OperationForecast, PlannedChange, RolloutLine, UpdateForecast

SHOWN: Final = 20  # targets that are listed one by one
TRY: Final = "try:  "


def change_lines(changes: Sequence[PlannedChange], program: str, *, wide: bool | None, digest: str) -> Iterator[str]:
    """Yield a paragraph for each write: the Machines first, then what holds for all.

    Args:
        program: name of the program, for the commands in fixes.
        wide: show the stages of operations, too; False names the flag that does, and None leaves them out.
        digest: the hash of the plan.
    """
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


def _operation(planned: OperationForecast, program: str, *, wide: bool | None) -> Iterator[str]:
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
    elif planned.stages and wide is not None:
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
    yield from (f"     {TRY}{with_program(fix, program).command}" for fix in fixes[:1])


def _blocker_text(link: ExplainLink) -> str:
    return f"{link.about} {link.what}"


def _few(head: str, words: Sequence[str]) -> Iterator[str]:
    yield from (f"{head}{one}" for one in words[:SHOWN])
    if len(words) > SHOWN:
        yield f"{head}the same on {len(words) - SHOWN} more"
