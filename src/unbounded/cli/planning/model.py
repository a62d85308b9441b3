"""What a plan says."""

from __future__ import annotations

from dataclasses import dataclass

from unbounded.cli.why.links import Fix, Link


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
class Obstacle:
    """What an operation comes upon once it has started.

    Attributes:
        about, what: as a Link has them.
        reason: it ends at once as Failed with this one; empty where it waits.
    """

    about: str
    what: str
    reason: str = ""
    fixes: tuple[Fix, ...] = ()


@dataclass(frozen=True)
class Loses:
    """Something that a replaced host will not have any more.

    Attributes:
        field: by which parameters.accept takes it.
        lessens_security: nothing is begun before it is accepted.
    """

    field: str
    consequence: str
    lessens_security: bool = False


@dataclass(frozen=True)
class Outlook:
    """What becomes of one Machine.

    Attributes:
        wave: which of those that run at the same time it belongs to; 1 for the first.
        refused: the end that it would come to at once, as reason and words; empty where it would not.
        held: what holds it up, down to the first cause; empty where it starts at once.
        obstacles: what stands in its way after that, in the order in which it comes upon it.
        losses: what its cloud says that a replacement will not have; empty where that is not known, too.
    """

    machine: str
    operation: str
    executor: str = ""
    wave: int = 1
    refused: str = ""
    held: tuple[Link, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    losses: tuple[Loses, ...] = ()

    @property
    def fails_at_once(self) -> bool:
        """Whether nothing has to happen first for it to end as Failed."""
        first = self.obstacles[0] if self.obstacles and not self.held else None
        return bool(self.refused or (first is not None and first.reason))


@dataclass(frozen=True)
class Planned:
    """An operation that would be made.

    Attributes:
        refused: the end that the whole of it would come to at once.
        stages: of the procedure of its executor, if that is known here.
        deadline_s: from its start to its end; start_deadline_s: until it has to start.
        loses: what is lost on each Machine by it.
        unchecked: what could stand in its way, and was not looked at.
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
    unchecked: tuple[str, ...] = ()


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
