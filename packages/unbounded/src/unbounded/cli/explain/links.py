"""Elements of an answer of `why`, and its output as text or data.

The elements are links from the subject to the first cause, and the commands that resolve the cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any, Final

from unbounded.cli.terminal_text import BOLD, CYAN, DIM, PLAIN, Style, one_line
from unbounded.cli.view import age

# prefix of this program's commands in every Fix; `links_with_program` replaces it by the program's name
PLUGIN: Final = "kubectl unbounded"
WIDTH: Final = 100  # where there is no terminal


@dataclass(frozen=True)
class Fix:
    """A command that unblocks, quoted for a shell, and its effect; capital words in it are placeholders.

    Attributes:
        once_ended: shown only after the operation's end, as it would act twice, or on another machine, before.
    """

    command: str
    does: str
    once_ended: bool = False


@dataclass(frozen=True)
class ExplainLink:
    """A blocked object, or the cause that blocks others.

    Attributes:
        about: `machine/m1`, `operation/reboot-1`, or the process: `metalman/lab`.
        what: its state or the reason for waiting, in the words of the code that decided.
        held_by: the blocker; empty for a first cause.
        since, until: RFC 3339 by their writer's clock; empty where none is recorded.
        next_step: what happens without intervention.
    """

    about: str
    what: str
    held_by: str = ""
    since: str = ""
    until: str = ""
    next_step: str = ""
    fixes: tuple[Fix, ...] = ()


def links_with_program(links: Sequence[ExplainLink], program: str) -> tuple[ExplainLink, ...]:
    """Return the links with this program's name in its commands: a user of `unbounded …` may have no kubectl."""
    return tuple(replace(link, fixes=tuple(with_program(fix, program) for fix in link.fixes)) for link in links)


def with_program(fix: Fix, program: str) -> Fix:
    """Return a fix with this program's name in its command."""
    ours = fix.command.startswith(f"{PLUGIN} ")
    return replace(fix, command=program + fix.command.removeprefix(PLUGIN)) if ours else fix


class Topic(Enum):
    MACHINE = "machine"
    OPERATION = "operation"
    PAUSE = "pause"
    SLOT = "slot"
    EXECUTOR = "executor"
    MACHINA = "machina"
    NODE = "node"
    CONDITION = "condition"
    CONFIGURATION = "configuration"
    CLAIM = "claim"
    HOST = "host"
    CLUSTER = "cluster"
    POOL = "pool"
    CONTAINER_CLOUD = "container-cloud"


@dataclass(frozen=True)
class LinkSubject:
    """Subject of the next link.

    Attributes:
        name: of the operation for OPERATION, of the configuration for CONFIGURATION, of the executor as the status
            names it for EXECUTOR, NAMESPACE/NAME for CLAIM (a Machine of cluster.k8s.io), HOST, CLUSTER and POOL,
            else of the Machine; empty for a process, and for a PAUSE of everything.
    """

    topic: Topic
    name: str = ""


@dataclass(frozen=True)
class Explained:
    """A link and the next subject; None where the link is the first cause."""

    link: ExplainLink
    then: LinkSubject | None = None


def links_text(links: Sequence[ExplainLink], now: datetime, style: Style = PLAIN) -> list[str]:
    """Return one paragraph for each link, each cause below what it blocks; then the next step, and the fixes."""
    shown: list[str] = []
    for depth, link in enumerate(links):
        shown += _head(link, depth, style)
        shown += [style.paint(one_line(_indent(depth + 1) + word), DIM) for word in _times(link, now)]
    steps = [link for link in links if link.next_step]
    for link in dict.fromkeys((steps[0], steps[-1])) if steps else ():
        shown += style.wrapped(one_line(f"next: {link.about}: {link.next_step}"), usual=WIDTH)
    shown += _fixes(links, style)
    return shown


def _head(link: ExplainLink, depth: int, style: Style) -> Iterator[str]:
    """Yield the wrapped lines of a link: its subject bold, and the phase behind it in its colour."""
    because = f"{_indent(depth)}{'because ' if depth else ''}"
    first, *rest = style.wrapped(one_line(f"{because}{link.about} {link.what}"), usual=WIDTH)
    _, about, what = first.partition(one_line(link.about))
    phase, colon, words = what.lstrip().partition(":")
    reported = f" {style.phase(phase)}{colon}{words}" if what else ""
    yield f"{because}{style.paint(about, BOLD)}{reported}"
    yield from rest


def _fixes(links: Sequence[ExplainLink], style: Style) -> Iterator[str]:
    """Yield the fixes, those of the last link first."""
    seen: set[str] = set()
    for link in reversed(links):
        for fix in link.fixes:
            if fix.command not in seen:
                seen.add(fix.command)
                yield f"try:  {style.paint(one_line(fix.command), CYAN)}"
                yield style.paint(one_line(f"      # {fix.does}"), DIM)


def _times(link: ExplainLink, now: datetime) -> Iterator[str]:
    if link.held_by:
        yield f"held by {link.held_by}"
    if link.since:
        yield f"since {link.since}{_ago(link.since, now)}"
    if link.until:
        yield f"until {link.until}"


def _ago(since: str, now: datetime) -> str:
    try:
        return f" ({age(since, now)} by the local clock)"
    except ValueError:
        return ""


def _indent(depth: int) -> str:
    return "  " * depth


def links_data(links: Sequence[ExplainLink]) -> dict[str, Any]:
    """Return the chain as JSON values."""
    return {"links": [link_data(link) for link in links]}


def link_data(link: ExplainLink) -> dict[str, Any]:
    """Return one link as JSON values, with names in the API's style."""
    return {
        "about": link.about,
        "what": link.what,
        "heldBy": link.held_by,
        "since": link.since,
        "until": link.until,
        "next": link.next_step,
        "fixes": [{"command": fix.command, "does": fix.does} for fix in link.fixes],
    }
