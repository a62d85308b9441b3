"""The flag --version of a process. Light: the version is looked up when it is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class _PrintVersion(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002  # as argparse calls it
        values: str | Sequence[Any] | None,  # noqa: ARG002
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        from importlib.metadata import version  # noqa: PLC0415

        print(f"{parser.prog} {version('unbounded')}")
        parser.exit()


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add --version, which prints the name of the program and its version."""
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version")
