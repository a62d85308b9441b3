"""The command `unbounded`: a control plane on this machine, and all commands of `kubectl unbounded`.

The modules of a command are imported only when the command runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Final

from unbounded.kube.settings import add_version

API_SERVER: Final = "unbounded_apiserver"
LAB: Final = "unbounded_lab"
CONSOLE: Final = "nicegui"
_EXTRAS: Final = {
    API_SERVER: ("unbounded-apiserver", "up"),
    LAB: ("unbounded-lab", "lab"),
    CONSOLE: ("nicegui", "console"),
}


def require(module: str, command: str) -> None:
    """Check that a package is installed.

    Raises:
        ValueError: it is absent; the message names the extra to install.
    """
    if find_spec(module) is None:
        distribution, extra = _EXTRAS[module]
        raise ValueError(
            f"{command} needs the package {distribution}, which is not installed: pip install 'unbounded[{extra}]'"
        )


BACKUP = (
    "Write the objects and keys of a data directory to one file that only its owner can read. A "
    "running server may use the data meanwhile: the backup is a consistent snapshot."
)
RESTORE = (
    "Replace the objects and keys of a data directory with those of a backup. Stop the server first. "
    "The former data is moved aside."
)
MIGRATE = (
    "Move the control plane of a data directory to a cluster: objects with their status and Secrets, "
    "and the agents. The command prints the plan first. Run it again to continue an interrupted "
    "migration."
)
UP = "Start a control plane on this machine: a Kubernetes API, and all controllers of Unbounded."


LOCAL: Final = {  # beside the plugin's commands
    "up": "Start a control plane on this machine",
    "lab bmc": "Simulate BMCs with hosts, for trials without hardware",
    "lab cloud": "Simulate a cloud with machines, for trials without an account",
    "backup": "Write the data of a control plane to a file",
    "restore": "Restore a backup",
    "migrate": "Move a control plane to a cluster",
}


SIMULATORS: Final = {"bmc": "BMCs with hosts behind them", "cloud": "a cloud with machines in it"}


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in _COMMANDS:
        return _local(given)
    from unbounded.cli.plugin.main import main as plugin  # noqa: PLC0415

    return plugin(given, program="unbounded", others=LOCAL)


def _local(given: list[str]) -> int:
    environ = dict(os.environ)
    if given[:1] == ["lab"] and given[1:2] and given[1] in SIMULATORS:
        return _simulate(given[1], given[2:])
    command, rest = given[0], given[1:]
    about, add_arguments, run = _COMMANDS[command]
    parser = argparse.ArgumentParser(prog=f"unbounded {command}", description=about)
    add_version(parser)
    try:
        add_arguments(parser, environ)
        return run(parser.parse_args(rest), environ)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:  # raised before the command has anything to stop
        return 130


def _up_arguments(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    from unbounded.cli.settings import add_up_arguments  # noqa: PLC0415  # its flags are many, and metalman's too

    add_up_arguments(parser, environ)


def _lab_arguments(parser: argparse.ArgumentParser, _: Mapping[str, str]) -> None:
    simulators = parser.add_subparsers(required=True, metavar="SIMULATOR")
    for simulator, about in SIMULATORS.items():
        simulators.add_parser(simulator, help=about)


def _backup_arguments(parser: argparse.ArgumentParser, _: Mapping[str, str]) -> None:
    from unbounded.cli.settings import add_backup_arguments  # noqa: PLC0415

    add_backup_arguments(parser)


def _restore_arguments(parser: argparse.ArgumentParser, _: Mapping[str, str]) -> None:
    from unbounded.cli.settings import add_restore_arguments  # noqa: PLC0415

    add_restore_arguments(parser)


def _migrate_arguments(parser: argparse.ArgumentParser, _: Mapping[str, str]) -> None:
    from unbounded.cli.settings import add_migrate_arguments  # noqa: PLC0415

    add_migrate_arguments(parser)


def _up(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from unbounded.cli.settings import up_settings_of  # noqa: PLC0415
    from unbounded.kube.process_tuning import freeze_imports  # noqa: PLC0415

    settings = up_settings_of(args)
    require(API_SERVER, "unbounded up")
    if settings.lab:
        require(LAB, "unbounded up --lab")
    if settings.console is not None:
        require(CONSOLE, "unbounded up --console")
    with freeze_imports():
        from unbounded.cli.up import run  # noqa: PLC0415  # not before the arguments are known to be right

    return run(settings, environ)


def _simulate(simulator: str, arguments: Sequence[str]) -> int:
    """Run a simulator; its module defines its arguments."""
    import asyncio  # noqa: PLC0415
    from importlib import import_module  # noqa: PLC0415

    parser = argparse.ArgumentParser(prog=f"unbounded lab {simulator}")
    try:
        require(LAB, parser.prog)
    except ValueError as error:
        parser.error(str(error))
    command = import_module(f"{LAB}.{simulator}.__main__")
    parser.description = command.DESCRIPTION
    command.add_arguments(parser)
    add_version(parser)
    status: int = asyncio.run(command.run(parser.parse_args(arguments), sys.stdout))
    return status


def _backup(args: argparse.Namespace, _: Mapping[str, str]) -> int:
    require(API_SERVER, "unbounded backup")
    from unbounded.cli.backup_commands import run_backup  # noqa: PLC0415

    return run_backup(args.data, args.file, force=args.force)


def _restore(args: argparse.Namespace, _: Mapping[str, str]) -> int:
    require(API_SERVER, "unbounded restore")
    from unbounded.cli.backup_commands import run_restore  # noqa: PLC0415

    return run_restore(args.data, args.file)


def _migrate(args: argparse.Namespace, _: Mapping[str, str]) -> int:
    from unbounded.cli.settings import migrate_settings_of  # noqa: PLC0415

    settings = migrate_settings_of(args)
    require(API_SERVER, "unbounded migrate")
    from unbounded.cli.migrate.run import run  # noqa: PLC0415  # not before the arguments are known to be right

    return run(settings)


def _lab(_: argparse.Namespace, __: Mapping[str, str]) -> int:
    raise AssertionError("the parser requires a simulator, and each is handled above")


Arguments = Callable[[argparse.ArgumentParser, Mapping[str, str]], None]
Run = Callable[[argparse.Namespace, Mapping[str, str]], int]

_COMMANDS: Final[Mapping[str, tuple[str, Arguments, Run]]] = {
    "up": (UP, _up_arguments, _up),
    "lab": ("Simulate hardware and clouds, for trials without them.", _lab_arguments, _lab),
    "backup": (BACKUP, _backup_arguments, _backup),
    "restore": (RESTORE, _restore_arguments, _restore),
    "migrate": (MIGRATE, _migrate_arguments, _migrate),
}


if __name__ == "__main__":
    sys.exit(main())
