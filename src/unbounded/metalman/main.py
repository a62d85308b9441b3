"""The process `metalman`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial

from unbounded.metalman.settings import add_arguments, process_settings_of, settings_of

DESCRIPTION = "Bare metal: host operations over Redfish, for the Machines of a site."


def main(arguments: Sequence[str] | None = None) -> int:
    environ = dict(os.environ)
    parser = argparse.ArgumentParser(prog="metalman", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    controller = commands.add_parser("controller", help="carry out host operations", description=DESCRIPTION)
    commands.add_parser("version", help="print the version")
    try:
        add_arguments(controller, environ)
    except ValueError as error:
        parser.error(str(error))
    args = parser.parse_args(arguments)
    if args.command == "version":
        return _version()
    from unbounded.kube.process import run_process  # noqa: PLC0415  # not before the arguments are known to be right
    from unbounded.metalman.controller import run  # noqa: PLC0415

    return run_process(process_settings_of(args), environ, partial(run, settings=settings_of(args)))


def _version() -> int:
    from importlib.metadata import version  # noqa: PLC0415

    print(f"metalman {version('unbounded')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
