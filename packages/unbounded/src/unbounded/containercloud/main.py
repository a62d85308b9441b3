"""Entry point of the process `container-cloud`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from unbounded.containercloud.settings import COMPONENT, add_arguments, parse_settings
from unbounded.kube.process_tuning import freeze_imports
from unbounded.kube.settings import add_version

DESCRIPTION = "Run the controllers of Container Cloud's kinds: hosts, claims, networks, Machines, Clusters and pools."


def main(arguments: Sequence[str] | None = None) -> int:
    environ = dict(os.environ)
    parser = argparse.ArgumentParser(prog=COMPONENT, description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    controller = commands.add_parser("controller", help="Run the controllers", description=DESCRIPTION)
    commands.add_parser("version", help="Print the version")
    add_version(parser, commands=commands.choices.values())
    try:
        add_arguments(controller, environ)
        args = parser.parse_args(arguments)
        if args.command == "version":
            return _version()
        settings, process = parse_settings(args, environ)
    except ValueError as error:
        parser.error(str(error))
    with freeze_imports():  # only after the arguments were validated
        from unbounded.containercloud.controller import run  # noqa: PLC0415
        from unbounded.kube.process import run_process  # noqa: PLC0415

    return run_process(process, environ, lambda runtime: run(runtime, settings))


def _version() -> int:
    from importlib.metadata import version  # noqa: PLC0415

    print(f"{COMPONENT} {version('unbounded')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
