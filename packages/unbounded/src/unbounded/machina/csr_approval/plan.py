"""Decision about a certificate request, from the request and its Machine. Pure.

A join needs a cause, and uses each cause once for the agent and once for the kubelet. The Machine's history proves
completed operations: the policies of deploy/policy keep agents from adding such entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from unbounded.api.core import CertificateRequest
from unbounded.api.machine import JoinPurpose, JoinUse, Machine, NetbootMilestone, RecentOperation
from unbounded.api.names import GROUP_AGENTS
from unbounded.api.operation import BOOT_CONTESTED, IMAGE_WRITTEN, OperationKind, OperationPhase
from unbounded.machina.csr_approval.request import (
    Holder,
    Joiner,
    UnfitRequest,
    is_decided,
    organizations_of,
    purpose_of,
    requested_machine,
    requester_of,
)
from unbounded.operations.executor_selection import ExecutorKind

REGISTRATION: Final = "Registration"
ALLOWED: Final = "Allowed"
JOIN_ALLOWED: Final = "JoinAllowed"  # reason of an approval, and of the Event on the Machine
JOIN_REFUSED: Final = "JoinRefused"  # reason of the Event


class DenialReason(StrEnum):
    """Reasons of denials, for the request's condition and the Event on the Machine."""

    UNFIT_REQUEST = "UnfitRequest"
    FOREIGN_IDENTITY = "ForeignIdentity"
    FOREIGN_TOKEN = "ForeignToken"  # noqa: S105  # no password
    MACHINE_NOT_FOUND = "MachineNotFound"
    MACHINE_DELETED = "MachineDeleted"
    NO_JOIN_OPEN = "NoJoinOpen"
    FOREIGN_NAME = "ForeignName"  # of a serving certificate
    UNKNOWN_NAME = "UnknownName"


@dataclass(frozen=True)
class NotOurs:
    """The request is decided already, or belongs to another approver."""


@dataclass(frozen=True)
class Defer:
    """Wait for the Machine, which may be registered soon."""


@dataclass(frozen=True)
class Deny:
    reason: DenialReason
    message: str


@dataclass(frozen=True)
class ApproveRenewal:
    """Approve the next certificate of its current holder."""

    purpose: JoinPurpose


@dataclass(frozen=True)
class ApproveJoin:
    """Approve a join.

    Args:
        causes: to record as used; empty if they are recorded already and only the approval was lost.
    """

    purpose: JoinPurpose
    causes: tuple[str, ...]


@dataclass(frozen=True)
class ApproveServing:
    """Approve a serving certificate of a kubelet.

    Args:
        names: its host names and addresses.
    """

    names: tuple[str, ...]


Verdict = NotOurs | Defer | Deny | ApproveRenewal | ApproveJoin | ApproveServing


def is_ours(request: CertificateRequest) -> bool:
    """Return whether `plan` may have to decide this request."""
    return purpose_of(request) is not None and requester_of(request) is not None and not is_decided(request)


def machine_concerned(request: CertificateRequest) -> str | None:
    """Return the Machine that the request concerns; None if the request is not ours or names no valid Machine."""
    purpose, asker = purpose_of(request), requester_of(request)
    if purpose is None or asker is None:
        return None
    if isinstance(asker, Holder):
        return asker.machine
    try:
        return requested_machine(request, purpose)
    except UnfitRequest:
        return None


def plan(request: CertificateRequest, machine: Machine | None, *, waited: bool = False) -> Verdict:
    """Decide about one request.

    Args:
        machine: the current Machine of `machine_concerned`; None if it does not exist.
        waited: whether the time for the registration of the Machine has passed.
    """
    purpose, asker = purpose_of(request), requester_of(request)
    if purpose is None or asker is None or is_decided(request):
        return NotOurs()
    if isinstance(asker, Holder):
        return _holder(request, asker, purpose, machine)
    return _joiner(request, asker, purpose, machine, waited=waited)


def _holder(request: CertificateRequest, asker: Holder, purpose: JoinPurpose, machine: Machine | None) -> Verdict:
    if asker.purpose is JoinPurpose.KUBELET:
        if purpose is JoinPurpose.AGENT:
            return _deny_kubelet(request)
        if machine is None:
            return NotOurs()  # a Node that is not a Machine of ours
    try:
        named = requested_machine(request, purpose)
    except UnfitRequest as unfit:
        return Deny(DenialReason.UNFIT_REQUEST, f"refused: {unfit}")
    if named != asker.machine:
        words = f"{request.spec.username} may request its own certificates only, not those of {named}"
        return Deny(DenialReason.FOREIGN_IDENTITY, words)
    if machine is None or machine.metadata.deletion_timestamp is not None:
        return missing_machine(named, machine)
    return ApproveRenewal(purpose)


def _deny_kubelet(request: CertificateRequest) -> Verdict:
    """Deny a kubelet other certificates than its own.

    A Pod that breaks out can obtain the kubelet's identity, which may read the Secrets of its Pods. So this identity
    must not lead to further ones.
    """
    if GROUP_AGENTS not in organizations_of(request):
        return NotOurs()
    words = f"kubelet {request.spec.username} may not request the certificate of an agent"
    return Deny(DenialReason.FOREIGN_IDENTITY, words)


def _joiner(
    request: CertificateRequest, asker: Joiner, purpose: JoinPurpose, machine: Machine | None, *, waited: bool
) -> Verdict:
    try:
        named = requested_machine(request, purpose)
    except UnfitRequest as unfit:
        return Deny(DenialReason.UNFIT_REQUEST, f"refused: {unfit}")
    if machine is None and not asker.machine_uids and not waited:
        return Defer()  # a token for one Machine proves that the Machine existed
    if machine is None or machine.metadata.deletion_timestamp is not None:
        return missing_machine(named, machine)
    if asker.machine_uids and asker.machine_uids != (machine.metadata.uid,):
        words = (
            f"the bootstrap token of {request.spec.username} was created for a Machine other than {named} (or "
            "for a deleted Machine of that name)"
        )
        return Deny(DenialReason.FOREIGN_TOKEN, words)
    if is_recorded(machine, purpose, request.metadata.uid):
        return ApproveJoin(purpose, ())
    causes = open_causes(machine, purpose)
    return ApproveJoin(purpose, causes) if causes else Deny(DenialReason.NO_JOIN_OPEN, _why_not_open(machine, purpose))


def missing_machine(name: str, machine: Machine | None) -> Deny:
    """Return the denial for a Machine that is missing or being deleted."""
    if machine is None:
        return Deny(DenialReason.MACHINE_NOT_FOUND, f"Machine {name} does not exist")
    return Deny(DenialReason.MACHINE_DELETED, f"Machine {name} is being deleted")


def _why_not_open(machine: Machine, purpose: JoinPurpose) -> str:
    last = last_use(machine, purpose)
    since = "" if last is None else f" (last for {last.cause} at {last.at})"
    counter = max(machine.spec.join_counter, last_allowed(machine, purpose))
    return (
        f"the {purpose} of Machine {machine.name} already has its certificate{since}. Its host may join "
        "once more after a HostReplace that wrote its image, after an AgentReset, or when "
        f"spec.joinCounter exceeds {counter}"
    )


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
    netboot = machine.status.netboot
    return netboot is not None and (netboot.boot, netboot.milestone) == (boot, NetbootMilestone.CONTESTED)


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
    written = any(evidence.what == IMAGE_WRITTEN for evidence in operation.evidence)
    return _is_complete(operation) or (written and operation.reason != BOOT_CONTESTED)
