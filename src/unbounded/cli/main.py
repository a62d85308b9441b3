"""The command `unbounded`. Parsing comes first; what a command needs is imported when it is known to run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from unbounded.cli.settings import add_archive_arguments, add_up_arguments, up_settings_of

DESCRIPTION = "The control plane for the life of machines that become Kubernetes nodes."
BACKUP = (
    "Write the objects and keys of a data directory to one file, readable by its owner alone. A server may be working"
    " on the data meanwhile: the backup is one consistent state of it."
)
RESTORE = (
    "Replace the objects and keys of a data directory by those of a backup. No server may be working on it. What was"
    " there is kept beside it."
)
UP = "Start a control plane on this machine: a Kubernetes API with everything that looks after Machines behind it."


def main(arguments: Sequence[str] | None = None) -> int:
    environ = dict(os.environ)
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:2] == ["lab", "bmc"]:
        return _lab_bmc(given[2:])
    parser = argparse.ArgumentParser(prog="unbounded", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="a control plane on this machine", description=UP)
    lab = commands.add_parser("lab", help="simulators, to try things without hardware")
    lab.add_subparsers(required=True, metavar="SIMULATOR").add_parser("bmc", help="BMCs with hosts behind them")
    backup = commands.add_parser("backup", help="write the data to a file", description=BACKUP)
    restore = commands.add_parser("restore", help="bring a backup back", description=RESTORE)
    add_archive_arguments(backup, restore)
    commands.add_parser("version", help="print the version")
    try:
        add_up_arguments(up, environ)
        args = parser.parse_args(given)
        return _COMMANDS[args.command](args, environ)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:  # before there is anything to stop
        return 130


def _up(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    settings = up_settings_of(args)
    from unbounded.cli.up import run  # noqa: PLC0415  # not before the arguments are known to be right

    return run(settings, environ)


def _lab_bmc(arguments: Sequence[str]) -> int:
    """The simulators' own arguments come with their code."""
    import asyncio  # noqa: PLC0415

    from unbounded.lab.bmc import command  # noqa: PLC0415

    parser = argparse.ArgumentParser(prog="unbounded lab bmc", description=command.DESCRIPTION)
    command.add_arguments(parser)
    return asyncio.run(command.run(parser.parse_args(arguments), sys.stdout))


def _backup(args: argparse.Namespace, _: Mapping[str, str]) -> int:
    from unbounded.cli.archive import run_backup  # noqa: PLC0415

    return run_backup(args.data, args.file, force=args.force)


def _restore(args: argparse.Namespace, _: Mapping[str, str]) -> int:
    from unbounded.cli.archive import run_restore  # noqa: PLC0415

    return run_restore(args.data, args.file)


def _version(_: argparse.Namespace, __: Mapping[str, str]) -> int:
    from importlib.metadata import version  # noqa: PLC0415

    print(f"unbounded {version('unbounded')}")
    return 0


_COMMANDS: Final = {"up": _up, "backup": _backup, "restore": _restore, "version": _version}


if __name__ == "__main__":
    sys.exit(main())
