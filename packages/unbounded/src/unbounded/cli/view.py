"""Rows of text for Machines and operations; pure functions of the objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from datetime import datetime
from typing import Final

from unbounded.api.conditions import ConditionType
from unbounded.api.machine import Machine, MachinePower
from unbounded.api.operation import MachineOperation, OperationKind, OperationPhase
from unbounded.cli.terminal_text import one_line

MACHINE_ROWS: Final = 12
OPERATION_ROWS: Final = 8

POWERED_OFF: Final = "PoweredOff"  # the reason; others name a transition of the power

_ENDS_IN: Final = {
    OperationKind.HOST_REBOOT: "On",
    OperationKind.HOST_POWER_ON: "On",
    OperationKind.HOST_POWER_OFF: "Off",
}


@dataclass(frozen=True)
class MachineRow:
    name: str
    phase: str
    power: str
    operation: str
    message: str
    created: str


@dataclass(frozen=True)
class OperationRow:
    name: str
    kind: str
    machine: str
    phase: str
    stage: str
    message: str
    created: str


def machine_row(machine: Machine) -> MachineRow:
    status = machine.status
    active = status.active_operation
    row = MachineRow(
        name=machine.name,
        phase=status.phase or "",
        power=power_of(machine),
        operation="" if active is None else active.kind,
        message=status.message or "",
        created=machine.metadata.creation_timestamp or "",
    )
    return MachineRow(*map(one_line, astuple(row)))


def operation_row(operation: MachineOperation) -> OperationRow:
    status = operation.status
    stage = status.targets[0].stage if operation.spec.machine_ref and status.targets else None
    why = status.reason if status.phase == OperationPhase.FAILED else ""
    row = OperationRow(
        name=operation.name,
        kind=operation.spec.operation_kind,
        machine=operation.spec.machine_ref or "(selector)",
        phase=status.phase or "",
        stage=(why if operation.terminal else stage) or "",
        message=status.message or "",
        created=operation.metadata.creation_timestamp or "",
    )
    return OperationRow(*map(one_line, astuple(row)))


def power_of(machine: Machine) -> str:
    """Return the host's power as metalman or operations observed it last; empty if none has observed it."""
    if (read := _read_power(machine)) and read != MachinePower.UNKNOWN:
        return read
    for off in machine.status.conditions:
        if off.type == ConditionType.POWERED_OFF:
            return "Off" if off.reason == POWERED_OFF else off.reason
    for recent in reversed(machine.status.recent_operations):
        if recent.phase == OperationPhase.COMPLETE and recent.kind in _ENDS_IN:
            return _ENDS_IN[OperationKind(recent.kind)]
    return ""


def _read_power(machine: Machine) -> str:
    """Return the power that metalman has read from the BMC of an idle Machine; empty where it has none."""
    power = machine.status.power
    return power.state if power is not None and machine.status.active_operation is None else ""


def shown_machines(machines: Iterable[Machine]) -> tuple[list[MachineRow], int]:
    """Return the rows that fit, by name, and the number left out; Machines with an operation have precedence."""
    rows = sorted(map(machine_row, machines), key=lambda row: (not row.operation, row.name))
    return sorted(rows[:MACHINE_ROWS], key=lambda row: row.name), max(0, len(rows) - MACHINE_ROWS)


def shown_operations(operations: Iterable[MachineOperation]) -> tuple[list[OperationRow], int]:
    """Return the rows that fit, oldest first, and the number left out; running operations have precedence, then new
    ones.
    """

    def freshness(operation: MachineOperation) -> tuple[bool, str, str]:
        return (not operation.terminal, operation.metadata.creation_timestamp or "", operation.name)

    newest = sorted(operations, key=freshness, reverse=True)
    shown = sorted(newest[:OPERATION_ROWS], key=lambda one: (one.metadata.creation_timestamp or "", one.name))
    return [operation_row(operation) for operation in shown], max(0, len(newest) - OPERATION_ROWS)


def age(created: str, now: datetime) -> str:
    """Format an age as kubectl does: 5s, 3m, 2h, 4d."""
    if not created:
        return ""
    seconds = max(0, int((now - datetime.fromisoformat(created)).total_seconds()))
    for unit_s, unit, upto in ((1, "s", 120), (60, "m", 120 * 60), (3600, "h", 48 * 3600)):
        if seconds < upto:
            return f"{seconds // unit_s}{unit}"
    return f"{seconds // 86400}d"


def line(row: MachineRow | OperationRow) -> str:
    """Format one row as one line, without its age."""
    if isinstance(row, MachineRow):
        power = f"power {row.power}" if row.power else ""
        return f"machine {row.name}: " + _joined(row.phase or "new", power, row.operation, row.message)
    what = f"operation {row.name}: "
    return what + _joined(row.phase or "new", row.kind, row.machine, row.stage, row.message)


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


def heads(row: type[MachineRow] | type[OperationRow]) -> list[str]:
    """Return the headings of the columns; the last one is the age."""
    return [field.name.upper() for field in fields(row)[:-1]] + ["AGE"]
