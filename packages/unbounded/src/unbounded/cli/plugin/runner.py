"""Execution of one command: opens its session, and turns errors into messages and an exit status."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn, cast

from unbounded.cli.plugin.command import INTERRUPTED, CliCommand, CliInvocation, CommandSession, Run
from unbounded.cli.plugin.output import printer_for
from unbounded.cli.plugin.registry import loaded
from unbounded.cli.plugin.style import PLAIN
from unbounded.kube.gc_tuning import freeze_imports

if TYPE_CHECKING:
    from unbounded.kube.client import HttpApi


async def run_command(command: CliCommand, invocation: CliInvocation) -> int:
    """Run a command; returns the exit status."""
    try:
        return await _run(command, invocation)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        _leave_quietly(invocation)
        return INTERRUPTED
    except Exception as error:
        from unbounded.cli.plugin import errors  # noqa: PLC0415  # most commands go well

        shown = errors.message_of(error, invocation)
        if shown is None:
            raise
        return errors.print_error(shown, invocation.err, invocation.style if invocation.err.isatty() else PLAIN)


async def _run(command: CliCommand, invocation: CliInvocation) -> int:
    status = await _in_session(command, invocation)
    invocation.out.flush()  # an error here would otherwise occur at Python's exit, without a message
    return status


async def _in_session(command: CliCommand, invocation: CliInvocation) -> int:
    with freeze_imports():
        run = cast("Run", loaded(command.run))
        if command.needs_api:
            from unbounded.cli.plugin.target import open_api  # noqa: PLC0415
    if not command.needs_api:
        return await run(offline(invocation))
    async with open_api(invocation) as api:
        return await run(CommandSession(invocation, api, printer_for(invocation)))


class _Closed:
    """Replacement for the API in a command that needs none."""

    def __getattr__(self, name: str) -> NoReturn:
        raise TypeError(f"{name}: the command's row says needs_api=False")


def offline(invocation: CliInvocation) -> CommandSession:
    """Return the session of a command that needs no API."""
    return CommandSession(invocation, cast("HttpApi", cast("Any", _Closed())), printer_for(invocation))


def _leave_quietly(invocation: CliInvocation) -> None:
    """Keep Python from flushing to the closed pipe again at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), invocation.out.fileno())
