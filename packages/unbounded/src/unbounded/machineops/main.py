"""Entry point of the process `machine-ops-controller`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from unbounded.kube.options import SettingsError
from unbounded.kube.process_tuning import freeze_imports
from unbounded.kube.settings import add_version
from unbounded.machineops.settings import CANNOT_SERVE, COMPONENT, add_arguments, parse_settings

DESCRIPTION = "Execute host operations on cloud VMs, for the Machines of sites and providers."


def main(arguments: Sequence[str] | None = None) -> int:
    environ = dict(os.environ)
    parser = argparse.ArgumentParser(prog=COMPONENT, description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    controller = commands.add_parser("controller", help="Run the controller", description=DESCRIPTION)
    commands.add_parser("providers", help="Print the installed providers, and why a provider cannot be served")
    commands.add_parser("version", help="Print the version")
    add_version(parser, commands=commands.choices.values())
    try:
        add_arguments(controller, environ)
        args = parser.parse_args(arguments)
        if args.command == "version":
            return _version()
        if args.command == "providers":
            return _providers()
        settings, process = parse_settings(args, environ)
    except ValueError as error:
        parser.error(str(error))
    try:
        with freeze_imports():  # only after the arguments were validated: SDKs are imported as well
            from unbounded.machineops.installed_providers import load_served  # noqa: PLC0415

            served = load_served(settings.provider)
            from unbounded.kube.process import Runtime, run_process  # noqa: PLC0415
            from unbounded.machineops.controller import run  # noqa: PLC0415
    except SettingsError as error:
        print(f"{COMPONENT}: error: {error}", file=sys.stderr)  # not an error of usage, so usage would not help
        return CANNOT_SERVE

    async def main_of(runtime: Runtime) -> None:
        served.log_unserved()
        await run(runtime, settings, served.providers)

    return run_process(process, environ, main_of)


def _providers() -> int:
    from unbounded.machineops.installed_providers import installed, load_all  # noqa: PLC0415

    unserved = load_all().unserved
    for name, entries in installed().items():
        why = f": not served: {unserved[name]}" if name in unserved else ""
        print(f"{name} ({', '.join(sorted({one.value for one in entries}))}){why}")
    return 0


def _version() -> int:
    from importlib.metadata import version  # noqa: PLC0415

    print(f"{COMPONENT} {version('unbounded')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
