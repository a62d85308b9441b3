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
_MAINTAINING: Final = ("maintenance:run", "maintenance:intend")
_PAUSING: Final = ("pause:run", "pause:intend")


def _machine_argument(parser: ArgumentParser) -> None:
    parser.add_argument("machine", metavar="MACHINE", help="Name the Machine")


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


def _name_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--operation-name",
        default="",
        metavar="NAME",
        help="Name the operation (default MACHINE-VERB-YYYYMMDD-HHMMSS, UTC)",
    )


def _verb_arguments(parser: ArgumentParser, wait_help: str = "Wait until it has ended") -> None:
    _machine_argument(parser)
    _name_argument(parser)
    parser.add_argument(
        "--ttl",
        type=flags.checked(flags.seconds),
        default=TTL_S,
        metavar="SECONDS",
        help=f"Delete the operation this long after its end; 0 deletes it at once (default {TTL_S})",
    )
    flags.add_wait(parser, default=True, help=wait_help)


def _stopping_arguments(parser: ArgumentParser) -> None:
    _verb_arguments(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--grace",
        type=flags.checked(flags.seconds),
        metavar="DURATION",
        help="Give the host this long to shut down before it is switched off (default 2m)",
    )
    how.add_argument("--now", action="store_true", help="Switch the host off without a shutdown")


def _upgrade_arguments(parser: ArgumentParser) -> None:
    _verb_arguments(parser)
    parser.add_argument(
        "--download-url", required=True, metavar="URL", help="Download the agent's tarball from this URL"
    )
    parser.add_argument("--sha256", default="", metavar="DIGEST", help="Verify the tarball with this digest")
    parser.add_argument(
        "--retry-failed-digest", action="store_true", help="Retry a tarball with which an upgrade has failed"
    )


def _destroying_arguments(parser: ArgumentParser) -> None:
    _verb_arguments(parser)
    flags.add_force(parser, "the name of the Machine")


def _replace_arguments(parser: ArgumentParser) -> None:
    _destroying_arguments(parser)
    parser.add_argument(
        "--erase-disk",
        action="append",
        default=[],
        metavar="SERIAL",
        help="Let the install erase the data of others on the disk with this serial number, once. Repeatable",
    )
    parser.add_argument(
        "--accept-pcr",
        action="append",
        default=[],
        metavar="NUMBER",
        help="Accept another value of this PCR than the reference in status.tpm has, once. Repeatable",
    )


def _erase_arguments(parser: ArgumentParser) -> None:
    _machine_argument(parser)
    disks = parser.add_mutually_exclusive_group(required=True)
    disks.add_argument(
        "--disk",
        action="append",
        default=[],
        metavar="SERIAL",
        help="Erase the disk with this serial number. Repeatable",
    )
    disks.add_argument("--all", dest="all_disks", action="store_true", help="Erase all local disks")
    _name_argument(parser)
    flags.add_wait(parser, default=True)
    flags.add_force(parser, "the name of the Machine")


def _rescue_arguments(parser: ArgumentParser) -> None:
    _verb_arguments(parser, wait_help="Wait until the rescue system runs")
    parser.add_argument(
        "--key",
        action="append",
        required=True,
        metavar="FILE",
        help="Let the OpenSSH public key in this file log in as root. Repeatable",
    )
    parser.add_argument(
        "--minutes",
        type=flags.checked(flags.number),
        metavar="N",
        help="End the rescue after this many minutes (default 60, at most 1440)",
    )


def _firmware_arguments(parser: ArgumentParser) -> None:
    _verb_arguments(parser)
    parser.add_argument("--image-uri", required=True, metavar="URL", help="Let the BMC load the image from this URL")
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="ID",
        help="Update this member of the BMC's FirmwareInventory (default: the image decides). Repeatable",
    )


def _counter_arguments(parser: ArgumentParser) -> None:
    _machine_argument(parser)
    flags.add_wait(parser, default=True)


