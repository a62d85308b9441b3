"""The executable `kubectl-unbounded`, which kubectl runs for `kubectl unbounded …`.

Exit status: 0 done, 1 failed, 2 wrong arguments, 3 timeout of a wait, 130 interrupted. Before a command runs, only the
modules that find and parse it are imported.
"""

from __future__ import annotations

import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from unbounded.cli.plugin import parsing
from unbounded.cli.plugin.command import INTERRUPTED, CliCommand, CliInvocation, CommandSession, Intend, Run
from unbounded.cli.plugin.output import printer_for
from unbounded.cli.plugin.parsing import commands, loaded
from unbounded.cli.terminal_text import PLAIN
from unbounded.kube.process_tuning import freeze_imports

if TYPE_CHECKING:
    from unbounded.kube.client import HttpApi


async def run_command(command: CliCommand, invocation: CliInvocation) -> int:
    """Run a command; returns the exit status."""
    try:
        return await _run(command, invocation)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        _leave_quietly(invocation)
        return INTERRUPTED
    except Exception as error:
        from unbounded.cli.plugin import errors  # noqa: PLC0415  # most commands go well

        shown = errors.message_of(error, invocation)
        if shown is None:
            raise
        return errors.print_error(shown, invocation.err, invocation.style if invocation.err.isatty() else PLAIN)


async def _run(command: CliCommand, invocation: CliInvocation) -> int:
    status = await _in_session(command, invocation)
    invocation.out.flush()  # an error here would otherwise occur at Python's exit, without a message
    return status


async def _in_session(command: CliCommand, invocation: CliInvocation) -> int:
    with freeze_imports():
        run = cast("Run", loaded(command.run))
        if command.needs_api:
            from unbounded.cli.plugin.target import open_api  # noqa: PLC0415
    if not command.needs_api:
        return await run(offline(invocation))
    async with open_api(invocation) as api:
        session = CommandSession(invocation, api, printer_for(invocation))
        if expected := getattr(invocation.args, "plan_hash", ""):
            from unbounded.cli.plan import check_hash  # noqa: PLC0415  # few commands are planned first

            await check_hash(session, cast("Intend", loaded(command.intend)), expected)
        return await run(session)


class _Closed:
    """Replacement for the API in a command that needs none."""

    def __getattr__(self, name: str) -> NoReturn:
        raise TypeError(f"{name}: the command's row says needs_api=False")


def offline(invocation: CliInvocation) -> CommandSession:
    """Return the session of a command that needs no API."""
    return CommandSession(invocation, cast("HttpApi", cast("Any", _Closed())), printer_for(invocation))


def _leave_quietly(invocation: CliInvocation) -> None:
    """Keep Python from flushing to the closed pipe again at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), invocation.out.fileno())


PROGRAM: Final = "kubectl unbounded"


def main(
    arguments: Sequence[str] | None = None, *, program: str = PROGRAM, others: Mapping[str, str] | None = None
) -> int:
    """Run a command; returns the exit status.

    Args:
        program: its name, for help and hints.
        others: further commands of the caller, each with its line of help.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    command, args = parsing.parse(commands(), given, program=program, others=others or {})
    return run(command, invocation_of(args, program=program))


def invocation_of(args: Namespace, *, program: str = PROGRAM) -> CliInvocation:
    environ = dict(os.environ)
    terminal = sys.stdout.isatty() and environ.get("TERM") != "dumb"
    colour = terminal and not args.no_color and not environ.get("NO_COLOR")
    columns = shutil.get_terminal_size().columns if terminal else 0
    return CliInvocation(
        args,
        environ,
        sys.stdout,
        sys.stderr,
        sys.stdin,
        colour=colour,
        terminal=terminal,
        program=program,
        columns=columns,
    )


def run(command: CliCommand, invocation: CliInvocation) -> int:
    """Run a command to its end; returns the exit status."""
    import asyncio  # noqa: PLC0415  # --help does not wait for it
    import logging  # noqa: PLC0415

    from unbounded.cli.plugin.main import run_command  # noqa: PLC0415

    logging.getLogger().addHandler(logging.NullHandler())  # messages for the user are printed

    try:
        return asyncio.run(run_command(command, invocation))
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
