"""Display of Machines and operations in `unbounded up`: a live table on a terminal, else one line for each change."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from dataclasses import astuple, replace
from typing import Final, Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation
from unbounded.cli import view
from unbounded.cli.view import MachineRow, OperationRow
from unbounded.kube.cache import Cache
from unbounded.kube.clock import age, utc_now

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
            machines.subscribed(lambda old, new: self._changed(old, new, view.machine_row)),
            operations.subscribed(lambda old, new: self._changed(old, new, view.operation_row)),
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
        line = view.line(row_of(item)) if new is not None else f"{item.kind or 'object'} {item.name}: deleted"
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
    machine_rows, more_machines = view.shown_machines(machines)
    operation_rows, more_operations = view.shown_operations(operations)
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
    heads = view.heads(kind)
    for head in heads:
        if head not in left_out:
            table.add_column(head, no_wrap=True, overflow="ellipsis", ratio=1 if head == "MESSAGE" else None)
    now = utc_now()
    for row in rows:
        cells = astuple(replace(row, created=age(row.created, now)))
        shown = [cell for cell, head in zip(cells, heads, strict=True) if head not in left_out]
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in shown))
    return Group(table, Text(f"and {more} more", style="dim")) if more else table
