"""`kubectl unbounded uninstall` and `kubectl unbounded token revoke`."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Final

from unbounded.cli.plugin.command import CliCommand
from unbounded.cli.plugin.flags import add_force


def _uninstall(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--delete-data",
        action="store_true",
        help="delete definitions with all their objects, Secrets and the namespace too; nothing brings them back",
    )
    add_force(parser, "the name of the namespace")


def _revoke(parser: ArgumentParser) -> None:
    parser.add_argument("tokens", nargs="*", metavar="TOKEN", help="id of a token, such as abcdef")
    parser.add_argument("--site", default="", metavar="SITE", help="revoke all tokens of this site")
    add_force(parser, "the names of the tokens")


COMMANDS: Final = (
    CliCommand(
        path=("uninstall",),
        help="take back what `install` and `site` brought to a cluster that has no Machine left",
        text=(
            "Delete the controllers, policies and rights that `install`, `site init` and `site deploy-pxe` brought. "
            "Definitions and Secrets stay, and are listed, without --delete-data. It is refused while Machines exist. "
            "A second run deletes nothing."
        ),
        examples=(
            ("uninstall", "after its namespace was typed: the controllers, policies and rights"),
            ("uninstall --delete-data --force", "definitions, Secrets and the namespace too, without asking"),
        ),
        arguments=_uninstall,
        run="unbounded.cli.deploy.uninstall:run",
    ),
    CliCommand(
        path=("token", "revoke"),
        help="delete bootstrap tokens, so that no other host joins with them",
        text=(
            "Delete bootstrap tokens, by id or all of a site. Hosts that have joined keep their certificates. "
            "A token that another tool made is refused."
        ),
        examples=(
            ("token revoke abcdef --force", "one token, without asking"),
            ("token revoke --site rack1", "all tokens of a site"),
        ),
        arguments=_revoke,
        run="unbounded.cli.deploy.revoke:revoke",
    ),
)
