"""Machine.status.phase: one pure function of what is known of a Machine, whoever writes the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.core import Node
from unbounded.api.machine import ActiveOperation, MachinePhase, MachineSpec
from unbounded.api.meta import Condition
from unbounded.api.operation import OperationKind

PHASE_MEANING: Final[Mapping[MachinePhase, str]] = {
    MachinePhase.PENDING: "The host cannot be reached over SSH, is powered off, or nothing has set it up yet.",
    MachinePhase.PROVISIONING: "The host is being set up: the install script runs, or an image is being written.",
    MachinePhase.JOINING: "Set up; its Node is not there yet.",
    MachinePhase.READY: "The Node exists, or the Machine is not to become one (no spec.kubernetes).",
    MachinePhase.FAILED: "Setting up the host met an error.",
    MachinePhase.REBOOTING: "A HostReboot is at work on the host.",
}

# A host operation at work says more than what was seen before it; power off and on show in the conditions.
OPERATION_PHASE: Final[Mapping[str, MachinePhase]] = {
    OperationKind.HOST_REBOOT: MachinePhase.REBOOTING,
    OperationKind.HOST_REPLACE: MachinePhase.PROVISIONING,
}


class PhaseNow(NamedTuple):
    """The phase of a Machine, and why, for status.phase and status.message."""

    phase: MachinePhase
    message: str


def machine_phase(
    spec: MachineSpec,
    *,
    conditions: Iterable[Condition],
    node: Node | None,
    slot: ActiveOperation | None,
) -> PhaseNow:
    """Where a Machine is in its life.

    The first of these that has something to say decides: a host operation in the slot, a host that is off, SSH (with
    `spec.ssh`), provisioning over SSH, the Node, and what other components report of setting up the host. A Machine
    without `ssh` is never held back by it: it is Ready when its Node exists or none is wanted, Provisioning, Joining or
    Failed as the network boot and the agent report, and Pending as long as nobody has reported anything.

    Args:
        node: the Node of this Machine, or None when there is none; ask once the Nodes are known.
        slot: `status.activeOperation`.
    """
    known = {condition.type: condition for condition in conditions}
    return (
        _from_operation(slot)
        or _from_power(known)
        or (_from_ssh(spec, known) if spec.ssh else None)
        or _from_node(spec, node, known)
        or (_from_waiting(known) if spec.ssh else None)
        or _from_configuration(known)
        or _from_reports(known)
    )


Known = Mapping[str, Condition]


def _from_operation(slot: ActiveOperation | None) -> PhaseNow | None:
    if slot is None or slot.kind not in OPERATION_PHASE:
        return None
    doing = f"{slot.kind} {slot.name} by {slot.executor}"
    lost = ", which fell silent: the state of the host is not known" if slot.lost else ""
    return PhaseNow(OPERATION_PHASE[slot.kind], doing + lost)


def _from_power(known: Known) -> PhaseNow | None:
    if not _is(known, ConditionType.POWERED_OFF, ConditionStatus.TRUE):
        return None
    return PhaseNow(MachinePhase.PENDING, _said(known, ConditionType.POWERED_OFF, "The host is powered off"))


def _from_ssh(spec: MachineSpec, known: Known) -> PhaseNow | None:
    reachable = known.get(ConditionType.SSH_REACHABLE)
    if reachable is None or reachable.status == ConditionStatus.UNKNOWN:
        return PhaseNow(MachinePhase.PENDING, _said(known, ConditionType.SSH_REACHABLE, "SSH was not tried yet"))
    if reachable.status == ConditionStatus.FALSE:
        return PhaseNow(MachinePhase.PENDING, _said(known, ConditionType.SSH_REACHABLE, "SSH is unreachable"))
    if spec.kubernetes is None:
        return PhaseNow(MachinePhase.READY, "Machine is reachable")
    if _is(known, ConditionType.PROVISIONING, ConditionStatus.TRUE):
        return PhaseNow(
            MachinePhase.PROVISIONING, _said(known, ConditionType.PROVISIONING, "Install script is running")
        )
    if _provisioning_failed(known):
        return PhaseNow(MachinePhase.FAILED, _said(known, ConditionType.PROVISIONING, "Provisioning failed"))
    return None


def _provisioning_failed(known: Known) -> bool:
    condition = known.get(ConditionType.PROVISIONING)
    if condition is None or condition.status != ConditionStatus.FALSE:
        return False
    return condition.reason not in (ConditionReason.COMPLETED, ConditionReason.NOT_RUN)


def _from_node(spec: MachineSpec, node: Node | None, known: Known) -> PhaseNow | None:
    if spec.kubernetes is None:
        return PhaseNow(MachinePhase.READY, "No Kubernetes node is wanted")
    if node is None or (not node.ready and _is_reset(known)):  # its Node stays there when a host is reset
        return None
    unready = "" if node.ready else ", but is not Ready"
    return PhaseNow(MachinePhase.READY, f"Node {node.metadata.name} joined{unready}")


_WAITS: Final[Mapping[ConditionType, frozenset[ConditionReason]]] = {
    ConditionType.PROVISIONING: frozenset({ConditionReason.WAITING, ConditionReason.FACTS_MISSING}),
    ConditionType.PROVISIONED: frozenset({ConditionReason.RESET}),
}


def _from_waiting(known: Known) -> PhaseNow | None:
    """What keeps a host from being set up over SSH, or has taken it back."""
    for kind, reasons in _WAITS.items():
        condition = known.get(kind)
        if condition is not None and condition.reason in reasons:
            return PhaseNow(MachinePhase.PENDING, _said(known, kind, "The host is not set up"))
    return None


def _from_configuration(known: Known) -> PhaseNow | None:
    if not _is(known, ConditionType.CONFIGURATION_PENDING, ConditionStatus.TRUE):
        return None
    return PhaseNow(
        MachinePhase.PENDING, _said(known, ConditionType.CONFIGURATION_PENDING, "No MachineConfiguration is bound")
    )


# What is reported while a host is set up, over SSH or from the network, in the order in which it happens.
REPORTS: Final[tuple[ConditionType, ...]] = (
    ConditionType.REPAVED,
    ConditionType.CLOUD_INIT_DONE,
    ConditionType.PROVISIONED,
    ConditionType.AGENT_BOOTSTRAPPED,
)


def _from_reports(known: Known) -> PhaseNow:
    """The first step that is not done decides, as the later ones may still speak of the time before a repave."""
    reported = [kind for kind in REPORTS if kind in known and known[kind].reason != ConditionReason.NOT_RUN]
    open_step = next((kind for kind in reported if known[kind].status != ConditionStatus.TRUE), None)
    if open_step is not None:
        failed = known[open_step].reason in (ConditionReason.FAILED, ConditionReason.TIMED_OUT)
        phase = MachinePhase.FAILED if failed else MachinePhase.PROVISIONING
        return PhaseNow(phase, _said(known, open_step, f"{open_step}: {known[open_step].reason}"))
    if reported:
        return PhaseNow(MachinePhase.JOINING, f"{reported[-1]}; waiting for its Node")
    return PhaseNow(MachinePhase.PENDING, _said(known, ConditionType.PROVISIONING, "Not provisioned yet"))


def _is_reset(known: Known) -> bool:
    return _is(known, ConditionType.PROVISIONED, ConditionStatus.FALSE, ConditionReason.RESET)


def _is(known: Known, kind: ConditionType, status: ConditionStatus, reason: ConditionReason | None = None) -> bool:
    condition = known.get(kind)
    return condition is not None and condition.status == status and reason in (None, condition.reason)


def _said(known: Known, kind: ConditionType, otherwise: str) -> str:
    """The message of a condition, or a sentence of ours where it has none."""
    condition = known.get(kind)
    return condition.message if condition is not None and condition.message else otherwise
