"""About the program itself."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Final

from unbounded.cli.plugin.command import CliCommand


def _version_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--client", action="store_true", help="this program's only; no cluster is asked")


def _completion_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash",), help="what is to be completed in")


COMMANDS: Final = (
    CliCommand(
        ("version",),
        "print the version of this program, and of the cluster",
        (("version --client", "of this program only"),),
        _version_arguments,
        "unbounded.cli.operate.about:version",
        needs_api=False,
    ),
    CliCommand(
        ("completion",),
        "print what a shell needs to complete the commands of `unbounded`",
        (("completion bash", "for ~/.bashrc: source <(unbounded completion bash)"),),
        _completion_arguments,
        "unbounded.cli.operate.about:completion",
        needs_api=False,
        text=(
            "Print what a shell needs to complete the commands of `unbounded`. For `kubectl unbounded …` nothing is"
            " needed but kubectl's own completion: it asks the program kubectl_complete-unbounded beside this one."
        ),
    ),
)
