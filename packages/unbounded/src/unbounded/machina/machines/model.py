"""Observation of a Machine, and actions on it."""

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
from unbounded.api.phase import CurrentPhase
from unbounded.machina.provisioning.model import ObservedRun
from unbounded.machina.ssh.model import SshRejected, SshTransient

PROVISIONING_FAILED: Final = "ProvisioningFailed"  # Event about a failed attempt, with the end of its output
EXECUTOR: Final = "machina"  # owner of a Machine's lock while machina provisions the host


@dataclass(frozen=True)
class Probe:
    """Last probe of the SSH port, for the current generation of the Machine.

    Args:
        age_s: by the monotonic clock.
        error: None if the port answered.
        version: of the Secret whose key was offered to a bastion.
    """

    age_s: float
    error: SshTransient | SshRejected | None = None
    version: str = ""


@dataclass(frozen=True)
class Attempt:
    """State of a run in this process.

    Args:
        step: current step, as a message.
        ended: result; None while the run continues.
        version: of the Secret with the key of the last login; where a bastion refused its key, of the bastion's Secret.
        generation: of the Machine at the start of the login; 0 if unknown.
        touched: something may have been started on the host.
    """

    attempt: str
    step: str = ""
    seconds: float = 0.0
    progress: str = ""
    ended: ObservedRun | Failure | None = None
    version: str = ""
    generation: int = 0
    touched: bool = True


@dataclass(frozen=True)
class Prerequisites:
    """Prerequisites of a login: each None if it is met, else a message about what is missing.

    Args:
        key_version, bastion_version: of the Secrets with these keys, as in `Identity`; empty without one.
        source: an agent release that the host may run.
        key_reason, bastion_key_reason, token_reason, source_reason: reasons of what is missing, for conditions.
        token_id: of the token for the host.
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
class MachineObservation:
    """Observation of one Machine: the input of `plan`.

    Args:
        probing: a probe of the SSH port is running.
        attempt: of this process; None without one.
        needs: None if they are not required or not read yet.
        reading: they are being read: dependent decisions wait, and conditions stay as they are.
        pause: the ConfigMap that pauses all Machines, or None.
        operations: of this Machine.
        sharing: other Machines of the same host.
        template: of the version that the Machine is bound to; None also if it does not exist.
        retry_s: seconds until a failed attempt is due again; None without a failed one.
        retry_at_text: that time, RFC 3339.
        changed_since_failure: the Machine, its Secrets or its token have changed since the failure.
        has_capacity: the concurrency limit allows one more attempt, or one more reset over SSH.
        new_attempt: a name that no attempt has had.
        deleted_s: time since the first observation of the deletion, by the monotonic clock, which stands still until
            the first turn of the reset over SSH.
        reset: reset over SSH in this process; None without one.
    """

    machine: Machine
    node: Node | None = None
    probe: Probe | None = None
    probing: bool = False
    attempt: Attempt | None = None
    needs: Prerequisites | None = None
    reading: bool = False
    pause: ConfigMap | None = None
    operations: tuple[MachineOperation, ...] = ()
    sharing: tuple[Machine, ...] = ()
    template: MachineConfigurationTemplate | None = None
    retry_s: float | None = None
    retry_at_text: str = ""
    changed_since_failure: bool = False
    has_capacity: bool = True
    new_attempt: str = ""
    deleted_s: float | None = None
    reset: Attempt | None = None


@dataclass(frozen=True)
class ProbeHost:
    """Probe the SSH port."""


@dataclass(frozen=True)
class Provision:
    """Provision the host.

    Args:
        resume: observe the recorded attempt on the host first.
        held: why nothing may be started now, as a message; a running install is followed all the same.
    """

    attempt: str
    generation: int
    resume: bool = False
    held: str = ""


@dataclass(frozen=True)
class StopAttempt:
    """Stop following a run; the run continues on the host."""

    attempt: str


@dataclass(frozen=True)
class RecordEnd:
    """Record the end of an attempt and release its lock.

    Args:
        failure: value of `status.provisioning.failure`; None on success.
        refused: version of the Secret whose key the host refused.
        fingerprint: of that key.
        hop: server of the failure; None for the host itself.
        tail: end of the install's output.
        untouched: nothing was started on the host.
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
class RecordLateSuccess:
    """Record the late success of an attempt that was given up."""

    attempt: str
    why: str