def _repave_arguments(parser: ArgumentParser) -> None:
    _counter_arguments(parser)
    flags.add_force(parser, "the name of the Machine")


def _pausing_arguments(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("machine", nargs="?", default="", metavar="MACHINE", help="Name the Machine")
    which.add_argument("--all", action="store_true", help="Pause or resume operations on all Machines")


def _pause_arguments(parser: ArgumentParser) -> None:
    _pausing_arguments(parser)
    parser.add_argument("--reason", default="", metavar="TEXT", help="Record the reason of the pause")


def _drain_arguments(parser: ArgumentParser) -> None:
    _machine_argument(parser)
    parser.add_argument("--reason", default="", metavar="TEXT", help="Record the reason of the maintenance")
    flags.add_wait(parser, default=True, help="Wait until the Node is drained")


def _return_arguments(parser: ArgumentParser) -> None:
    _machine_argument(parser)
    flags.add_wait(parser, default=True, help="Wait until the Node is usable again")


def _maintenance_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("state", choices=("on", "off"), help="Begin or end the maintenance")
    _machine_argument(parser)
    parser.add_argument("--reason", default="", metavar="TEXT", help="Record the reason of the maintenance")
    flags.add_wait(parser, default=False, help="Wait until the Node is drained, or usable again")


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
        "Restart the node on a Machine, not its host",
        _verb_arguments,
        _VERBS,
        ("web-01", "restart the node, and wait until it is back"),
    ),
    _row(
        "host-reboot",
        "Reboot the host of a Machine",
        _stopping_arguments,
        _VERBS,
        ("web-01", "let the host shut down, and reboot it"),
        ("web-01 --now --wait=false", "switch it off and on at once; do not wait"),
    ),
    _row(
        "power-off",
        "Switch the host of a Machine off",
        _stopping_arguments,
        _VERBS,
        ("web-01 --grace 5m", "give the host five minutes to shut down"),
    ),
    _row(
        "power-on",
        "Switch the host of a Machine on",
        _verb_arguments,
        _VERBS,
        ("web-01", "switch it on, and wait"),
    ),
    _row(
        "agent-upgrade",
        "Replace the agent on a Machine with another release",
        _upgrade_arguments,
        _VERBS,
        (
            "web-01 --download-url https://example.com/unbounded-agent-linux-amd64.tar.gz",
            "upgrade the agent; an unhealthy one is rolled back",
        ),
    ),
    _row(
        "agent-reset",
        "Remove the agent and its node from a Machine",
        _destroying_arguments,
        _VERBS,
        ("web-01", "ask for the name, and restore the host's state before the agent"),
    ),
    _row(
        "replace",
        "Reinstall the host of a Machine from its image",
        _replace_arguments,
        _VERBS,
        ("web-01", "ask for the name, and delete everything on its disk"),
        ("rack1-01 --accept-pcr 0 --accept-pcr 1", "accept new measurements of the firmware, such as after its update"),
        ("rack1-01 --erase-disk PHYF001200AB480BGN", "show the data of others on a disk, and let the install erase it"),
    ),
    _row(
        "inspect",
        "Boot the installer on a Machine's host, which reports its hardware and writes nothing",
        _verb_arguments,
        _VERBS,
        ("rack1-01", "restart the host into the installer, and restore its power state afterwards"),
    ),
    _row(
        "erase",
        "Erase disks of a Machine that leaves, and switch its host off",
        _erase_arguments,
        _VERBS,
        ("rack1-01 --all", "show the contents of its local disks, ask for the name, and wait"),
        ("rack1-01 --disk PHYF001200AB480BGN --wait=false", "erase one disk; do not wait"),
        text=(
            "Erase disks of a Machine that leaves, and switch its host off. Its Node must not exist, or be drained. "
            "The operation stays with its report, also after the Machine; `machine operation report` prints it."
        ),
    ),
    _row(
        "rescue",
        "Boot a Machine's host into a rescue system with an SSH server",
        _rescue_arguments,
        ("verbs:rescue", "verbs:intend"),
        (
            "rack1-01 --key ~/.ssh/id_ed25519.pub",
            "restart the host into the rescue system; print the command to connect and the host key",
        ),
        (
            "rack1-01 --key alice.pub --key bob.pub --minutes 240",
            "run the rescue system for four hours, or until the operation is cancelled",
        ),
    ),
    _row(
        "bmc-reset",
        "Restart the BMC of a Machine; the host stays as it is",
        _verb_arguments,
        _VERBS,
        ("rack1-01", "restart the BMC, and wait until it answers again"),
    ),
    _row(
        "firmware-update",
        "Let the BMC of a Machine update firmware from an image",
        _firmware_arguments,
        _VERBS,
        (
            "rack1-01 --image-uri https://images.example.com/BIOS-2.5.0.bin --target BIOS",
            "load the image, and wait for the end of the BMC's task",
        ),
    ),
    _row(
        "bmc-rotate-password",
        "Give the BMC of a Machine a new password, and store it in the Secret of the Machine's passwordRef",
        _verb_arguments,
        _VERBS,
        ("rack1-01", "set a generated password, log in with it, and remove the former one from the Secret"),
    ),
    _row(
        "reboot",
        "Reboot a Machine with its counter (spec.operations.rebootCounter)",
        _counter_arguments,
        _COUNTING,
        ("rack1-01", "increase the counter, and wait until it is reached"),
    ),
    _row(
        "repave",
        "Write the image of a Machine again with its counter (spec.operations.repaveCounter)",
        _repave_arguments,
        _COUNTING,
        ("rack1-01 --timeout 1h", "ask for the name, and delete everything on its disk"),
    ),
    _row(
        "drain",
        "Drain the Node of a Machine, and keep it drained (spec.maintenance)",
        _drain_arguments,
        _MAINTAINING,
        ('web-01 --reason "new memory"', "evict its pods within their budgets, and wait until it is drained"),
    ),
    _row(
        "return",
        "End the maintenance of a Machine, so that its Node is used again",
        _return_arguments,
        _MAINTAINING,
        ("web-01", "wait until its Node is Ready and uncordoned"),
    ),
    _row(
        "maintenance",
        "Begin or end the maintenance of a Machine, without a wait",
        _maintenance_arguments,
        _MAINTAINING,
        ('on web-01 --reason "new memory"', "begin the maintenance; its Node is drained"),
        ("off web-01", "end the maintenance; its Node is uncordoned"),
    ),
    _row(
        "pause",
        "Pause operations on a Machine, or on all",
        _pause_arguments,
        _PAUSING,
        ('web-01 --reason "new disk"', "start no operation on it; those in progress continue"),
        ("--all", "start no operation on any Machine"),
    ),
    _row(
        "resume",
        "End the pause of a Machine, or of all",
        _pausing_arguments,
        _PAUSING,
        ("web-01", "let waiting operations start"),
    ),
    _row(
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
    _row(
        "operation list",
        "List operations",
        _list_arguments,
        ("list_operations:run",),
        ("--phase InProgress", "list operations in progress"),
        ("--machine web-01 -o wide", "list operations on a Machine, with reasons"),
        needs_api=False,
    ),
    _row(
        "operation wait",
        "Wait until an operation has ended",
        _wait_arguments,
        ("cancel:wait",),
        ("reboot-rack1 --timeout 30m", "wait up to 30 minutes; exit status 0: complete, 1: failed, 3: timeout"),
    ),
    _row(
        "operation report",
        "Print the report of an erasure that has ended",
        _operation_argument,
        ("erasure:report_erasure",),
        (
            "rack1-01-erase-20261128-120000 -o json",
            "print each disk with methods, verification and times, for an auditor",
        ),
    ),
    _row(
        "operation cancel",
        "Cancel an operation where it can stop",
        _cancel_arguments,
        ("cancel:cancel", "cancel:intend_cancel"),
        ("reboot-rack1", "cancel it; targets in progress reach a safe end first"),
    ),
    _row(
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
