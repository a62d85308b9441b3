"""Machine.status.phase: one pure function of a Machine's state, for all writers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType, fit_message
from unbounded.api.core import Node
from unbounded.api.machine import ActiveOperation, JoinPurpose, JoinStatus, MachinePhase, MachineStatus
from unbounded.api.machine_spec import MachineSpec
from unbounded.api.meta import Condition
from unbounded.api.operation import OperationKind

PHASE_MEANING: Final[Mapping[MachinePhase, str]] = {
    MachinePhase.PENDING: (
        "The host is powered off, or was never set up; or it never joined and SSH does not reach it."
    ),
    MachinePhase.PROVISIONING: "The host is being set up: the install script runs, or an image is being written.",
    MachinePhase.JOINING: "The host is set up; its Node does not exist yet.",
    MachinePhase.READY: "The Node exists, or the Machine has no spec.kubernetes and needs no Node.",
    MachinePhase.FAILED: "The setup of the host, or its reset on deletion of the Machine, failed.",
    MachinePhase.REBOOTING: "A HostReboot is in progress.",
}

# A host operation in progress outranks earlier observations; conditions show power off and on.
OPERATION_PHASE: Final[Mapping[str, MachinePhase]] = {
    OperationKind.HOST_REBOOT: MachinePhase.REBOOTING,
    OperationKind.HOST_REPLACE: MachinePhase.PROVISIONING,
}


NODE_NOT_READY: Final = "NodeNotReady"


class CurrentPhase(NamedTuple):
    """The phase of a Machine, and its cause: status.phase, status.message and status.reason.

    Attributes:
        reason: in CamelCase; empty where nothing blocks the Machine.
    """

    phase: MachinePhase
    message: str
    reason: str = ""

    def change(self, status: MachineStatus) -> dict[str, str | None]:
        """Return the status fields that change; empty where the status is up to date."""
        fields = {"phase": str(self.phase), "message": fit_message(self.message), "reason": self.reason or None}
        known = {"phase": status.phase, "message": status.message, "reason": status.reason}
        return {} if fields == known else fields


def machine_phase(
    spec: MachineSpec,
    *,
    conditions: Iterable[Condition],
    node: Node | None,
    slot: ActiveOperation | None,
    join: JoinStatus | None = None,
) -> CurrentPhase:
    """Return the phase of a Machine.

    The first applicable one of these decides: a host operation that holds the lock, a failed reset, a host that is off,
    SSH (with `spec.ssh`), provisioning over SSH, the Node, and the reports of other components that set up the host.
    A Machine that has joined follows its Node: an SSH port that does not answer changes a condition, not the phase.

    A Machine without `ssh` is Ready when its Node exists or none is required. It is Provisioning, Joining or Failed as
    the network boot and the agent report, and Pending before the first report.

    Args:
        node: the Node of this Machine, or None when there is none; call only once the Nodes are known.
        slot: `status.activeOperation`.
        join: `status.join`, which shows that a Node was there; only needed for Machines with `ssh`.
    """
    known = {condition.type: condition for condition in conditions}
    joined = has_joined(node, join) and not _is_taken_back(node, known)
    return (
        operation_phase(slot)
        or _from_reset(known)
        or _from_power(known)
        or (_from_ssh(spec, known, joined=joined) if spec.ssh else None)
        or (_from_provisioning(node, known) if spec.ssh and spec.kubernetes else None)
        or _from_node(spec, node, known)
        or (_from_waiting(known) if spec.ssh else None)
        or _from_configuration(known)
        or _from_reports(known)
    )


Known = Mapping[str, Condition]


def has_joined(node: Node | None, join: JoinStatus | None) -> bool:
    """Return whether the Machine has, or had, a Node."""
    return node is not None or (join is not None and any(one.purpose == JoinPurpose.KUBELET for one in join.used))


def operation_phase(slot: ActiveOperation | None) -> CurrentPhase | None:
    """Return the phase of a Machine whose lock a host operation holds, whatever its other state; None without one."""
    if slot is None or slot.kind not in OPERATION_PHASE:
        return None
    doing = f"{slot.kind} {slot.name} by {slot.executor}"
    lost = ". The executor is silent or may still act, so the state of the host is unknown" if slot.lost else ""
    return CurrentPhase(OPERATION_PHASE[slot.kind], doing + lost, slot.kind)


def _from_power(known: Known) -> CurrentPhase | None:
    if not _is(known, ConditionType.POWERED_OFF, ConditionStatus.TRUE):
        return None
    return _by(known, ConditionType.POWERED_OFF, MachinePhase.PENDING, "The host is powered off")


def _from_reset(known: Known) -> CurrentPhase | None:
    reset = known.get(ConditionType.HOST_RESET)
    if reset is None or reset.status != ConditionStatus.FALSE or reset.reason == ConditionReason.IN_PROGRESS:
        return None
    return _by(known, ConditionType.HOST_RESET, MachinePhase.FAILED, "Resetting the host failed")


def _from_ssh(spec: MachineSpec, known: Known, *, joined: bool) -> CurrentPhase | None:
    if _is(known, ConditionType.SSH_REACHABLE, ConditionStatus.TRUE):
        return CurrentPhase(MachinePhase.READY, "Machine is reachable") if spec.kubernetes is None else None
    if joined and spec.kubernetes is not None:
        return None
    untried = known.get(ConditionType.SSH_REACHABLE) is None or _is(
        known, ConditionType.SSH_REACHABLE, ConditionStatus.UNKNOWN
    )
    otherwise = "SSH has not been tried yet" if untried else "SSH is unreachable"
    return _by(known, ConditionType.SSH_REACHABLE, MachinePhase.PENDING, otherwise)


def _from_provisioning(node: Node | None, known: Known) -> CurrentPhase | None:
    """Return the phase of a host that is set up over SSH. A Node that is Ready outranks a failed attempt."""
    if _is(known, ConditionType.PROVISIONING, ConditionStatus.TRUE):
        return _by(known, ConditionType.PROVISIONING, MachinePhase.PROVISIONING, "Install script is running")
    if _provisioning_failed(known) and not (node is not None and node.ready):
        return _by(known, ConditionType.PROVISIONING, MachinePhase.FAILED, "Provisioning failed")
    return None


def _provisioning_failed(known: Known) -> bool:
    condition = known.get(ConditionType.PROVISIONING)
    if condition is None or condition.status != ConditionStatus.FALSE:
        return False
    return condition.reason not in (ConditionReason.COMPLETED, ConditionReason.NOT_RUN)


def _from_node(spec: MachineSpec, node: Node | None, known: Known) -> CurrentPhase | None:
    if spec.kubernetes is None:
        return CurrentPhase(MachinePhase.READY, "The Machine needs no Node")
    if node is None or _is_taken_back(node, known):
        return None
    if node.ready:
        return CurrentPhase(MachinePhase.READY, f"Node {node.metadata.name} joined")
    return CurrentPhase(MachinePhase.READY, f"Node {node.metadata.name} joined, but is not Ready", NODE_NOT_READY)


_WAITS: Final[Mapping[ConditionType, frozenset[ConditionReason]]] = {
    ConditionType.PROVISIONING: frozenset({ConditionReason.WAITING, ConditionReason.FACTS_MISSING}),
    ConditionType.PROVISIONED: frozenset({ConditionReason.RESET}),
}


def _from_waiting(known: Known) -> CurrentPhase | None:
    """Return the phase of a host whose setup over SSH is blocked or was reset; None where neither holds."""
    for kind, reasons in _WAITS.items():
        condition = known.get(kind)
        if condition is not None and condition.reason in reasons:
            return _by(known, kind, MachinePhase.PENDING, "The host is not set up")
    return None


def _from_configuration(known: Known) -> CurrentPhase | None:
    if not _is(known, ConditionType.CONFIGURATION_PENDING, ConditionStatus.TRUE):
        return None
    return _by(known, ConditionType.CONFIGURATION_PENDING, MachinePhase.PENDING, "No MachineConfiguration is bound")


# Conditions that report the setup of a host, over SSH or from the network, in order of time.
REPORTS: Final[tuple[ConditionType, ...]] = (
    ConditionType.REPAVED,
    ConditionType.CLOUD_INIT_DONE,
    ConditionType.PROVISIONED,
    ConditionType.AGENT_BOOTSTRAPPED,
)
_OF_REPORTS: Final[Mapping[str, MachinePhase]] = {
    ConditionReason.FAILED: MachinePhase.FAILED,
    ConditionReason.TIMED_OUT: MachinePhase.FAILED,
    ConditionReason.RESET: MachinePhase.PENDING,
}


def _from_reports(known: Known) -> CurrentPhase:
    """Return the phase by the first step that is not done: later conditions may date from before a repave."""
    reported = [kind for kind in REPORTS if kind in known and known[kind].reason != ConditionReason.NOT_RUN]
    open_step = next((kind for kind in reported if known[kind].status != ConditionStatus.TRUE), None)
    if open_step is not None:
        phase = _OF_REPORTS.get(known[open_step].reason, MachinePhase.PROVISIONING)
        return _by(known, open_step, phase, f"{open_step}: {known[open_step].reason}")
    if reported:
        return CurrentPhase(MachinePhase.JOINING, f"{reported[-1]}; waiting for its Node")
    return _by(known, ConditionType.PROVISIONING, MachinePhase.PENDING, "The host is not provisioned yet")


def _is_taken_back(node: Node | None, known: Known) -> bool:
    """Return whether the host was reset. Its Node stays, not Ready, until a person deletes it."""
    is_reset = any(
        _is(known, kind, ConditionStatus.FALSE, ConditionReason.RESET)
        for kind in (ConditionType.PROVISIONED, ConditionType.AGENT_BOOTSTRAPPED)
    )
    return is_reset and not (node is not None and node.ready)


def _is(known: Known, kind: ConditionType, status: ConditionStatus, reason: ConditionReason | None = None) -> bool:
    condition = known.get(kind)
    return condition is not None and condition.status == status and reason in (None, condition.reason)


def _by(known: Known, kind: ConditionType, phase: MachinePhase, otherwise: str) -> CurrentPhase:
    """Return a phase with the message and reason of a condition, or a default message where it has none."""
    condition = known.get(kind)
    if condition is None:
        return CurrentPhase(phase, otherwise)
    return CurrentPhase(phase, condition.message or otherwise, condition.reason)
