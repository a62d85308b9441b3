"""Display of Machines and operations in `unbounded up`: a live table on a terminal, else one line for each change."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, fields, replace
from typing import Final, Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation, OperationPhase
from unbounded.cli.terminal_text import one_line
from unbounded.kube.cache import Cache
from unbounded.kube.clock import age, utc_now
from unbounded.operations.observed_power import power_of

MACHINE_ROWS: Final = 12
OPERATION_ROWS: Final = 8
AGES_EVERY_S: Final = 1.0
REDRAW_LEAST_S: Final = 0.1
NARROW: Final = 120
LEFT_OUT_IF_NARROW: Final = frozenset({"KIND", "MACHINE"})  # names of operations mostly contain both
STYLES: Final = {
    "Complete": "green",
    "Failed": "bold red",
    "InProgress": "yellow",
    "Rebooting": "yellow",
    "Ready": "green",
}

Machines = Cache[Machine]
Operations = Cache[MachineOperation]


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


def row_line(row: MachineRow | OperationRow) -> str:
    """Format one row as one line, without its age."""
    if isinstance(row, MachineRow):
        power = f"power {row.power}" if row.power else ""
        return f"machine {row.name}: " + _joined(row.phase or "new", power, row.operation, row.message)
    what = f"operation {row.name}: "
    return what + _joined(row.phase or "new", row.kind, row.machine, row.stage, row.message)


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


def column_heads(row: type[MachineRow] | type[OperationRow]) -> list[str]:
    """Return the headings of the columns; the last one is the age."""
    return [field.name.upper() for field in fields(row)[:-1]] + ["AGE"]


class Screen(Protocol):
    def print_message(self, text: str) -> None:
        """Print a message once."""
        ...

    async def run(self, machines: Machines, operations: Operations) -> None:
        """Show the objects and their changes, until cancelled."""
        ...


def screen_for(out: TextIO) -> Screen:
    return LiveScreen(Console(file=out)) if out.isatty() else PlainScreen(out)


class ScreenLogStream:
    """Standard error, looked up at each write: a live table replaces it, to print above itself."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


class PlainScreen:
    """Lines, for pipes and logs of other programs."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._printed: dict[tuple[type, str], str] = {}

    def print_message(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    async def run(self, machines: Machines, operations: Operations) -> None:
        with (
            machines.subscribed(lambda old, new: self._changed(old, new, machine_row)),
            operations.subscribed(lambda old, new: self._changed(old, new, operation_row)),
        ):
            await asyncio.Event().wait()

    def _changed(
        self,
        old: Machine | MachineOperation | None,
        new: Machine | MachineOperation | None,
        row_of: Callable[..., MachineRow | OperationRow],
    ) -> None:
        item = new or old
        if item is None:
            return
        key = (type(item), item.name)
        line = row_line(row_of(item)) if new is not None else f"{item.kind or 'object'} {item.name}: deleted"
        if self._printed.get(key) != line:
            self._printed[key] = line
            self.print_message(f"{utc_now().astimezone():%H:%M:%S} {line}")


class LiveScreen:
    """Two tables that are redrawn after changes, below the printed messages."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._changed = asyncio.Event()

    def print_message(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    async def run(self, machines: Machines, operations: Operations) -> None:
        live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=sys.stderr.isatty(),  # logs that are redirected to a file stay there
            vertical_overflow="crop",
        )
        with (
            machines.subscribed(lambda _old, _new: self._changed.set()),
            operations.subscribed(lambda _old, _new: self._changed.set()),
            live,
        ):
            while True:
                self._changed.clear()
                live.update(tables(machines.all(), operations.all(), width=self._console.width), refresh=True)
                await asyncio.sleep(REDRAW_LEAST_S)
                await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        try:
            async with asyncio.timeout(AGES_EVERY_S):
                await self._changed.wait()
        except TimeoutError:
            return  # ages have changed


def tables(machines: Iterable[Machine], operations: Iterable[MachineOperation], *, width: int) -> RenderableType:
    """Return both tables, one above the other, for a terminal of `width` columns."""
    machine_rows, more_machines = shown_machines(machines)
    operation_rows, more_operations = shown_operations(operations)
    left_out = LEFT_OUT_IF_NARROW if width < NARROW else frozenset()
    return Group(
        Text(),
        _table(MachineRow, machine_rows, more_machines, frozenset()),
        Text(),
        _table(OperationRow, operation_rows, more_operations, left_out),
    )


def _table(
    kind: type[MachineRow] | type[OperationRow],
    rows: Iterable[MachineRow | OperationRow],
    more: int,
    left_out: frozenset[str],
) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", expand=True)
    heads = column_heads(kind)
    for head in heads:
        if head not in left_out:
            table.add_column(head, no_wrap=True, overflow="ellipsis", ratio=1 if head == "MESSAGE" else None)
    now = utc_now()
    for row in rows:
        cells = astuple(replace(row, created=age(row.created, now)))
        shown = [cell for cell, head in zip(cells, heads, strict=True) if head not in left_out]
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in shown))
    return Group(table, Text(f"and {more} more", style="dim")) if more else table
