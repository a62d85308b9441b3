"""Causes that allow a Machine to join, and their use: each once for the agent, and once for the kubelet.

The Machine's history proves completed operations: the policies of deploy/policy keep agents from adding such entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from unbounded.api.machine import JoinPurpose, JoinUse, Machine, NetbootMilestone, RecentOperation
from unbounded.api.operation import BOOT_CONTESTED, IMAGE_WRITTEN, OperationKind, OperationPhase
from unbounded.operations.ownership import ExecutorKind

REGISTRATION: Final = "Registration"
ALLOWED: Final = "Allowed"
JOIN_ALLOWED: Final = "JoinAllowed"  # reason of an approval, and of the Event on the Machine
JOIN_REFUSED: Final = "JoinRefused"  # reason of the Event


def open_causes(machine: Machine, purpose: JoinPurpose) -> tuple[str, ...]:
    """Return the causes that were not used yet for this purpose."""
    used = {use.cause for use in _uses(machine) if use.purpose == purpose}
    return tuple(cause for cause in all_causes(machine, last_allowed(machine, purpose)) if cause not in used)


def all_causes(machine: Machine, allowed_before: int = 0) -> tuple[str, ...]:
    """Return all causes that allow this Machine to join, used or not.

    Args:
        allowed_before: the highest joinCounter that was used; a lower counter allows nothing.
    """
    counter = machine.spec.join_counter
    allowed = (f"{ALLOWED}/{counter}",) if counter > allowed_before else ()
    return (REGISTRATION, *allowed, *_replaced(machine), *_reset(machine))


def is_recorded(machine: Machine, purpose: JoinPurpose, request: str) -> bool:
    """Return whether this request has used a cause. Then it may be approved, now or after a crash."""
    return any(use.request == request and use.purpose == purpose for use in _uses(machine))


def with_recorded(
    machine: Machine, purpose: JoinPurpose, causes: Sequence[str], *, request: str, now: str
) -> tuple[JoinUse, ...]:
    """Return `status.join.used` with the causes that the request uses, without entries that cannot matter any more."""
    uses = (*_uses(machine), *(JoinUse(purpose=purpose, cause=cause, request=request, at=now) for cause in causes))
    return tuple(use for use in uses if _still_counts(use, uses, machine))


def last_use(machine: Machine, purpose: JoinPurpose) -> JoinUse | None:
    """Return the last join that issued such a certificate for this Machine."""
    return next((use for use in reversed(_uses(machine)) if use.purpose == purpose), None)


def last_allowed(machine: Machine, purpose: JoinPurpose) -> int:
    """Return the highest joinCounter that was used."""
    return _highest(_uses(machine), purpose)


def _uses(machine: Machine) -> tuple[JoinUse, ...]:
    return () if machine.status.join is None else machine.status.join.used


def _still_counts(use: JoinUse, uses: Sequence[JoinUse], machine: Machine) -> bool:
    kind, _, number = use.cause.partition("/")
    if kind == ALLOWED:
        return _count(number) == _highest(uses, use.purpose)
    return use.cause in all_causes(machine)


def _highest(uses: Sequence[JoinUse], purpose: str) -> int:
    of_it = (use.cause.partition("/") for use in uses if use.purpose == purpose)
    return max((_count(number) for kind, _, number in of_it if kind == ALLOWED), default=0)


def _count(number: str) -> int:
    return int(number) if number.isdecimal() else 0


def _replaced(machine: Machine) -> tuple[str, ...]:
    """Return the running HostReplace, and those that completed or failed after the host was overwritten.

    No agent executes a HostReplace: a lock that an agent holds under this kind does not count.
    """
    active = machine.status.active_operation
    running = (
        (f"{OperationKind.HOST_REPLACE}/{active.uid}",)
        if active is not None
        and active.kind == OperationKind.HOST_REPLACE
        and not active.executor.startswith(f"{ExecutorKind.AGENT}/")
        and not _is_contested(machine, active.uid)
        else ()
    )
    return (*running, *_ended(machine, OperationKind.HOST_REPLACE, _made_another_host))


def _is_contested(machine: Machine, boot: str) -> bool:
    """Return whether two hosts requested this boot, so that its operation is about to fail."""
    seen = machine.status.netboot
    return seen is not None and (seen.boot, seen.milestone) == (boot, NetbootMilestone.CONTESTED)


def _reset(machine: Machine) -> tuple[str, ...]:
    return _ended(machine, OperationKind.AGENT_RESET, _is_complete)


def _ended(machine: Machine, kind: OperationKind, counts: Callable[[RecentOperation], bool]) -> tuple[str, ...]:
    recent = machine.status.recent_operations
    return tuple(f"{kind}/{one.uid}" for one in recent if one.kind == kind and counts(one))


def _is_complete(operation: RecentOperation) -> bool:
    return operation.phase == OperationPhase.COMPLETE


def _made_another_host(operation: RecentOperation) -> bool:
    """Return whether a replace completed, or failed after it had installed the host.

    The token of a contested boot may have gone to the other client, so such a boot does not count.
    """
    written = any(seen.what == IMAGE_WRITTEN for seen in operation.evidence)
    return _is_complete(operation) or (written and operation.reason != BOOT_CONTESTED)
