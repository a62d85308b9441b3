"""Confirmation of destructive commands."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final, TextIO

from unbounded.cli.plugin.command import USAGE, CliError, CliInvocation

SHOWN: Final = 20


async def confirm(invocation: CliInvocation, machines: Sequence[str], what: str) -> None:
    """Make the user type the name of the Machine at risk (for several: their number), unless --force is given.

    Args:
        what: the effect on the Machines.

    Raises:
        CliError: the input differs, or there is no terminal.
    """
    if not machines or getattr(invocation.args, "force", False):
        return
    desired = machines[0] if len(machines) == 1 else f"{len(machines)} machines"
    if not invocation.stdin.isatty():
        text = f"confirm by typing {desired!r}; this needs a terminal"
        raise CliError(text, next_step="--force skips the confirmation", status=USAGE)
    print(_question(machines, desired, what), end="", file=invocation.err, flush=True)
    if (await _line(invocation.stdin)).strip() != desired:
        raise CliError("the text differs: nothing was changed")


def _question(machines: Sequence[str], desired: str, what: str) -> str:
    head = f"{desired}: {what}.\n"
    if len(machines) > 1:
        more = f" and {len(machines) - SHOWN} more" if len(machines) > SHOWN else ""
        head += f"  {', '.join(machines[:SHOWN])}{more}\n"
    return f"{head}Type `{desired}` to continue: "


async def _line(source: TextIO) -> str:
    """Read a line of a terminal, without a thread that would outlive Ctrl-C."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(source.fileno(), ready.set)
    try:
        await ready.wait()
        with contextlib.suppress(OSError):  # the terminal was closed
            return source.readline()
        return ""
    finally:
        loop.remove_reader(source.fileno())
