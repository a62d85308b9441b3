"""The command `logs`: print what the install, the agent and the console of a Machine have written."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from unbounded.api.machine import Machine
from unbounded.cli import terminal_text
from unbounded.cli.host_ssh import ended_by_signals, ssh_command
from unbounded.cli.machine_logs import (
    AGENT,
    CONSOLE,
    INSTALL,
    PARTS,
    LogPart,
    LogRange,
    follow_log,
    host_source,
    read_logs,
    run_state,
)
from unbounded.cli.operation_commands import lookup
from unbounded.cli.plugin.command import DONE, FAILED, USAGE, CliError, CommandSession, refuse_output
from unbounded.cli.plugin.output import print_struct
from unbounded.cli.terminal_text import BOLD
from unbounded.kube.clock import utc_now
from unbounded.machina.machines.eligibility import is_attempt_open
from unbounded.machina.provisioning.remote import split_answer


class MachineLogs(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `logs -o json`."""

    machine: str
    logs: tuple[LogPart, ...]


async def run(session: CommandSession) -> int:
    """Run `logs NAME`; returns the exit status."""
    args = session.invocation.args
    refuse_output(session.invocation, "name", "wide", what="logs can be text, json or yaml")
    if args.follow and args.output:
        raise CliError(f"-o {args.output}: -f prints only text", status=USAGE)
    since = None if args.since is None else utc_now() - timedelta(seconds=args.since)
    within = LogRange(args.tail, since)
    parts = [part for part in PARTS if part in args.part] or PARTS
    machine = await lookup.machine(session, args.name)
    with ended_by_signals():
        if args.follow:
            return await _follow(session, machine, parts, within)
        found = await read_logs(session, machine, parts, within)
    if not print_struct(session.invocation, MachineLogs(machine=machine.name, logs=tuple(found))):
        for part in found:
            _print(session, part)
    return DONE if any(part.text for part in found) else FAILED


def _print(session: CommandSession, part: LogPart) -> None:
    """Print a log below its source, and on stderr why there is none."""
    if part.missing:
        session.printer.warn(f"note: no {part.name} log: {part.missing} ({part.source})")
        return
    _print_head(session, part.name, part.source)
    _print_line(session, part.text)


def _print_head(session: CommandSession, name: str, source: str) -> None:
    head = f"==> {name}: {terminal_text.one_line(source)} <=="
    print(session.invocation.style.paint(head, BOLD), file=session.invocation.out, flush=True)


def _print_line(session: CommandSession, text: str) -> None:
    print(terminal_text.lines(text), file=session.invocation.out, flush=True)


async def _follow(session: CommandSession, machine: Machine, parts: Sequence[str], within: LogRange) -> int:
    """Print the logs in the order of their time: the kept console, the install until its end, and then the journal."""
    if AGENT not in parts and INSTALL not in parts:
        raise CliError(
            f"-f: the kept console has ended; `{session.invocation.program} machine serial {machine.name} --read-only` "
            "shows the present output",
            status=USAGE,
        )
    running = [INSTALL] if is_attempt_open(machine.status.provisioning) else []
    ended = [one for one in (CONSOLE, INSTALL) if one in parts and one not in running]
    for part in await read_logs(session, machine, ended, within):
        _print(session, part)
    failure, live = "", [one for one in (*running, AGENT) if one in parts]
    if not live:
        return DONE
    async with ssh_command(session, machine) as ssh:
        for name in live:
            _print_head(session, name, host_source(machine, name))
            failure = await follow_log(ssh, machine, name, within, lambda line: _show(session, line))
            if failure:
                session.printer.warn(f"note: the {name} log has ended: {failure}")
    return FAILED if failure else DONE


def _show(session: CommandSession, line: str) -> None:
    """Print a line; one about the run itself as a note."""
    if (state := split_answer(line.encode())) is not None:
        session.printer.warn(f"note: {run_state(state[0])}")
    else:
        _print_line(session, line)
