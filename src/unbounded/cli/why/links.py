"""What an answer is made of: links from what was asked about to the first cause, and what would undo that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

PLUGIN: Final = "kubectl unbounded"  # how our own commands begin in every Fix; `as_called` has them as they are typed


@dataclass(frozen=True)
class Fix:
    """A command that unblocks, as it can be typed, and what it does; capital words in it are to be filled in.

    Attributes:
        once_ended: it would be done twice, or to another machine, while the operation goes on.
    """

    command: str
    does: str
    once_ended: bool = False


@dataclass(frozen=True)
class Link:
    """One thing that waits, or the cause that others wait for.

    Attributes:
        about: `machine/m1`, `operation/reboot-1`, or the process: `metalman/lab`.
        what: what it does or waits for, in the words of who decided it.
        held_by: who holds it; empty for a first cause.
        since, until: RFC 3339 as their writer's clock had them; empty where nobody wrote one.
        next_step: what happens by itself, if nobody does anything.
    """

    about: str
    what: str
    held_by: str = ""
    since: str = ""
    until: str = ""
    next_step: str = ""
    fixes: tuple[Fix, ...] = ()


def as_called(links: Sequence[Link], program: str) -> tuple[Link, ...]:
    """The links with our own commands as they can be typed here: who runs `unbounded …` may have no kubectl."""
    return tuple(replace(link, fixes=tuple(called(fix, program) for fix in link.fixes)) for link in links)


def called(fix: Fix, program: str) -> Fix:
    """The same for one command."""
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


@dataclass(frozen=True)
class Subject:
    """What the next link is about.

    Attributes:
        name: of the operation for OPERATION, of the executor as the status names it for EXECUTOR, else of the Machine;
            empty for MACHINA, and for a PAUSE of everything.
    """

    topic: Topic
    name: str = ""


@dataclass(frozen=True)
class Explained:
    """A link, and what comes after it; None where it is the first cause."""

    link: Link
    then: Subject | None = None
