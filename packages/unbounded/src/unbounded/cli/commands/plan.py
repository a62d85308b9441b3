"""The row of `plan`."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser
from typing import Final

from unbounded.cli.plugin.command import CliCommand


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("command", nargs=REMAINDER, metavar="COMMAND", help="as it would be typed, with its flags")


COMMANDS: Final = (
    CliCommand(
        path=("plan",),
        help="what a command would do: to which Machines, in which order, and what would hold it up",
        examples=(
            ("plan machine host-reboot web-01", "who would reboot it, and what it would wait for"),
            ("plan machine host-reboot web-01 -o wide", "in which stages, too"),
            (
                "plan machine register --site rack1 --host 192.0.2.10 --ssh-username admin"
                " --ssh-private-key ~/.ssh/id_ed25519",
                "whether it would be taken, with its key and its Secret",
            ),
            (
                "plan machine operation create all --kind HostReboot -l unbounded-cloud.io/site=rack1",
                "which Machines, in which order",
            ),
        ),
        arguments=_arguments,
        run="unbounded.cli.forecast.run:run",
        needs_api=False,  # it opens the API that the planned command's own flags select
        text=(
            "What a command would do, computed by the functions that act; nothing is changed. The server is asked in a"
            " dry run whether it would take it. Of bare metal, the Secret of the BMC is read, and for `replace` what"
            " metalman has told of the image and of serving it. Of clouds, the provider's code says which parameters it"
            " takes, where it is installed beside the command. Nobody asks a BMC, a host or a cloud. Lines with"
            " `not checked:` say what you may not read, and what cannot be seen. Exit status 1: it would be refused, or"
            " fail at once."
        ),
    ),
)
