"""Operations: `machine operation …`, the short verbs that make one, the counters, and pausing."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Final

from unbounded.cli.plugin import flags
from unbounded.cli.plugin.command import CliCommand

TTL_S: Final = 300  # of the operations that the short verbs make
DRY_RUNS: Final = ("none", "client", "server")
_VERBS: Final = ("verbs:run", "verbs:intend")
_COUNTING: Final = ("counters:run", "counters:intend")
_PAUSING: Final = ("pause:run", "pause:intend")


def _machine_argument(parser: ArgumentParser) -> None:
    parser.add_argument("machine", metavar="MACHINE", help="name of the Machine")


def _operation_argument(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the MachineOperation")


def _create_arguments(parser: ArgumentParser) -> None:
    _operation_argument(parser)
    parser.add_argument("--kind", required=True, metavar="KIND", help="what to do, such as HostReboot")
    targets = parser.add_mutually_exclusive_group(required=True)
    targets.add_argument("--machine", default="", metavar="MACHINE", help="the one Machine that it is done to")
    targets.add_argument(
        "-l", "--selector", default="", metavar="LABELS", help="the Machines that have these labels, such as a=b,c!=d"
    )
    parser.add_argument(
        "--param",
        type=flags.checked(flags.pair),
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a parameter of the kind; may be given several times",
    )
    parser.add_argument(
        "--ttl",
        type=flags.checked(flags.seconds),
        metavar="SECONDS",
        help="delete it so long after its end; 0 at once (it is kept)",
    )
    parser.add_argument(
        "--max-concurrent", type=flags.checked(flags.number), metavar="N", help="with -l: so many at a time (10)"
    )
    parser.add_argument(
        "--max-failures",
        type=flags.checked(flags.number),
        metavar="N",
        help="with -l: after so many failures no further one is started (1)",
    )
    parser.add_argument(
        "--deadline",
        type=flags.checked(flags.some_seconds),
        metavar="DURATION",
        help="from its start to its end (the kind's own)",
    )
    parser.add_argument(
        "--start-deadline",
        type=flags.checked(flags.some_seconds),
        metavar="DURATION",
        help="until it has to start (1h)",
    )
    flags.add_wait(parser, default=False)
    parser.add_argument("--dry-run", choices=DRY_RUNS, default="none", help="write nothing (none)")
    parser.add_argument("--field-manager", default="", metavar="NAME", help="who made it (kubectl-unbounded)")
    flags.add_force(parser, "the names of Machines that lose what is on them")


def _wait_arguments(parser: ArgumentParser) -> None:
    _operation_argument(parser)
    flags.add_timeout(parser)


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--machine", default="", metavar="MACHINE", help="those on this Machine")
    parser.add_argument("--phase", default="", metavar="PHASE", help="those in this phase, such as InProgress")
    parser.add_argument("--kind", default="", metavar="KIND", help="those of this kind, such as HostReboot")
    parser.add_argument("-l", "--selector", default="", metavar="LABELS", help="those that have these labels")
    parser.add_argument("-w", "--watch", action="store_true", help="then go on with what changes, until Ctrl-C")


def _cancel_arguments(parser: ArgumentParser) -> None:
    _operation_argument(parser)
    flags.add_wait(parser, default=True)


def _abandon_arguments(parser: ArgumentParser) -> None:
    _cancel_arguments(parser)
    flags.add_force(parser, "the name of the operation")


def _verb_arguments(parser: ArgumentParser) -> None:
    _machine_argument(parser)
    parser.add_argument(
        "--operation-name", default="", metavar="NAME", help="of the operation (MACHINE-VERB-YYYYMMDD-HHMMSS, UTC)"
    )
    parser.add_argument(
        "--ttl",
        type=flags.checked(flags.seconds),
        default=TTL_S,
        metavar="SECONDS",
        help=f"delete it so long after its end; 0 at once ({TTL_S})",
    )
    flags.add_wait(parser, default=True)


def _stopping_arguments(parser: ArgumentParser) -> None:
    _verb_arguments(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--grace",
        type=flags.checked(flags.seconds),
        metavar="DURATION",
        help="for the host's own shutdown, before it is switched off (2m)",
    )
    how.add_argument("--now", action="store_true", help="switch it off without asking the host")


def _upgrade_arguments(parser: ArgumentParser) -> None:
    _verb_arguments(parser)
    parser.add_argument("--download-url", required=True, metavar="URL", help="of the agent's tarball")
    parser.add_argument("--sha256", default="", metavar="DIGEST", help="that the tarball must have")
    parser.add_argument(
        "--retry-failed-digest", action="store_true", help="try a tarball again with which an upgrade has failed"
    )


def _destroying_arguments(parser: ArgumentParser) -> None:
    _verb_arguments(parser)
    flags.add_force(parser, "the name of the Machine")


def _counter_arguments(parser: ArgumentParser) -> None:
    _machine_argument(parser)
    flags.add_wait(parser, default=True)


def _repave_arguments(parser: ArgumentParser) -> None:
    _counter_arguments(parser)
    flags.add_force(parser, "the name of the Machine")


def _pausing_arguments(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("machine", nargs="?", default="", metavar="MACHINE", help="name of the Machine")
    which.add_argument("--all", action="store_true", help="operations on all Machines")


def _pause_arguments(parser: ArgumentParser) -> None:
    _pausing_arguments(parser)
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for whoever finds it paused")


def _row(
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
        functions: its `run` and, if it can be planned, its `intend`, below cli.operate.
        examples: without the words of the command.
    """
    path = ("machine", *words.split())
    run, intend = (*(f"unbounded.cli.operate.{name}" for name in functions), "")[:2]
    lines = tuple((f"{' '.join(path)} {line}", why) for line, why in examples)
    return CliCommand(path, help_, lines, arguments, run, intend, needs_api, text)


