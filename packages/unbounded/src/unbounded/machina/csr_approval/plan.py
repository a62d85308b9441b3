"""Decision about a certificate request. Pure: from the request and its Machine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from unbounded.api.core import CertificateRequest
from unbounded.api.machine import JoinPurpose, Machine
from unbounded.api.names import GROUP_AGENTS
from unbounded.machina.csr_approval.causes import is_recorded, last_allowed, last_use, open_causes
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
    must
    not lead to further ones.
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
