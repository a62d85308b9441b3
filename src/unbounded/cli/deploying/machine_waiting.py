"""Waiting for a Machine to be Ready. Leaving (Ctrl-C, --timeout) leaves the Machine as it is: machina goes on."""

from __future__ import annotations

import asyncio
from typing import Final

from unbounded.api.machine import MACHINES, Machine, MachinePhase
from unbounded.cli.plugin import progress
from unbounded.cli.plugin.command import DONE, CliError, Session
from unbounded.cli.plugin.following import following
from unbounded.cli.plugin.views import view_for
from unbounded.cli.plugin.waiting import limited, next_change
from unbounded.cli.printable import one_line

ENDS: Final = frozenset({MachinePhase.READY, MachinePhase.FAILED})


async def wait_machine(session: Session, machine: Machine, *, timeout_s: float | None) -> int:
    """Show a Machine until it is Ready; the exit status.

    Args:
        machine: as it was when it was made: another one of its name is not it.
        timeout_s: how long at most; None for as long as it takes.
    Raises:
        CliError: it is Failed, though machina goes on trying, it was deleted, or the time was up (TIMED_OUT).
        Forbidden: it may not be watched.
    """
    what, program = f"machine/{machine.name}", session.told.program
    async with limited(session, what, f"`{program} why {what}` says why", timeout_s, late="is not Ready"):
        last = await _settled(session, machine)
    if last.status.phase == MachinePhase.READY:
        session.printer.say(f"{what} is Ready")
        return DONE
    raise CliError(
        f"{what} is Failed: {one_line(last.status.message or '')}".rstrip(": "),
        next_step=f"machina tries again by itself; `{program} why {what}` says more",
    )


async def _settled(session: Session, machine: Machine) -> Machine:
    """The Machine as soon as it is Ready or Failed."""
    changed, last = asyncio.Event(), machine
    async with following(session.api, MACHINES, machine.name, changed) as followed:
        with view_for(session) as view:
            while True:
                now = followed.now
                if now is not None and now.metadata.uid == machine.metadata.uid:
                    last = now
                elif followed.synced:
                    raise CliError(f"machine/{machine.name} was deleted")
                view.show(progress.of_machine(last), followed.trouble)
                if now is not None and now.status.phase in ENDS:
                    return now
                await next_change(changed)
