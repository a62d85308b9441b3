"""The row of `plan`."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser
from typing import Final

from unbounded.cli.plugin.command import Command


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("command", nargs=REMAINDER, metavar="COMMAND", help="as it would be typed, with its flags")


COMMANDS: Final = (
    Command(
        path=("plan",),
        help="what a command would do: to which Machines, in which order, and what would hold it up",
        examples=(
            ("plan machine host-reboot web-01", "who would reboot it, in which stages, and what it would wait for"),
            (
                "plan machine operation create all --kind HostReboot -l unbounded-cloud.io/site=rack1",
                "which Machines, in which order",
            ),
        ),
        arguments=_arguments,
        run="unbounded.cli.planning.run:run",
        needs_api=False,  # it opens the one that the planned command's own flags lead to
        text=(
            "What a command would do, computed by the functions that act; nothing is changed. The server is asked in a"
            " dry run whether it would take it. Exit status 1: it would be refused, or fail at once."
        ),
    ),
)
