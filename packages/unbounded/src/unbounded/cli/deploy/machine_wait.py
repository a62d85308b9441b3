"""Waiting for a Machine to be Ready. An interruption (Ctrl-C, --timeout) does not change the Machine."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from unbounded.api.failures import Failure
from unbounded.api.machine import MACHINES, Machine, MachinePhase
from unbounded.cli.explain.links import Topic
from unbounded.cli.explain.run import explained
from unbounded.cli.plugin import progress
from unbounded.cli.plugin.command import DONE, TIMED_OUT, CliError, CommandSession
from unbounded.cli.plugin.object_watch import watched_object
from unbounded.cli.plugin.progress_views import view_for
from unbounded.cli.plugin.wait import limited, next_change
from unbounded.cli.printable import one_line

ENDS: Final = frozenset({MachinePhase.READY, MachinePhase.FAILED})


async def wait_machine(session: CommandSession, machine: Machine, *, timeout_s: float | None) -> int:
    """Show a Machine until it is Ready; returns the exit status.

    Args:
        machine: as it was created: a later Machine of the same name is another one.
        timeout_s: None for no limit.

    Raises:
        CliError: it is Failed, it was deleted, or the time was up (TIMED_OUT); with machina's next step.
        Forbidden: the user may not watch it.
    """
    what, program = f"machine/{machine.name}", session.invocation.program
    try:
        async with limited(session, what, f"`{program} why {what}` explains it", timeout_s, late="is not Ready"):
            last = await _settled(session, machine)
    except CliError as error:
        if error.status != TIMED_OUT:
            raise
        text = f"{what} is not Ready within {timeout_s:g} s"
        raise CliError(text, next_step=await _what_follows(session, machine), status=TIMED_OUT) from None
    if last.status.phase == MachinePhase.READY:
        session.printer.info(f"{what} is Ready")
        return DONE
    text = f"{what} is Failed: {one_line(last.status.message or '')}".rstrip(": ")
    raise CliError(text, next_step=await _what_follows(session, machine))


async def _what_follows(session: CommandSession, machine: Machine) -> str:
    """Return what machina does next and the user's options, from the analysis of `why`."""
    program, lines = session.invocation.program, list[str]()
    with contextlib.suppress(CliError, Failure):  # the Machine is gone, or the user may not read it
        links, _, _ = await explained(session.api, Topic.MACHINE, machine.name, program=program)
        lines += [f"blocked by: {links[-1].about} {links[-1].what}"] if len(links) > 1 else []
        lines += [f"next: {link.next_step}" for link in links[-1:] if link.next_step]
        fixes = [fix for link in reversed(links) for fix in link.fixes]
        lines += [f"try:  {fix.command}\n      # {fix.does}" for fix in fixes[:1]]
    return "\n".join((*lines, f"`{program} why machine/{machine.name}` explains it"))


async def _settled(session: CommandSession, machine: Machine) -> Machine:
    """Wait until the Machine is Ready or Failed, and return it."""
    changed, last = asyncio.Event(), machine
    async with watched_object(session.api, MACHINES, machine.name, changed) as followed:
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
