"""`kubectl unbounded config …`."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Final

from unbounded.cli.command_tables.install import add_dry_run
from unbounded.cli.plugin.command import CliCommand
from unbounded.cli.plugin.flags import checked, integer


def _create(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Set the name of the MachineConfiguration")
    parser.add_argument(
        "--agent-image", required=True, metavar="IMAGE", help="Use this image as the root file system of its nodes"
    )
    parser.add_argument(
        "--kubernetes-version",
        default="",
        metavar="VERSION",
        help="Set the Kubernetes version of its nodes (default: the cluster's)",
    )
    parser.add_argument(
        "--node-labels", action="append", default=[], metavar="KEY=VALUE,…", help="Set a label of its Nodes"
    )
    parser.add_argument(
        "--taints", action="append", default=[], metavar="KEY=VALUE:EFFECT,…", help="Set a taint of its Nodes"
    )
    parser.add_argument(
        "--settings",
        default="",
        metavar="FILE",
        help="Read kubelet, containerd, proxy, caBundle and sysctl from this YAML file",
    )
    parser.add_argument(
        "--update-strategy",
        choices=("OnDelete", "RollingUpdate"),
        default="OnDelete",
        help="Set when nodes move to a new version (default %(default)s)",
    )
    parser.add_argument(
        "--max-unavailable",
        type=checked(integer),
        default=None,
        metavar="N",
        help="Limit the Nodes that a RollingUpdate makes unavailable at a time (default 1)",
    )
    parser.add_argument(
        "--priority",
        type=checked(integer),
        default=0,
        metavar="N",
        help="Set the precedence among several configurations; the highest wins (default 0)",
    )
    parser.add_argument(
        "-l", "--selector", default="", metavar="LABELS", help="Select the Machines with these labels, such as a=b,c!=d"
    )
    add_dry_run(parser)


def _get(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="Print only this one (default: all)")


def _versions(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name the MachineConfiguration")


def _pause(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name the MachineConfiguration with updateStrategy RollingUpdate")


def _assign(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name the MachineConfiguration")
    parser.add_argument("machines", nargs="+", metavar="MACHINE", help="Name the Machines to bind")
    parser.add_argument(
        "--version",
        type=checked(_number),
        default=None,
        metavar="N",
        help="Bind to this version (default: the newest whenever a node is created)",
    )


def _number(text: str) -> int:
    digits = text.removeprefix("v")
    if not digits.isascii() or not digits.isdigit() or not 1 <= int(digits) < 2**31:
        raise ValueError(f"{text!r} is not a version of a configuration, such as 3")
    return int(digits)


COMMANDS: Final = (
    CliCommand(
        path=("config", "create"),
        help="Create a MachineConfiguration: the template of nodes for some machines",
        examples=(
            (
                "config create workers --agent-image registry.example.com/agent:v1 --kubernetes-version v1.34.0"
                " --selector pool=workers",
                "create a configuration for all Machines with the label pool=workers",
            ),
        ),
        arguments=_create,
        run="unbounded.cli.deploy.configurations:create",
        intend="unbounded.cli.deploy.configurations:intend_create",
    ),
    CliCommand(
        path=("config", "get"),
        help="Print MachineConfigurations",
        examples=(
            ("config get", "print all MachineConfigurations"),
            ("config get workers -o yaml", "print one in full"),
        ),
        arguments=_get,
        run="unbounded.cli.deploy.configurations:get",
    ),
    CliCommand(
        path=("config", "versions"),
        help="Print the versions of a MachineConfiguration, and the number of machines that use each",
        examples=(("config versions workers", "print its versions, the newest last"),),
        arguments=_versions,
        run="unbounded.cli.deploy.configurations:versions",
    ),
    CliCommand(
        path=("config", "assign"),
        help="Bind machines to a MachineConfiguration, or to one version of it",
        examples=(
            ("config assign workers rack1-01 rack1-02", "use the newest version whenever a node is created"),
            ("config assign workers rack1-01 --version 3", "use version 3"),
        ),
        arguments=_assign,
        run="unbounded.cli.deploy.configurations:assign",
        intend="unbounded.cli.deploy.configurations:intend_assign",
    ),
    CliCommand(
        path=("config", "pause"),
        help="Pause the rolling update of a MachineConfiguration",
        examples=(("config pause workers", "start no further update, and end drains before an update"),),
        arguments=_pause,
        run="unbounded.cli.deploy.configurations:set_paused",
        intend="unbounded.cli.deploy.configurations:intend_paused",
    ),
    CliCommand(
        path=("config", "resume"),
        help="Continue the rolling update of a MachineConfiguration, and try failed Machines again",
        examples=(
            ("config resume workers", "try failed Machines again, and start further ones"),
            ("config resume workers --plan-hash HASH", "continue only if the plan is still as shown"),
        ),
        arguments=_pause,
        run="unbounded.cli.deploy.configurations:set_paused",
        intend="unbounded.cli.deploy.configurations:intend_paused",
    ),
)
