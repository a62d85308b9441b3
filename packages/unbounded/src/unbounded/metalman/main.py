"""The process `metalman`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial

from unbounded.kube.process_tuning import freeze_imports
from unbounded.kube.settings import add_version
from unbounded.metalman.flags import add_arguments, parse_settings

DESCRIPTION = "Manage the bare-metal Machines of a site: execute host operations over Redfish, and serve network boots."
SERVE_PXE = "Execute host operations, and serve network boots with DHCP, TFTP and HTTP."
CONTROLLER = "Execute host operations without network boots. A site runs either this or serve-pxe."


def main(arguments: Sequence[str] | None = None) -> int:
    environ = dict(os.environ)
    parser = argparse.ArgumentParser(prog="metalman", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve-pxe", help="Execute host operations and serve network boots", description=SERVE_PXE
    )
    controller = commands.add_parser("controller", help="Execute host operations only", description=CONTROLLER)
    commands.add_parser("version", help="Print the version")
    add_version(parser, commands=commands.choices.values())
    try:
        add_arguments(serve, environ, netboot=True)
        add_arguments(controller, environ, netboot=False)
        args = parser.parse_args(arguments)
        if args.command == "version":
            return _version()
        settings, process = parse_settings(args, environ, netboot=args.command == "serve-pxe")
    except ValueError as error:
        parser.error(str(error))
    with freeze_imports():  # only after the arguments were validated
        from unbounded.kube.process import run_process  # noqa: PLC0415
        from unbounded.metalman.controller import run  # noqa: PLC0415

    return run_process(process, environ, partial(run, settings=settings))


def _version() -> int:
    from importlib.metadata import version  # noqa: PLC0415

    print(f"metalman {version('unbounded')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
