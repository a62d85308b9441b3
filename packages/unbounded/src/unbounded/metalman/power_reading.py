"""Readings of the power of idle machines: their turns within a budget, and what each changes in the status. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType, find_condition, set_condition
from unbounded.api.machine import Machine, MachinePower, PowerStatus
from unbounded.metalman.redfish.ports import BmcPowerState, SystemState

POWER: Final = {BmcPowerState.ON: MachinePower.ON, BmcPowerState.OFF: MachinePower.OFF}
SWITCHED_OFF: Final = "The BMC reports the host as Off, and no operation switched it off"


class ReadBudget:
    """Turns of a site's readings, so many a second at most.

    Each BMC takes one turn at a time. With more BMCs than the budget covers, each waits longer, and none is left out.
    """

    def __init__(self, per_s: float) -> None:
        self._pause_s = 1 / per_s
        self._next: dict[str, float] = {}  # time of the next free turn, by site

    def turn(self, site: str, now: float) -> float:
        """Take a turn; return its time."""
        turn = max(now, self._next.get(site, now))
        self._next[site] = turn + self._pause_s
        return turn


class PowerReadings:
    """Last readings of operations, by UID of the Machine, so that a Machine whose operation has ended is not read."""

    def __init__(self) -> None:
        self._read: dict[str, MachinePower] = {}

    def record(self, machine: Machine, state: SystemState) -> None:
        power = POWER.get(state.power)
        if power is None:
            self._read.pop(machine.metadata.uid, None)
        else:
            self._read[machine.metadata.uid] = power

    def take(self, uid: str) -> MachinePower | None:
        """Return the last reading of a Machine once."""
        return self._read.pop(uid, None)


def shows(machine: Machine, power: MachinePower) -> bool:
    """Return whether the Machine's status has this power already."""
    conditions = [{"type": one.type, "status": one.status} for one in machine.status.conditions]
    return machine.status.power is not None and power_change(machine.status.power, conditions, power, "") is None


def power_change(
    old: PowerStatus | None, conditions: Sequence[Mapping[str, Any]], power: MachinePower, at: str
) -> dict[str, Any] | None:
    """Return the status fields to write after a reading; None if they stay.

    Condition PoweredOff follows the reading, and keeps its message where it is True already. It stays while the power
    is unknown.
    """
    change: dict[str, Any] = {}
    if old is None or old.state != power:
        change["power"] = {"state": power.value, "at": at}
    kind = ConditionType.POWERED_OFF
    present = find_condition(conditions, kind)
    is_off = present is not None and present.get("status") == ConditionStatus.TRUE
    if power is MachinePower.OFF and not is_off:
        change["conditions"] = set_condition(
            conditions, kind, ConditionStatus.TRUE, ConditionReason.POWERED_OFF, SWITCHED_OFF, at
        )
    elif power is MachinePower.ON and present is not None:
        change["conditions"] = [dict(one) for one in conditions if one is not present]
    return change or None
