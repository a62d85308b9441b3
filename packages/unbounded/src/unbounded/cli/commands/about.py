"""About the program itself."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Final

from unbounded.cli.plugin.command import CliCommand


def _version_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--client", action="store_true", help="Print only the version of this program, without a cluster"
    )


def _completion_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash",), help="Select the shell")


COMMANDS: Final = (
    CliCommand(
        ("version",),
        "Print the version of this program, and of the cluster",
        (("version --client", "print the version of this program only"),),
        _version_arguments,
        "unbounded.cli.operate.about:version",
        needs_api=False,
    ),
    CliCommand(
        ("completion",),
        "Print the completion script of `unbounded` for a shell",
        (("completion bash", "print the script; in ~/.bashrc: source <(unbounded completion bash)"),),
        _completion_arguments,
        "unbounded.cli.operate.about:completion",
        needs_api=False,
        text=(
            "Print the completion script of `unbounded` for a shell. `kubectl unbounded …` needs only "
            "kubectl's own completion, which calls the program kubectl_complete-unbounded beside this one."
        ),
    ),
)
