"""What a plan says."""

from __future__ import annotations

from dataclasses import dataclass

from unbounded.cli.why.links import Link


@dataclass(frozen=True)
class StageLine:
    """A stage that an operation goes through.

    Attributes:
        limit_s: how long it may take at most.
        cancel: what a cancel does there.
    """

    name: str
    waits_for: str
    limit_s: float
    cancel: str


@dataclass(frozen=True)
class Outlook:
    """What becomes of one Machine.

    Attributes:
        wave: which of those that run at the same time it belongs to; 1 for the first.
        refused: the end that it would come to at once, as reason and words; empty where it would not.
        held: what holds it up, down to the first cause; empty where it starts at once.
    """

    machine: str
    operation: str
    executor: str = ""
    wave: int = 1
    refused: str = ""
    held: tuple[Link, ...] = ()


@dataclass(frozen=True)
class Planned:
    """An operation that would be made.

    Attributes:
        refused: the end that the whole of it would come to at once.
        stages: of the procedure of its executor, if that is known here.
        deadline_s: from its start to its end; start_deadline_s: until it has to start.
        loses: what is lost on each Machine by it.
    """

    name: str
    kind: str
    targets: tuple[Outlook, ...] = ()
    refused: str = ""
    stages: tuple[StageLine, ...] = ()
    deadline_s: int = 0
    start_deadline_s: int = 0
    max_concurrent: int = 1
    max_failures: int = 1
    loses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Change:
    """One write of a command.

    Attributes:
        what: `create machineoperation/op`, `patch machine/m1`.
        effects: what comes of it, in words.
        server: what the server says to it in a dry run; empty where it takes it.
    """

    what: str
    effects: tuple[str, ...] = ()
    operation: Planned | None = None
    server: str = ""
