"""Power of a host, and state of its BMC, as they were observed last; pure functions of a Machine."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.machine import Machine, MachinePower
from unbounded.api.operation import OperationKind, OperationPhase

_ENDS_IN: Final = {
    OperationKind.HOST_REBOOT: "On",
    OperationKind.HOST_POWER_ON: "On",
    OperationKind.HOST_POWER_OFF: "Off",
}

_IS_OFF: Final = (ConditionType.POWERED_OFF, ConditionStatus.TRUE, ConditionReason.POWERED_OFF)


class BmcState(StrEnum):
    """The result of the last readings of a BMC."""

    REACHABLE = "reachable"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"  # the password
    UNREAD = "unread"


def bmc_state(machine: Machine) -> BmcState | None:
    """Return the state of a Machine's BMC; None for a Machine without one."""
    if machine.spec.pxe is None or machine.spec.pxe.redfish is None:
        return None
    power, redfish = machine.status.power, machine.status.redfish
    if power is not None and power.state != MachinePower.UNKNOWN:
        return BmcState.REACHABLE
    if redfish is not None and redfish.refused_secret_version is not None:
        return BmcState.REFUSED
    return BmcState.UNREAD if power is None else BmcState.UNREACHABLE


def read_power(machine: Machine) -> MachinePower:
    """Return the power by metalman's last reading; Unknown where an operation may have switched the host on since.

    `status.power` has the time of the first of equal readings, and the reading of an operation only after its end.
    Condition PoweredOff has the order: each reading Off sets it, each reading On removes it, and an operation that may
    have switched the host on ends without it.
    """
    power = MachinePower(machine.status.power.state) if machine.status.power is not None else MachinePower.UNKNOWN
    if power is MachinePower.UNKNOWN:
        return power
    if any((one.type, one.status, one.reason) == _IS_OFF for one in machine.status.conditions):
        return MachinePower.OFF
    return MachinePower.UNKNOWN if power is MachinePower.OFF else power


def power_of(machine: Machine) -> str:
    """Return the host's power as metalman or operations observed it last; empty if none has observed it."""
    if (read := _read_power(machine)) and read != MachinePower.UNKNOWN:
        return read
    for off in machine.status.conditions:
        if off.type == ConditionType.POWERED_OFF:  # other reasons name a transition of the power
            return "Off" if off.reason == ConditionReason.POWERED_OFF else off.reason
    for recent in reversed(machine.status.recent_operations):
        if recent.phase == OperationPhase.COMPLETE and recent.kind in _ENDS_IN:
            return _ENDS_IN[OperationKind(recent.kind)]
    return ""


def _read_power(machine: Machine) -> str:
    """Return the power that metalman has read from the BMC of an idle Machine; empty where it has none."""
    power = machine.status.power
    return power.state if power is not None and machine.status.active_operation is None else ""
