"""Output of a plan: a few lines of text, or plain data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any, Final

from unbounded.cli.explain.links import PLUGIN, ExplainLink, Fix, with_program
from unbounded.cli.explain.render import plain_link
from unbounded.cli.forecast.model import (
    MachineForecast,
    Obstacle,
    OperationForecast,
    PlannedChange,
    PlannedLoss,
    StageLine,
)
from unbounded.cli.terminal_text import BOLD, CYAN, DIM, PLAIN, RED, YELLOW, Style, one_line

SHOWN: Final = 20  # targets that are listed one by one


def lines(
    changes: Sequence[PlannedChange], program: str = PLUGIN, *, wide: bool = False, style: Style = PLAIN
) -> Iterator[str]:
    """Yield a paragraph for each write: the Machines first, then what holds for all.

    Args:
        program: name of this program, for the commands in fixes.
        wide: show the stages of operations, too.
    """
    for line in map(one_line, _lines(changes, program, wide=wide)):
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


def _lines(changes: Sequence[PlannedChange], program: str, *, wide: bool) -> Iterator[str]:
    for change in changes:
        yield f"would {change.what}"
        for effect in change.effects:
            yield f"  {effect}"
        if change.operation is not None:
            yield from _operation(change.operation, program, wide=wide)
        if change.server:
            yield f"  the server refuses it: {change.server}"
    yield "nothing was changed"


def _operation(planned: OperationForecast, program: str, *, wide: bool) -> Iterator[str]:
    if planned.refused:
        yield f"  it would end at once as Failed/{planned.refused}"
        return
    yield from _targets(planned.targets, program)
    if len(planned.targets) != 1 or planned.targets[0].operation != planned.name:
        yield f"  {len(planned.targets)} Machines, at most {planned.max_concurrent} at once, in this order;"
        yield f"  after {planned.max_failures} failures, no further ones start"
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


def _targets(targets: Sequence[MachineForecast], program: str) -> Iterator[str]:
    """Yield each of the first SHOWN targets, and of the others those with different findings."""
    shown, alike, known = 0, 0, set[tuple[str, str]]()
    for wave, members in groupby(targets, key=lambda one: one.wave):
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
    for obstacle in one.obstacles:
        comes = f"it would end as Failed/{obstacle.reason}" if obstacle.reason else "in its way"
        yield f"     then {comes}: {obstacle.about}: {obstacle.what}"
        yield from _tries(obstacle.fixes, program)
    for loss in one.losses:
        less = ", which decreases security" if loss.lessens_security else ""
        yield f"     loses {loss.field}: {loss.consequence}{less}"


def _tries(fixes: Sequence[Fix], program: str) -> Iterator[str]:
    yield from (f"     {_TRY}{with_program(fix, program).command}" for fix in fixes[:1])


def _blocker_text(link: ExplainLink) -> str:
    return f"{link.about} {link.what}"


def _few(head: str, words: Sequence[str]) -> Iterator[str]:
    yield from (f"{head}{one}" for one in words[:SHOWN])
    if len(words) > SHOWN:
        yield f"{head}the same on {len(words) - SHOWN} more"


def plain(changes: Sequence[PlannedChange]) -> dict[str, Any]:
    """Return the plan as JSON values."""
    return {"changes": [_camel(change) for change in changes]}


def _camel(value: Any) -> Any:
    if isinstance(value, ExplainLink):
        return plain_link(value)
    if isinstance(
        value, PlannedChange | OperationForecast | MachineForecast | Obstacle | PlannedLoss | StageLine | Fix
    ):
        return {_name(one.name): _camel(getattr(value, one.name)) for one in fields(value)}
    return [_camel(one) for one in value] if isinstance(value, tuple) else value


def _name(key: str) -> str:
    head, *rest = key.removesuffix("_s").split("_")
    unit = "Seconds" if key.endswith("_s") else ""
    return head + "".join(word.capitalize() for word in rest) + unit
