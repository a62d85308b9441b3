"""The flag --version of a process; it reads the version only when it is used."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def installed_version() -> str:
    """Return the version of the package that is installed here."""
    from importlib.metadata import version  # noqa: PLC0415

    return version("unbounded")


class _PrintVersion(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, lookup: Callable[[], str], **others: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **others)
        self._lookup = lookup

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002  # as argparse calls it
        values: str | Sequence[Any] | None,  # noqa: ARG002
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        print(f"{parser.prog} {self._lookup()}")
        parser.exit()


def add_version(
    parser: argparse._ActionsContainer,
    lookup: Callable[[], str] = installed_version,
    commands: Iterable[argparse._ActionsContainer] = (),
) -> None:
    """Add --version, which prints the name of the program and its version; to the parsers of its commands, too.

    Args:
        parser: or a group of its arguments.
        lookup: the version.
    """
    for one in (parser, *commands):
        one.add_argument("--version", action=_PrintVersion, lookup=lookup, help="Print the version")
