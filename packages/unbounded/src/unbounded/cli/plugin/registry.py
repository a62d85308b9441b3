"""All commands of the plugin: the rows of every file of `cli/commands`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Final

from unbounded.cli.plugin.command import CliCommand

FILES: Final = ("install", "uninstall", "site", "config", "machine", "operation", "why", "plan", "about")


@cache
def commands() -> tuple[CliCommand, ...]:
    """Return every row, in the order of help."""
    found: list[CliCommand] = []
    for name in FILES:
        found += import_module(f"unbounded.cli.commands.{name}").COMMANDS
    return tuple(found)


def loaded(where: str) -> Any:
    """Import the function that a row names as `module:function`."""
    module, _colon, function = where.partition(":")
    return getattr(import_module(module), function)