@dataclass(frozen=True)
class RecordRetry:
    """Record the time of the next attempt, RFC 3339."""

    at: str


@dataclass(frozen=True)
class ReleaseLock:
    """Release a lock without an attempt."""

    uid: str


@dataclass(frozen=True)
class RecordHostKey:
    """Record the fingerprint of a host key that is not the trusted one."""

    hop: SSHHop
    fingerprint: str


@dataclass(frozen=True)
class RecordRefusedKey:
    """Record that a bastion, or in a reset the host, refused the key of this Secret.

    Args:
        generation: of the Machine at the login; None for the current one.
        fingerprint: of the key.
    """

    version: str
    hop: SSHHop = SSHHop.BASTION
    fingerprint: str = ""
    generation: int | None = None


@dataclass(frozen=True)
class SetNodeRef:
    """Set spec.kubernetes.nodeRef; None removes it."""

    node: str | None


@dataclass(frozen=True)
class UpdateNode:
    """Patch the Node, on condition that it still has the version that was read.

    Args:
        node: its name.
        change: labels, taints and the annotation that records what machina set.
    """

    node: str
    change: Mapping[str, Any]


@dataclass(frozen=True)
class SetFinalizer:
    """Add the finalizer, or with `present` False remove it, as resetOnDelete was set or unset."""

    present: bool = True


@dataclass(frozen=True)
class CreateAgentReset:
    """Create an AgentReset of this name, without owner."""

    name: str


@dataclass(frozen=True)
class ResetOverSsh:
    """Reset the host over SSH."""


@dataclass(frozen=True)
class RemoveFinalizer:
    """Remove the finalizer. `unfinished` names what could not be done; None if the reset is complete."""

    unfinished: str | None = None


Action = (
    ProbeHost
    | Provision
    | StopAttempt
    | RecordEnd
    | RecordLateSuccess
    | RecordRetry
    | ReleaseLock
    | RecordHostKey
    | RecordRefusedKey
    | SetNodeRef
    | UpdateNode
    | SetFinalizer
    | CreateAgentReset
    | ResetOverSsh
    | RemoveFinalizer
)


@dataclass(frozen=True)
class SetCondition:
    """A condition to set.

    Args:
        hop: server that SSHReachable or HostReset is about; None for other conditions.
    """

    kind: ConditionType
    status: ConditionStatus
    reason: ConditionReason
    message: str
    observed_generation: int | None = None
    hop: SSHHop | None = None


@dataclass(frozen=True)
class MachinePlan:
    """Decision of one pass.

    Args:
        why: the current action or wait, as a message.
        phase: to write; None if another controller writes the phase.
        requeue_after_s: time of the next pass without an event; None if only an event can change something.
        waits_for_capacity: only the concurrency limit delays an attempt or a reset.
    """

    actions: tuple[Action, ...] = ()
    conditions: tuple[SetCondition, ...] = ()
    why: str = ""
    phase: CurrentPhase | None = None
    requeue_after_s: float | None = None
    waits_for_capacity: bool = False


@dataclass(frozen=True)
class PassIntervals:
    """Longest intervals between observations of a Machine.

    Args:
        secret_s: while a Secret or the facts of the cluster block it.
        reset_s: longest delay of a deletion for the reset of the host.
    """

    by_phase: Mapping[MachinePhase, float] = field(default_factory=lambda: INTERVALS_BY_PHASE)
    secret_s: float = 2.0
    reset_s: float = 900.0


INTERVALS_BY_PHASE: Final[Mapping[MachinePhase, float]] = {
    MachinePhase.PENDING: 30.0,
    MachinePhase.PROVISIONING: 30.0,
    MachinePhase.JOINING: 30.0,
    MachinePhase.READY: 300.0,
    MachinePhase.FAILED: 60.0,
    MachinePhase.REBOOTING: 30.0,
}
