"""Commands that act on one Machine: the short verbs that create an operation, counters, pause and maintenance."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Final

from unbounded.cli.command_tables.operation import row
from unbounded.cli.plugin import flags

TTL_S: Final = 300  # of the operations that the short verbs make
_VERBS: Final = ("verbs:run", "verbs:intend")
_COUNTING: Final = ("machine_counters:run", "machine_counters:intend")
_MAINTAINING: Final = ("maintenance:run", "maintenance:intend")
_PAUSING: Final = ("pause:run", "pause:intend")


def _machine_argument(parser: ArgumentParser) -> None:
    parser.add_argument("machine", metavar="MACHINE", help="Name the Machine")


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


COMMANDS: Final = (
    row(
        "node-reboot",
        "Restart the node on a Machine, not its host",
        _verb_arguments,
        _VERBS,
        ("web-01", "restart the node, and wait until it is back"),
    ),
    row(
        "host-reboot",
        "Reboot the host of a Machine",
        _stopping_arguments,
        _VERBS,
        ("web-01", "let the host shut down, and reboot it"),
        ("web-01 --now --wait=false", "switch it off and on at once; do not wait"),
    ),
    row(
        "power-off",
        "Switch the host of a Machine off",
        _stopping_arguments,
        _VERBS,
        ("web-01 --grace 5m", "give the host five minutes to shut down"),
    ),
    row(
        "power-on",
        "Switch the host of a Machine on",
        _verb_arguments,
        _VERBS,
        ("web-01", "switch it on, and wait"),
    ),
    row(
        "agent-upgrade",
        "Replace the agent on a Machine with another release",
        _upgrade_arguments,
        _VERBS,
        (
            "web-01 --download-url https://example.com/unbounded-agent-linux-amd64.tar.gz",
            "upgrade the agent; an unhealthy one is rolled back",
        ),
    ),
    row(
        "agent-reset",
        "Remove the agent and its node from a Machine",
        _destroying_arguments,
        _VERBS,
        ("web-01", "ask for the name, and restore the host's state before the agent"),
    ),
    row(
        "replace",
        "Reinstall the host of a Machine from its image",
        _replace_arguments,
        _VERBS,
        ("web-01", "ask for the name, and delete everything on its disk"),
        ("rack1-01 --accept-pcr 0 --accept-pcr 1", "accept new measurements of the firmware, such as after its update"),
        ("rack1-01 --erase-disk PHYF001200AB480BGN", "show the data of others on a disk, and let the install erase it"),
    ),
    row(
        "inspect",
        "Boot the installer on a Machine's host, which reports its hardware and writes nothing",
        _verb_arguments,
        _VERBS,
        ("rack1-01", "restart the host into the installer, and restore its power state afterwards"),
    ),
    row(
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
    row(
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
    row(
        "bmc-reset",
        "Restart the BMC of a Machine; the host stays as it is",
        _verb_arguments,
        _VERBS,
        ("rack1-01", "restart the BMC, and wait until it answers again"),
    ),
    row(
        "firmware-update",
        "Let the BMC of a Machine update firmware from an image",
        _firmware_arguments,
        _VERBS,
        (
            "rack1-01 --image-uri https://images.example.com/BIOS-2.5.0.bin --target BIOS",
            "load the image, and wait for the end of the BMC's task",
        ),
    ),
    row(
        "bmc-rotate-password",
        "Give the BMC of a Machine a new password, and store it in the Secret of the Machine's passwordRef",
        _verb_arguments,
        _VERBS,
        ("rack1-01", "set a generated password, log in with it, and remove the former one from the Secret"),
    ),
    row(
        "reboot",
        "Reboot a Machine with its counter (spec.operations.rebootCounter)",
        _counter_arguments,
        _COUNTING,
        ("rack1-01", "increase the counter, and wait until it is reached"),
    ),
    row(
        "repave",
        "Write the image of a Machine again with its counter (spec.operations.repaveCounter)",
        _repave_arguments,
        _COUNTING,
        ("rack1-01 --timeout 1h", "ask for the name, and delete everything on its disk"),
    ),
    row(
        "drain",
        "Drain the Node of a Machine, and keep it drained (spec.maintenance)",
        _drain_arguments,
        _MAINTAINING,
        ('web-01 --reason "new memory"', "evict its pods within their budgets, and wait until it is drained"),
    ),
    row(
        "return",
        "End the maintenance of a Machine, so that its Node is used again",
        _return_arguments,
        _MAINTAINING,
        ("web-01", "wait until its Node is Ready and uncordoned"),
    ),
    row(
        "maintenance",
        "Begin or end the maintenance of a Machine, without a wait",
        _maintenance_arguments,
        _MAINTAINING,
        ('on web-01 --reason "new memory"', "begin the maintenance; its Node is drained"),
        ("off web-01", "end the maintenance; its Node is uncordoned"),
    ),
    row(
        "pause",
        "Pause operations on a Machine, or on all",
        _pause_arguments,
        _PAUSING,
        ('web-01 --reason "new disk"', "start no operation on it; those in progress continue"),
        ("--all", "start no operation on any Machine"),
    ),
    row(
        "resume",
        "End the pause of a Machine, or of all",
        _pausing_arguments,
        _PAUSING,
        ("web-01", "let waiting operations start"),
    ),
)
