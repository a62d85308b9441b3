"""Model of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from unbounded.cli.explain.links import ExplainLink, Fix


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
        refused: reason and message of an immediate rejection; empty where there is none.
        held: the chain of blockers, down to the first cause; empty where it starts at once.
        obstacles: the obstacles after the start, in the order in which it meets them.
        losses: what the cloud reports that a replacement will lose; empty where that is unknown, too.
    """

    machine: str
    operation: str
    executor: str = ""
    wave: int = 1
    refused: str = ""
    held: tuple[ExplainLink, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    losses: tuple[PlannedLoss, ...] = ()

    @property
    def fails_at_once(self) -> bool:
        """True if it ends as Failed without waiting for anything."""
        first = self.obstacles[0] if self.obstacles and not self.held else None
        return bool(self.refused or (first is not None and first.reason))


@dataclass(frozen=True)
class OperationForecast:
    """Forecast of an operation that would be created.

    Attributes:
        refused: reason and message of an immediate rejection of the whole operation.
        stages: of the procedure of its executor, if that is known here.
        deadline_s: from its start to its end.
        start_deadline_s: until it has to start.
        loses: what each Machine loses by it.
        unchecked: possible obstacles that were not checked.
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
    loses: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


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
    server: str = ""
