"""What is seen of a Machine, and what may be done about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.configuration import MachineConfigurationTemplate
from unbounded.api.core import ConfigMap, Node
from unbounded.api.failures import Failure
from unbounded.api.machine import Machine, MachinePhase, SSHHop
from unbounded.api.operation import MachineOperation
from unbounded.api.phase import PhaseNow
from unbounded.machina.provisioning.model import Remote
from unbounded.machina.ssh.model import SshRejected, SshTransient

EXECUTOR: Final = "machina"  # who has a Machine's slot while it sets the host up


@dataclass(frozen=True)
class Probe:
    """The last look at the SSH port, of the Machine as it is now.

    Args:
        age_s: how long ago, on our clock.
        error: None when it answered.
        version: of the Secret whose key a bastion was shown.
    """

    age_s: float
    error: SshTransient | SshRejected | None = None
    version: str = ""


@dataclass(frozen=True)
class Attempt:
    """What this process knows of a run.

    Args:
        step: what it does now, in words.
        ended: how it ended; None while it goes on.
        version: of the Secret whose key it logged in with last; where a bastion refused that, of the bastion's.
        generation: of the Machine, when the login was begun; 0 where nobody has noted it.
        touched: something may have been begun on the host.
    """

    attempt: str
    step: str = ""
    seconds: float = 0.0
    progress: str = ""
    ended: Remote | Failure | None = None
    version: str = ""
    generation: int = 0
    touched: bool = True


@dataclass(frozen=True)
class Needs:
    """What has to be there before a login: each None where it is fine, else what is missing, in words.

    Args:
        key_version, bastion_version: of the Secrets with these keys, as `Identity` has it; empty without one.
        source: a release of the agent that the host may run.
        key_reason, bastion_key_reason, token_reason, source_reason: of what is missing, as conditions have it.
        token_id: of the token that the host would be given.
    """

    facts: str | None = None
    token: str | None = None
    key: str | None = None
    bastion_key: str | None = None
    source: str | None = None
    key_reason: ConditionReason = ConditionReason.SECRET_UNUSABLE
    bastion_key_reason: ConditionReason = ConditionReason.SECRET_UNUSABLE
    token_reason: ConditionReason = ConditionReason.TOKEN_UNUSABLE
    source_reason: ConditionReason = ConditionReason.SOURCE_MISSING
    key_version: str = ""
    bastion_version: str = ""
    token_id: str | None = None


@dataclass(frozen=True)
class Observed:
    """Everything that is decided by, of one Machine.

    Args:
        probing: whether a look at the SSH port is on its way.
        attempt: of this process; None when it has none.
        needs: None where nobody has looked at them, as nothing asks for them, or they are being read.
        reading: they are being read: what rests on them waits, and stays as it was said.
        pause: the ConfigMap that pauses all, or None.
        operations: of this Machine.
        sharing: other Machines of the same host.
        template: of the version that the Machine is bound to; None also where that is not there.
        retry_s: in how many seconds a failed attempt is due again; None when none failed.
        retry_told: when that is, RFC 3339.
        changed_since_failure: whether the Machine, its Secrets or its token are others than then.
        room: whether one more host may be set up, or reset over SSH, beside those that are.
        fresh: a name that no attempt has had.
        deleted_s: how long ago the Machine was first seen as being deleted, on our clock, which stands still until
            its reset over SSH has had its first turn.
        reset: over SSH, of this process; None when it has none.
    """

    machine: Machine
    node: Node | None = None
    probe: Probe | None = None
    probing: bool = False
    attempt: Attempt | None = None
    needs: Needs | None = None
    reading: bool = False
    pause: ConfigMap | None = None
    operations: tuple[MachineOperation, ...] = ()
    sharing: tuple[Machine, ...] = ()
    template: MachineConfigurationTemplate | None = None
    retry_s: float | None = None
    retry_told: str = ""
    changed_since_failure: bool = False
    room: bool = True
    fresh: str = ""
    deleted_s: float | None = None
    reset: Attempt | None = None


@dataclass(frozen=True)
class ProbeHost:
    """Look at the SSH port."""


@dataclass(frozen=True)
class Provision:
    """Set the host up.

    Args:
        resume: the host is asked first what became of the attempt that is recorded.
        held: why nothing may be begun now, in words; what runs there is followed all the same.
    """

    attempt: str
    generation: int
    resume: bool = False
    held: str = ""


@dataclass(frozen=True)
class StopAttempt:
    """Stop to follow a run; what runs on the host goes on."""

    attempt: str


@dataclass(frozen=True)
class GiveBack:
    """Write down how an attempt ended, and give its slot back.

    Args:
        failure: as `status.provisioning` calls it; None when all went well.
        refused: of the Secret whose key the host refused.
        fingerprint: of that key.
        hop: at which it failed; None for the host itself.
        tail: the end of what the install said.
        untouched: nothing was begun on the host.
    """

    attempt: str
    failure: str | None = None
    message: str = ""
    refused: str | None = None
    fingerprint: str = ""
    hop: SSHHop | None = None
    tail: str = ""
    untouched: bool = False


@dataclass(frozen=True)
class CountAsDone:
    """Write down that an attempt which was given up on has gone well after all."""

    attempt: str
    why: str


@dataclass(frozen=True)
class TellRetry:
    """Write down when a failed attempt is tried again, RFC 3339."""

    at: str


@dataclass(frozen=True)
class FreeSlot:
    """Give back a slot that no attempt has any more."""

    uid: str


@dataclass(frozen=True)
class NoteHostKey:
    """Write down the fingerprint of a host key that is not the trusted one."""

    hop: SSHHop
    fingerprint: str


@dataclass(frozen=True)
class Refuse:
    """Write down that a bastion, or in a reset the host, refused the key of this Secret.

    Args:
        generation: of the Machine that was logged in for; None for that which it has now.
        fingerprint: of the key.
    """

    version: str
    hop: SSHHop = SSHHop.BASTION
    fingerprint: str = ""
    generation: int | None = None


@dataclass(frozen=True)
class SetNodeRef:
    """spec.kubernetes.nodeRef; None takes it away."""

    node: str | None


@dataclass(frozen=True)
class UpdateNode:
    """A merge patch of the Node, which rests on the version that was read.

    Args:
        node: its name.
        change: labels, taints and the annotation that keeps what machina set.
    """

    node: str
    change: Mapping[str, Any]


@dataclass(frozen=True)
class HoldForReset:
    """Put the finalizer on, or with `hold` False take it off: resetOnDelete was set or taken back."""

    hold: bool = True


@dataclass(frozen=True)
class AskForReset:
    """Create an AgentReset of this name, without owner."""

    name: str


@dataclass(frozen=True)
class ResetOverSsh:
    """Reset the host ourselves."""


@dataclass(frozen=True)
class LetGo:
    """Take the finalizer off. `unfinished` says what could not be done; None when all was."""

    unfinished: str | None = None


Action = (
    ProbeHost
    | Provision
    | StopAttempt
    | GiveBack
    | CountAsDone
    | TellRetry
    | FreeSlot
    | NoteHostKey
    | Refuse
    | SetNodeRef
    | UpdateNode
    | HoldForReset
    | AskForReset
    | ResetOverSsh
    | LetGo
)


@dataclass(frozen=True)
class Set:
    """A condition as it should be.

    Args:
        hop: of SSHReachable and HostReset, the server that it is about; None where it is about none.
    """

    kind: ConditionType
    status: ConditionStatus
    reason: ConditionReason
    message: str
    observed_generation: int | None = None
    hop: SSHHop | None = None


@dataclass(frozen=True)
class Plan:
    """What to do now.

    Args:
        why: what is waited for, or done, for a person.
        phase: as it is to be written; None where that is somebody else's.
        look_again_s: when to look again if nothing happens; None when only an event can change something.
        waits_for_room: whether only the lack of room holds up what it would begin.
    """

    actions: tuple[Action, ...] = ()
    conditions: tuple[Set, ...] = ()
    why: str = ""
    phase: PhaseNow | None = None
    look_again_s: float | None = None
    waits_for_room: bool = False


@dataclass(frozen=True)
class Times:
    """How often a Machine is looked at, at the least.

    Args:
        secret_s: while a Secret, or the cluster's facts, hold it up.
        reset_s: how long a Machine that is being deleted is held for the reset of its host.
    """

    by_phase: Mapping[MachinePhase, float] = field(default_factory=lambda: LOOKS)
    secret_s: float = 2.0
    reset_s: float = 900.0


LOOKS: Final[Mapping[MachinePhase, float]] = {
    MachinePhase.PENDING: 30.0,
    MachinePhase.PROVISIONING: 30.0,
    MachinePhase.JOINING: 30.0,
    MachinePhase.READY: 300.0,
    MachinePhase.FAILED: 60.0,
    MachinePhase.REBOOTING: 30.0,
}
