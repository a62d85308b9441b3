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
        help="Delete definitions with all their objects, Secrets and the namespace, too; this cannot be undone",
    )
    add_force(parser, "the name of the namespace")


def _revoke(parser: ArgumentParser) -> None:
    parser.add_argument("tokens", nargs="*", metavar="TOKEN", help="Delete the token with this ID, such as abcdef")
    parser.add_argument("--site", default="", metavar="SITE", help="Revoke all tokens of this site")
    add_force(parser, "the names of the tokens")


COMMANDS: Final = (
    CliCommand(
        path=("uninstall",),
        help="Remove what `install` and `site` created from a cluster without Machines",
        text=(
            "Delete the controllers, policies and RBAC that `install`, `site init` and `site deploy-pxe` "
            "created. Definitions and Secrets stay without --delete-data; the command lists them. It fails "
            "while Machines exist. A second run deletes nothing."
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
        help="Delete bootstrap tokens, so that no further host joins with them",
        text=(
            "Delete bootstrap tokens, by ID or all of a site. Hosts that have joined keep their "
            "certificates. The command does not delete tokens of other tools."
        ),
        examples=(
            ("token revoke abcdef --force", "one token, without asking"),
            ("token revoke --site rack1", "all tokens of a site"),
        ),
        arguments=_revoke,
        run="unbounded.cli.deploy.revoke:revoke",
    ),
)