COMMANDS: Final = (
    _row(
        "node-reboot",
        "restart the node on a Machine, not its host",
        _verb_arguments,
        _VERBS,
        ("web-01", "restart the node, and wait until it is back"),
    ),
    _row(
        "host-reboot",
        "reboot the host of a Machine",
        _stopping_arguments,
        _VERBS,
        ("web-01", "let the host shut down, and reboot it"),
        ("web-01 --now --wait=false", "switch it off and on at once; do not wait"),
    ),
    _row(
        "power-off",
        "switch the host of a Machine off",
        _stopping_arguments,
        _VERBS,
        ("web-01 --grace 5m", "give the host five minutes to shut down"),
    ),
    _row(
        "power-on",
        "switch the host of a Machine on",
        _verb_arguments,
        _VERBS,
        ("web-01", "switch it on, and wait"),
    ),
    _row(
        "agent-upgrade",
        "replace the agent on a Machine by another release",
        _upgrade_arguments,
        _VERBS,
        (
            "web-01 --download-url https://example.com/unbounded-agent-linux-amd64.tar.gz",
            "the old one comes back when the new one does not do its work",
        ),
    ),
    _row(
        "agent-reset",
        "take the agent and its node off a Machine",
        _destroying_arguments,
        _VERBS,
        ("web-01", "asks for the name; the host is as before the agent came"),
    ),
    _row(
        "replace",
        "make the host of a Machine anew from its image",
        _destroying_arguments,
        _VERBS,
        ("web-01", "asks for the name; all that is on its disk is lost"),
    ),
    _row(
        "reboot",
        "reboot a Machine by its counter (spec.operations.rebootCounter)",
        _counter_arguments,
        _COUNTING,
        ("rack1-01", "raise the counter, and wait until it is reached"),
    ),
    _row(
        "repave",
        "write the image of a Machine anew by its counter (spec.operations.repaveCounter)",
        _repave_arguments,
        _COUNTING,
        ("rack1-01 --timeout 1h", "asks for the name; all that is on its disk is lost"),
    ),
    _row(
        "pause",
        "have nothing started on a Machine, or on all",
        _pause_arguments,
        _PAUSING,
        ('web-01 --reason "new disk"', "nothing starts on it; what runs goes on"),
        ("--all", "nothing starts anywhere"),
    ),
    _row(
        "resume",
        "end the pause of a Machine, or of all",
        _pausing_arguments,
        _PAUSING,
        ("web-01", "what waits for it starts"),
    ),
    _row(
        "operation create",
        "ask for an operation on one Machine, or on those that labels select",
        _create_arguments,
        ("create:run", "create:intend"),
        (
            "reboot-rack1 --kind HostReboot -l unbounded-cloud.io/site=rack1 --max-concurrent 2 --wait",
            "reboot a whole site, two at a time",
        ),
        (
            "web-01-off --kind HostPowerOff --machine web-01 --dry-run client -o yaml",
            "write its manifest, and do nothing",
        ),
    ),
    _row(
        "operation list",
        "list operations",
        _list_arguments,
        ("list_operations:run",),
        ("--phase InProgress", "what is being done now"),
        ("--machine web-01 -o wide", "what was done to a Machine, with reasons"),
        needs_api=False,
    ),
    _row(
        "operation wait",
        "wait until an operation has ended",
        _wait_arguments,
        ("cancel:wait",),
        ("reboot-rack1 --timeout 30m", "exit status 0 done, 1 failed, 3 not in time"),
    ),
    _row(
        "operation cancel",
        "ask an operation to stop where it can",
        _cancel_arguments,
        ("cancel:cancel", "cancel:intend_cancel"),
        ("reboot-rack1", "targets that have begun are brought to a safe end"),
    ),
    _row(
        "operation abandon",
        "give an operation up whose executor is lost",
        _abandon_arguments,
        ("cancel:abandon", "cancel:intend_abandon"),
        ("web-01-host-reboot-20250301-120000", "asks for its name"),
        text=(
            "Give an operation up whose executor is lost. It ends as Failed; nobody knows how far it came, so that the"
            " Machine is looked at afresh before anything else is done to it."
        ),
    ),
)
