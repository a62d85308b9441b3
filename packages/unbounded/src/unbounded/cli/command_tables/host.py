"""`kubectl unbounded host …`: the BareMetalHosts of Container Cloud."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Final

from unbounded.cli.command_tables.install import add_dry_run
from unbounded.cli.plugin.command import CliCommand


def _namespace(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-n", "--namespace", default="", metavar="NAME", help="Use this namespace (default: that of the context)"
    )


def _list(parser: ArgumentParser) -> None:
    _namespace(parser)
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="List the hosts of all namespaces")
    parser.add_argument("-l", "--selector", default="", metavar="LABELS", help="List hosts with these labels")
    parser.add_argument("--available", action="store_true", help="List hosts that a Machine may claim")


def _adopt(parser: ArgumentParser) -> None:
    parser.add_argument("machine", metavar="MACHINE", help="Name the Machine of unbounded-cloud.io")
    _namespace(parser)
    parser.add_argument("--name", default="", metavar="NAME", help="Name the host (default: as the Machine)")
    parser.add_argument(
        "--externally-provisioned",
        action="store_true",
        help="Adopt the Machine as it is: its disks are never written, and only a Machine that pins it may use it",
    )
    parser.add_argument(
        "--label", action="append", default=[], metavar="KEY=VALUE", help="Set a label of the host. Repeatable"
    )
    add_dry_run(parser)


COMMANDS: Final = (
    CliCommand(
        path=("host", "list"),
        help="List BareMetalHosts with their state, their power and their user",
        examples=(
            ("host list -A", "list the hosts of all namespaces"),
            ("host list -n default --available", "list the hosts of a namespace that a Machine may claim"),
        ),
        arguments=_list,
        run="unbounded.cli.hosts:run_list",
    ),
    CliCommand(
        path=("host", "adopt"),
        help="Make an existing Machine a BareMetalHost, which Container Cloud's Machines may claim",
        examples=(
            ("host adopt rack1-01 -n lab", "put a Machine into the stock of namespace lab"),
            ("host adopt rack1-02 -n lab --externally-provisioned", "adopt a running Node, and never write its disks"),
        ),
        arguments=_adopt,
        run="unbounded.cli.hosts:run_adopt",
        intend="unbounded.cli.hosts:intend_adopt",
        text=(
            "Make an existing Machine a BareMetalHost, which Container Cloud's Machines may claim. The Machine keeps "
            "its access to the BMC, and outlasts the host. A claim installs the host again: all data on its disk is "
            "lost. A Machine with SSH, a provider or a Node is adopted with --externally-provisioned only."
        ),
    ),
)
