"""Progress and result of an operation, as rows and lines of text, and their display during a wait.

The display is a live table on a terminal (`liveview`), or a line for each change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from types import TracebackType
from typing import Final, Protocol, Self

from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation, OperationPhase
from unbounded.cli.plugin.command import CommandSession, Printer
from unbounded.cli.terminal_text import one_line
from unbounded.kube.clock import age, parsed_time, utc_now
from unbounded.operations import reasons

NOT_OBSERVED: Final = "not observed yet"  # shown for a Machine without a phase
PENDING: Final = OperationPhase.PENDING.value
ENDED: Final = frozenset({OperationPhase.COMPLETE.value, OperationPhase.FAILED.value})


@dataclass(frozen=True)
class ProgressRow:
    """One Machine of an operation.

    Attributes:
        why: the reason for waiting and its holder, or the reason of a failure.
        since, until: RFC 3339, by the writer's clock; empty where there is none.
    """

    machine: str
    phase: str
    stage: str
    why: str
    message: str
    since: str = ""
    until: str = ""


@dataclass(frozen=True)
class WaitProgress:
    """Progress of an operation or a Machine, for display."""

    title: str
    rows: tuple[ProgressRow, ...]


def of_operation(operation: MachineOperation) -> WaitProgress:
    head = f"{operation.spec.operation_kind} {operation.name}"
    counted = counts(operation)
    return WaitProgress(one_line(f"{head}: {counted}" if counted else head), rows(operation))


def of_machine(machine: Machine) -> WaitProgress:
    status = machine.status
    since = machine.metadata.creation_timestamp or ""
    row = ProgressRow(machine.name, status.phase or NOT_OBSERVED, "", "", status.message or "", since)
    return WaitProgress(f"machine/{machine.name}", (ProgressRow(*map(one_line, astuple(row))),))


def rows(operation: MachineOperation) -> tuple[ProgressRow, ...]:
    """Return the Machine of an operation, or the targets of a selector operation, as escaped text."""
    return tuple(ProgressRow(*map(one_line, astuple(row))) for row in _rows(operation))


def _rows(operation: MachineOperation) -> tuple[ProgressRow, ...]:
    if operation.spec.machine_ref is None:
        return tuple(
            ProgressRow(
                target.machine_ref,
                target.phase or PENDING,
                target.stage or "",
                (target.reason or "") if target.phase != OperationPhase.COMPLETE else "",
                target.message or "",
                target.started_at or "",
                target.completed_at or "",
            )
            for target in operation.status.targets
        )
    status = operation.status
    stage = status.targets[0].stage if status.targets else None
    since = status.started_at or operation.metadata.creation_timestamp or ""
    shown_stage = "" if operation.terminal else stage or ""
    row = ProgressRow(
        operation.spec.machine_ref,
        status.phase or PENDING,
        shown_stage,
        _why(operation),
        status.message or "",
        since,
        status.completed_at or "",
    )
    return (row,)


def _why(operation: MachineOperation) -> str:
    status = operation.status
    if status.phase == OperationPhase.FAILED:
        return status.reason or ""
    waiting = status.waiting
    if operation.terminal or waiting is None:
        return ""
    return f"{waiting.reason}, held by {waiting.held_by}" if waiting.held_by else waiting.reason


def shown_rows(all_rows: Sequence[ProgressRow], room: int) -> tuple[Sequence[ProgressRow], int]:
    """Return the rows that fit, in their order, and the number left out; failed and running ones have precedence."""
    if len(all_rows) <= room:
        return all_rows, 0
    rank = {OperationPhase.FAILED.value: 0, OperationPhase.IN_PROGRESS.value: 1, PENDING: 2}
    best = sorted(range(len(all_rows)), key=lambda at: (rank.get(all_rows[at].phase, 3), at))[: max(room, 0)]
    return [all_rows[at] for at in sorted(best)], len(all_rows) - len(best)


def lines(rows: Iterable[ProgressRow]) -> dict[str, str]:
    """Return a line for each Machine, without times: equal as long as nothing has changed."""
    found = {}
    for row in rows:
        parts = (row.phase, row.stage, row.why, row.message)
        found[row.machine] = f"{row.machine}: " + " · ".join(part for part in parts if part)
    return found


def counts(operation: MachineOperation) -> str:
    """Return the number of targets in each phase; empty for an operation on one Machine."""
    if operation.spec.machine_ref is not None or not operation.status.targets:
        return ""
    phases = [target.phase or PENDING for target in operation.status.targets]
    order = (OperationPhase.COMPLETE, OperationPhase.FAILED, OperationPhase.IN_PROGRESS, OperationPhase.PENDING)
    parts = [f"{phases.count(phase.value)} {phase.value}" for phase in order if phase.value in phases]
    return f"{', '.join(parts)} of {len(phases)}"


def elapsed(row: ProgressRow, now: datetime) -> str:
    """Return the duration of a row in kubectl's format; clocks that disagree never give a negative one."""
    if not row.since:
        return ""
    until = parsed_time(row.until) if row.until else now
    return "" if until is None else age(row.since, until)


@dataclass(frozen=True)
class OperationResult:
    """Result of an operation."""

    complete: bool
    reason: str
    message: str

    @property
    def cancelled(self) -> bool:
        return not self.complete and self.reason == reasons.CANCELLED


def end_of(operation: MachineOperation) -> OperationResult | None:
    """Return the result of an operation; None until it has ended."""
    if not operation.terminal:
        return None
    status = operation.status
    return _end(status.phase, status.reason, status.message)


def end_in_history(machine: Machine, *, uid: str = "", name: str = "") -> OperationResult | None:
    """Return the result from the Machine's history, for an operation that may be deleted, by its UID or name."""
    for recent in reversed(machine.status.recent_operations):
        if (recent.uid == uid or recent.name == name) and recent.phase in ENDED:
            return _end(recent.phase, recent.reason, recent.message)
    return None


def _end(phase: str | None, reason: str | None, message: str | None) -> OperationResult:
    return OperationResult(phase == OperationPhase.COMPLETE, one_line(reason or ""), one_line(message or ""))


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
    from rich.console import Console  # noqa: PLC0415  # slow to import, and only for a terminal

    from unbounded.cli.plugin.liveview import LiveView  # noqa: PLC0415

    return LiveView(Console(file=invocation.out, no_color=not invocation.colour, highlight=False))


class PlainProgressView:
    """Lines, for pipes and logs of other programs."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._printed: dict[str, str] = {}
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
        for machine, line in lines(report.rows).items():
            if self._printed.get(machine) != line:
                self._printed[machine] = line
                self._print(line)

    def _print(self, text: str) -> None:
        self._printer.info(f"{utc_now().astimezone():%H:%M:%S} {text}")
