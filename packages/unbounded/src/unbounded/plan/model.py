"""Model of a plan, its JSON values and its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from unbounded.api.operation import FailurePolicy
from unbounded.explain.links import ExplainLink, Fix, UnreadFact
from unbounded.explain.results import RELEASE
from unbounded.plan.intent import Intent

HASH_DIGITS: Final = 16
_PASSING: Final = frozenset({"name", "resourceVersion"})  # of metadata: a verb puts the time into a name
_SECRET: Final = frozenset({"data", "stringData"})


def _api_name(field: str) -> str:
    """Return the name of a field in JSON: `deadline_s` is `deadlineSeconds`."""
    head, *rest = field.removesuffix("_s").split("_")
    unit = "Seconds" if field.endswith("_s") else ""
    return head + "".join(word.capitalize() for word in rest) + unit


class StageLine(msgspec.Struct, frozen=True, rename=_api_name):
    """A stage of an operation.

    Attributes:
        limit_s: time limit of the stage.
        cancel: effect of a cancel in the stage.
    """

    name: str
    waits_for: str
    limit_s: float
    cancel: str


class Obstacle(msgspec.Struct, frozen=True, rename=_api_name):
    """An obstacle that an operation meets after its start.

    Attributes:
        about, what: as in a Link.
        reason: the operation ends at once as Failed with this reason; empty where it waits.
    """

    about: str
    what: str
    reason: str = ""
    fixes: tuple[Fix, ...] = ()


class PlannedLoss(msgspec.Struct, frozen=True, rename=_api_name):
    """A property that a replaced host will lose.

    Attributes:
        field: its name in parameters.accept.
        lessens_security: the operation starts only after it is accepted.
    """

    field: str
    consequence: str
    lessens_security: bool = False


class MachineForecast(msgspec.Struct, frozen=True, rename=_api_name):
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


class RolloutLine(msgspec.Struct, frozen=True, rename=_api_name):
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


class OperationForecast(msgspec.Struct, frozen=True, rename=_api_name):
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


class UpdateForecast(msgspec.Struct, frozen=True, rename=_api_name):
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


class PlannedChange(msgspec.Struct, frozen=True, rename=_api_name):
    """One write of a command.

    Attributes:
        what: `create machineoperation/op`, `patch machine/m1`.
        effects: its effects, as text.
        server: the server's rejection in a dry run; empty where it accepts the write.
        unread: what is left out, because the reader may not read it.
    """

    what: str
    effects: tuple[str, ...] = ()
    operation: OperationForecast | None = None
    update: UpdateForecast | None = None
    server: str = ""
    unread: tuple[UnreadFact, ...] = ()

    @property
    def is_refused(self) -> bool:
        """True if the server rejects it, or its operation would end as Failed at once on each Machine."""
        operation = self.operation
        if self.server or (operation is not None and operation.refused):
            return True
        return operation is not None and bool(operation.targets) and all(one.fails_at_once for one in operation.targets)


class Plan(msgspec.Struct, frozen=True, rename=_api_name):
    """Forecast of all writes of an intent, in their order.

    Attributes:
        hash: of what would be done; equal for two plans that would do the same.
        version: release of the program that made it.
    """

    changes: tuple[PlannedChange, ...]
    hash: str = ""
    version: str = RELEASE

    @property
    def is_refused(self) -> bool:
        """True if a change would be rejected, or would end as Failed at once."""
        return any(change.is_refused for change in self.changes)


def plan_hash(intent: Intent, changes: Sequence[PlannedChange]) -> str:
    """Return a hash of what the plan would do: writes, Machines, stages, order, executors, refusals and losses.

    It leaves out what changes by the minute, such as the present blockers, names that contain the time, and the data of
    Secrets and the passwords of credentials.
    """
    creates = [_lasting(manifest) for manifest in intent.creates]
    patches = [[one.kind.plural, one.namespace, one.name, _lasting(one.body)] for one in intent.patches]
    text = json.dumps([creates, patches, [_outcome(one) for one in changes]], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]


def _lasting(body: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in (body.get("metadata") or {}).items() if key not in _PASSING}
    kept = {key: value for key, value in body.items() if key not in _SECRET}
    if isinstance(spec := kept.get("spec"), Mapping):  # a BareMetalHostCredential has its password there
        kept["spec"] = {key: value for key, value in spec.items() if key != "password"}
    return {**kept, "metadata": metadata}


def _outcome(change: PlannedChange) -> list[Any]:
    planned = change.operation
    if change.update is not None:
        update = change.update
        order = [[one.machine, one.stage, one.wave, one.image] for one in update.targets]
        limits = [update.version, update.max_concurrent, update.max_failures, update.on_failure, bool(update.refused)]
        return [bool(change.server), limits, order, msgspec.to_builtins(update.rollout)]
    if planned is None:
        return [bool(change.server)]
    targets = [
        [one.machine, one.stage, one.wave, one.executor, _code(one.refused), [loss.field for loss in one.losses]]
        for one in planned.targets
    ]
    return [bool(change.server), planned.kind, _code(planned.refused), targets, msgspec.to_builtins(planned.rollout)]


def _code(refused: str) -> str:
    return refused.partition(":")[0]
