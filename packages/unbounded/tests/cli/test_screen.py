"""Display of Machines and operations."""

from __future__ import annotations

import io
from dataclasses import fields
from typing import Any

import msgspec
from rich.console import Console

from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation
from unbounded.cli import screen

MADE = "2030-01-01T00:00:00Z"


def machine(name: str = "m1", **status: Any) -> Machine:
    return msgspec.convert({"metadata": {"name": name, "creationTimestamp": MADE}, "status": status}, Machine)


def operation(name: str = "o1", machine_ref: str | None = "m1", made: str = MADE, **status: Any) -> MachineOperation:
    spec = {"operationKind": "HostReboot", **({"machineRef": machine_ref} if machine_ref else {})}
    body = {"metadata": {"name": name, "creationTimestamp": made}, "spec": spec, "status": status}
    return msgspec.convert(body, MachineOperation)


def test_a_running_operation_shows_its_stage_and_a_failed_one_its_reason() -> None:
    targets = [{"machineRef": "m1", "stage": "WaitingOff"}]
    assert screen.operation_row(operation(phase="InProgress", targets=targets)).stage == "WaitingOff"
    failed = operation(phase="Failed", reason="TimedOut", targets=targets)
    assert screen.operation_row(failed).stage == "TimedOut"
    assert screen.operation_row(operation(phase="Complete", reason="Succeeded", targets=targets)).stage == ""


def test_lines_leave_out_what_is_not_there() -> None:
    assert screen.row_line(screen.machine_row(machine())) == "machine m1: new"
    parent = screen.operation_row(operation(machine_ref=None, phase="Pending", message="waiting"))
    assert screen.row_line(parent) == "operation o1: Pending · HostReboot · (selector) · waiting"


def test_machines_at_work_are_shown_when_there_is_no_room_for_all() -> None:
    busy = {"activeOperation": {"uid": "u", "name": "o", "kind": "HostReboot", "executor": "metalman", "since": MADE}}
    machines = [machine(f"m{number:02d}") for number in range(30)] + [machine("z", **busy)]
    rows, more = screen.shown_machines(machines)
    assert [row.name for row in rows] == [f"m{number:02d}" for number in range(screen.MACHINE_ROWS - 1)] + ["z"]
    assert more == len(machines) - screen.MACHINE_ROWS


def test_running_operations_are_shown_first_of_all_and_then_the_newest() -> None:
    old = operation("old", phase="InProgress", made="2029-01-01T00:00:00Z")
    done = [
        operation(f"d{number:02d}", phase="Complete", made=f"2030-01-{number:02d}T00:00:00Z") for number in range(1, 20)
    ]
    rows, more = screen.shown_operations([*done, old])
    assert [row.name for row in rows] == ["old", *(f"d{number:02d}" for number in range(13, 20))]
    assert more == 12


def test_the_tables_have_every_column_and_no_markup_from_messages() -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    console.print(
        screen.tables(
            [machine(message="[red]as it is[/red]")], [operation(phase="Complete", message="fine")], width=200
        )
    )
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    heads = {field.name.upper() for row in (screen.MachineRow, screen.OperationRow) for field in fields(row)}
    assert {head for head in heads - {"CREATED"} if head not in shown} == set()
    assert "[red]as it is[/red]" in shown


def test_the_tables_fit_a_narrow_terminal() -> None:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(
        screen.tables(
            [machine()],
            [operation("lab-01-host-reboot-20300101-000000", phase="InProgress", message="m" * 90)],
            width=80,
        )
    )
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert any("InProgress" in line for line in lines)
