"""Text of other writers cannot control the terminal of its reader, in any output."""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from rich.console import Console

from unbounded.api.machine import MACHINES, Machine, MachineStatus, RecentOperation
from unbounded.api.machine_spec import MachineSpec
from unbounded.api.meta import ObjectMeta
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, MachineOperationSpec, MachineOperationStatus
from unbounded.cli import screen, terminal_text
from unbounded.cli.explain import links_text, timeline_text
from unbounded.cli.plan import plan_lines
from unbounded.cli.plugin import errors, progress
from unbounded.cli.plugin.command import CliError, CliInvocation
from unbounded.cli.plugin.liveview import picture
from unbounded.cli.plugin.output import TextPrinter, printer_for, table
from unbounded.cli.plugin.progress import PlainProgressView
from unbounded.explain.links import ExplainLink, Fix
from unbounded.explain.timeline import OperationTimeline, TimelineAttempt, TimelineStage
from unbounded.plan.model import PlannedChange

HOSTILE = "all is well\x1b]0;pwn\x07\x1b[2J\x9b2J\r\nerror: fake \u202egnp"
STEERS = frozenset("\x1b\x07\x9b\r\u202e")
NOW = datetime(2025, 11, 22, tzinfo=UTC)

OPERATION = MachineOperation(
    metadata=ObjectMeta(name="op"),
    spec=MachineOperationSpec(operation_kind="HostReboot", machine_ref="m"),
    status=MachineOperationStatus(phase="Failed", reason=HOSTILE, message=HOSTILE),
)
RECENT = RecentOperation(uid="u", name="op", kind="HostReboot", phase="Failed", reason=HOSTILE, message=HOSTILE)
MACHINE = Machine(
    metadata=ObjectMeta(name="m"),
    spec=MachineSpec(),
    status=MachineStatus(phase="Failed", message=HOSTILE, recent_operations=(RECENT,)),
)
LINK = ExplainLink(
    about="Machine m",
    what=HOSTILE,
    code=HOSTILE,
    held_by=HOSTILE,
    until="2026-01-01T00:00:00Z",
    until_event=HOSTILE,
    then=HOSTILE,
    next_step=HOSTILE,
    fixes=(Fix(f"run {HOSTILE}", HOSTILE),),
)
TIMELINE = OperationTimeline(
    stages=(TimelineStage(name=HOSTILE, state="Current", started_at=HOSTILE, waits_for=HOSTILE),),
    attempts=(TimelineAttempt(stage=HOSTILE, action=HOSTILE, number=1, reply=HOSTILE, message=HOSTILE),),
)


def _printed(prints: Callable[[TextPrinter], None], output: str = "") -> str:
    out = io.StringIO()
    prints(TextPrinter(out, out, output=output))
    return out.getvalue()


def _drawn(drawn: object) -> str:
    """On a terminal without colours, so that whatever escapes are left are not rich's own."""
    out = io.StringIO()
    Console(file=out, width=2000, no_color=True, force_terminal=False).print(drawn)
    return out.getvalue()


def _told(error: Exception) -> str:
    out = io.StringIO()
    told = CliInvocation(Namespace(), {}, out, out, io.StringIO(), colour=False, terminal=False)
    shown = errors.message_of(error, told)
    assert shown is not None
    errors.print_error(shown, out)
    return out.getvalue()


def _end() -> str:
    ends = (progress.end_of(OPERATION), progress.end_in_history(MACHINE, uid="u"))
    return "\n".join(f"{end.reason}\n{end.message}" for end in ends if end is not None)


SHOWN: dict[str, Callable[[], str]] = {
    "table": lambda: "\n".join(table(["NAME", "MESSAGE"], [["op", HOSTILE]])),
    "objects": lambda: _printed(
        lambda printer: printer.objects(
            MACHINE_OPERATIONS.raw(),
            [{"metadata": {"name": "op"}, "spec": {}, "status": {"message": HOSTILE, "reason": HOSTILE}}],
        ),
        "wide",
    ),
    "say": lambda: _printed(lambda printer: printer.info(HOSTILE.replace("\n", ""))),
    "warn": lambda: _printed(lambda printer: printer.warn(HOSTILE.replace("\n", ""))),
    "name": lambda: _printed(lambda printer: printer.name(MACHINES, HOSTILE, "changed")),
    "error": lambda: _told(CliError(HOSTILE.replace("\n", ""), next_step=HOSTILE.replace("\n", ""))),
    "view": lambda: _printed(
        lambda printer: PlainProgressView(printer).show(progress.of_operation(OPERATION), HOSTILE)
    ),
    "live view": lambda: _drawn(picture(progress.of_operation(OPERATION), HOSTILE, width=2000, height=50)),
    "end": _end,
    "why": lambda: "\n".join(links_text((LINK, LINK), NOW)),
    "timeline": lambda: "\n".join(timeline_text(TIMELINE)),
    "plan": lambda: "\n".join(plan_lines((PlannedChange(what=HOSTILE, effects=(HOSTILE,), server=HOSTILE),))),
    "screen": lambda: _drawn(screen.tables([MACHINE], [OPERATION], width=2000)),
    "lines": lambda: "\n".join(
        screen.row_line(row) for row in (screen.machine_row(MACHINE), screen.operation_row(OPERATION))
    ),
}


@pytest.mark.parametrize("way", SHOWN)
def test_no_output_passes_control_characters_or_forged_lines(way: str) -> None:
    found = SHOWN[way]()
    assert "all is well" in found
    assert not STEERS & set(found)
    assert "\nerror: fake" not in found


@pytest.mark.parametrize(
    ("text", "line", "several"),
    [
        ("plain", "plain", "plain"),
        ("größe → 漢字 🚀", "größe → 漢字 🚀", "größe → 漢字 🚀"),
        ("a\nb\tc", "a b c", "a\nb\tc"),
        ("a\rb", "a b", "a\\rb"),
        ("\x1b[2J", "\\x1b[2J", "\\x1b[2J"),
        ("\x7f\x9b\u2028\u202e", "\\x7f\\x9b\\u2028\\u202e", "\\x7f\\x9b\\u2028\\u202e"),
        ("\ud800", "\\ud800", "\\ud800"),
    ],
)
def test_controls_are_shown_and_letters_stay(text: str, line: str, several: str) -> None:
    assert (terminal_text.one_line(text), terminal_text.lines(text)) == (line, several)


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_json_and_yaml_keep_what_was_written(output: str) -> None:
    out = io.StringIO()
    told = CliInvocation(Namespace(output=output), {}, out, out, io.StringIO(), colour=False, terminal=False)
    printer_for(told).objects(MACHINES.raw(), [{"metadata": {"name": "m"}, "status": {"message": HOSTILE}}], alone=True)
    assert "\\u001b[2J" in out.getvalue() or "\\e[2J" in out.getvalue()
