"""`kubectl unbounded config …`."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Final

from unbounded.cli.commands.install import add_dry_run
from unbounded.cli.plugin.command import CliCommand
from unbounded.cli.plugin.flags import checked, integer


def _create(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the MachineConfiguration")
    parser.add_argument("--agent-image", required=True, metavar="IMAGE", help="root file system of its nodes")
    parser.add_argument("--kubernetes-version", default="", metavar="VERSION", help="of its nodes (the cluster's)")
    parser.add_argument("--node-labels", action="append", default=[], metavar="KEY=VALUE,…", help="of its Nodes")
    parser.add_argument("--taints", action="append", default=[], metavar="KEY=VALUE:EFFECT,…", help="of its Nodes")
    parser.add_argument(
        "--settings",
        default="",
        metavar="FILE",
        help="YAML with kubelet, containerd, proxy, caBundle, sysctl",
    )
    parser.add_argument(
        "--update-strategy",
        choices=("OnDelete",),
        default="OnDelete",
        help="when nodes move to a new version (%(default)s)",
    )
    parser.add_argument(
        "--priority", type=checked(integer), default=0, metavar="N", help="the highest counts of several (0)"
    )
    parser.add_argument(
        "-l", "--selector", default="", metavar="LABELS", help="the Machines that it is for, such as a=b,c!=d"
    )
    add_dry_run(parser)


def _get(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="of one (all)")


def _versions(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the MachineConfiguration")


def _assign(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the MachineConfiguration")
    parser.add_argument("machines", nargs="+", metavar="MACHINE", help="that are to have it")
    parser.add_argument(
        "--version",
        type=checked(_number),
        default=None,
        metavar="N",
        help="of it (the newest, whenever a node is made)",
    )


def _number(text: str) -> int:
    digits = text.removeprefix("v")
    if not digits.isascii() or not digits.isdigit() or not 1 <= int(digits) < 2**31:
        raise ValueError(f"{text!r} is no version of a configuration, such as 3")
    return int(digits)


COMMANDS: Final = (
    CliCommand(
        path=("config", "create"),
        help="make a MachineConfiguration: what nodes of some machines are made from",
        examples=(
            (
                "config create workers --agent-image registry.example.com/agent:v1 --kubernetes-version v1.34.0"
                " --selector pool=workers",
                "for all Machines with the label pool=workers",
            ),
        ),
        arguments=_create,
        run="unbounded.cli.deploy.configurations:create",
        intend="unbounded.cli.deploy.configurations:intend_create",
    ),
    CliCommand(
        path=("config", "get"),
        help="show MachineConfigurations",
        examples=(("config get", "all of them"), ("config get workers -o yaml", "one, whole")),
        arguments=_get,
        run="unbounded.cli.deploy.configurations:get",
    ),
    CliCommand(
        path=("config", "versions"),
        help="show the versions of a MachineConfiguration, and how many machines use each",
        examples=(("config versions workers", "the newest last"),),
        arguments=_versions,
        run="unbounded.cli.deploy.configurations:versions",
    ),
    CliCommand(
        path=("config", "assign"),
        help="bind machines to a MachineConfiguration, or to one version of it",
        examples=(
            ("config assign workers rack1-01 rack1-02", "to whichever version is the newest when a node is made"),
            ("config assign workers rack1-01 --version 3", "to that version"),
        ),
        arguments=_assign,
        run="unbounded.cli.deploy.configurations:assign",
        intend="unbounded.cli.deploy.configurations:intend_assign",
    ),
)
