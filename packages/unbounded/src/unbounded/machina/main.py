"""Entry point of the process `machina`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from unbounded.kube.process_tuning import freeze_imports
from unbounded.kube.settings import add_version
from unbounded.machina.settings import add_arguments, settings_of

DESCRIPTION = (
    "Run the cluster-wide controllers: Machines over SSH, MachineConfigurations, certificates of "
    "agents, and MachineOperations (validation, fan-out, waiting, deadlines, clean-up)."
)


def main(arguments: Sequence[str] | None = None) -> int:
    environ = dict(os.environ)
    parser = argparse.ArgumentParser(prog="machina", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    controller = commands.add_parser("controller", help="Run the controllers", description=DESCRIPTION)
    commands.add_parser("version", help="Print the version")
    add_version(parser, commands=commands.choices.values())
    try:
        add_arguments(controller, environ)
        args = parser.parse_args(arguments)
        if args.command == "version":
            return _version()
        process, settings, without_meaning = settings_of(args, environ)
    except ValueError as error:
        parser.error(str(error))
    with freeze_imports():  # only after the arguments were validated
        from unbounded.kube.process import run_process  # noqa: PLC0415
        from unbounded.machina.controller import run  # noqa: PLC0415

    for key in without_meaning:
        file = args.config or environ.get("MACHINA_CONFIG")
        print(f"warning: {file}: this version ignores {key}", file=sys.stderr)
    return run_process(process, environ, lambda runtime: run(runtime, settings=settings))


def _version() -> int:
    from importlib.metadata import version  # noqa: PLC0415

    print(f"machina {version('unbounded')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
