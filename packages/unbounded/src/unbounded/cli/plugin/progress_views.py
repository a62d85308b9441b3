"""Display of progress during a wait: a live table, or a line for each change."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from unbounded.cli.plugin import progress
from unbounded.cli.plugin.command import CommandSession, Printer
from unbounded.cli.plugin.progress import WaitProgress
from unbounded.cli.terminal_text import one_line
from unbounded.kube.clock import utc_now


class ProgressView(Protocol):
    """A display that is active inside its context."""

    def show(self, report: WaitProgress | None, trouble: str) -> None:
        """Update the display.

        Args:
            report: the latest progress; None as long as there is none.
            trouble: why the server does not answer; empty when all is well.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def view_for(session: CommandSession) -> ProgressView:
    invocation, printer = session.invocation, session.printer
    for_a_program = bool(getattr(invocation.args, "output", ""))
    if not invocation.terminal or for_a_program:
        return PlainProgressView(printer)
    from rich.console import Console  # noqa: PLC0415  # where nobody looks, nobody waits for it

    from unbounded.cli.plugin.liveview import LiveView  # noqa: PLC0415

    return LiveView(Console(file=invocation.out, no_color=not invocation.colour, highlight=False))


class PlainProgressView:
    """Lines, for pipes and logs of other programs."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._said: dict[str, str] = {}
        self._trouble = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: there is nothing to end."""

    def show(self, report: WaitProgress | None, trouble: str) -> None:
        if bool(trouble) != bool(self._trouble):  # reported once for each outage, even if the error changes
            self._print(
                f"waiting for the API server: {one_line(trouble)}" if trouble else "the API server answers again"
            )
        self._trouble = trouble
        if report is None:
            return
        for machine, line in progress.lines(report.rows).items():
            if self._said.get(machine) != line:
                self._said[machine] = line
                self._print(line)

    def _print(self, text: str) -> None:
        self._printer.info(f"{utc_now().astimezone():%H:%M:%S} {text}")
