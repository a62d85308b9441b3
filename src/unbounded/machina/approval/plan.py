"""What becomes of a request for a certificate: pure, from the request and the Machine that it names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from unbounded.api.core import CertificateRequest
from unbounded.api.machine import JoinPurpose, Machine
from unbounded.api.names import GROUP_AGENTS
from unbounded.machina.approval.causes import is_recorded, last_allowed, last_use, open_causes
from unbounded.machina.approval.request import (
    Holder,
    Joiner,
    Unfit,
    asker_of,
    is_decided,
    machine_asked_for,
    organizations_of,
    purpose_of,
)


class Refusal(StrEnum):
    """Why a request is denied, as its condition and the Event on the Machine have it."""

    UNFIT_REQUEST = "UnfitRequest"
    FOREIGN_IDENTITY = "ForeignIdentity"
    FOREIGN_TOKEN = "ForeignToken"  # noqa: S105  # no password
    MACHINE_NOT_FOUND = "MachineNotFound"
    MACHINE_DELETED = "MachineDeleted"
    NO_JOIN_OPEN = "NoJoinOpen"
    FOREIGN_NAME = "ForeignName"  # of a serving certificate
    UNKNOWN_NAME = "UnknownName"


@dataclass(frozen=True)
class NotMine:
    """Decided already, or for somebody else to decide."""


@dataclass(frozen=True)
class Wait:
    """For the Machine, which may be registered only now."""


@dataclass(frozen=True)
class Deny:
    reason: Refusal
    message: str


@dataclass(frozen=True)
class Renew:
    """The next certificate of who has one."""

    purpose: JoinPurpose


@dataclass(frozen=True)
class Admit:
    """A join.

    Args:
        causes: what it uses up; none where that was recorded before, and only the approval was lost.
    """

    purpose: JoinPurpose
    causes: tuple[str, ...]


@dataclass(frozen=True)
class Serve:
    """A serving certificate of a kubelet.

    Args:
        names: host names and addresses in it.
    """

    names: tuple[str, ...]


Verdict = NotMine | Wait | Deny | Renew | Admit | Serve


def is_ours(request: CertificateRequest) -> bool:
    """Whether there may be something to decide; then `plan` is asked."""
    return purpose_of(request) is not None and asker_of(request) is not None and not is_decided(request)


def machine_concerned(request: CertificateRequest) -> str | None:
    """The Machine that decides about a request; None where it is not ours, or names none as it should."""
    purpose, asker = purpose_of(request), asker_of(request)
    if purpose is None or asker is None:
        return None
    if isinstance(asker, Holder):
        return asker.machine
    try:
        return machine_asked_for(request, purpose)
    except Unfit:
        return None


def plan(request: CertificateRequest, machine: Machine | None, *, waited: bool = False) -> Verdict:
    """Decide about one request.

    Args:
        machine: that of `machine_concerned`, as it is now; None where there is none.
        waited: whether the Machine had its time to be registered.
    """
    purpose, asker = purpose_of(request), asker_of(request)
    if purpose is None or asker is None or is_decided(request):
        return NotMine()
    if isinstance(asker, Holder):
        return _holder(request, asker, purpose, machine)
    return _joiner(request, asker, purpose, machine, waited=waited)


def _holder(request: CertificateRequest, asker: Holder, purpose: JoinPurpose, machine: Machine | None) -> Verdict:
    if asker.purpose is JoinPurpose.KUBELET:
        if purpose is JoinPurpose.AGENT:
            return _kubelet_asks_for_more(request)
        if machine is None:
            return NotMine()  # a Node that is none of our Machines
    try:
        named = machine_asked_for(request, purpose)
    except Unfit as unfit:
        return Deny(Refusal.UNFIT_REQUEST, f"refused: {unfit}")
    if named != asker.machine:
        words = f"{request.spec.username} may ask for its own certificates only, not for those of {named}"
        return Deny(Refusal.FOREIGN_IDENTITY, words)
    if machine is None or machine.metadata.deletion_timestamp is not None:
        return gone(named, machine)
    return Renew(purpose)


def _kubelet_asks_for_more(request: CertificateRequest) -> Verdict:
    """kubelet's identity reads Secrets of its Pods and may be had from any Pod that breaks out: it stays kubelet's."""
    if GROUP_AGENTS not in organizations_of(request):
        return NotMine()
    words = f"a kubelet ({request.spec.username}) does not get the certificate of an agent"
    return Deny(Refusal.FOREIGN_IDENTITY, words)


def _joiner(
    request: CertificateRequest, asker: Joiner, purpose: JoinPurpose, machine: Machine | None, *, waited: bool
) -> Verdict:
    try:
        named = machine_asked_for(request, purpose)
    except Unfit as unfit:
        return Deny(Refusal.UNFIT_REQUEST, f"refused: {unfit}")
    if machine is None and not asker.machine_uids and not waited:
        return Wait()  # for a token of one Machine there was one, and it is gone
    if machine is None or machine.metadata.deletion_timestamp is not None:
        return gone(named, machine)
    if asker.machine_uids and asker.machine_uids != (machine.metadata.uid,):
        words = (
            f"the bootstrap token of {request.spec.username} was made for another Machine than {named}"
            " (or for one of that name that was deleted since)"
        )
        return Deny(Refusal.FOREIGN_TOKEN, words)
    if is_recorded(machine, purpose, request.metadata.uid):
        return Admit(purpose, ())
    causes = open_causes(machine, purpose)
    return Admit(purpose, causes) if causes else Deny(Refusal.NO_JOIN_OPEN, _why_not_open(machine, purpose))


def gone(name: str, machine: Machine | None) -> Deny:
    """Return the denial for a Machine that is not there, or is about to go."""
    if machine is None:
        return Deny(Refusal.MACHINE_NOT_FOUND, f"there is no Machine {name}")
    return Deny(Refusal.MACHINE_DELETED, f"Machine {name} is being deleted")


def _why_not_open(machine: Machine, purpose: JoinPurpose) -> str:
    last = last_use(machine, purpose)
    since = "" if last is None else f" (last for {last.cause} at {last.at})"
    counter = max(machine.spec.join_counter, last_allowed(machine, purpose))
    return (
        f"the {purpose} of Machine {machine.name} has had its certificate already{since}: its host may join once more"
        " after a HostReplace that wrote its image, after an AgentReset,"
        f" or when spec.joinCounter is raised above {counter}"
    )
