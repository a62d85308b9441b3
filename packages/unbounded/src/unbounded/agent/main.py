"""The program `unbounded-agent`.

The arguments are parsed first, and a command's modules are imported only when the command runs: `version` answers at
once. Exit status: 0 done, 1 not done (stderr has cause and remedy), 2 wrong arguments, 130 interrupted by a signal.

Each command is a row of COMMANDS. A row's `run` imports its module and passes arguments and environment; no module
below reads either.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unbounded.agent import INTERRUPTED
from unbounded.kube.process_tuning import freeze_imports
from unbounded.kube.settings import add_version

if TYPE_CHECKING:
    from unbounded.agent.preflight.report import IgnoredChecks

DESCRIPTION = "Make a host a node of a cluster, and maintain it."


@dataclass(frozen=True)
class AgentInvocation:
    """Arguments and environment of this process."""

    args: argparse.Namespace
    environ: Mapping[str, str]

    @property
    def colour(self) -> bool:
        """True where colours are printed: stdout is a terminal, without --no-color and NO_COLOR."""
        return not self.args.no_color and not self.environ.get("NO_COLOR") and sys.stdout.isatty()


@dataclass(frozen=True)
class AgentCommand:
    """One command of the program.

    Args:
        help: one line; a command without it is not listed.
        root: the command changes the host and requires root.
    """

    help: str
    run: Callable[[AgentInvocation], int]
    arguments: Callable[[argparse.ArgumentParser], None] = lambda _parser: None
    root: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    environ = dict(os.environ)
    args = _parser().parse_args(arguments)
    command = COMMANDS[args.command]
    if command.root and os.geteuid() != 0:
        print(f"error: `{args.command}` changes this host: run it as root, for example with sudo", file=sys.stderr)
        return 1
    try:
        return command.run(AgentInvocation(args, environ))
    except KeyboardInterrupt:  # before run_to_end handles signals
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="unbounded-agent", description=DESCRIPTION)
    parser.add_argument("--debug", action="store_true", help="Log observations, too")
    parser.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="Set the format of the logs on stderr"
    )
    parser.add_argument("--no-color", action="store_true", help="Print plain text, also on a terminal")
    listed = ",".join(name for name, command in COMMANDS.items() if command.help)
    commands = parser.add_subparsers(dest="command", required=True, metavar=f"{{{listed}}}")
    for name, command in COMMANDS.items():
        if command.help:
            own = commands.add_parser(name, help=command.help, description=f"{command.help.capitalize()}.")
        else:
            own = commands.add_parser(name)
        command.arguments(own)
    add_version(parser, _running_version, commands.choices.values())
    return parser


def _running_version() -> str:
    from unbounded.agent.build import this_build  # noqa: PLC0415

    return this_build().version


def _config_argument(parser: argparse.ArgumentParser) -> None:
    text = "Read the agent's configuration from this JSON file (default: $UNBOUNDED_AGENT_CONFIG_FILE)"
    parser.add_argument("--config", type=Path, metavar="FILE", help=text)


def _checks_arguments(parser: argparse.ArgumentParser) -> None:
    text = "Ignore the errors of these checks: a comma-separated list, or all"
    parser.add_argument("--ignore-preflight-errors", type=_ignored, metavar="NAMES", help=text)
    parser.add_argument("--fail-on-warnings", action="store_true", help="Treat warnings as errors")


def _ignored(text: str) -> IgnoredChecks:
    from unbounded.agent.preflight.report import IgnoredChecks  # noqa: PLC0415

    try:
        return IgnoredChecks.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _output_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", choices=("text", "json"), default="text")


def _start_arguments(parser: argparse.ArgumentParser) -> None:
    _config_argument(parser)
    _checks_arguments(parser)


def _start(invocation: AgentInvocation) -> int:
    with freeze_imports():
        from unbounded.agent import start  # noqa: PLC0415
        from unbounded.agent.preflight.report import IgnoredChecks  # noqa: PLC0415

        _log_as(invocation)
    checks = start.PreflightOptions(
        invocation.args.ignore_preflight_errors or IgnoredChecks(), invocation.args.fail_on_warnings
    )
    return start.run(invocation.args.config, invocation.environ, checks=checks, colour=invocation.colour)


def _reset(invocation: AgentInvocation) -> int:
    from unbounded.agent.reset import run  # noqa: PLC0415

    _log_as(invocation)
    return run()


def _daemon(invocation: AgentInvocation) -> int:
    with freeze_imports():
        from unbounded.agent.daemon.daemon import run_daemon  # noqa: PLC0415

        _log_as(invocation)
    return run_daemon(invocation.environ)


def _log_as(invocation: AgentInvocation) -> None:
    from unbounded.kube.logs import configure  # noqa: PLC0415

    configure(json=invocation.args.log_format == "json", level="DEBUG" if invocation.args.debug else "INFO")


def _preflight_arguments(parser: argparse.ArgumentParser) -> None:
    _config_argument(parser)
    _checks_arguments(parser)
    _output_argument(parser)


def _preflight(invocation: AgentInvocation) -> int:
    from unbounded.agent.preflight.run import run  # noqa: PLC0415

    return run(
        invocation.args.config,
        invocation.environ,
        ignored=invocation.args.ignore_preflight_errors,
        fail_on_warnings=invocation.args.fail_on_warnings,
        json=invocation.args.output == "json",
        colour=invocation.colour,
    )


def _status(invocation: AgentInvocation) -> int:
    from unbounded.agent.host_status import run  # noqa: PLC0415

    return run(json=invocation.args.output == "json")


def _version(_: AgentInvocation) -> int:
    print(f"unbounded-agent {_running_version()}")
    return 0


def _self_check(_: AgentInvocation) -> int:
    from unbounded.agent.build import load_everything  # noqa: PLC0415

    print("\n".join(load_everything()))
    return 0


COMMANDS: Final[Mapping[str, AgentCommand]] = {
    "start": AgentCommand("Make this host a node, or repair it; safe to repeat", _start, _start_arguments, root=True),
    "daemon": AgentCommand("Manage the node of this host; systemd runs this command", _daemon, root=True),
    "reset": AgentCommand("Remove everything that start installed, and revert its changes", _reset, root=True),
    "preflight": AgentCommand(
        "Check whether this host can become a node, without changes", _preflight, _preflight_arguments
    ),
    "status": AgentCommand("Print the state of the agent and the node on this host", _status, _output_argument),
    "version": AgentCommand("Print the version", _version),
    "self-check": AgentCommand(
        "", _self_check
    ),  # checks that a release is complete: imports and prints all its modules
}


if __name__ == "__main__":
    sys.exit(main())
