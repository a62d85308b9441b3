"""Elements of an answer of `why`, and their JSON values.

The elements are links from the subject to the first cause, and the commands that resolve the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

# prefix of this program's commands in every Fix; `links_with_program` replaces it by the program's name
PLUGIN: Final = "kubectl unbounded"


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
