"""Rows of text for Machines and operations; pure functions of the objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from typing import Final

from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation, OperationPhase
from unbounded.cli.terminal_text import one_line
from unbounded.operations.observed_power import power_of

MACHINE_ROWS: Final = 12
OPERATION_ROWS: Final = 8


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
