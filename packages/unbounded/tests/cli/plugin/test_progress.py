"""Display of an operation: rows, lines, and a picture that fits its terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from unbounded.api.machine import Machine, MachineStatus, RecentOperation
from unbounded.api.machine_spec import MachineSpec
from unbounded.api.meta import ObjectMeta
from unbounded.api.operation import (
    MachineOperation,
    MachineOperationSpec,
    MachineOperationStatus,
    OperationPhase,
    TargetStatus,
    Waiting,
)
from unbounded.cli.plugin import progress
from unbounded.cli.plugin.liveview import picture
from unbounded.cli.plugin.progress import ProgressRow

THEN = "2025-11-22T10:00:00Z"
NOW = datetime(2025, 11, 22, 10, 1, 5, tzinfo=UTC)
PHASES = st.sampled_from([phase.value for phase in OperationPhase])


def _operation(*, machine: str | None = "web-01", **status: Any) -> MachineOperation:
    return MachineOperation(
        metadata=ObjectMeta(name="op", uid="u", creation_timestamp=THEN),
        spec=MachineOperationSpec(operation_kind="HostReboot", machine_ref=machine),
        status=MachineOperationStatus(**status),
    )


def test_progress_row_names_the_blocker_only_while_waiting() -> None:
    waiting = Waiting(reason="SlotHeld", held_by="other", since=THEN)
    (held,) = progress.rows(_operation(phase="Pending", waiting=waiting))
    assert (held.phase, held.why) == ("Pending", "SlotHeld, held by other")
    (ended,) = progress.rows(_operation(phase="Failed", reason="TimedOut", waiting=waiting))
    assert ended.why == "TimedOut"
    (done,) = progress.rows(_operation(phase="Complete", reason="Succeeded", waiting=waiting))
    assert done.why == ""


def test_new_operation_is_pending_and_elapsed_time_is_never_negative() -> None:
    (row,) = progress.rows(_operation())
    assert row.phase == "Pending"
    assert progress.elapsed(row, NOW) == "65s"
    assert progress.elapsed(replace(row, until="2026-01-01T00:00:00z"), NOW) == ""  # as a host may write it
    assert progress.elapsed(row, datetime(2025, 11, 22, 9, 0, tzinfo=UTC)) == "0s"


def test_selector_operation_shows_target_counts_and_a_line_each() -> None:
    targets = (
        TargetStatus(machine_ref="a", phase="Complete", reason="Succeeded", message="on"),
        TargetStatus(machine_ref="b", phase="Failed", reason="TimedOut", message="silent"),
        TargetStatus(machine_ref="c"),
    )
    operation = _operation(machine=None, phase="InProgress", targets=targets)
    assert progress.counts(operation) == "1 Complete, 1 Failed, 1 Pending of 3"
    assert list(progress.lines(progress.rows(operation)).values()) == [
        "a: Complete · on",
        "b: Failed · TimedOut · silent",
        "c: Pending",
    ]
    assert progress.counts(_operation()) == ""


@pytest.mark.slow
@given(st.lists(PHASES, max_size=40), st.integers(0, 20))
def test_what_failed_and_what_runs_has_room_first(phases: list[str], room: int) -> None:
    rows = [ProgressRow(f"m{at}", phase, "", "", "") for at, phase in enumerate(phases)]
    shown, more = progress.shown_rows(rows, room)
    assert len(shown) + more == len(rows)
    assert len(shown) == min(room, len(rows))
    assert [row for row in rows if row in shown] == list(shown), "in their own order"
    left_out = [row.phase for row in rows if row not in shown]
    if "Failed" in left_out:
        assert all(row.phase == "Failed" for row in shown)
    if "InProgress" in left_out:
        assert all(row.phase in {"Failed", "InProgress"} for row in shown)


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 80, 120])
@settings(max_examples=8, deadline=None)
@given(count=st.integers(0, 30), height=st.integers(5, 50), phase=PHASES, trouble=st.sampled_from(["", "x" * 200]))
def test_a_picture_fits_its_terminal(width: int, count: int, height: int, phase: str, trouble: str) -> None:
    targets = tuple(
        TargetStatus(machine_ref=f"machine-with-a-long-name-{at}", phase=phase, stage="WaitingOff", message="m" * 300)
        for at in range(count)
    )
    for operation in (_operation(machine=None, targets=targets), _operation(phase=phase, message="m" * 300), None):
        console = Console(file=io.StringIO(), width=width, height=height)
        lines = console.render_lines(
            picture(
                None if operation is None else progress.of_operation(operation), trouble, width=width, height=height
            ),
            pad=False,
        )
        assert len(lines) <= max(height, 6)
        assert all(sum(part.cell_length for part in line) <= width for line in lines)


def test_the_history_of_a_machine_knows_how_an_operation_ended() -> None:
    recent = (
        RecentOperation(name="op", uid="old", kind="HostReboot", phase="Failed", reason="X"),
        RecentOperation(name="op", uid="new", kind="HostReboot", phase="Complete", message="on"),
    )
    machine = Machine(metadata=ObjectMeta(name="m"), spec=MachineSpec(), status=MachineStatus(recent_operations=recent))
    assert progress.end_in_history(machine, uid="old") == progress.OperationResult(False, "X", "")
    assert progress.end_in_history(machine, name="op") == progress.OperationResult(True, "", "on")
    assert progress.end_in_history(machine, uid="other") is None
