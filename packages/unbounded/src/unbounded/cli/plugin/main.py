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
from typing import Final

from unbounded.cli.plugin import parsing
from unbounded.cli.plugin.command import INTERRUPTED, CliCommand, CliInvocation
from unbounded.cli.plugin.registry import commands

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

    from unbounded.cli.plugin.runner import run_command  # noqa: PLC0415

    logging.getLogger().addHandler(logging.NullHandler())  # messages for the user are printed

    try:
        return asyncio.run(run_command(command, invocation))
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
