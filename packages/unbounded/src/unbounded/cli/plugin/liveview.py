"""Progress of an operation or a Machine, as a live table on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from types import TracebackType
from typing import Final, Self

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unbounded.cli.plugin import progress
from unbounded.cli.plugin.progress import ProgressRow, WaitProgress
from unbounded.cli.terminal_text import one_line
from unbounded.kube.clock import utc_now

NARROW: Final = 100  # columns; below, the message of a Machine is under its row
INDENT: Final = 2
AROUND: Final = 4  # lines beside the rows: two headings, the number of rows left out, the shell's prompt
STYLES: Final = {"Complete": "green", "Failed": "bold red", "InProgress": "yellow"}


class LiveView:
    """A table that is redrawn in place; the terminal's size may change meanwhile."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def show(self, progress_now: WaitProgress | None, trouble: str) -> None:
        size = self._console.size
        self._live.update(picture(progress_now, trouble, width=size.width, height=size.height), refresh=True)


def picture(progress_now: WaitProgress | None, trouble: str, *, width: int, height: int) -> RenderableType:
    """Return the table for a terminal of this size."""
    parts: list[RenderableType] = []
    if progress_now is None:
        parts.append(Text("waiting for the operation", style="dim"))
    else:
        parts += _progress_parts(progress_now, width=width, height=height)
    if trouble:
        waiting = f"waiting for the API server: {one_line(trouble)}"
        parts.append(Text(waiting, style="yellow", overflow="ellipsis", no_wrap=True))
    return Group(*parts)


def _progress_parts(progress_now: WaitProgress, *, width: int, height: int) -> list[RenderableType]:
    narrow = width < NARROW
    room = height - AROUND
    shown, more = progress.shown_rows(progress_now.rows, room // (2 if narrow else 1))
    parts: list[RenderableType] = [Text(progress_now.title, overflow="ellipsis", no_wrap=True)]
    if narrow:
        parts += _below_each_other(shown, width=width, room=room)
    else:
        parts.append(_table(shown))
    if more:
        parts.append(Text(f"and {more} more", style="dim"))
    return parts


def _row_message(row: ProgressRow) -> str:
    return f"{row.why}: {row.message}".rstrip(": ") if row.why else row.message


def _table(shown: Sequence[ProgressRow]) -> Table:
    now = utc_now()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", expand=True)
    for head in ("MACHINE", "PHASE", "STAGE", "TIME"):
        table.add_column(head, no_wrap=True, overflow="ellipsis")
    table.add_column("MESSAGE", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in shown:
        phase = Text(row.phase, style=STYLES.get(row.phase, ""))
        table.add_row(
            Text(row.machine), phase, Text(row.stage), Text(progress.elapsed(row, now)), Text(_row_message(row))
        )
    return table


def _below_each_other(shown: Sequence[ProgressRow], *, width: int, room: int) -> Iterator[Text]:
    """Yield each row with its message below, on as many lines as there are."""
    now = utc_now()
    heads = ("MACHINE", "PHASE", "STAGE", "TIME")
    cells = [(row.machine, row.phase, row.stage, progress.elapsed(row, now)) for row in shown]
    widths = [max(map(cell_len, column)) for column in zip(heads, *cells, strict=True)]
    yield _line(Text("  ".join(map(set_cell_size, heads, widths)), style="bold"))
    for row, texts in zip(shown, cells, strict=True):
        styles = ("", STYLES.get(row.phase, ""), "", "")
        parts = [
            Text(set_cell_size(text, size), style) for text, size, style in zip(texts, widths, styles, strict=True)
        ]
        yield _line(Text("  ").join(parts))
        most = max(room // len(shown) - 1, 1)
        indent = " " * INDENT
        yield from (
            _line(Text(one, style="dim"))
            for one in wrap(
                _row_message(row),
                max(width, 2 * INDENT),
                initial_indent=indent,
                subsequent_indent=indent,
                max_lines=most,
                placeholder="…",
                break_on_hyphens=False,
            )
        )


def _line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
