"""How a plan is shown: a few lines for people, or plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any, Final

from unbounded.cli.planning.model import Change, Outlook, Planned, StageLine
from unbounded.cli.printable import one_line
from unbounded.cli.why.links import Link
from unbounded.cli.why.say import plain_link

SHOWN: Final = 20  # targets that are shown one by one


def lines(changes: Sequence[Change]) -> Iterator[str]:
    """A paragraph for each write, as text that can be shown."""
    return map(one_line, _lines(changes))


def _lines(changes: Sequence[Change]) -> Iterator[str]:
    for change in changes:
        yield f"would {change.what}"
        for effect in change.effects:
            yield f"  {effect}"
        if change.operation is not None:
            yield from _operation(change.operation)
        if change.server:
            yield f"  the server refuses it: {change.server}"
    yield "nothing was changed"


def _operation(planned: Planned) -> Iterator[str]:
    if planned.refused:
        yield f"  it would end at once as Failed/{planned.refused}"
        return
    if len(planned.targets) != 1 or planned.targets[0].operation != planned.name:
        yield f"  {len(planned.targets)} Machines, at most {planned.max_concurrent} at once, in this order;"
        yield f"  once {planned.max_failures} of them failed, no more are started"
    yield from _targets(planned.targets)
    if planned.stages:
        yield "  stages:"
        yield from (
            f"    {one.name}: waits for {one.waits_for}, at most {one.limit_s:.0f} s; a cancel {one.cancel}"
            for one in planned.stages
        )
    yield f"  not started within {planned.start_deadline_s} s or not done {planned.deadline_s} s after that, it fails"
    yield from _few("  loses ", planned.loses)


def _targets(targets: Sequence[Outlook]) -> Iterator[str]:
    shown = 0
    for wave, members in groupby(targets, key=lambda one: one.wave):
        for one in members:
            shown += 1
            if shown <= SHOWN or one.refused or one.held:
                yield from _target(one, wave)
    if shown > SHOWN:
        yield f"  … {shown} in all; of those after the first {SHOWN} only what is held up is shown"


def _target(one: Outlook, wave: int) -> Iterator[str]:
    by = f" by {one.executor}" if one.executor else ""
    if one.refused:
        yield f"  {wave}. {one.machine}{by}: would end at once as Failed/{one.refused}"
    elif one.held:
        yield f"  {wave}. {one.machine}{by}: would wait"
        yield from (f"     {_held(link)}" for link in one.held)
        yield from (f"     try:  {fix.command}" for fix in one.held[-1].fixes[:1])
    else:
        yield f"  {wave}. {one.machine}{by}: starts as soon as it is its turn"


def _held(link: Link) -> str:
    return f"{link.about} {link.what}"


def _few(head: str, words: Sequence[str]) -> Iterator[str]:
    yield from (f"{head}{one}" for one in words[:SHOWN])
    if len(words) > SHOWN:
        yield f"{head}the same on {len(words) - SHOWN} more"


def plain(changes: Sequence[Change]) -> dict[str, Any]:
    """As JSON and YAML have it."""
    return {"changes": [_camel(change) for change in changes]}


def _camel(value: Any) -> Any:
    if isinstance(value, Link):
        return plain_link(value)
    if isinstance(value, Change | Planned | Outlook | StageLine):
        return {_name(one.name): _camel(getattr(value, one.name)) for one in fields(value)}
    return [_camel(one) for one in value] if isinstance(value, tuple) else value


def _name(key: str) -> str:
    head, *rest = key.removesuffix("_s").split("_")
    unit = "Seconds" if key.endswith("_s") else ""
    return head + "".join(word.capitalize() for word in rest) + unit
