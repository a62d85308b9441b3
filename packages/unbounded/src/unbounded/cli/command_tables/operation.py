"""Commands of operations: `machine operation …`."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Final

from unbounded.cli.plugin import flags
from unbounded.cli.plugin.command import CliCommand

DRY_RUNS: Final = ("none", "client", "server")


def _operation_argument(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name the MachineOperation")


def _create_arguments(parser: ArgumentParser) -> None:
    _operation_argument(parser)
    parser.add_argument("--kind", required=True, metavar="KIND", help="Set the action, such as HostReboot")
    targets = parser.add_mutually_exclusive_group(required=True)
    targets.add_argument("--machine", default="", metavar="MACHINE", help="Name one target Machine")
    targets.add_argument(
        "-l", "--selector", default="", metavar="LABELS", help="Select target Machines by labels, such as a=b,c!=d"
    )
    parser.add_argument(
        "--param",
        type=flags.checked(flags.pair),
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="Set a parameter of the kind. Repeatable",
    )
    parser.add_argument(
        "--ttl",
        type=flags.checked(flags.seconds),
        metavar="SECONDS",
        help="Delete the operation this long after its end; 0 deletes it at once (default: keep it)",
    )
    parser.add_argument(
        "--max-concurrent",
        type=flags.checked(flags.number),
        metavar="N",
        help="With -l: limit the targets at a time (default 10)",
    )
    parser.add_argument(
        "--max-failures",
        type=flags.checked(flags.number),
        metavar="N",
        help="With -l: start no further targets after this number of failures (default 1)",
    )
    parser.add_argument(
        "--strategy",
        default="",
        metavar="FILE",
        help="With -l: read the stages of the targets (spec.strategy, YAML or JSON) from this file",
    )
    parser.add_argument(
        "--deadline",
        type=flags.checked(flags.some_seconds),
        metavar="DURATION",
        help="Limit the time from its start to its end (default: the kind's own)",
    )
    parser.add_argument(
        "--start-deadline",
        type=flags.checked(flags.some_seconds),
        metavar="DURATION",
        help="Limit the time until its start (default 1h)",
    )
    flags.add_wait(parser, default=False)
    parser.add_argument("--dry-run", choices=DRY_RUNS, default="none", help="Write nothing (default none)")
    parser.add_argument(
        "--field-manager", default="", metavar="NAME", help="Record this creator (default kubectl-unbounded)"
    )
    flags.add_force(parser, "the names of Machines that lose what is on them")


def _wait_arguments(parser: ArgumentParser) -> None:
    _operation_argument(parser)
    flags.add_timeout(parser)


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--machine", default="", metavar="MACHINE", help="List operations on this Machine")
    parser.add_argument(
        "--phase", default="", metavar="PHASE", help="List operations in this phase, such as InProgress"
    )
    parser.add_argument("--kind", default="", metavar="KIND", help="List operations of this kind, such as HostReboot")
    parser.add_argument("-l", "--selector", default="", metavar="LABELS", help="List operations with these labels")
    parser.add_argument("-w", "--watch", action="store_true", help="Continue with changes until Ctrl-C")


def _cancel_arguments(parser: ArgumentParser) -> None:
    _operation_argument(parser)
    flags.add_wait(parser, default=True)


def _abandon_arguments(parser: ArgumentParser) -> None:
    _cancel_arguments(parser)
    flags.add_force(parser, "the name of the operation")


def row(
    words: str,
    help_: str,
    arguments: Callable[[ArgumentParser], None],
    functions: tuple[str, ...],
    *examples: tuple[str, str],
    needs_api: bool = True,
    text: str = "",
) -> CliCommand:
    """Return the row of a command below `machine`.

    Args:
        functions: its `run` and, if it can be planned, its `intend`, below cli.operation_commands.
        examples: without the words of the command.
    """
    path = ("machine", *words.split())
    run, intend = (*(f"unbounded.cli.operation_commands.{name}" for name in functions), "")[:2]
    lines = tuple((f"{' '.join(path)} {line}", why) for line, why in examples)
    return CliCommand(path, help_, lines, arguments, run, intend, needs_api, text)


COMMANDS: Final = (
    row(
        "operation create",
        "Create an operation on one Machine, or on those with the given labels",
        _create_arguments,
        ("create:run", "create:intend"),
        (
            "reboot-rack1 --kind HostReboot -l unbounded-cloud.io/site=rack1 --max-concurrent 2 --wait",
            "reboot a whole site, two at a time",
        ),
        (
            "reboot-rack1 --kind HostReboot -l unbounded-cloud.io/site=rack1 --strategy stages.yaml --plan-hash HASH",
            "reboot it in stages, if `plan` with the same flags still prints this hash",
        ),
        (
            "web-01-off --kind HostPowerOff --machine web-01 --dry-run client -o yaml",
            "print its manifest, and create nothing",
        ),
    ),
    row(
        "operation list",
        "List operations",
        _list_arguments,
        ("list_operations:run",),
        ("--phase InProgress", "list operations in progress"),
        ("--machine web-01 -o wide", "list operations on a Machine, with reasons"),
        needs_api=False,
    ),
    row(
        "operation wait",
        "Wait until an operation has ended",
        _wait_arguments,
        ("cancel:wait",),
        ("reboot-rack1 --timeout 30m", "wait up to 30 minutes; exit status 0: complete, 1: failed, 3: timeout"),
    ),
    row(
        "operation report",
        "Print the report of an erasure that has ended",
        _operation_argument,
        ("erasure_report:run",),
        (
            "rack1-01-erase-20261128-120000 -o json",
            "print each disk with methods, verification and times, for an auditor",
        ),
    ),
    row(
        "operation cancel",
        "Cancel an operation where it can stop",
        _cancel_arguments,
        ("cancel:cancel", "cancel:intend_cancel"),
        ("reboot-rack1", "cancel it; targets in progress reach a safe end first"),
    ),
    row(
        "operation abandon",
        "Abandon an operation whose executor is lost",
        _abandon_arguments,
        ("cancel:abandon", "cancel:intend_abandon"),
        ("web-01-host-reboot-20250301-120000", "ask for its name, and end it"),
        text=(
            "Abandon an operation whose executor is lost. It ends as Failed, and its result is unknown: the "
            "next executor observes the Machine before it acts."
        ),
    ),
)
