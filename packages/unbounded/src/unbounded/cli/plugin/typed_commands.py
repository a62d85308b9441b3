"""Commands as words, for a program that offers them beside the command line: the intent of one, and its writes.

The words are those that a user would type, so that such a program can show them.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from unbounded.cli.plugin.command import MANAGER, USAGE, CliCommand, CliError, CliInvocation, CommandSession, Intend
from unbounded.cli.plugin.intents import write_creation, write_patch
from unbounded.cli.plugin.output import printer_for
from unbounded.cli.plugin.parsing import CommandMatch, arguments_of, commands, find, loaded
from unbounded.plan.intent import Intent, Raw

if TYPE_CHECKING:
    from unbounded.kube.client import HttpApi

PROGRAM: Final = "kubectl unbounded"
LOGIN_FLAGS: Final = ("kubeconfig", "context", "as_user", "as_groups", "as_uid")


async def intent_of_words(api: HttpApi, words: Sequence[str]) -> Intent:
    """Return the writes of a command, such as ("machine", "host-reboot", "m1"); nothing is written.

    Args:
        words: made by the program, with values of the user in places where no flag can stand: some commands read files.

    Raises:
        CliError: no command with an intent has these words, an argument is invalid, or the command would be rejected.
        ApiError: an object that the command has to know cannot be read.
    """
    command, rest = command_with_intent(words)
    args = arguments_of(command, rest, program=PROGRAM, exits=False)
    if given := next((name for name in LOGIN_FLAGS if getattr(args, name)), None):
        raise CliError(f"--{given.replace('_', '-')}: the login is that of the caller", status=USAGE)
    nowhere = io.StringIO()
    invocation = CliInvocation(args, {}, nowhere, nowhere, io.StringIO(), colour=False, terminal=False)
    session = CommandSession(invocation, api, printer_for(invocation))
    return await cast("Intend", loaded(command.intend))(session)


def command_with_intent(words: Sequence[str]) -> tuple[CliCommand, tuple[str, ...]]:
    """Return the command with these words, and its arguments. Raises CliError for one without an intent."""
    found = find(commands(), words)
    if isinstance(found, CommandMatch) and found.command.intend:
        return found.command, found.words
    there = ", ".join(" ".join(command.path) for command in commands() if command.intend)
    raise CliError(
        f"--plan does not support {' '.join(words) or 'no command'}",
        next_step=f"supported commands: {there}",
        status=USAGE,
    )


async def perform_intent(api: HttpApi, intent: Intent, *, manager: str = MANAGER) -> list[Raw]:
    """Perform the writes of an intent, and return the written objects. The caller has the user's consent.

    Raises:
        ApiError: the API rejected a write; those before it were done.
    """
    done = [await write_patch(api, patch, manager=manager) for patch in intent.patches]
    return done + [await write_creation(api, manifest, manager=manager) for manifest in intent.creates]
