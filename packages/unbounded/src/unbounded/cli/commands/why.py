"""The row of `why`."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Final

from unbounded.cli.plugin.command import CliCommand


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "name",
        metavar="MACHINE|OPERATION",
        help="Name a Machine or an operation; use machine/NAME or operation/NAME where both exist",
    )
    parser.add_argument("-w", "--watch", action="store_true", help="Print it again at each change, until it has ended")


COMMANDS: Final = (
    CliCommand(
        path=("why",),
        help="Explain what a Machine or an operation waits for, the holder, the end of the wait, and the fixes",
        examples=(
            ("why web-01", "what blocks the Machine web-01"),
            ("why operation/reboot-rack1", "what the operation reboot-rack1 waits for"),
            ("why web-01 --watch", "the same at each change, until nothing blocks it"),
        ),
        arguments=_arguments,
        run="unbounded.cli.explain.run:run",
    ),
)
