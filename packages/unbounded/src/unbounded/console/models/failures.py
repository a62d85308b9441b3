"""Failures that no controller repeats: the operations of a Machine, and rollouts.

A failure counts until a later success makes it good. What a user has cancelled is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from unbounded.api.conditions import counted
from unbounded.api.configuration import MACHINE_CONFIGURATIONS, MachineConfiguration, UpdatePhase
from unbounded.api.machine import RecentOperation
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationKind, OperationPhase, StagePhase
from unbounded.console import urls
from unbounded.console.live import Derived
from unbounded.operations import reasons

NO_FAILURES: Final = frozenset({reasons.CANCELLED, reasons.PREEMPTED})
BAD_UPDATES: Final = frozenset({UpdatePhase.HALTED, UpdatePhase.ROLLING_BACK, UpdatePhase.ROLLED_BACK})

T = TypeVar("T")


def set_or_drop(found: dict[str, T], name: str, value: T | None) -> bool:
    """Set the value of a name, or drop the name where there is none; return whether that changes anything."""
    if found.get(name) == value:
        return False
    if value is None:
        del found[name]
    else:
        found[name] = value
    return True


# ---- operations of a Machine


def last_failure(results: Iterable[RecentOperation]) -> RecentOperation | None:
    """Return the newest failure that no later success makes good: one of its kind, or the replacement of the host.

    Args:
        results: of one Machine, in the order of their ends.
    """
    good: set[str] = set()
    for one in reversed(tuple(results)):
        if one.phase == OperationPhase.COMPLETE:
            if one.kind == OperationKind.HOST_REPLACE:
                return None
            good.add(one.kind)
        elif one.kind not in good and one.reason not in NO_FAILURES:
            return one
    return None


def unrecorded_failure(operation: MachineOperation) -> RecentOperation | None:
    """Return the failure of an operation that no executor has claimed: the Machine's history has it not."""
    status = operation.status
    if operation.spec.machine_ref is None or status.execution is not None or status.phase != OperationPhase.FAILED:
        return None
    return RecentOperation(
        name=operation.name,
        uid=operation.metadata.uid,
        kind=operation.spec.operation_kind,
        phase=OperationPhase.FAILED.value,
        reason=status.reason,
        message=status.message,
        completed_at=status.completed_at,
    )


def in_order(history: tuple[RecentOperation, ...], others: Iterable[RecentOperation]) -> Iterable[RecentOperation]:
    """Return the history with further results, in the order of their ends."""
    further = [one for one in others if all(one.uid != known.uid for known in history)]
    return sorted((*history, *further), key=lambda one: one.completed_at or "") if further else history


# ---- rollouts


@dataclass(frozen=True, slots=True)
class FailingRollout:
    """A rollout with failures.

    Attributes:
        name: of the object.
        path: of the view that shows it.
        state: in few words: its phase, or the number of failed Machines.
        detail: the first failed Machine, with the cause.
        is_open: whether it has not ended.
        created: time of the object's creation.
    """

    name: str
    path: str
    state: str
    detail: str
    is_open: bool
    created: str


def failing_update(configuration: MachineConfiguration) -> FailingRollout | None:
    """Return the rolling update of a configuration, if it has failures."""
    rollout = configuration.status.rollout
    if rollout is None or not (rollout.failed or rollout.phase in BAD_UPDATES):
        return None
    first = f"{rollout.failed[0].machine}: {rollout.failed[0].message or 'failed'}" if rollout.failed else ""
    return FailingRollout(
        name=configuration.name,
        path=urls.ROLLOUTS,
        state=rollout.phase if rollout.phase in BAD_UPDATES else f"{len(rollout.failed)} failed",
        detail=f"v{rollout.version}: {first or rollout.message or 'see its stages'}",
        is_open=rollout.phase not in (UpdatePhase.COMPLETE, UpdatePhase.ROLLED_BACK),
        created=configuration.metadata.creation_timestamp or "",
    )


def failing_operation(operation: MachineOperation) -> FailingRollout | None:
    """Return an operation on several Machines, if it has failures."""
    status = operation.status
    failed = [one for one in status.targets if one.phase == OperationPhase.FAILED]
    is_halted = status.rollout is not None and any(one.phase == StagePhase.HALTED for one in status.rollout.stages)
    has_failed = status.phase == OperationPhase.FAILED and status.reason not in NO_FAILURES
    if not (has_failed if operation.terminal else failed or is_halted):
        return None
    first = f"{failed[0].machine_ref}: {failed[0].message or failed[0].reason or 'failed'}" if failed else ""
    of_all = f" of {counted(len(status.targets), 'Machine')}"
    halted = StagePhase.HALTED.value if is_halted and not operation.terminal else ""
    return FailingRollout(
        name=operation.name,
        path=urls.operation(operation.name),
        state=halted or (f"{len(failed)}{of_all} failed" if failed else OperationPhase.FAILED.value),
        detail=f"{operation.spec.operation_kind}: {first or status.message or status.reason or 'failed'}",
        is_open=not operation.terminal,
        created=operation.metadata.creation_timestamp or "",
    )


def unresolved(operations: Iterable[MachineOperation]) -> tuple[MachineOperation, ...]:
    """Return the operations on several Machines that have failures.

    One that has ended counts until an operation of its kind on the same Machines, created later, is complete.
    """
    parents = [one for one in operations if one.spec.machine_ref is None]
    failing = [one for one in parents if failing_operation(one) is not None]
    good = [one for one in parents if one.status.phase == OperationPhase.COMPLETE]
    return tuple(one for one in failing if not one.terminal or not any(_makes_good(other, one) for other in good))


def _makes_good(later: MachineOperation, failed: MachineOperation) -> bool:
    if (later.metadata.creation_timestamp or "") <= (failed.metadata.creation_timestamp or ""):
        return False
    same = (later.spec.operation_kind, later.spec.machine_selector)
    return same == (failed.spec.operation_kind, failed.spec.machine_selector)


class FailingRollouts(Derived):
    """All rollouts with failures, kept up to date."""

    kinds: tuple[Kind[Any], ...] = (MACHINE_CONFIGURATIONS, MACHINE_OPERATIONS)

    def __init__(self) -> None:
        self._updates: dict[str, FailingRollout] = {}
        self._parents: dict[str, MachineOperation] = {}
        self._found: tuple[FailingRollout, ...] = ()
        self._is_current = True

    def changed(
        self, old: MachineConfiguration | MachineOperation | None, new: MachineConfiguration | MachineOperation | None
    ) -> None:
        """Take a change of a cache into account."""
        found = new or old
        if isinstance(found, MachineConfiguration):
            self._is_current &= not set_or_drop(self._updates, found.name, failing_update(found) if new else None)
        elif isinstance(found, MachineOperation) and found.spec.machine_ref is None:
            self._is_current &= not set_or_drop(self._parents, found.name, found if new else None)

    def all(self) -> tuple[FailingRollout, ...]:
        """Return those that have not ended first, then the newest."""
        if not self._is_current:
            failing = filter(None, map(failing_operation, unresolved(self._parents.values())))
            newest = sorted((*self._updates.values(), *failing), key=lambda one: one.created, reverse=True)
            self._found = tuple(sorted(newest, key=lambda one: not one.is_open))
            self._is_current = True
        return self._found
