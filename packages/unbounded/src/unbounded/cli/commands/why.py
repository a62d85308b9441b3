"""The row of `why`."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Final

from unbounded.cli.plugin.command import CliCommand


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "name",
        metavar="MACHINE|OPERATION",
        help="name of a Machine or of an operation; machine/NAME or operation/NAME where both exist",
    )
    parser.add_argument("-w", "--watch", action="store_true", help="show it again when it changes, until it is over")


COMMANDS: Final = (
    CliCommand(
        path=("why",),
        help="what a Machine or an operation waits for, who holds it, until when, and what would unblock it",
        examples=(
            ("why web-01", "what holds the Machine web-01 up"),
            ("why operation/reboot-rack1", "what the operation reboot-rack1 waits for"),
            ("why web-01 --watch", "the same, again and again until nothing holds it up"),
        ),
        arguments=_arguments,
        run="unbounded.cli.explain.run:run",
    ),
)
